"""The recurrent mixture network: its gradient against autograd, ends of episodes, temperatures, and learning."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from operant import ops
from operant.nets import StackedAdam
from operant.worlds.mixture_rnn import MixtureRNNShape, Noise, Steps

SHAPE = MixtureRNNShape(latent=2, actions=3, units=4, components=3, steps=5)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def parameters(seeds=2, shape=SHAPE):
    found = shape.initial([generator(seed) for seed in range(seeds)])
    return found + 0.1 * torch.randn(found.shape, generator=generator(9))


def steps(seed=0, seeds=2, length=5, samples=3):
    draw = generator(seed)
    latent = torch.randn(seeds, length + 1, samples, 2, generator=draw)
    actions = torch.nn.functional.one_hot(torch.randint(3, (seeds, length, samples), generator=draw), 3).float()
    ends = torch.rand(seeds, length, samples, generator=draw) < 0.3
    starts = torch.cat((torch.ones_like(ends[:, :1]), ends[:, :-1]), 1)
    weights = (torch.rand(seeds, length, samples, generator=draw) < 0.8).float()
    rewards = torch.randn(seeds, length, samples, generator=draw)
    return Steps(latent[:, :-1], actions, starts, latent[:, 1:], rewards, ends, weights)


def step_by_step(bound, batch):
    """Return the outputs `[S, L, M, O]` of one step after another, with a new hidden state where an episode begins."""
    hidden, outputs = torch.zeros(2, 3, 4), []
    for t in range(batch.starts.shape[1]):
        hidden = hidden.masked_fill(batch.starts[:, t].unsqueeze(-1), 0.0)
        out, hidden = bound.follow(batch.latent[:, t], batch.actions[:, t], hidden)
        outputs.append(out)
    return torch.stack(outputs, 1)


def test_the_gradient_is_that_of_autograd():
    leaf, batch = parameters().requires_grad_(), steps()
    bound = SHAPE.bind(leaf)
    losses = bound.loss(step_by_step(bound, batch), batch)
    (expected,) = torch.autograd.grad((losses[0] + losses[1]).sum(), leaf)
    gradient, found = SHAPE.bind(leaf.detach()).gradient(batch)
    assert_close(found, tuple(loss.detach() for loss in losses))
    assert_close(gradient, expected, atol=1e-5, rtol=1e-4)


def test_after_the_end_only_the_reward_is_predicted():
    batch, bound = steps(), SHAPE.bind(parameters())
    outputs = torch.randn(2, 5, 3, SHAPE.outputs, generator=generator(1))
    loss = bound.loss(outputs, batch)
    ended = batch.ends.unsqueeze(-1)
    assert ended.any()
    other = replace_field(batch, following=torch.where(ended, 99.0, batch.following))
    assert_close(bound.loss(outputs, other), loss)
    other = replace_field(batch, rewards=torch.where(batch.ends, batch.rewards + 1, batch.rewards))
    assert (bound.loss(outputs, other)[0] != loss[0]).all()
    other = replace_field(batch, following=torch.where(ended, batch.following, 99.0))
    assert (bound.loss(outputs, other)[0] > loss[0]).all()


def replace_field(batch, **values):
    return batch._replace(**values)


def test_steps_of_no_weight_do_not_count():
    batch, bound = steps(), SHAPE.bind(parameters())
    outputs = torch.randn(2, 5, 3, SHAPE.outputs, generator=generator(1))
    out = (batch.weights == 0).unsqueeze(-1)
    assert out.any()
    assert_close(bound.loss(outputs.masked_fill(out, 3.0), batch), bound.loss(outputs, batch))


def test_a_mixture_is_over_the_latent_vector_and_the_reward_together():
    """One component gives (0, 0) and -1, the other (1, 1) and 1: no sample mixes the two."""
    bound = SHAPE.bind(parameters(1))
    outputs = torch.zeros(1, 4000, SHAPE.outputs)
    logits, mean, log_std, end = outputs.split_with_sizes([3, 9, 9, 1], -1)
    logits[..., 2] = -50
    mean.unflatten(-1, (3, 3))[..., 0, :] = torch.tensor([0.0, 0.0, -1.0])
    mean.unflatten(-1, (3, 3))[..., 1, :] = torch.tensor([1.0, 1.0, 1.0])
    log_std.fill_(-20)
    end.fill_(1.0)
    noise = Noise.draw((1, 4000), 3, 2, generator(0))
    seen = bound.imagine(outputs, noise, 1.0)
    assert ((seen.latent.mean(-1) > 0.5) == (seen.rewards > 0)).all()
    assert abs((seen.rewards > 0).float().mean() - 0.5) < 0.04
    assert abs(seen.ends.float().mean() - torch.tensor(1.0).sigmoid()) < 0.04
    cold = bound.imagine(outputs + 0.01 * torch.randn(outputs.shape, generator=generator(2)), noise, 1e-3)
    assert cold.ends.all()


def test_noise_has_its_distributions():
    noise = Noise.draw((20_000,), 2, 1, generator(0))
    assert_close(noise.choice.mean(), torch.tensor(0.5772), atol=0.03, rtol=0)
    assert_close(noise.point.std(), torch.tensor(1.0), atol=0.03, rtol=0)
    assert 0 <= noise.end.min() < 0.01
    assert 0.99 < noise.end.max() < 1


@pytest.mark.slow
def test_it_learns_a_world_that_flips_a_coin():
    """The next latent vector is (±1, the action before last); the reward is its first number times the action's."""
    shape = replace(SHAPE, units=16, components=2, steps=6)
    learned = shape.initial([generator(0)])
    optimizer, draw = StackedAdam(learned), generator(4)
    bound = shape.bind(learned)
    for _ in range(800):
        batch = coins(draw)
        gradient, losses = bound.gradient(batch)
        optimizer.step(gradient, learning_rate=1e-2)
    with torch.no_grad():
        batch = coins(draw)
        hidden = torch.zeros(1, 64, 16)
        for t in range(3):
            outputs, hidden = bound.follow(batch.latent[:, t], batch.actions[:, t], hidden)
    seen = bound.imagine(outputs, Noise.draw((1, 64), 2, 2, draw), 1.0)
    assert_close(seen.latent[..., 0].abs(), torch.ones(1, 64), atol=0.25, rtol=0)
    assert 0.2 < (seen.latent[..., 0] > 0).float().mean() < 0.8
    assert_close(seen.latent[..., 1], batch.following[:, 2, :, 1], atol=0.3, rtol=0)
    assert_close(seen.rewards, seen.latent[..., 0], atol=0.3, rtol=0)
    assert losses[0] < 0


