"""A learned model: its loss by torch's distributions, its independent members, and learning of exact systems."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from operant.runtime.replay import Replay
from operant.runtime.rollouts import Rollout
from operant.worlds.ensemble import JUDGED, LearnedModel, ModelConfig, split

SMALL = ModelConfig(ensemble_size=3, model_hidden_sizes=(16,), model_batch_size=32, model_gradient_steps=4)


def model(config=SMALL, seeds=(3, 5), width=2, dimensions=1):
    return LearnedModel(config, seeds=seeds, width=width, dimensions=dimensions, device=torch.device("cpu"))


def filled(steps=60, seeds=2, scale=1.0, gap=None):
    """Return a replay buffer of `x' = x + (a, a²) scale`, reward 100 a, which ends if a > 0.9.

    The transition at `gap` is invalid, and has other numbers.
    """
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(steps, seeds, 1, 2, generator=generator)
    actions = torch.rand(steps, seeds, 1, 1, generator=generator) * 2 - 1
    after = obs + torch.cat((actions, actions.square()), -1) * scale
    ended = actions[..., 0] > 0.9
    replay = Replay(seeds=seeds, rows=1, capacity=1000)
    nothing, valid = torch.zeros_like(ended), None
    if gap is not None:
        valid = torch.ones_like(ended)
        valid[gap] = False
        after[gap] += 1e6
    rollout = Rollout(obs, after[-1], (), 100 * actions[..., 0], ended, nothing, after, valid, {})
    replay.add(rollout, actions)
    return replay


def test_the_loss_is_that_of_torch_distributions():
    found, replay = model(), filled()
    found._normalize(replay)
    batch = found._held_out(replay, split(replay)[1])
    outputs = found.bound(found._inputs(batch.obs, batch.actions))[0]
    mean, log_variance = outputs[..., :-1].chunk(2, -1)
    low, high = -10.0, 1.0
    below = high - torch.nn.functional.softplus(high - log_variance)
    std = (low + torch.nn.functional.softplus(below - low)).exp().sqrt()
    changes = torch.cat((batch.next_obs - batch.obs, batch.rewards.unsqueeze(-1)), -1)
    moments = found.moments.repeat_interleave(3, 0)[:, :, 2:]
    targets = (changes - moments[:, :1]) / moments[:, 1:]
    likelihood = torch.distributions.Normal(mean, std).log_prob(targets).sum(-1)
    ends = torch.distributions.Bernoulli(logits=outputs[..., -1]).log_prob(batch.terminated.float())
    assert_close(found.loss(outputs, batch), -(likelihood + ends).mean(1))


def test_changes_and_rewards_are_normalized_apart():
    found, replay = model(), filled(scale=1e-3)
    found._normalize(replay)
    every = replay.take(torch.arange(60).expand(2, -1), gamma=1.0)
    changes = every.next_obs - every.obs
    assert_close(found.moments[:, 0, 2:4], changes.mean(1))
    assert_close(found.moments[:, 1, 2:4], changes.std(1, correction=0))
    assert_close(found.moments[:, 1, 4], every.rewards.std(1, correction=0))
    assert found.moments[0, 1, 4] > 1e4 * found.moments[0, 1, 2]


def test_invalid_transitions_are_neither_in_the_moments_nor_learned():
    found, replay = model(), filled(gap=7)
    found._normalize(replay)
    every = replay.take(torch.arange(60).expand(2, -1), gamma=1.0)
    rest = torch.arange(60) != 7
    changes = (every.next_obs - every.obs)[:, rest]
    assert_close(found.moments[:, 0, 2:4], changes.mean(1))
    assert_close(found.moments[:, 1, 2:4], changes.std(1, correction=0))
    found.fit(replay)
    assert found.parameters.isfinite().all()


def test_constant_inputs_are_divided_by_one():
    found, replay = model(), filled(scale=0.0)
    found._normalize(replay)
    assert_close(found.moments[:, 1, 2:4], torch.ones(2, 2))


def test_members_draw_separate_data_and_never_held_out_data():
    found, replay = model(replace(SMALL, model_batch_size=500)), filled()
    training, held_out = split(replay)
    held = replay.take(held_out.expand(2, -1), gamma=1.0)
    drawn = found._drawn(replay, training)
    assert drawn.obs.shape == (6, 500, 2)
    assert not torch.equal(drawn.obs[0], drawn.obs[1])
    for member in range(3):
        assert not (drawn.obs[member][:, None, 0] == held.obs[0][None, :, 0]).any()
    assert_close(found._held_out(replay, held_out).obs[2], held.obs[0])


def test_a_member_learns_the_same_among_others():
    """The gradient of one network equals that of autograd through it alone."""
    found, replay = model(), filled()
    found._normalize(replay)
    batch = found._drawn(replay, split(replay)[0])
    parameters = found.parameters.clone().requires_grad_()
    bound = found.shape.bind(parameters.view(6, -1))
    loss = found.loss(bound(found._inputs(batch.obs, batch.actions))[0], batch)
    (expected,) = torch.autograd.grad(loss.sum(), parameters)
    steps = []
    found.optimizer.step = lambda gradient, **_: steps.append(gradient)
    found.update(batch)
    assert_close(steps[0], expected, rtol=1e-4, atol=1e-5)


def test_a_seed_fits_the_same_next_to_another():
    both, alone, replay = model(), model(seeds=(3,)), filled()
    single = filled()
    single.fields = {name: field[:, :1].contiguous() for name, field in single.fields.items()}
    single.seeds, single._offsets = 1, single._offsets[:1]
    single._flat = {name: field.flatten(0, 2) for name, field in single.fields.items()}
    both.fit(replay)
    alone.fit(single)
    assert_close(both.parameters[:1], alone.parameters, rtol=1e-4, atol=1e-5)


def test_it_learns_a_system_and_its_ends():
    config = replace(SMALL, model_gradient_steps=1000, model_hidden_sizes=(32, 32), model_learning_rate=2e-3)
    found, replay = model(config), filled(steps=500)
    metrics = found.fit(replay)
    assert (metrics["model/holdout_loss"] < -3).all()
    batch = found._held_out(replay, split(replay)[1])
    predicted = found.predict(batch.obs, batch.actions)
    assert (predicted.next_obs - batch.next_obs).abs().mean() < 0.05
    assert (predicted.rewards - batch.rewards).abs().mean() < 3
    assert ((predicted.continues < 0.5) == batch.terminated).float().mean() > 0.95


def test_sampled_outcomes_have_the_predicted_spread():
    found = model()
    obs, actions = torch.zeros(6, 4000, 2), torch.zeros(6, 4000, 1)
    noise = torch.randn(6, 4000, 3, generator=torch.Generator().manual_seed(0))
    sampled, mean = found.predict(obs, actions, noise), found.predict(obs, actions)
    outputs = found.bound(torch.cat((obs, actions), -1))[0]
    _, log_std, _ = found._distribution(outputs)
    assert_close(sampled.next_obs.std(1), log_std[:, 0, :2].exp(), rtol=0.05, atol=0)
    assert_close(sampled.rewards.mean(1), mean.rewards[:, 0], atol=0.1, rtol=0)


def test_it_resumes_from_its_state():
    whole, replay = model(), filled()
    whole.fit(replay)
    again = model()
    again.load_state_dict(whole.state_dict())
    assert all(torch.equal(whole.fit(replay)[name], again.fit(replay)[name]) for name in ("model/loss",))
    assert torch.equal(whole.parameters, again.parameters)


@pytest.mark.parametrize("steps", [1, 5, 12])
def test_little_data_is_enough_to_begin_with(steps):
    metrics = model().fit(filled(steps))
    assert metrics["model/loss"].isfinite().all()
    assert metrics["model/holdout_loss"].isfinite().all()


def ring(added, *, rows, capacity):
    """Return a replay buffer of one seed, whose transitions have their numbers as observations."""
    replay = Replay(seeds=1, rows=rows, capacity=capacity)
    numbers = torch.arange(added * rows, dtype=torch.float32).view(added, 1, rows, 1)
    zeros = torch.zeros(added, 1, rows)
    for part in range(0, added, 7):
        chosen, none = numbers[part : part + 7], zeros[part : part + 7]
        flags = none.bool()
        replay.add(Rollout(chosen, chosen[-1], (), none, flags, flags, chosen + 1, None, {}), none.unsqueeze(-1))
    return replay


@pytest.mark.parametrize("rows", [1, 10, 20])
def test_a_tenth_of_the_steps_of_every_environment_is_held_out(rows):
    replay = ring(600, rows=rows, capacity=600 * rows)
    training, held_out = split(replay)
    assert torch.equal(torch.cat((training, held_out)).sort()[0], torch.arange(600 * rows))
    shares = torch.bincount(held_out % rows, minlength=rows) / 600
    assert ((shares > 0.04) & (shares < 0.17)).all()


def test_held_out_data_stays_so_and_its_newest_part_is_used_after_the_ring_has_wrapped():
    before, after = ring(100, rows=3, capacity=300), ring(157, rows=3, capacity=300)
    held = [replay.fields["obs"].flatten()[split(replay)[1]].tolist() for replay in (before, after)]
    assert held[0] == sorted(held[0])
    assert held[1] == sorted(held[1])
    assert [number for number in held[0] if number >= 57 * 3] == [number for number in held[1] if number < 300]
    wrapped = ring(9000, rows=2, capacity=12_000)
    judged = model(seeds=(3,), width=1)._held_out(wrapped, split(wrapped)[1]).obs
    assert judged.shape == (3, len(split(wrapped)[1][-JUDGED:]), 1)
    assert judged.min() > 18_000 - 12 * JUDGED
    assert judged.max() > 18_000 - 100
