import pytest
import torch

from operant.nets import Ensemble, EnsemblePass, StackedMLP, agreement, parted_mlp
from operant.nets.ensemble import LEAST_IN_PARTS
from operant.nets.parted_mlp import PartedMLP

PARTS = 4


def randn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def networks(sizes, members=1, seeds=1, activation="relu"):
    """Return networks for the samples of one part, and for those of all parts, with equal parameters."""
    alone = Ensemble(StackedMLP(sizes, activation=activation), members=members)
    together = Ensemble(PartedMLP(alone.mlp, PARTS), members=members)
    parameters = 0.1 * randn(0, seeds, members * alone.mlp.size)
    return alone.bind(parameters), together.bind(parameters)


def results(bound, inputs):
    """Return outputs `[S, K, M, out]`, the gradients `[S, P]` of parameters, and those of inputs `[S, M, in]`."""
    forward = EnsemblePass(bound, inputs)
    outputs = forward.outputs.detach().transpose(0, 1).clone()
    gradient = forward.gradient(forward.outputs.square().mean((0, 2, 3)).sum())
    leaf = inputs.clone().requires_grad_()
    (by_inputs,) = torch.autograd.grad(bound.frozen(leaf).square().sum(), leaf)
    assert torch.equal(bound(inputs).transpose(0, 1), outputs)
    return outputs, gradient, by_inputs


def each(bound, inputs, seeds):
    """Return the same for each part alone, in the order seed, part."""
    parts = inputs.unflatten(0, (seeds, PARTS))
    found = [results(bound, parts[:, number].contiguous()) for number in range(PARTS)]
    return [torch.stack(column, 1).flatten(0, 1) for column in zip(*found, strict=True)]


@pytest.fixture
def early_agreement(monkeypatch):
    """Let parts count as equal after a few equal results, so that both ways are tested."""
    monkeypatch.setattr(agreement, "ENOUGH", 1)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("members", "seeds"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize(
    ("samples", "sizes"), [(64, (4, 256, 256, 1)), (64, (20, 32, 2)), (1, (3, 64, 2)), (5, (3, 2))]
)
def test_every_part_has_the_bits_that_it_has_alone(samples, sizes, members, seeds, activation):
    alone, together = networks(sizes, members, seeds, activation)
    inputs = randn(1, seeds * PARTS, samples, sizes[0])
    for _ in range(3):  # the first numbers are computed in both ways
        for found, expected in zip(results(together, inputs), each(alone, inputs, seeds), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("members", [1, 2])
def test_equal_products_are_computed_together(members, monkeypatch):
    alone, together = networks((4, 32, 32, 2), members)
    inputs = randn(1, PARTS, 64, 4)
    results(together, inputs)
    for way in together.shape.mlp._ways.values():
        way.equal, way.differs = agreement.ENOUGH, False
    monkeypatch.delattr(PartedMLP, "_part")
    for found, expected in zip(results(together, inputs), each(alone, inputs, 1), strict=True):
        torch.testing.assert_close(found, expected)


def test_products_that_round_in_another_way_are_not_used(early_agreement, monkeypatch):
    alone, together = networks((20, 32, 32, 2), members=2)
    inputs = randn(1, PARTS, 16, 20)
    exact = each(alone, inputs, 1)
    product, calls = parted_mlp.product, list[int]()

    def other(*args, **options):
        calls.append(1)
        return product(*args, **options).nextafter(torch.tensor(torch.inf))

    monkeypatch.setattr(parted_mlp, "product", other)
    for _ in range(3):
        for found, expected in zip(results(together, inputs), exact, strict=True):
            assert torch.equal(found, expected)
    assert len(calls) == len(together.shape.mlp._ways), "each way was tried once"


def test_the_library_is_chosen_by_the_shape_of_a_part(monkeypatch):
    _, together = networks((20, 32, 32, 20), members=2)
    found = list[tuple[int, ...]]()
    product = parted_mlp.product

    def noted(left, right, *, like, **options):
        found.append((*like, right.shape[2]))
        return product(left, right, like=like, **options)

    monkeypatch.setattr(parted_mlp, "product", noted)
    results(together, randn(1, PARTS, 16, 20))
    forward, outer = (
        [(2, 16, 20, 32), (2, 16, 32, 32), (2, 16, 32, 20)],
        [(2, 32, 16, 20), (2, 32, 16, 32), (2, 20, 16, 32)],
    )
    back = [(2, 16, 20, 32), (2, 16, 32, 32)]
    for shape in (*forward, *outer, *back):
        assert shape in found
    assert {shape[0] for shape in found} == {2}


def test_small_networks_and_modules_from_outside_are_copied():
    size = StackedMLP((4, 256, 256, 1), activation="relu").size
    assert size >= LEAST_IN_PARTS
    assert Ensemble(StackedMLP((4, 256, 256, 1), activation="relu"), members=2).in_parts(4).parts == 4
    assert Ensemble(StackedMLP((4, 64, 64, 1), activation="relu"), members=2).in_parts(4) is None
