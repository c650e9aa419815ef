"""One network of a stack computes the same as a module of torch."""

import pytest
import torch
from torch import nn

from operant.nets import Recurrence, StackedNetwork, module_of, network_for


class Both(nn.Module):
    """Module with policy and value, and a constant in a buffer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 8), nn.LayerNorm(8), nn.SiLU())
        self.policy, self.value = nn.Linear(8, outputs), nn.Linear(8, 1)
        self.register_buffer("shift", torch.arange(inputs).float())

    def forward(self, obs):
        features = self.layers(obs + self.shift)
        return self.policy(features), self.value(features)


def features(inputs):
    return nn.Sequential(nn.Linear(inputs, 5), nn.LayerNorm(5), nn.SiLU())


def convolutions(shape):
    return nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.SiLU())


STACKS = {
    "tanh": (network_for((4,), (8, 8, 3), activation="tanh"), (4,)),
    "relu": (network_for((4,), (3,), activation="relu"), (4,)),
    "encoder": (network_for((4,), (8, 3), activation="tanh", encoder=features), (4,)),
    "encoder of images": (network_for((2, 9, 9), (8, 3), activation="relu", encoder=convolutions), (2, 9, 9)),
    "small": (network_for((2, 9, 9), (8, 3), activation="relu"), (2, 9, 9)),
    "impala": (network_for((2, 20, 20), (8, 3), activation="relu", encoder="impala"), (2, 20, 20)),
    "nature": (network_for((1, 40, 40), (8, 3), activation="relu"), (1, 40, 40)),
}


def observations(shape, seeds=2, samples=5):
    if len(shape) == 3:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(256, (seeds, samples, *shape), generator=generator, dtype=torch.uint8)
    return torch.randn(seeds, samples, *shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", STACKS)
def test_a_network_alone_computes_what_the_stack_does(name):
    stack, shape = STACKS[name]
    rows = [stack.initial(torch.Generator().manual_seed(seed), [(3, 1.0)]) for seed in (0, 1)]
    layers, obs = stack.layers(torch.stack(rows) + 0.1), observations(shape)
    expected = stack(layers, obs)
    for index in (0, 1):
        torch.testing.assert_close(module_of(stack, layers, index)(obs[index]), expected[index], rtol=1e-4, atol=1e-5)


def test_a_whole_network_alone_gives_what_the_policy_needs():
    stack = StackedNetwork(Both, (4,), (3, 1))
    parameters = torch.stack([stack.initial(torch.Generator().manual_seed(seed)) for seed in (0, 1)])
    obs = observations((4,))
    module = module_of(stack, stack.layers(parameters), 1)
    expected = stack(stack.layers(parameters), obs)[1, :, :3]
    torch.testing.assert_close(module(obs[1]), expected, rtol=1e-5, atol=1e-6)
    assert not isinstance(module.module, StackedNetwork)


def test_recurrent_networks_are_rejected():
    stack = network_for((4,), (8, 3), activation="tanh", recurrence=Recurrence(units=5, steps=3))
    with pytest.raises(ValueError, match="a StackedGRU, which is no function of one observation"):
        module_of(stack, stack.layers(torch.zeros(1, stack.size)), 0)
