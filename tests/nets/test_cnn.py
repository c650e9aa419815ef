from math import sqrt

import pytest
import torch
from torch import nn

from operant.nets import StackedCNN
from operant.nets.cnn import ENCODERS, Convolution

MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU}
SHAPES = {"small": (2, 5, 6), "impala": (2, 9, 8), "nature": (1, 36, 37)}
SIZES = (5, 3)
EVERY_TORSO = pytest.mark.parametrize("encoder", SHAPES)
SEEDS = pytest.mark.parametrize("seeds", [1, 3])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def make(encoder="small", activation="tanh", sizes=SIZES):
    return StackedCNN(SHAPES[encoder], sizes, activation=activation, encoder=encoder)


def parameters_of(cnn, seeds, dtype=torch.float64):
    """Return parameters of realistic size, since random ones explode over many layers."""
    rows = [cnn.initial(rng(seed), [(cnn.dense.shapes[-1][1], 1.0)]) for seed in range(seeds)]
    parameters = torch.stack(rows).to(dtype)
    return parameters + 0.05 * torch.randn(parameters.shape, generator=rng(9), dtype=dtype)


def images(shape, *lead):
    return torch.randint(0, 256, (*lead, *shape), generator=rng(1), dtype=torch.uint8)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1)
        )

    def forward(self, x):
        return x + self.inner(x)


def encoder_of(name, channels):
    """Return the encoder as shown in the paper."""
    if name == "nature":
        sizes = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)]
        return nn.Sequential(*(module for conv in sizes for module in (conv, nn.ReLU())))
    if name == "small":
        return nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU())
    stages = []
    for filters in (16, 32, 32):
        conv, pool = nn.Conv2d(channels, filters, 3, 1, 1), nn.MaxPool2d(3, 2, 1)
        stages += [conv, pool, Residual(filters), Residual(filters)]
        channels = filters
    return nn.Sequential(*stages, nn.ReLU())


def separate(cnn, encoder, row):
    """Return the network of one row of parameters as modules of torch, in their order."""
    modules = [encoder_of(encoder, SHAPES[encoder][0]), nn.Flatten()]
    for width_in, width_out in cnn.dense.shapes:
        modules += [nn.Linear(width_in, width_out), MODULES[cnn.dense.activation]()]
    network = nn.Sequential(*modules[:-1]).to(row.dtype)
    start = 0
    for parameter in network.parameters():
        part = row[start : start + parameter.numel()]
        start += parameter.numel()
        parameter.data = part.view_as(parameter) if parameter.dim() != 2 else part.view(parameter.T.shape).T.clone()
    assert start == cnn.size == len(row)
    return network


@EVERY_TORSO
@SEEDS
@pytest.mark.parametrize("activation", MODULES)
def test_stacked_networks_are_separate_networks(encoder, seeds, activation):
    cnn = make(encoder, activation)
    parameters, inputs = parameters_of(cnn, seeds), images(SHAPES[encoder], seeds, 4)
    layers = cnn.layers(parameters)
    outputs = cnn(layers, inputs)
    assert outputs.shape == (seeds, 4, 3)
    torch.testing.assert_close(cnn.trace(layers, inputs)[-1], outputs)
    for seed in range(seeds):
        expected = separate(cnn, encoder, parameters[seed])(inputs[seed].double() / 255)
        torch.testing.assert_close(outputs[seed], expected)


@EVERY_TORSO
@SEEDS
@pytest.mark.parametrize("sizes", [SIZES, (3,)])
def test_the_pullback_is_the_gradient_of_separate_networks(encoder, seeds, sizes):
    cnn = make(encoder, sizes=sizes)
    parameters, inputs = parameters_of(cnn, seeds), images(SHAPES[encoder], seeds, 4)
    cotangent = torch.randn(seeds, 4, 3, generator=rng(2), dtype=torch.float64)
    layers, before = cnn.layers(parameters), cotangent.clone()
    trace = cnn.trace(layers, inputs)
    length = len(trace)
    pieces = cnn.pullback(layers, trace, cotangent)
    assert len(trace) == length
    assert torch.equal(cotangent, before)
    gradient = torch.cat(pieces, dim=1)
    for seed in range(seeds):
        network = separate(cnn, encoder, parameters[seed])
        (network(inputs[seed].double() / 255) * cotangent[seed]).sum().backward()
        expected = [p.grad.T.flatten() if p.dim() == 2 else p.grad.flatten() for p in network.parameters()]
        torch.testing.assert_close(gradient[seed], torch.cat(expected))


