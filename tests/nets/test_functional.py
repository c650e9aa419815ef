"""Buffers and frozen parameters of modules from users are constants, and seeds share nothing else."""

import pytest
import torch
from torch import nn

from operant.nets import FunctionalModule, ModuleError, StackedMLP, untraceable


class Plain(FunctionalModule):
    """Functional module without a check of the output."""

    def check(self, found, samples):
        return found


class Scaled(nn.Module):
    """Module that multiplies by a constant and by a parameter."""

    def __init__(self, inputs, *, random=False, counting=False):
        super().__init__()
        self.register_buffer("constant", torch.rand(inputs) if random else torch.arange(1.0, inputs + 1))
        self.weight, self.counting = nn.Parameter(torch.randn(inputs)), counting

    def forward(self, obs):
        if self.counting:
            self.constant += 1
        return obs * self.constant * self.weight


def test_constants_are_the_same_for_all_seeds_and_parameters_are_not():
    stack = Plain(Scaled, [3], [(3,)])
    own = torch.stack([stack.initial_module(torch.Generator().manual_seed(seed)) for seed in (0, 1)])
    assert stack.parameters == 3
    assert stack.layout == ["weight [3]"]
    assert not torch.equal(own[0], own[1])
    obs = torch.rand(2, 5, 3)
    torch.testing.assert_close(stack.run(own, obs), obs * torch.tensor([1.0, 2.0, 3.0]) * own.unsqueeze(1))
    assert torch.equal(stack.by_name(own)["weight"], own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random": True}, r"Scaled initializes constants at random \(constant\), which all seeds would share"),
        ({"counting": True}, r"Scaled has buffers \(constant\), which change outside of gradients"),
    ],
)
def test_buffers_that_are_no_constants_are_named(options, message):
    with pytest.raises(ModuleError, match=message):
        Plain(lambda inputs: Scaled(inputs, **options), [3], [(3,)])


def test_lazy_layers_are_named():
    with pytest.raises(
        ModuleError, match=r"Sequential has parameters of unknown shapes \(0.weight, 0.bias\): use layers"
    ):
        Plain(lambda inputs: nn.Sequential(nn.LazyLinear(inputs)), [3], [(3,)])


def test_initial_parameters_depend_only_on_the_seed():
    def drawn(inputs):
        made = nn.Linear(inputs, 2)
        nn.init.normal_(made.weight, generator=numbers)
        return made

    numbers = torch.Generator().manual_seed(0)
    with pytest.raises(
        ModuleError, match=r"Linear has other initial parameters with the same seed.*draw them with torch"
    ):
        Plain(drawn, [3], [(3,)])


class Pretrained(nn.Module):
    """A layer that is not trained, and one that is."""

    def __init__(self, inputs, *, random=False):
        super().__init__()
        self.body, self.head = nn.Linear(inputs, 4), nn.Linear(4, 2)
        self.body.requires_grad_(False)
        if not random:
            nn.init.constant_(self.body.weight, 0.5)
            nn.init.zeros_(self.body.bias)

    def forward(self, obs):
        return self.head(self.body(obs).tanh())


def test_parameters_without_gradients_are_constants():
    stack, obs = Plain(Pretrained, [3], [(3,)]), torch.rand(2, 5, 3)
    assert stack.layout == ["head.weight [2, 4]", "head.bias [2]"]
    own = torch.rand(2, stack.parameters)
    features = (0.5 * obs.sum(-1, keepdim=True)).tanh().expand(2, 5, 4)
    parts = stack.by_name(own)
    expected = features @ parts["head.weight"].mT + parts["head.bias"].unsqueeze(1)
    torch.testing.assert_close(stack.run(own, obs), expected)
    assert torch.equal(stack.initial_copy().body.weight, torch.full((4, 3), 0.5))
    with pytest.raises(
        ModuleError, match=r"initializes constants at random \(body.weight, body.bias\), which all seeds"
    ):
        Plain(lambda inputs: Pretrained(inputs, random=True), [3], [(3,)])


def test_one_network_after_another_gives_the_results_of_all_together():
    stack = Plain(Scaled, [3], [(3,)])
    own, obs = torch.rand(2, 3), torch.rand(2, 5, 3)
    together = stack.run(own, obs)
    stack.at_once = False
    assert torch.equal(stack.run(own, obs), together)


class Looping(Scaled):
    """Module that writes to its own tensor, which only one network at a time can do."""

    def forward(self, obs):
        found = torch.zeros(obs.shape)
        found[:, 0] = super().forward(obs)[:, 0]
        return found


class Deciding(Scaled):
    """Module that branches on numbers."""

    def forward(self, obs):
        return super().forward(obs) if obs.detach().sum() > -1e9 else obs


class Routing(Scaled):
    """Module whose shapes depend on numbers."""

    def forward(self, obs):
        found, chosen = torch.zeros(obs.shape), obs[:, 0] > 0.5
        found[chosen] = super().forward(obs[chosen])
        return found


def test_modules_with_branches_or_shapes_that_depend_on_values_cannot_be_compiled():
    stacks = [Plain(make, [3], [(3,)]) for make in (Scaled, Looping, Deciding, Routing)]
    assert [stack.at_once for stack in stacks] == [True, False, False, False]
    others = [StackedMLP([2, 3], activation="tanh"), *stacks[:2]]
    assert untraceable(others) is None
    assert untraceable([*others, stacks[2]]) == "Deciding"
    assert untraceable([*others, stacks[3]]) == "Routing"
