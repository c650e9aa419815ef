import pytest
import torch

from operant.nets.action_values import ActionValues, ValuePass


def networks(*, seeds=2, seed=0, bounds=None, **shape):
    """Return action values for observations of 3 numbers and 4 actions, with random parameters."""
    values = ActionValues(3, 4, **{"hidden": (8, 6), "activation": "tanh", **shape}, bounds=bounds)
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(seeds, values.size, generator=generator)
    if values.mask is not None:
        parameters *= values.mask
    return values, parameters, torch.randn(seeds, 5, 3, generator=generator)


def slow(values, parameters, obs, hidden):
    """Compute the values of one seed layer by layer, with separate streams of a dueling network."""
    at = 0

    def layer(x, width):
        nonlocal at
        weight = parameters[at : at + x.shape[-1] * width].view(x.shape[-1], width)
        bias = parameters[at + weight.numel() : at + weight.numel() + width]
        at += weight.numel() + width
        return x @ weight + bias, weight, bias

    x = obs
    *encoder, last = hidden
    for width in encoder:
        x = layer(x, width)[0].tanh()
    if not values.dueling:
        return layer(layer(x, last)[0].tanh(), values.actions)[0]
    x = layer(x, 2 * last)[0].tanh()
    _, weight, bias = layer(x, 1 + values.actions)
    value = x[:, :last] @ weight[:last, :1] + bias[:1]
    advantage = x[:, last:] @ weight[last:, 1:] + bias[1:]
    return value + advantage - advantage.mean(-1, keepdim=True)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [(8, 6), (5,)], ids=str)
def test_values_and_gradient_equal_those_of_a_slow_network(dueling, hidden):
    values, parameters, obs = networks(hidden=hidden, dueling=dueling)
    weights = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    leaf = parameters.clone().requires_grad_()
    expected = torch.stack([slow(values, leaf[s], obs[s], hidden) for s in range(2)])
    bound = values.bind(parameters)
    forward = ValuePass(bound, obs)
    torch.testing.assert_close(bound(obs), expected.detach())
    torch.testing.assert_close(forward.values.detach(), expected.detach())
    gradient = forward.gradient((forward.values.square() * weights).sum())
    (slow_gradient,) = torch.autograd.grad((expected.square() * weights).sum(), leaf)
    torch.testing.assert_close(gradient, slow_gradient, rtol=1e-3, atol=1e-4)


def test_a_dueling_network_has_two_streams_that_stay_apart():
    values, _, obs = networks(dueling=True)
    parameters = values.initial([torch.Generator().manual_seed(seed) for seed in range(2)])
    kept = values.mask.bool()
    assert (~kept).sum() == 6 * 4 + 6 * 1
    assert not parameters[:, ~kept].any()
    forward = ValuePass(values.bind(parameters), obs)
    gradient = forward.gradient(forward.values.square().sum())
    assert not gradient[:, ~kept].any()
    assert gradient[:, kept].abs().sum() > 0


@pytest.mark.parametrize("dueling", [False, True])
def test_initial_parameters_are_uniform_and_belong_to_the_seed(dueling):
    values, _, _ = networks(dueling=dueling, hidden=(50, 40))

    def initial(*seeds):
        return values.initial([torch.Generator().manual_seed(seed) for seed in seeds])

    parameters = initial(0, 1)
    assert not torch.equal(parameters[0], parameters[1])
    assert torch.equal(initial(1)[0], parameters[1])
    for weight, bias in values.mlp.layers(parameters):
        bound = weight.shape[1] ** -0.5
        assert 0.9 * bound < weight.abs().max() <= bound
        assert bias.abs().max() <= bound
        assert bias.unique().numel() == bias.numel()


@pytest.mark.parametrize("pixels", [10, 84])
def test_filters_begin_uniform_within_the_root_of_all_their_inputs(pixels):
    values = ActionValues((4, pixels, pixels), 3, hidden=(8,), activation="relu")
    parameters = values.initial([torch.Generator().manual_seed(0)])
    layers = values.mlp.layers(parameters)
    reference = [torch.nn.Conv2d(shape[1], shape[0], shape[2]) for shape in values.mlp.filters]
    assert len(reference) == (1 if pixels == 10 else 3)
    for (weight, bias), conv in zip(layers, reference, strict=False):
        bound = conv.weight[0].numel() ** -0.5  # torch's own filters are within it, too
        assert conv.weight.abs().max() <= bound
        assert 0.9 * bound < weight.abs().max() <= bound
        assert bias.abs().max() <= bound


def test_bounds_as_wide_as_numbers_go_do_not_scale():
    most = torch.finfo(torch.float32).max
    values, _, _ = networks(bounds=(torch.tensor([-most, 0.0, -1.0]), torch.tensor([most, 1.0, 1.0])))
    shift, scale = values.affine
    assert scale.tolist() == [1.0, 2.0, 1.0]
    assert shift.tolist() == [0.0, -1.0, 0.0]


def test_observations_are_scaled_between_finite_bounds():
    bounds = torch.tensor([-2.0, -torch.inf, 5.0]), torch.tensor([0.0, 1.0, 15.0])
    plain, parameters, _ = networks(seed=3)
    scaled, _, _ = networks(seed=3, bounds=bounds)
    obs = torch.tensor([[-2.0, 7.0, 5.0], [0.0, -7.0, 15.0], [-1.0, 0.0, 10.0]]).expand(2, -1, -1)
    unit = torch.tensor([[-1.0, 7.0, -1.0], [1.0, -7.0, 1.0], [0.0, 0.0, 0.0]]).expand(2, -1, -1)
    torch.testing.assert_close(scaled.bind(parameters)(obs), plain.bind(parameters)(unit))
    forward = ValuePass(scaled.bind(parameters), obs)
    expected = ValuePass(plain.bind(parameters), unit)
    actual = forward.gradient(forward.values.sum())
    torch.testing.assert_close(actual, expected.gradient(expected.values.sum()), rtol=1e-4, atol=1e-4)
    constant = torch.tensor([1.0] * 3), torch.tensor([1.0] * 3)
    assert networks(bounds=constant)[0].affine[1].tolist() == [1.0] * 3


def test_bound_networks_share_the_memory_of_the_parameters():
    values, parameters, obs = networks(dueling=True)
    bound = values.bind(parameters)
    before = bound(obs)
    parameters.mul_(0.5)
    assert not torch.equal(bound(obs), before)


def test_dueling_without_a_hidden_layer_is_rejected():
    with pytest.raises(ValueError, match="hidden must have at least one layer for the two streams"):
        networks(hidden=(), dueling=True)
