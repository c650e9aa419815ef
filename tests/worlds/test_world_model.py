"""The world model: losses by hand and by loop, first and last frames, and paths of gradients."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from operant import ops
from operant.nets import shares
from operant.worlds.frames import Frames
from operant.worlds.rssm import RSSMShape
from operant.worlds.world_model import WorldModel, WorldShape, by_row, merged

L, S, M = 4, 2, 3
VECTOR = WorldShape(
    observation=(5,),
    rssm=RSSMShape(actions=2, deter=8, stoch=3, classes=4, units=6, blocks=1, prior_layers=1, unimix=0.01),
    layers=1,
    depth=2,
    bins=11,
)
SHAPES = {"vector": VECTOR, "image": replace(VECTOR, observation=(1, 8, 8))}
SUPPORT = ops.symexp_support(11, bound=3.0)


def parameters(shape=VECTOR, noise=0.1):
    model = WorldModel(shape)
    found = torch.stack([model.initial(torch.Generator().manual_seed(seed)) for seed in (3, 5)])
    return model, found + torch.randn(found.shape, generator=torch.Generator().manual_seed(0)) * noise


def bound(shape=VECTOR, noise=0.1):
    model, found = parameters(shape, noise)
    return model.bind(model.views(found), SUPPORT)


def frames(shape=VECTOR):
    draw = torch.Generator().manual_seed(1)
    first, terminal = torch.zeros(L, S, M, dtype=torch.bool), torch.zeros(L, S, M, dtype=torch.bool)
    first[0], terminal[1, :, 0], first[2, :, 0] = True, True, True
    if shape.sees_images:
        obs = torch.randint(256, (L, S, M, *shape.observation), dtype=torch.uint8, generator=draw)
    else:
        obs = 10 * torch.randn(L, S, M, *shape.observation, generator=draw)
    rewards = torch.randn(L, S, M, generator=draw).masked_fill(first, 0.0)
    return Frames(obs, torch.zeros(L, S, M, 2), rewards, first, terminal, terminal, torch.ones(L, S, M))


def noise():
    return torch.randn(L, S, M, 3, 4, generator=torch.Generator().manual_seed(2))


def test_axes_there_and_back():
    tensor = torch.arange(24).view(2, 3, 4, 1)
    assert merged(tensor).shape == (3, 8, 1)
    assert merged(tensor)[1, 5, 0] == tensor[1, 1, 1, 0]
    assert torch.equal(by_row(merged(tensor), tensor), tensor)


def test_the_encoder_distinguishes_vectors_that_differ_in_length_alone():
    world, squashed = bound(noise=0.0), torch.tensor([0.5, -1.0, 0.2, 0.1, 2.0]).expand(S, 1, -1)
    near, far = (world.embed_obs(ops.symexp(factor * squashed)) for factor in (1.0, 0.2))
    assert ((near - far).abs().amax(-1) > 0.1).all()


@pytest.mark.parametrize("kind", SHAPES)
def test_losses_against_a_loop(kind):
    shape, world, seen = SHAPES[kind], bound(SHAPES[kind]), frames(SHAPES[kind])
    states, posterior = world.observe(seen, seen.actions, noise())
    losses = world.losses(seen, states, posterior, free=0.5)
    for t in range(L):
        features = states.features[t]
        prior = world.rssm.prior_log_probs(states.deter[t])
        divergence = ops.categorical_kl(posterior[t], prior).sum(-1).clamp(min=0.5)
        assert_close(losses.dynamics[t], divergence)
        assert_close(losses.representation[t], divergence)
        decoded = world.model.decoder(world.decoder, features)
        target = seen.obs[t].float() / 255 if shape.sees_images else ops.symlog(seen.obs[t])
        assert_close(losses.reconstruction[t], (decoded - target).square().flatten(2).sum(-1))
        rewards = ops.two_hot_loss(world.model.reward(world.reward, features), seen.rewards[t], SUPPORT)
        assert_close(losses.reward[t], torch.where(seen.first[t], 0.0, rewards))
        goes_on = world.continues(features)
        assert_close(losses.proceed[t], -torch.where(seen.terminal[t], 1 - goes_on, goes_on).log())


@pytest.mark.parametrize("kind", SHAPES)
def test_every_parameter_learns_from_the_losses(kind):
    model, found = parameters(SHAPES[kind])
    found.requires_grad_()
    world, seen = model.bind(model.views(found), SUPPORT), frames(SHAPES[kind])
    seen = replace(seen, actions=torch.randn(L, S, M, 2, generator=torch.Generator().manual_seed(7)))
    losses = world.losses(seen, *world.observe(seen, seen.actions, noise()), free=0.0)
    (gradient,) = torch.autograd.grad(sum(loss.sum() for loss in losses), found)
    for view in model.views(gradient):
        assert (view.flatten(1).abs().sum(1) > 0).all()


def test_rewards_reach_the_encoder_and_divergences_their_own_side():
    model, found = parameters()
    found.requires_grad_()
    world, seen = model.bind(model.views(found), SUPPORT), frames()
    losses = world.losses(seen, *world.observe(seen, seen.actions, noise()), free=0.0)

    def reached(loss):
        (gradient,) = torch.autograd.grad(loss.sum(), found, retain_graph=True, allow_unused=True)
        encoder, rssm, *heads = shares(model.parts, model.views(gradient))
        *_, prior, posterior = shares(model.rssm.parts, rssm)
        parts = {"encoder": encoder, "prior": prior, "posterior": posterior}
        parts |= dict(zip(("decoder", "reward", "proceed"), heads, strict=True))
        return {name for name, views in parts.items() if any(bool(view.any()) for view in views)}

    assert reached(losses.reward) == {"encoder", "posterior", "reward"}
    assert reached(losses.proceed) == {"encoder", "posterior", "proceed"}
    assert reached(losses.reconstruction) == {"encoder", "posterior", "decoder"}
    assert reached(losses.representation[:1]) == {"encoder", "posterior"}, "the prior is a constant"
    assert "prior" in reached(losses.dynamics[:1])
    assert "posterior" not in reached(losses.dynamics[:1]), "at the first frame h is a constant"


def test_nothing_is_expected_before_anything_is_learned():
    world = bound(noise=0.0)
    features = torch.randn(S, 7, VECTOR.rssm.features, generator=torch.Generator().manual_seed(0))
    assert (world.rewards(features) == 0).all()


def test_decoded_images_have_the_shape_of_observations():
    world = bound(SHAPES["image"])
    features = torch.randn(S, 7, VECTOR.rssm.features, generator=torch.Generator().manual_seed(0))
    assert world.model.decoder(world.decoder, features).shape == (S, 7, 1, 8, 8)
