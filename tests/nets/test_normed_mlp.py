"""Normalized perceptrons against PyTorch's modules, seed by seed."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from operant.nets import Slot, Slots, StackedNormedMLP, shares

SEEDS = (3, 5)


def parameters(slots, seeds=SEEDS):
    return torch.stack([slots.initial(torch.Generator().manual_seed(seed)) for seed in seeds])


def module(network, views, seed):
    """Return the network of one seed made of PyTorch's layers."""
    layers, views = [], [view[seed] for view in views]
    for _ in range(network.depth):
        weight, scale, shift = views[:3]
        linear, norm = nn.Linear(*weight.shape, bias=False), nn.LayerNorm(weight.shape[1], eps=1e-3)
        linear.weight.data, norm.weight.data, norm.bias.data = weight.T, scale[0], shift[0]
        layers += [linear, norm, nn.SiLU()]
        views = views[3:]
    if views:
        linear = nn.Linear(*views[0].shape)
        linear.weight.data, linear.bias.data = views[0].T, views[1][0]
        layers.append(linear)
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("hidden", "outputs"), [((6, 7), 2), ((6,), None), ((), 2)])
def test_each_seed_is_a_separate_network(hidden, outputs):
    network = StackedNormedMLP(4, hidden, outputs)
    found = parameters(network)
    found.add_(torch.randn(found.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    inputs = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(1))
    views = network.views(found)
    for seed in range(2):
        assert_close(network(views, inputs)[seed], module(network, views, seed)(inputs[seed]))


def test_initial_weights():
    network = StackedNormedMLP(200, (300,), 5, gain=0.0)
    first, scale, shift, last, bias = network.views(parameters(network))
    assert first.std().item() == pytest.approx(200**-0.5, rel=0.02)
    assert first.abs().max().item() <= 2 / 0.8796 * 200**-0.5 + 1e-6
    assert (scale == 1).all()
    for zero in (shift, last, bias):
        assert (zero == 0).all()
    assert not torch.equal(first[0], first[1])


def test_views_share_the_memory_of_the_parameters():
    slots = Slots([Slot((2, 3), 2, 1.0), Slot((4,), gain=7.0)])
    assert (slots.size, slots.sizes) == (10, [6, 4])
    found = parameters(slots)
    weight, constant = slots.views(found)
    assert (weight.shape, constant.shape) == ((2, 2, 3), (2, 4))
    assert (constant == 7).all()
    found[1, 0] = 42.0
    assert weight[1, 0, 0] == 42.0


def test_parts_in_a_row_get_their_own_views():
    parts = [Slots([Slot((1,))] * count) for count in (2, 1, 3)]
    views = [torch.tensor(float(n)) for n in range(6)]
    assert [[int(view) for view in share] for share in shares(parts, views)] == [[0, 1], [2], [3, 4, 5]]


def test_another_nonlinearity_in_hidden_layers():
    network = StackedNormedMLP(4, (6,), None, activation=torch.relu)
    found = parameters(network)
    inputs = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(1))
    (weight, *_) = network.views(found)
    before = nn.functional.layer_norm(inputs @ weight, (6,), eps=1e-3)
    assert_close(network(network.views(found), inputs), before.clamp(min=0))