def coins(draw, samples=64, length=6):
    coin = torch.randint(2, (1, length + 1, samples), generator=draw) * 2.0 - 1
    actions = torch.nn.functional.one_hot(torch.randint(2, (1, length, samples), generator=draw), 3).float()
    before = torch.cat((torch.zeros(1, 1, samples), actions[:, :-1, :, 0]), 1)
    shown = torch.cat((torch.zeros(1, 1, samples), before), 1)
    latent = torch.stack((coin, shown), -1)
    ends = torch.zeros(1, length, samples, dtype=torch.bool)
    starts = ends.clone()
    starts[:, 0] = True
    return Steps(latent[:, :-1], actions, starts, latent[:, 1:], coin[:, 1:], ends, torch.ones(1, length, samples))


def test_the_loss_is_the_log_likelihood():
    batch, bound = steps(), SHAPE.bind(parameters())
    outputs = torch.randn(2, 5, 3, SHAPE.outputs, generator=generator(1))
    logits, mean, log_std, end = bound.split(outputs)
    total = torch.zeros(2, 2)
    for s in range(2):
        for t in range(5):
            for m in range(3):
                place = s, t, m
                size = slice(2, None) if batch.ends[place] else slice(None)
                point = torch.cat((batch.following[place], batch.rewards[place].view(1)))[size]
                density = ops.gaussian_mixture_log_prob(
                    logits[place], mean[place][:, size], log_std[place][:, size], point
                )
                chance = end[place].sigmoid() if batch.ends[place] else 1 - end[place].sigmoid()
                total[:, s] -= batch.weights[place] * torch.stack((density, chance.log()))
    count = batch.weights.sum((1, 2))
    assert_close(torch.stack(bound.loss(outputs, batch)), total / count)
