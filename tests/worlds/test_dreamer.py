"""DreamerV3: a task of two steps that needs memory, λ-returns, gradients, exact resume, and independent seeds."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import operant
from operant import ops
from operant.envs import make
from operant.nets import shares
from operant.runtime.weights import load_weights
from operant.state import clone
from operant.worlds import dreamer
from operant.worlds.dreamer import PRESETS, Dreamer, DreamerConfig, frames_of
from operant.worlds.imagination import Imagined

SEEDS = (3, 5)
SMALL = DreamerConfig(
    num_envs=4,
    num_steps=8,
    train_ratio=8.0,
    learning_starts=32,
    buffer_size=1000,
    batch_size=3,
    sequence_length=8,
    imagination_horizon=4,
    imagined_frames=3,
    learning_rate=1e-3,
    lr_warmup=3,
    deter=16,
    stoch=3,
    classes=4,
    units=8,
    head_layers=1,
    depth=2,
    bins=21,
)
TASKS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1", "images": "operant/PixelCatch-v0"}


class Recall(gymnasium.Env):
    """Task with one of two cues, then a blank observation; reward 1 for choosing the cue in the second step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 1:
            return np.array([0, 1], np.float32), 0.0, False, False, {}
        return np.zeros(2, np.float32), float(action == self.cue), True, False, {}


def learner(config=SMALL, seeds=SEEDS, task="CartPole-v1"):
    return Dreamer(config, make(task, config.num_envs, seeds), seeds=seeds, budget=1000)


def batch(found):
    """Return frames of a learner that has collected, and noise for a gradient step."""
    config = found.config
    while found.replay.filled < config.sequence_length:
        found.collect()
    index = found.replay.draw_sequences(config.batch_size, config.sequence_length, found.streams)
    return frames_of(found.replay.take_sequences(index, config.sequence_length)), found._draws()


def test_a_cue_is_remembered_and_acted_on():
    gymnasium.register("test/Recall-v0", Recall)
    try:
        config = replace(
            SMALL,
            train_ratio=64.0,
            batch_size=8,
            imagined_frames=None,
            imagination_horizon=2,
            learning_rate=6e-3,
            deter=64,
            stoch=4,
            units=32,
        )
        found = learner(config, seeds=(3,), task="test/Recall-v0")
        for _ in range(60):
            metrics = found.iterate()
            if float(metrics["rollout/episode_return"]) >= 0.9:
                break
        cues = torch.tensor([[[-1.0, 0.0], [1.0, 0.0]]])
        _, hidden_state = found.act(cues, None, None)
        actions, _ = found.act(torch.tensor([[[0.0, 1.0]] * 2]), hidden_state, None)
        assert actions.tolist() == [[0, 1]]
    finally:
        del gymnasium.registry["test/Recall-v0"]


@pytest.mark.parametrize("kind", TASKS)
def test_resume_is_bit_for_bit(kind):
    whole, half = (learner(task=TASKS[kind]) for _ in range(2))
    for _ in range(2):
        half.iterate()
        whole.iterate()
    again = learner(task=TASKS[kind])
    again.load_state_dict(clone(half.state_dict()))
    for _ in range(2):
        whole.iterate()
        again.iterate()
    assert whole.consumed == again.consumed == 4 * 32
    assert whole.updates == again.updates == 32
    for name in ("parameters", "slow", "scale", "hidden_state"):
        assert torch.equal(getattr(whole, name), getattr(again, name))


@pytest.mark.parametrize("kind", TASKS)
def test_a_seed_learns_the_same_next_to_another(kind):
    both, alone = learner(task=TASKS[kind]), learner(seeds=(5,), task=TASKS[kind])
    for _ in range(2):
        both.iterate()
        alone.iterate()
    assert both.updates == 10
    assert_close(both.parameters[1:], alone.parameters, atol=1e-3, rtol=1e-3)


