import pytest
import torch

from operant.nets import Ensemble, EnsemblePass, StackedMLP

SIZES = (3, 5, 4, 2)
MEMBERS = pytest.mark.parametrize("members", [1, 2, 3])


def randn(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(members, seeds=2, dtype=torch.float32):
    ensemble = Ensemble(StackedMLP(SIZES, activation="relu"), members=members)
    return ensemble, randn(0, seeds, members * ensemble.mlp.size, dtype=dtype)


def separate(members, parameters, inputs):
    """Compute every member of every seed separately, `[K, S, M, out]`."""
    mlp = StackedMLP(SIZES, activation="relu")
    rows = parameters.view(len(parameters), members, mlp.size)
    return torch.stack(
        [
            torch.cat([mlp(mlp.layers(rows[s, k : k + 1]), inputs[s : s + 1]) for s in range(len(rows))])
            for k in range(members)
        ]
    )


@MEMBERS
def test_members_are_separate_networks(members):
    ensemble, parameters = made(members)
    inputs = randn(1, 2, 7, 3)
    outputs = ensemble.bind(parameters)(inputs)
    assert outputs.shape == (members, 2, 7, 2)
    torch.testing.assert_close(outputs, separate(members, parameters, inputs))


@MEMBERS
def test_the_gradient_of_a_pass_is_that_of_autograd(members):
    ensemble, parameters = made(members)
    inputs, weights = randn(1, 2, 7, 3), randn(2, members, 2, 7, 2)
    networks = EnsemblePass(ensemble.bind(parameters), inputs)
    gradient = networks.gradient((weights * networks.outputs.square()).sum())
    leaf = parameters.clone().requires_grad_()
    (expected,) = torch.autograd.grad((weights * separate(members, leaf, inputs).square()).sum(), leaf)
    torch.testing.assert_close(gradient, expected)


@MEMBERS
def test_frozen_networks_differentiate_by_their_inputs_alone(members):
    ensemble, parameters = made(members, dtype=torch.float64)
    parameters.requires_grad_()
    inputs = randn(1, 2, 4, 3, dtype=torch.float64).requires_grad_()
    bound = ensemble.bind(parameters)
    torch.testing.assert_close(bound.frozen(inputs), separate(members, parameters, inputs))
    assert torch.autograd.gradcheck(bound.frozen, inputs)
    bound.frozen(inputs).sum().backward()
    assert inputs.grad is not None
    assert parameters.grad is None


@MEMBERS
def test_the_first_members_share_their_memory(members):
    ensemble, parameters = made(members)
    bound, inputs = ensemble.bind(parameters), randn(1, 2, 7, 3)
    first = bound.first()
    torch.testing.assert_close(first(inputs), bound(inputs)[:1])
    parameters.mul_(0.5)
    torch.testing.assert_close(first(inputs), bound(inputs)[:1])


def test_members_begin_differently_and_seeds_by_their_own_generator():
    ensemble = Ensemble(StackedMLP((3, 4, 1), activation="tanh"), members=2)

    def initial(*seeds):
        return ensemble.initial([torch.Generator().manual_seed(seed) for seed in seeds], [(1, 1.0)])

    parameters = initial(1, 2)
    assert parameters.shape == (2, 2 * ensemble.mlp.size)
    one, other = parameters[0].view(2, -1)
    assert not torch.equal(one, other)
    assert torch.equal(initial(2)[0], parameters[1])


def test_an_ensemble_of_none_is_rejected():
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        Ensemble(StackedMLP(SIZES, activation="relu"), members=0)
