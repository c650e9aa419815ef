"""Whole networks from users compute and learn in a stack as they would alone, and errors name those that cannot."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from operant.nets import (
    ActorCritic,
    Ensemble,
    EnsemblePass,
    ModuleError,
    Pass,
    Spec,
    StackedNetwork,
    head_for,
    whole_network,
)
from operant.nets.action_values import ActionValues, ValuePass

D, M, A = 4, 6, 3


class Both(nn.Module):
    """Module with policy and value on one body with layer normalization and SiLU."""

    def __init__(self, inputs, outputs, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU())
        self.policy, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)

    def forward(self, obs):
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


class Decoder(nn.Module):
    """Module with attention, a decoder with a causal mask in a buffer, and a value."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.embed, self.policy, self.value = nn.Linear(1, 8), nn.Linear(8, outputs), nn.Linear(8, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.register_buffer("mask", torch.ones(inputs, inputs).triu(1).bool())

    def forward(self, obs):
        tokens = self.embed(obs.unsqueeze(-1))
        seen, _ = self.attention(tokens, tokens, tokens, attn_mask=self.mask)
        last = self.decoder(tokens, seen, tgt_mask=self.mask)[:, -1]
        return self.policy(last), self.value(last)


class Deciding(Both):
    """Module that branches on numbers, so that several networks cannot be computed together."""

    def forward(self, obs):
        return super().forward(obs) if float(obs.detach().sum()) > -1e9 else None


class Values(nn.Sequential):
    """One layer with normalization."""

    def __init__(self, inputs, outputs):
        super().__init__(nn.Linear(inputs, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, outputs))


class Critic(nn.Module):
    """The value of an observation and an action, which comes in at the second layer."""

    def __init__(self, inputs, actions):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8 + actions, 1)

    def forward(self, obs, actions):
        return self.last(torch.cat((nn.functional.silu(self.first(obs)), actions), -1)).squeeze(-1)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def alone(network, parameters, *inputs):
    """Return the outputs of a single module with the parameters `[P]`."""
    module = network.make(*network._arguments)
    named = {name: part[0] for name, part in network.by_name(parameters[None]).items()}
    return torch.func.functional_call(module, named, inputs)


def joined(found):
    return torch.cat([part.reshape(len(part), -1) for part in found], 1) if isinstance(found, tuple) else found