def test_acting_carries_the_states_that_learning_follows():
    """The state stored for an environment is the one to which its frames lead, with the same noise."""
    found = learner(replace(SMALL, num_steps=1))
    obs, hidden_states, taken = [found.collector.obs], [], []
    chance = torch.randn(6, 2, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    hidden_state = found._empty(4)
    for t in range(6):
        with torch.no_grad():
            actions, hidden_state = found.step(obs[-1], hidden_state, chance[t], None)
        hidden_states.append(hidden_state)
        taken.append(actions)
        obs.append(obs[-1] + 0.1)
    before = [torch.zeros_like(found.actions.encode(taken[0])), *map(found.actions.encode, taken[:-1])]
    world = found.agent.world
    embedded_obs = torch.stack([world.embed_obs(seen) for seen in obs[:-1]])
    embedded_actions = torch.stack([world.rssm.embed_action(actions) for actions in before])
    continues = torch.ones(6, 2, 4, 1)
    continues[0] = 0
    states, _ = world.rssm.observe(embedded_obs, embedded_actions, continues, chance)
    assert_close(states.features, torch.stack(hidden_states)[..., : -found.actions.width])


def test_an_episode_that_ends_is_forgotten():
    found = learner(task="operant/PixelCatch-v0")
    found.collect()
    assert (found.hidden_state != 0).any()
    found.collector.collect(1, lambda obs, t: ((), torch.ones(2, 4, dtype=torch.int64)))
    found._forget()
    assert (found.hidden_state == 0).all(), "all episodes of the task have nine steps"


def test_imagination_starts_from_the_last_posteriors_and_its_returns_are_those_of_ops(monkeypatch):
    found = learner()
    frames, draws = batch(found)
    seen = {}

    def spy(name, function):
        def call(*args, **kwargs):
            seen[name] = (args, kwargs, function(*args, **kwargs))
            return seen[name][2]

        return call

    monkeypatch.setattr(dreamer.BoundAgent, "imagine", spy("imagine", dreamer.BoundAgent.imagine))
    monkeypatch.setattr(found, "_behavior_losses", spy("behavior", found._behavior_losses))
    found.gradient(frames, draws, found.scale)
    states, _ = found.agent.world.observe(frames, found._encoded(frames), draws.posterior)
    (_, start, *_), _, imagined = seen["imagine"]
    assert_close(start.features, torch.cat(list(states.features[-3:]), 1))
    (_, given, alive, _), _, behavior = seen["behavior"]
    assert isinstance(given, Imagined)
    logits = torch.stack([found.agent.value_logits(features) for features in imagined.features])
    values = ops.symmetric_mean(logits, found.support)
    returns = values[-1]
    total = []
    for t in reversed(range(4)):
        discount = 0.997 * imagined.continues[t]
        returns = imagined.rewards[t] + discount * (0.05 * values[t + 1] + 0.95 * returns)
        total.append(returns)
    assert_close(behavior.mean_return, torch.cat(total, 1).mean(1))
    assert_close(behavior.spread, ops.percentile_range(torch.cat(total, 1)))
    assert alive.shape == (2, 9)


def test_gradients_reach_where_they_should():
    found = learner()
    frames, draws = batch(found)
    found.parameters += 0.1 * torch.randn(found.parameters.shape, generator=torch.Generator().manual_seed(0))
    parameters = found.parameters.detach().requires_grad_()
    agent = found.networks.bind(parameters, found.support)
    states, _ = agent.world.observe(frames, found._encoded(frames), draws.posterior)
    begin = dreamer.State(*(dreamer.merged(part[-3:].detach()) for part in states))
    imagined = agent.imagine(begin, found.actions, draws.prior, draws.actions)
    behavior = found._behavior_losses(agent, imagined, torch.ones(2, 9), found.scale)
    replayed = found._replay_loss(agent, frames, states)

    def reached(loss):
        (gradient,) = torch.autograd.grad(loss.sum(), parameters, retain_graph=True)
        parts = shares(found.networks.parts, found.networks.views(gradient))
        named = zip(("world", "actor", "critic"), parts, strict=True)
        return {name for name, views in named if any(bool(view.any()) for view in views)}

    assert reached(behavior.actor) == {"actor"}
    assert reached(behavior.critic) == {"critic"}
    assert reached(replayed) == {"world", "critic"}


def test_replayed_returns_end_before_a_dropped_frame():
    found = learner()
    frames, draws = batch(found)
    agent = found.networks.bind(found.parameters, found.support)
    clear = torch.zeros_like(frames.last)
    frames = replace(frames, last=clear, terminal=clear)
    states, _ = agent.world.observe(frames, found._encoded(frames), draws.posterior)
    later = torch.zeros_like(frames.rewards)
    later[4:] = 100.0
    dropped, begins = torch.ones_like(frames.weights), clear.clone()
    dropped[4:], begins[4] = 0.0, True
    for changed in ({"weights": dropped}, {"first": begins, "weights": dropped}):
        losses = [
            found._replay_loss(agent, replace(frames, rewards=rewards, **changed), states)
            for rewards in (frames.rewards, frames.rewards + later)
        ]
        assert torch.equal(*losses)
    arriving = torch.zeros_like(later)
    arriving[4] = 100.0
    one, other = (
        found._replay_loss(agent, replace(frames, rewards=frames.rewards + extra, first=begins), states)
        for extra in (torch.zeros_like(later), arriving)
    )
    assert torch.equal(one, other)


def test_a_better_action_than_expected_becomes_more_likely():
    """In one state, two actions of which only the second is rewarded in imagination."""
    found = learner(replace(SMALL, ent_coef=0.0), seeds=(3,))
    width = found.networks.shape.world.rssm.features
    features = torch.randn(1, 1, 1, width, generator=torch.Generator().manual_seed(0)).expand(2, 1, 8, width)
    actions = torch.tensor([[[0, 1] * 4]])
    imagined = Imagined(features, actions, actions.float(), torch.zeros(1, 1, 8))
    parameters = found.parameters.detach().requires_grad_()
    agent = found.networks.bind(parameters, found.support)
    loss = found._behavior_losses(agent, imagined, torch.ones(1, 8), found.scale).actor
    (gradient,) = torch.autograd.grad(loss.sum(), parameters)
    after = found.networks.bind(found.parameters - 0.1 * gradient, found.support)
    before, better = (each.policy(features[0]).softmax(-1)[0, 0, 1] for each in (found.agent, after))
    assert better > before


def test_imagined_steps_after_the_end_do_not_count():
    found = learner()
    frames, draws = batch(found)
    states, _ = found.agent.world.observe(frames, found._encoded(frames), draws.posterior)
    begin = dreamer.State(*(dreamer.merged(part[-3:].detach()) for part in states))
    imagined = found.agent.imagine(begin, found.actions, draws.prior, draws.actions)
    nothing = found._behavior_losses(found.agent, imagined, torch.zeros(2, 9), found.scale)
    assert (nothing.actor == 0).all()
    assert (nothing.critic == 0).all()
    ended = imagined._replace(continues=torch.zeros_like(imagined.continues))
    first = found._behavior_losses(found.agent, ended, torch.ones(2, 9), found.scale)
    short = Imagined(ended.features[:2], ended.actions[:1], ended.rewards[:1], ended.continues[:1])
    alone = found._behavior_losses(found.agent, short, torch.ones(2, 9), found.scale)
    assert_close(first.critic, alone.critic / 4)
    assert_close(first.actor, alone.actor / 4)


def test_returns_are_divided_by_a_moving_average_of_their_spread_above_1():
    found = learner(replace(SMALL, ent_coef=0.0))
    frames, draws = batch(found)
    found.parameters += 0.1 * torch.randn(found.parameters.shape, generator=torch.Generator().manual_seed(0))
    small, one, large = (
        found.gradient(frames, draws, torch.full((2,), scale))[2]["losses/actor"] for scale in (0.1, 1.0, 10.0)
    )
    assert_close(small, one)
    assert_close(large, one / 10)
    found.scale.fill_(2.0)
    _, spread, _ = found.gradient(frames, draws, found.scale)
    found.update(frames, draws)
    assert_close(found.scale, 0.99 * torch.full((2,), 2.0) + 0.01 * spread)


def test_the_slow_critic_follows():
    found = learner()
    before = found.slow.clone()
    found.update(*batch(found))
    critic = found.networks.critic_of(found.parameters)
    assert_close(found.slow, 0.98 * before + 0.02 * critic)
    assert not torch.equal(found.slow, before)


def test_it_takes_the_configured_number_of_gradient_steps():
    found = Dreamer(SMALL, make("CartPole-v1", 4, SEEDS), seeds=SEEDS, budget=128)
    while found.consumed < 128:
        found.iterate()
    assert found.updates == found.gradient_steps == (128 - 32) * 8 // (3 * 8)
    assert found.optimizer.counts[0].tolist() == [found.updates] * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(SMALL, learning_starts=100), "learning_starts must be less than the budget of 100 .* got 100"),
        (
            replace(SMALL, learning_starts=0, sequence_length=33),
            "budget must be at least 129 .* got 100: a training sequence has 33 .* sequence_length",
        ),
    ],
)
def test_a_budget_that_ends_before_training_starts_is_rejected(config, message):
    with pytest.raises(ValueError, match=message):
        Dreamer(config, make("CartPole-v1", 4, SEEDS), seeds=SEEDS, budget=100)


