from itertools import pairwise
from math import sqrt

import pytest
import torch

from operant.nets import StackedMLP

SIZES = (3, 5, 4, 2)
MODULES = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
ACTIVATIONS = pytest.mark.parametrize("activation", ["tanh", "relu"])
SEEDS = pytest.mark.parametrize("seeds", [1, 3])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters_of(mlp, seeds, dtype=torch.float32):
    return torch.randn(seeds, mlp.size, generator=rng(), dtype=dtype)


def separate(mlp, row):
    """Return the network of one row of parameters as modules of torch."""
    layers, start = [], 0
    for width_in, width_out in mlp.shapes:
        linear = torch.nn.Linear(width_in, width_out, dtype=row.dtype)
        weight = row[start : start + width_in * width_out].view(width_in, width_out)
        start += width_in * width_out
        bias = row[start : start + width_out]
        start += width_out
        linear.weight.data, linear.bias.data = weight.T.clone(), bias.clone()
        layers += [linear, MODULES[mlp.activation]()]
    assert start == mlp.size == len(row)
    return torch.nn.Sequential(*layers[:-1])


@ACTIVATIONS
@SEEDS
@pytest.mark.parametrize("sizes", [SIZES, (3, 2)])
def test_stacked_networks_are_separate_networks(activation, seeds, sizes):
    mlp = StackedMLP(sizes, activation=activation)
    parameters = parameters_of(mlp, seeds)
    inputs = torch.randn(seeds, 7, 3, generator=rng(1))
    outputs = mlp(mlp.layers(parameters), inputs)
    assert outputs.shape == (seeds, 7, 2)
    for seed in range(seeds):
        torch.testing.assert_close(outputs[seed], separate(mlp, parameters[seed])(inputs[seed]))


@ACTIVATIONS
@SEEDS
def test_the_pullback_is_the_gradient_of_separate_networks(activation, seeds):
    mlp = StackedMLP(SIZES, activation=activation)
    parameters = parameters_of(mlp, seeds)
    inputs = torch.randn(seeds, 7, 3, generator=rng(1))
    cotangent = torch.randn(seeds, 7, 2, generator=rng(2))
    layers = mlp.layers(parameters)
    pieces = mlp.pullback(layers, mlp.trace(layers, inputs), cotangent)
    gradient = torch.cat(pieces, dim=1)
    for seed in range(seeds):
        network = separate(mlp, parameters[seed])
        (network(inputs[seed]) * cotangent[seed]).sum().backward()
        linears = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
        expected = [part for layer in linears for part in (layer.weight.grad.T.flatten(), layer.bias.grad)]
        torch.testing.assert_close(gradient[seed], torch.cat(expected))