@EVERY_TORSO
def test_autograd_goes_through_as_well(encoder):
    cnn = make(encoder)
    parameters, inputs = parameters_of(cnn, 2).requires_grad_(), images(SHAPES[encoder], 2, 3)
    weights = torch.randn(2, 3, 3, generator=rng(2), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((cnn(cnn.layers(parameters), inputs) * weights).sum(), parameters)
    layers = cnn.layers(parameters.detach())
    pieces = cnn.pullback(layers, cnn.trace(layers, inputs), weights)
    torch.testing.assert_close(torch.cat(pieces, dim=1), gradient)


@EVERY_TORSO
@SEEDS
@pytest.mark.parametrize("beside", [0, 3])
def test_numbers_next_to_an_image_join_the_features_of_the_encoder(encoder, seeds, beside):
    shape = SHAPES[encoder]
    cnn = StackedCNN(shape, SIZES, activation="tanh", encoder=encoder, beside=beside)
    parameters, seen = parameters_of(cnn, seeds), images(shape, seeds, 4)
    numbers = torch.randn(seeds, 4, beside, generator=rng(3), dtype=torch.float64)
    inputs = torch.cat((seen.flatten(2).double(), numbers), dim=-1)
    layers = cnn.layers(parameters)
    cotangent = torch.randn(seeds, 4, 3, generator=rng(2), dtype=torch.float64)
    trace = cnn.trace(layers, inputs)
    torch.testing.assert_close(trace[-1], cnn(layers, inputs))
    gradient = torch.cat(cnn.pullback(layers, trace, cotangent), dim=1)
    for seed in range(seeds):
        network = separate(cnn, encoder, parameters[seed])
        maps = network[:2](seen[seed].double() / 255)
        outputs = network[2:](torch.cat((maps, numbers[seed]), dim=1))
        torch.testing.assert_close(trace[-1][seed], outputs)
        (outputs * cotangent[seed]).sum().backward()
        expected = [p.grad.T.flatten() if p.dim() == 2 else p.grad.flatten() for p in network.parameters()]
        torch.testing.assert_close(gradient[seed], torch.cat(expected))


def test_more_images_than_a_chunk_give_the_same(monkeypatch):
    cnn = make()
    layers, inputs = cnn.layers(parameters_of(cnn, 2)), images(SHAPES["small"], 2, 7)
    whole = cnn(layers, inputs)
    monkeypatch.setattr("operant.nets.cnn.CHUNK", 3)
    torch.testing.assert_close(cnn(layers, inputs), whole)


def test_layers_are_views():
    cnn = make("impala")
    parameters = torch.zeros(2, cnn.size)
    for weight, bias in cnn.layers(parameters):
        weight.fill_(1)
        bias.fill_(2)
    assert parameters.count_nonzero() == parameters.numel()


def test_the_networks_of_the_papers_have_their_sizes():
    nature = StackedCNN((4, 84, 84), (512, 6), activation="relu")
    assert nature.maps == (64, 7, 7)
    assert nature.size == 32 * 4 * 64 + 32 + 64 * 32 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512 + 512 * 6 + 6
    impala = StackedCNN((4, 84, 84), (256, 6), activation="relu", encoder="impala")
    assert impala.maps == (32, 11, 11)
    assert len(impala.filters) == 15


def test_initial_weights_are_orthogonal():
    cnn = make("nature")
    flat = cnn.initial(rng(), [(2, 0.01), (1, 1.0)])
    *layers, (last, _) = pairs = cnn.layers(flat.unsqueeze(0))
    for weight, _ in layers:
        matrix = weight[0].flatten(1)
        gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        torch.testing.assert_close(gram, sqrt(2) ** 2 * torch.eye(len(gram)), atol=1e-5, rtol=0)
    torch.testing.assert_close(last[0, :, :2].norm(dim=0), torch.full((2,), 0.01))
    torch.testing.assert_close(last[0, :, 2].norm(), torch.tensor(1.0))
    assert all(bias.count_nonzero() == 0 for _, bias in pairs)


def test_the_encoder_is_chosen_by_the_size_of_the_image():
    kinds = {side: StackedCNN((1, side, 40), (2,), activation="relu").pieces for side in (35, 36)}
    assert kinds[36] == list(ENCODERS["nature"])
    assert kinds[35] == list(ENCODERS["small"])


def test_residual_blocks_keep_the_number_of_channels():
    assert [piece.filters for piece in make("impala").pieces if isinstance(piece, Convolution)] == [16] * 5 + [32] * 10


@pytest.mark.parametrize(("encoder", "side"), [("nature", 35), ("small", 2)])
def test_images_that_are_too_small_are_rejected(encoder, side):
    with pytest.raises(ValueError, match=f"images of {side} x {side} pixels are too small for the encoder '{encoder}'"):
        StackedCNN((1, side, side), (2,), activation="relu", encoder=encoder)


def test_an_unknown_encoder_is_rejected():
    with pytest.raises(ValueError, match="encoder must be one of auto, nature, impala, small, got 'resnet'"):
        StackedCNN((1, 40, 40), (2,), activation="relu", encoder="resnet")


@pytest.mark.parametrize("shape", [(40, 40), (0, 40, 40)])
def test_spaces_other_than_images_are_rejected(shape):
    with pytest.raises(ValueError, match=r"images need a shape \(channels, height, width\), got"):
        StackedCNN(shape, (2,), activation="relu")