def test_dropped_transitions_are_counted_and_nothing_is_imagined_from_them():
    found = learner()
    step = found.collector.env.step

    def spoiled(actions):
        result = step(actions)
        return result._replace(reward=torch.full_like(result.reward, torch.nan))

    found.collector.env.step = spoiled
    metrics = found.collect()
    assert metrics["health/dropped_transitions"].tolist() == [found.config.num_steps * found.config.num_envs] * 2
    found.consumed += 1
    for _ in range(20):
        metrics = found.collect()
    index = found.replay.draw_sequences(found.config.batch_size, found.config.sequence_length, found.streams)
    frames = frames_of(found.replay.take_sequences(index, found.config.sequence_length))
    _, _, losses = found.gradient(frames, found._draws(), found.scale)
    assert losses["losses/actor"].tolist() == losses["losses/critic"].tolist() == [0, 0]


def test_a_seed_that_diverges_leaves_the_others_alone():
    found, well = learner(), learner()
    frames, draws = batch(found)
    batch(well)
    rewards = frames.rewards.clone()
    rewards[1, 0] = torch.nan
    found.update(replace(frames, rewards=rewards), draws)
    well.update(frames, draws)
    assert found.optimizer.counts[1].tolist() == [1, 0]
    assert torch.equal(found.parameters[1], well.parameters[1])