@pytest.mark.parametrize("make", [Both, Decoder, Deciding])
@pytest.mark.parametrize("seeds", [1, 3])
def test_outputs_and_gradients_are_those_of_separate_networks(make, seeds):
    network = StackedNetwork(make, (D,), (A, 1))
    assert network.at_once == (make is not Deciding)
    parameters = torch.stack([network.initial(rng(seed)) for seed in range(seeds)])
    assert seeds == 1 or not torch.equal(parameters[0], parameters[1])
    obs, gradient = torch.randn(seeds, M, D, generator=rng(9)), torch.randn(seeds, M, A + 1, generator=rng(5))
    layers = network.layers(parameters)
    with torch.no_grad():
        trace = network.trace(layers, obs)
        pieces = torch.cat(network.pullback(layers, trace, gradient), dim=1)
    assert torch.equal(trace[-1], network(layers, obs))
    for seed in range(seeds):
        leaf = parameters[seed].clone().requires_grad_()
        expected = joined(alone(network, leaf, obs[seed]))
        torch.testing.assert_close(trace[-1][seed], expected.detach(), rtol=1e-5, atol=1e-6)
        (found,) = torch.autograd.grad((expected * gradient[seed]).sum(), leaf)
        torch.testing.assert_close(pieces[seed], found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_actor_and_critic_are_parts_of_one_network_or_of_a_copy_each(shared):
    head = head_for(spaces.Box(-1, 1, (A,)), log_std=-0.5, device=torch.device("cpu"))
    shape = ActorCritic(D, head, Spec((), "tanh", shared, network=Both))
    parameters, obs = shape.initial([rng(3), rng(4)]), torch.randn(2, M, D, generator=rng(2))
    bound, network = shape.bind(parameters), StackedNetwork(Both, (D,), (A, 1))
    assert parameters.shape[1] == (1 if shared else 2) * (network.size + A)
    rows = parameters.view(2, shape.networks, -1)
    for seed in range(2):
        policy, _ = alone(network, rows[seed, 0, : network.size], obs[seed])
        _, value = alone(network, rows[seed, -1, : network.size], obs[seed])
        torch.testing.assert_close(bound.policy(obs)[seed], policy, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(bound.value(obs)[seed], value, rtol=1e-5, atol=1e-6)
    assert torch.equal(bound.free, torch.full((2, A), -0.5))

    def loss(outputs, values, free):
        return (outputs.square().sum(-1) + values.sin()).sum() + free.exp().sum()

    result = Pass(bound, obs)
    gradient = result.gradient(loss(result.outputs, result.values, result.free))
    leaf = parameters.clone().requires_grad_()
    twin = shape.bind(leaf)
    (expected,) = torch.autograd.grad(loss(twin.policy(obs), twin.value(obs), twin.free), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_values_of_actions_and_their_gradient():
    shape = ActionValues(D, A, hidden=(), activation="relu", network=Values)
    parameters, obs = shape.initial([rng(3), rng(4)]), torch.randn(2, M, D, generator=rng(2))
    torch.testing.assert_close(shape.bind(parameters)(obs)[1], alone(shape.mlp, parameters[1], obs[1]).detach())
    result = ValuePass(shape.bind(parameters), obs)
    gradient = result.gradient(result.values.sin().sum())
    leaf = parameters.clone().requires_grad_()
    (expected,) = torch.autograd.grad(shape.bind(leaf)(obs).sin().sum(), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"network .* replaces all layers: leave out dueling=True"):
        ActionValues(D, A, hidden=(4,), activation="relu", dueling=True, network=Values)


def test_critics_see_observation_and_action_apart():
    ensemble = Ensemble(whole_network(Critic, (D,), (1,), beside=2), members=2)
    parameters = ensemble.initial([rng(seed) for seed in range(3)], [(1, 1.0)])
    inputs = torch.randn(3, M, D + 2, generator=rng(1))
    leaf, seen = parameters.clone().requires_grad_(), inputs.clone().requires_grad_()
    expected = torch.stack(
        [
            torch.stack([alone(ensemble.mlp, row, x[:, :D], x[:, D:]) for row in rows])
            for rows, x in zip(leaf.view(3, 2, -1), seen, strict=True)
        ]
    ).movedim(1, 0)
    weights = torch.randn(2, 3, M, generator=rng(3))
    of_parameters, of_inputs = torch.autograd.grad((expected * weights).sum(), (leaf, seen))
    networks = EnsemblePass(ensemble.bind(parameters), inputs)
    torch.testing.assert_close(networks.outputs.squeeze(-1), expected.detach(), rtol=1e-5, atol=1e-6)
    gradient = networks.gradient((networks.outputs.squeeze(-1) * weights).sum())
    torch.testing.assert_close(gradient, of_parameters, rtol=1e-5, atol=1e-6)
    given = inputs.clone().requires_grad_()
    frozen = ensemble.bind(parameters).frozen(given).squeeze(-1)
    (found,) = torch.autograd.grad((frozen * weights).sum(), given)
    torch.testing.assert_close(found, of_inputs, rtol=1e-5, atol=1e-6)


def test_images_come_as_numbers_from_0_to_1():
    class Seeing(nn.Module):
        def __init__(self, shape, outputs):
            super().__init__()
            assert shape == (2, 5, 5)
            self.layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.SiLU(), nn.Flatten(), nn.LazyLinear(outputs))
            self.layers(torch.zeros(1, *shape))

        def forward(self, images):
            return self.layers(images)

    network = StackedNetwork(Seeing, (2, 5, 5), (A,))
    parameters = torch.stack([network.initial(rng(seed)) for seed in (0, 1)])
    images = torch.randint(256, (2, M, 2, 5, 5), generator=rng(), dtype=torch.uint8)
    found = network(network.layers(parameters), images)
    expected = alone(network, parameters[1], images[1].float() / 255)
    torch.testing.assert_close(found[1], expected, rtol=1e-5, atol=1e-6)


class Squeezing(Both):
    def forward(self, obs):
        policy, value = super().forward(obs)
        return policy.squeeze(), value


class Detached(Both):
    def forward(self, obs):
        policy, value = super().forward(obs)
        return policy.detach(), value.detach()


class Fixed(Both):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        for parameter in self.parameters():
            nn.init.zeros_(parameter.requires_grad_(requires_grad=False))


@pytest.mark.parametrize(
    ("make", "outputs", "message"),
    [
        (
            Values,
            (A, 1),
            r"must return \(policy outputs \[3, 3\], value \[3, 1\] or \[3\]\) for 3 samples, got \[3, 3\]",
        ),
        (Both, (A,), r"forward of Both must return \[3, 3\] for 3 samples, got \(\[3, 3\], \[3\]\)"),
        (Both, (A, 2), r"value \[3, 2\]\) for 3 samples, got \(\[3, 3\], \[3\]\)"),
        (lambda inputs, outputs: Values(inputs, 5), (A,), r"must return \[3, 3\] for 3 samples, got \[3, 5\]"),
        (Squeezing, (A, 1), r"for 1 samples, got \(\[3\], \[1\]\)"),
        (Detached, (A, 1), "what Detached returns does not depend on its parameters"),
        (Fixed, (A, 1), "Fixed has no parameters that require a gradient, so that it could not learn"),
        (lambda inputs: nn.Linear(inputs, 2), (A,), r"<lambda>\(4, 3\) cannot be created: TypeError"),
        (lambda inputs, outputs: nn.Linear(inputs + 1, outputs), (A,), r"Linear does not take observations of shape"),
    ],
)
def test_networks_that_cannot_be_are_named_before_they_learn(make, outputs, message):
    with pytest.raises(ModuleError, match=message):
        StackedNetwork(make, (D,), outputs)


def test_a_critic_must_take_an_action():
    with pytest.raises(
        ModuleError, match=r"Values does not take observations and actions of shape \[3, 4\] and \[3, 2\]"
    ):
        StackedNetwork(Values, (D,), (1,), beside=2)


def test_options_that_a_whole_network_replaces_are_rejected():
    with pytest.raises(ValueError, match="leave out encoder='nature'"):
        Spec((), "tanh", shared=True, encoder="nature", network=Both)
    with pytest.raises(ValueError, match="leave out 2 critics"):
        Spec((), "tanh", shared=False, critics=2, network=Both)