@ACTIVATIONS
def test_the_pullback_passes_gradcheck(activation):
    mlp = StackedMLP(SIZES, activation=activation)
    inputs = torch.randn(2, 4, 3, generator=rng(1), dtype=torch.float64)

    class Network(torch.autograd.Function):
        @staticmethod
        def forward(ctx, parameters):
            ctx.layers = mlp.layers(parameters)
            ctx.trace = mlp.trace(ctx.layers, inputs)
            return ctx.trace[-1].clone()

        @staticmethod
        def backward(ctx, gradient):
            return torch.cat(mlp.pullback(ctx.layers, ctx.trace, gradient), dim=1)

    parameters = parameters_of(mlp, 2, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(Network.apply, parameters)


@ACTIVATIONS
@SEEDS
@pytest.mark.parametrize("out", [1, 2])
def test_the_gradient_of_the_inputs_is_that_of_autograd(activation, seeds, out):
    mlp = StackedMLP((3, 5, 4, out), activation=activation)
    layers = mlp.layers(parameters_of(mlp, seeds))
    inputs = torch.randn(seeds, 7, 3, generator=rng(1)).requires_grad_()
    cotangent = torch.randn(seeds, 7, out, generator=rng(2))
    (expected,) = torch.autograd.grad((mlp(layers, inputs) * cotangent).sum(), inputs)
    before = cotangent.clone()
    trace = mlp.trace(layers, inputs.detach())
    torch.testing.assert_close(mlp.input_gradient(layers, trace, cotangent), expected)
    assert torch.equal(cotangent, before)


@pytest.mark.parametrize("samples", [7, 100])
@pytest.mark.parametrize("out", [1, 3, 15, 16, 20])
def test_narrow_and_wide_layers_compute_the_same(samples, out):
    mlp = StackedMLP((3, 5, out), activation="relu")
    parameters = parameters_of(mlp, 2, torch.float64)
    inputs = torch.randn(2, samples, 3, generator=rng(1), dtype=torch.float64)
    cotangent = torch.randn(2, samples, out, generator=rng(2), dtype=torch.float64)
    layers = mlp.layers(parameters)
    trace = mlp.trace(layers, inputs)
    pieces = mlp.pullback(layers, trace, cotangent)
    by_inputs = mlp.input_gradient(layers, trace, cotangent)
    for seed in range(2):
        network, leaf = separate(mlp, parameters[seed]), inputs[seed].clone().requires_grad_()
        outputs = network(leaf)
        torch.testing.assert_close(trace[-1][seed], outputs)
        (outputs * cotangent[seed]).sum().backward()
        weight, bias = network[2].weight.grad, network[2].bias.grad
        torch.testing.assert_close(pieces[2][seed], weight.T.flatten())
        torch.testing.assert_close(pieces[3][seed], bias)
        torch.testing.assert_close(by_inputs[seed], leaf.grad)


def test_the_pullback_leaves_the_cotangent_alone():
    mlp = StackedMLP(SIZES, activation="tanh")
    layers = mlp.layers(parameters_of(mlp, 2))
    cotangent = torch.ones(2, 7, 2)
    mlp.pullback(layers, mlp.trace(layers, torch.ones(2, 7, 3)), cotangent)
    assert (cotangent == 1).all()


def test_autograd_goes_through_as_well():
    mlp = StackedMLP(SIZES, activation="relu")
    parameters = parameters_of(mlp, 2, torch.float64).requires_grad_()
    inputs = torch.randn(2, 4, 3, generator=rng(1), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: mlp(mlp.layers(p), inputs), parameters)


def test_layers_are_views():
    mlp = StackedMLP(SIZES, activation="tanh")
    parameters = torch.zeros(2, mlp.size)
    for weight, bias in mlp.layers(parameters):
        weight.fill_(1)
        bias.fill_(2)
    assert parameters.count_nonzero() == parameters.numel()
    shapes = [(tuple(weight.shape), tuple(bias.shape)) for weight, bias in mlp.layers(parameters)]
    assert shapes == [((2, a, b), (2, 1, b)) for a, b in pairwise(SIZES)]


def gram(weight):
    """Return the products of the shorter side's vectors; ``gain² I`` if these are orthogonal."""
    return weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight


def test_initial_weights_are_orthogonal_with_the_documented_gains():
    mlp = StackedMLP((6, 8, 5, 4), activation="tanh")
    flat = mlp.initial(rng(), [(2, 0.01), (1, 1.0)])
    assert flat.shape == (mlp.size,)
    *hidden, (last, _) = layers = mlp.layers(flat.unsqueeze(0))
    for weight, _ in hidden:
        torch.testing.assert_close(gram(weight[0]), sqrt(2) ** 2 * torch.eye(min(weight[0].shape)), atol=1e-5, rtol=0)
    torch.testing.assert_close(gram(last[0, :, :2]), 0.01**2 * torch.eye(2), atol=1e-9, rtol=0)
    torch.testing.assert_close(gram(last[0, :, 2:3]), torch.eye(1), atol=1e-5, rtol=0)
    assert last[0, :, 3].count_nonzero() == 0
    assert all(bias.count_nonzero() == 0 for _, bias in layers)


def test_initial_weights_come_from_the_generator_alone():
    mlp = StackedMLP(SIZES, activation="tanh")
    before = torch.get_rng_state()
    first = mlp.initial(rng(4), [(2, 1.0)])
    assert torch.equal(first, mlp.initial(rng(4), [(2, 1.0)]))
    assert not torch.equal(first, mlp.initial(rng(5), [(2, 1.0)]))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("sizes", [(), (3,), (3, 0), (0, 2), (3, -1, 2)])
def test_invalid_sizes_are_rejected(sizes):
    with pytest.raises(ValueError, match=r"sizes must name an input and an output width, all positive, got \("):
        StackedMLP(sizes, activation="tanh")


def test_an_unknown_activation_is_rejected():
    with pytest.raises(ValueError, match="activation must be 'tanh' or 'relu', got 'gelu'"):
        StackedMLP((1, 1), activation="gelu")