def test_the_model_of_the_paper_has_the_size_of_its_name():
    short = {"buffer_size": 10_000, "learning_starts": 100, "sequence_length": 4, "batch_size": 2}
    config = DreamerConfig(**{**PRESETS["size12m"], **short})
    found = learner(replace(config, imagination_horizon=2), seeds=(3,))
    assert 9e6 < found.networks.size < 13e6
    found.update(*batch(found))
    assert found.parameters.isfinite().all()


def test_a_run_is_trained_and_evaluated(tmp_path):
    small = {name: value for name, value in vars(SMALL).items() if value != getattr(DreamerConfig(), name)}
    trained = operant.train(
        "dreamer",
        "operant/CartPoleSwingUp-v0",
        seeds=[0, 1],
        budget=96,
        run=tmp_path / "run",
        evaluate_episodes=1,
        progress="silent",
        **small,
    )
    assert operant.load(tmp_path / "run").evaluate(2).scores == trained.evaluate(2).scores


def test_the_moving_averages_of_another_learner_come_with_its_networks():
    """Otherwise a trained critic would be held near the average of an untrained one."""
    first, second = learner(), learner(seeds=(6, 7))
    first.update(*batch(first))
    load_weights(second, first.learned)
    assert torch.equal(second.parameters, first.parameters)
    assert torch.equal(second.slow, first.slow)
    assert torch.equal(second.scale, first.scale)


def test_a_gradient_is_a_program_that_looks_at_no_numbers():
    """Traced on some frames, it computes the same function of others, in which other episodes end."""
    config = replace(SMALL, sequence_length=5, imagined_frames=1, imagination_horizon=1)
    found = learner(config, task="operant/PixelCatch-v0", seeds=(3,))
    for _ in range(3):
        found.collect()
    first, second = batch(found), batch(found)
    assert not torch.equal(first[0].last, second[0].last)

    def flat(*tensors):
        frames, draws = tensors[:7], tensors[7:10]
        gradient, spread, _ = found.gradient(dreamer.Frames(*frames), dreamer.Draws(*draws), tensors[-1])
        return gradient, spread

    def tensors(given):
        return [*vars(given[0]).values(), *vars(given[1]).values(), found.scale]

    program = make_fx(flat)(*tensors(first))
    for traced, computed in zip(program(*tensors(second)), flat(*tensors(second)), strict=True):
        assert_close(traced, computed, atol=1e-5, rtol=1e-4)
