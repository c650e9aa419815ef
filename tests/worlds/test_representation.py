"""The representation of MR.Q: unrolled losses against a loop, masks at both kinds of ends, and paths of gradients."""

import pytest
import torch
from torch.nn.functional import elu, layer_norm
from torch.testing import assert_close

from operant import ops
from operant.nets import shares
from operant.runtime.transitions import Sequences
from operant.worlds.representation import (
    Representation,
    RepresentationShape,
    Windows,
    representation_losses,
)

SHAPE = RepresentationShape(observation=(3,), actions=2, hidden=(7,), latent=4, embedding=5, joint=6, depth=2, bins=5)
SUPPORT = ops.symexp_support(5, bound=2.0)


def parameters(network, seeds=(3, 5)):
    found = torch.stack([network.initial(torch.Generator().manual_seed(seed)) for seed in seeds])
    return found + 0.1 * torch.randn(found.shape, generator=torch.Generator().manual_seed(0))


def sequences(steps=4, seeds=2, samples=6, observation=(3,), weights=None):
    """Return windows in which episodes are terminated and truncated, by a table."""
    generator = torch.Generator().manual_seed(1)
    shape = steps, seeds, samples
    obs, next_obs = torch.randn(2, *shape, *observation, generator=generator)
    ends = torch.rand(2, *shape, generator=generator) < 0.2
    return Sequences(
        obs=obs,
        actions=torch.randn(*shape, 2, generator=generator),
        rewards=torch.randn(shape, generator=generator),
        next_obs=next_obs,
        terminated=ends[0],
        truncated=ends[1] & ~ends[0],
        is_first=torch.zeros(shape, dtype=torch.bool),
        weights=weights,
        extras={},
        index=torch.zeros(shape[1:], dtype=torch.int64),
    )


def test_networks_are_those_of_the_paper_seed_by_seed():
    network = Representation(SHAPE)
    found = parameters(network)
    bound = network.bind(found)
    drawn = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(4))
    obs, actions = drawn.split([3, 2], -1)
    latent = bound.encode(obs)
    predicted = bound.predict(bound.join(latent, actions))

    def hidden(x, weight, scale, shift):
        return elu(layer_norm(x @ weight, weight.shape[1:], eps=1e-3) * scale + shift)

    for seed in range(2):
        views = [view[seed] for view in network.views(found)]
        _, state, action, pair, model = shares(network.parts, views)
        seen = torch.cat((obs[seed], torch.ones(9, 1)), -1)
        z = hidden(hidden(seen, *state[:3]), *state[3:])
        both = torch.cat((z, elu(actions[seed] @ action[0] + action[1])), -1)
        joint = hidden(both, *pair[:3]) @ pair[3] + pair[4]
        out = joint @ model[0] + model[1]
        assert_close(latent[seed], z)
        assert_close(predicted.latent[seed], out[:, :4])
        assert_close(predicted.reward[seed], out[:, 4:9])
        assert_close(predicted.terminal[seed], out[:, 9])


@pytest.mark.parametrize("gaps", [False, True])
def test_losses_are_those_of_a_loop_over_windows(gaps):
    network = Representation(SHAPE)
    online, target = (network.bind(parameters(network, seeds)) for seeds in ((3, 5), (7, 9)))
    weights = (torch.rand(4, 2, 6, generator=torch.Generator().manual_seed(2)) < 0.8).float() if gaps else None
    steps = sequences(weights=weights)
    assert bool((steps.terminated[:3] | steps.truncated[:3]).any())
    found = representation_losses(online, target, Windows.of(steps), SUPPORT)
    for seed in range(2):
        dynamics = reward = terminal = 0.0
        one, other = (network.bind(bound_of(each, seed)) for each in (online, target))
        for m in range(6):
            latent = one.encode(steps.obs[0, seed, m].view(1, 1, -1))
            for t in range(4):
                if weights is not None and not weights[t, seed, m]:
                    break
                said = one.predict(one.join(latent, steps.actions[t, seed, m].view(1, 1, -1)))
                latent = said.latent
                truth = other.encode(steps.next_obs[t, seed, m].view(1, 1, -1))
                dynamics += float((latent - truth).square().mean())
                reward += float(ops.two_hot_loss(said.reward[0, 0], steps.rewards[t, seed, m], SUPPORT))
                terminal += float((said.terminal - steps.terminated[t, seed, m].float()).square())
                if steps.terminated[t, seed, m] or steps.truncated[t, seed, m]:
                    break
        for loss, expected in zip(found, (dynamics, reward, terminal), strict=True):
            assert float(loss[seed]) == pytest.approx(expected / 6, rel=1e-4)


def bound_of(bound, seed):
    """Return the parameters of one seed of bound networks."""
    views = [*bound.images, *bound.state, *bound.action, *bound.pair, *bound.model]
    return torch.cat([view[seed].flatten() for view in views]).unsqueeze(0)


def test_a_truncated_step_counts_and_is_not_terminal():
    steps = sequences(steps=2, seeds=1, samples=2)
    steps.terminated.zero_()
    steps.truncated.zero_()
    steps.terminated[0, 0, 0], steps.truncated[0, 0, 1] = True, True
    windows = Windows.of(steps)
    assert windows.live[:, 0].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert windows.terminal[0, 0].tolist() == [1.0, 0.0]


def test_steps_after_an_end_change_nothing():
    network = Representation(SHAPE)
    found = parameters(network).requires_grad_()
    steps = sequences()
    windows = Windows.of(steps)
    after = windows.live == 0
    assert bool(after.any())
    other = Windows(
        obs=windows.obs,
        actions=torch.where(after.unsqueeze(-1), 9.0, windows.actions),
        rewards=torch.where(after, -9.0, windows.rewards),
        next_obs=torch.where(after.unsqueeze(-1), 9.0, windows.next_obs),
        terminal=torch.where(after, 1.0, windows.terminal),
        live=windows.live,
    )
    gradients = []
    for each in (windows, other):
        losses = representation_losses(network.bind(found), network.bind(found.detach()), each, SUPPORT)
        gradients.append(torch.autograd.grad(torch.stack(losses).sum(), found)[0])
    assert_close(*gradients)


def test_the_target_has_no_gradient_and_all_networks_have_one():
    network = Representation(SHAPE)
    online, target = (parameters(network, seeds).requires_grad_() for seeds in ((3, 5), (7, 9)))
    losses = representation_losses(network.bind(online), network.bind(target), Windows.of(sequences()), SUPPORT)
    first, second = torch.autograd.grad(torch.stack(losses).sum(), (online, target), allow_unused=True)
    assert second is None
    assert all(bool(view.any()) for view in network.views(first))


def test_images_are_encoded_before_states():
    shape = RepresentationShape(
        observation=(1, 10, 10), actions=2, hidden=(7,), latent=4, embedding=5, joint=6, depth=2, bins=5
    )
    network = Representation(shape)
    bound = network.bind(parameters(network))
    images = torch.randint(256, (2, 3, 1, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = bound.encode(images)
    assert found.shape == (2, 3, 4)
    assert not torch.equal(found[:, 0], found[:, 1])


def test_the_size_of_an_observation_is_not_lost():
    network = Representation(SHAPE)
    bound = network.bind(parameters(network))
    obs = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(2))
    assert (bound.encode(obs) - bound.encode(3 * obs)).abs().max() > 0.05
