"""Modules from users learn in a stack as they would alone, and errors name those that cannot."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from needs import needs_compiler
from operant.nets import (
    ActorCritic,
    Ensemble,
    EnsemblePass,
    ModuleError,
    Pass,
    Program,
    Spec,
    StackedModule,
    head_for,
    network_for,
    network_of_vectors,
)

D, M = 4, 6


class Normed(nn.Module):
    """Two layers with layer normalization and SiLU."""

    def __init__(self, inputs, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 5))

    def forward(self, obs):
        return self.layers(obs).tanh()


class Attentive(nn.Module):
    """Attention over the entries of an observation."""

    def __init__(self, inputs):
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs):
        tokens = self.embed(obs.unsqueeze(-1))
        weights = (self.query(tokens) @ self.key(tokens).mT * self.scale).softmax(-1)
        return weights @ self.value(tokens)


class Deciding(Normed):
    """Module that branches on numbers, so that several networks cannot be computed together."""

    def forward(self, obs):
        return super().forward(obs) if float(obs.detach().sum()) > -1e9 else obs


class Bare(nn.Module):
    """Module without parameters."""

    def __init__(self, inputs):
        super().__init__()

    def forward(self, obs):
        return torch.cat((obs, obs.square()), dim=-1)


MODULES = [Normed, Attentive, Deciding, Bare]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def actor_critic(make, *, shared=False, hidden=(7,)):
    head = head_for(spaces.Discrete(3), log_std=0.0, device=torch.device("cpu"))
    return ActorCritic(D, head, Spec(hidden=hidden, activation="tanh", shared=shared, encoder=make))


def alone(stack, parameters, obs):
    """Return the outputs of a single module and the dense layers after it, for observations `[M, D]`."""
    module = stack.make(D)
    named = {name: part[0] for name, part in stack.by_name(parameters[None]).items()}
    features = torch.func.functional_call(module, named, (obs,)).flatten(1)
    for index, (weight, bias) in enumerate(
        layers := stack.dense.layers(parameters[None, len(parameters) - stack.dense.size :])
    ):
        features = features @ weight[0] + bias[0]
        features = features.relu() if index + 1 < len(layers) else features
    return features


@pytest.mark.parametrize("make", MODULES)
@pytest.mark.parametrize("seeds", [1, 3])
def test_outputs_and_gradients_are_those_of_separate_modules(make, seeds):
    stack = network_for((D,), [7, 3], activation="relu", encoder=make)
    assert isinstance(stack, StackedModule)
    assert stack.at_once == (make is not Deciding)
    parameters = torch.stack([stack.initial(rng(seed), [(3, 1.0)]) for seed in range(seeds)])
    obs = torch.randn(seeds, M, D, generator=rng(9))
    layers = stack.layers(parameters)
    with torch.no_grad():
        trace = stack.trace(layers, obs)
        gradient = torch.randn(seeds, M, 3, generator=rng(5))
        pieces = torch.cat(stack.pullback(layers, trace, gradient.clone()), dim=1)
    assert pieces.shape == parameters.shape
    for seed in range(seeds):
        leaf = parameters[seed].clone().requires_grad_()
        expected = alone(stack, leaf, obs[seed])
        torch.testing.assert_close(trace[-1][seed], expected.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(stack(layers, obs)[seed], expected.detach(), rtol=1e-5, atol=1e-6)
        (found,) = torch.autograd.grad((expected * gradient[seed]).sum(), leaf)
        torch.testing.assert_close(pieces[seed], found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [Normed, Attentive])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [(), (7,)])
def test_the_gradient_of_actor_and_critic_is_that_of_autograd(make, shared, hidden):
    shape = actor_critic(make, shared=shared, hidden=hidden)
    parameters = shape.initial([rng(3), rng(4)])
    obs = torch.randn(2, M, D, generator=rng(2))

    def loss(outputs, values):
        return (outputs.square().sum(-1) + values.sin()).sum()

    result = Pass(shape.bind(parameters), obs)
    gradient = result.gradient(loss(result.outputs, result.values))
    leaf = parameters.clone().requires_grad_()
    bound = shape.bind(leaf)
    (expected,) = torch.autograd.grad(loss(bound.policy(obs), bound.value(obs)), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    if not shared:
        actor = shape.bind(parameters).actor[0][0]
        assert not torch.equal(actor[0], actor[1])


@pytest.mark.parametrize("make", MODULES)
def test_actions_next_to_observations_reach_only_the_dense_layers(make):
    """Actions reach the dense layers of two critics for each of three seeds, and autograd agrees on all gradients."""
    stack = network_of_vectors(D, [7, 1], activation="relu", encoder=make, beside=2)
    ensemble = Ensemble(stack, members=2)
    parameters = ensemble.initial([rng(seed) for seed in range(3)], [(1, 1.0)])
    obs, actions = torch.randn(3, M, D, generator=rng(1)), torch.randn(3, M, 2, generator=rng(2))
    leaf, seen, done = parameters.clone().requires_grad_(), obs.requires_grad_(), actions.requires_grad_()
    rows = leaf.view(6, -1)
    expected = []
    for row, (state, action) in zip(rows, ((s, a) for s, a in zip(seen, done, strict=True) for _ in "ab"), strict=True):
        features = torch.func.functional_call(
            stack.make(D), {name: part[0] for name, part in stack.by_name(row[None]).items()}, (state,)
        ).flatten(1)
        values = torch.cat((features, action), -1)
        (w1, b1), (w2, b2) = stack.dense.layers(row[None, -stack.dense.size :])
        expected.append((values @ w1[0] + b1[0]).relu() @ w2[0] + b2[0])
    expected = torch.stack(expected).view(3, 2, M, 1).movedim(1, 0)
    weights = torch.randn(2, 3, M, 1, generator=rng(3))
    of_parameters, of_obs, of_actions = torch.autograd.grad((expected * weights).sum(), (leaf, seen, done))
    inputs = torch.cat((obs, actions), -1).detach().requires_grad_()
    networks = EnsemblePass(ensemble.bind(parameters), inputs)
    torch.testing.assert_close(networks.outputs, expected, rtol=1e-5, atol=1e-6)
    gradient = networks.gradient((networks.outputs * weights).sum())
    torch.testing.assert_close(gradient, of_parameters, rtol=1e-5, atol=1e-6)
    (found,) = torch.autograd.grad((ensemble.bind(parameters).frozen(inputs) * weights).sum(), inputs)
    torch.testing.assert_close(found, torch.cat((of_obs, of_actions), -1), rtol=1e-5, atol=1e-6)


def test_initial_parameters_are_drawn_from_each_seeds_stream_and_no_other():
    shape = actor_critic(Normed)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    together = shape.initial([rng(5), rng(6)])
    torch.manual_seed(2)
    assert torch.equal(shape.initial([rng(6)]), together[1:])
    torch.manual_seed(1)
    shape.initial([rng(5)])
    assert torch.equal(torch.get_rng_state(), before)
    stack = shape.mlp
    norm = stack.by_name(together.view(4, -1)[:, : stack.size])["layers.1.weight"]
    assert torch.equal(norm, torch.ones(4, 8)), "modules are initialized by their constructors"


def test_images_come_as_numbers_from_0_to_1():
    class Convolutions(nn.Module):
        def __init__(self, shape):
            super().__init__()
            assert shape == (2, 5, 5)
            self.layer = nn.Conv2d(2, 3, 3)

        def forward(self, images):
            assert images.max() <= 1
            return self.layer(images).relu()

    stack = network_for((2, 5, 5), [4], activation="relu", encoder=Convolutions)
    layers = stack.layers(torch.stack([stack.initial(rng(seed), [(4, 1.0)]) for seed in (0, 1)]))
    images = torch.randint(256, (2, M, 2, 5, 5), generator=rng(), dtype=torch.uint8)
    assert stack(layers, images).shape == (2, M, 4)


@needs_compiler
def test_a_compiled_update_is_one_that_is_not():
    shape = actor_critic(Normed)
    bound = shape.bind(shape.initial([rng(3), rng(4)]))

    def update(obs):
        result = Pass(bound, obs)
        return result.gradient(result.outputs.square().sum() + result.values.sum())

    program = Program(update)
    obs = torch.randn(2, M, D, generator=rng(2))
    expected = update(obs)
    program.compiled = True
    torch.testing.assert_close(program(obs), expected, rtol=1e-4, atol=1e-6)


def batch_norm(inputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4))


def dropout(inputs):
    return nn.Sequential(nn.Linear(inputs, 400), nn.Dropout(0.5))


class InPlace(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = nn.Linear(inputs, 4)

    def forward(self, obs):
        obs += 1
        return self.layer(obs)


class Summed(nn.Module):
    def __init__(self, inputs):
        super().__init__()

    def forward(self, obs):
        return obs.sum()


class Failing(Summed):
    def forward(self, obs):
        return self.missing(obs)


class Frozen(nn.Linear):
    """Encoder whose parameters are not learned, but seem to be."""

    def __init__(self, inputs):
        super().__init__(inputs, 4)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    @torch.no_grad()
    def forward(self, obs):
        return super().forward(obs)


class Ignored(Frozen):
    def forward(self, obs):
        return 2 * obs


@pytest.mark.parametrize("make", [Frozen, Ignored])
def test_an_encoder_without_parameters_that_learn_trains_the_dense_layers(make):
    def frozen(inputs):
        return make(inputs).requires_grad_(requires_grad=False)

    network = network_for((D,), [3], activation="tanh", encoder=frozen)
    parameters = torch.stack([network.initial(rng(), [(3, 1.0)])])
    layers = network.layers(parameters)
    trace = network.trace(layers, torch.rand(1, M, D, generator=rng()))
    gradient = torch.cat(network.pullback(layers, trace, torch.ones(1, M, 3)), dim=1)
    assert gradient.shape == parameters.shape
    assert (gradient != 0).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Failing, r"shape \[3, 4\]: AttributeError: 'Failing' object has no .* \(.*test_module\.py, line \d+\)$"),
        (batch_norm, r"has buffers \(1.running_mean, .*: use LayerNorm instead of BatchNorm"),
        (dropout, r"samples random numbers \(Dropout\?\)"),
        (InPlace, r"InPlace changes its observations in place, .*: let forward compute new tensors"),
        (Summed, r"forward of Summed must return features \[3, ...\] of 3 observations, got shape \[\]"),
        (lambda inputs: nn.Linear(inputs + 1, 3), r"Linear does not take observations of shape \[3, 4\]: RuntimeError"),
        (
            Frozen,
            r"Frozen returns does not depend on its parameters.*; set requires_grad=False .* of torch.no_grad",
        ),
        (Ignored, "what Ignored returns does not depend on its parameters"),
        (lambda inputs: 3, "an encoder must be a torch.nn.Module, but .* returned 3"),
    ],
)
def test_modules_that_cannot_be_encoders_are_rejected(make, message):
    with pytest.raises(ModuleError, match=message):
        network_for((D,), [3], activation="tanh", encoder=make)
