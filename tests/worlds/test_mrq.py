"""MR.Q: exact values of a finite task and of a linear-quadratic one, windows, target updates, exact resume, seeds."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import operant
from control.off_policy import assert_random_actions_are_divided
from operant.envs import make
from operant.runtime.weights import load_weights
from operant.state import clone
from operant.worlds.mrq import MRQ, MRQConfig
from operant.worlds.representation import Windows

SEEDS = (3, 5)
SMALL = MRQConfig(
    num_envs=2,
    learning_starts=20,
    rounds_per_iteration=4,
    gradient_steps=2,
    batch_size=16,
    buffer_size=200,
    n_step=2,
    encoder_horizon=3,
    target_update_interval=5,
    latent_size=6,
    joint_size=8,
    action_embedding_size=4,
    encoder_hidden_sizes=(8,),
    hidden_sizes=(8,),
    critic_hidden_sizes=(8,),
    depth=2,
    bins=21,
)
TASKS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1", "images": "operant/PixelCatch-v0"}
EXACT = replace(
    SMALL,
    num_envs=8,
    learning_starts=2000,
    buffer_size=2000,
    batch_size=32,
    n_step=1,
    encoder_horizon=2,
    target_update_interval=25,
    target_policy_noise=0.0,
    learning_rate=3e-3,
    encoder_learning_rate=2e-3,
    latent_size=16,
    joint_size=32,
    action_embedding_size=8,
    encoder_hidden_sizes=(32,),
    hidden_sizes=(32,),
    critic_hidden_sizes=(32,),
)


def learner(config=SMALL, seeds=SEEDS, task="CartPole-v1", budget=1000):
    return MRQ(config, make(task, config.num_envs, seeds), seeds=seeds, budget=budget)


class Fork(gymnasium.Env):
    """Task with two states; actions 0 and 1 lead to that state, action 2 ends the episode; cut after four steps."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)
    REWARDS = ((1.0, 0.0, 0.0), (0.0, 3.0, 5.0))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = int(self.np_random.integers(2)), 0
        return np.eye(2, dtype=np.float32)[self.state], {}

    def step(self, action):
        reward, self.steps = self.REWARDS[self.state][action], self.steps + 1
        self.state = self.state if action == 2 else int(action)
        return np.eye(2, dtype=np.float32)[self.state], reward, action == 2, self.steps == 4, {}


class Quadratic(gymnasium.Env):
    """Task s' = s + a / 2 with reward -(s² + a²), truncated after four steps."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.uniform(-1, 1), 0
        return np.array([self.state], np.float32), {}

    def step(self, action):
        reward, self.steps = -(self.state**2 + float(action[0]) ** 2), self.steps + 1
        self.state += float(action[0]) / 2
        return np.array([self.state], np.float32), reward, False, self.steps == 4, {}


def trained(kind, config, updates):
    """Return a learner of random actions in a task, after `updates` updates."""
    gymnasium.register("test/Exact-v0", kind)
    try:
        found = learner(config, seeds=(3,), task="test/Exact-v0", budget=10_000)
        steps = config.learning_starts // config.num_envs
        found.experience.explore(steps)
        found._remember(steps)
        for _ in range(updates):
            found.update(found.sample())
    finally:
        del gymnasium.registry["test/Exact-v0"]
    return found


def values(found, obs, actions):
    """Return the mean of both critics for vectors of observations and actions, in units of reward."""
    encoder = found._bound
    joint = encoder.join(encoder.encode(obs), actions)
    return found.scale.view(-1, 1) * found._q(found.parameters["critics"], joint).mean(1)


def test_values_of_a_finite_task_are_exact():
    """With γ = ½ staying in state 1 is worth 3 / (1 - ½) = 6, and moving there from state 0 is worth half of that."""
    found = trained(Fork, replace(EXACT, gamma=0.5), 400)
    exact = torch.tensor([[2.5, 3.0, 0.0], [1.5, 6.0, 5.0]])
    obs, actions = torch.eye(2).repeat_interleave(3, 0), torch.eye(3).repeat(2, 1)
    assert_close(values(found, obs[None], actions[None]).view(2, 3), exact, atol=0.25, rtol=0)
    taken, _ = found.act(torch.eye(2)[None], None, None)
    assert taken.tolist() == [[1, 1]]
    predicted = found._bound.predict(found._bound.join(found._bound.encode(obs[None]), actions[None]))
    assert_close(predicted.terminal[0], torch.tensor([0.0, 0.0, 1.0] * 2), atol=0.1, rtol=0)


def test_the_policy_of_a_linear_task_is_that_of_the_riccati_equation():
    gamma, p = 0.5, 1.0
    for _ in range(200):
        p = 1 + gamma * p - (gamma * p / 2) ** 2 / (1 + gamma * p / 4)
    gain = (gamma * p / 2) / (1 + gamma * p / 4)
    found = trained(Quadratic, replace(EXACT, gamma=gamma), 800)
    obs = torch.linspace(-1, 1, 9).view(1, 9, 1)
    actions, _ = found.act(obs, None, None)
    assert_close(actions, -gain * obs, atol=0.15, rtol=0)
    assert_close(values(found, obs, actions), -p * obs[..., 0].square(), atol=0.25, rtol=0)


@pytest.mark.parametrize("kind", TASKS)
def test_resuming_is_exact(kind):
    whole, half = (learner(task=TASKS[kind]) for _ in range(2))
    for _ in range(2):
        half.iterate()
        whole.iterate()
    again = learner(task=TASKS[kind])
    again.load_state_dict(clone(half.state_dict()))
    for _ in range(2):
        whole.iterate()
        again.iterate()
    assert whole.consumed == again.consumed == 20 + 4 * 8
    assert whole.updates == again.updates == 32
    for name, part in whole.parameters.items():
        assert torch.equal(part, again.parameters[name])
        assert torch.equal(whole.targets[name], again.targets[name])
    for name in ("scale", "target_scale", "encoder_losses"):
        assert torch.equal(getattr(whole, name), getattr(again, name))
    assert torch.equal(whole.priorities.levels[0], again.priorities.levels[0])


def test_training_can_stop_amid_random_actions(monkeypatch):
    assert_random_actions_are_divided(learner, monkeypatch, 9, [10, 20 + 8, 36])


@pytest.mark.parametrize("kind", TASKS)
def test_a_seed_learns_the_same_next_to_another(kind):
    both, alone = learner(task=TASKS[kind]), learner(seeds=(5,), task=TASKS[kind])
    for _ in range(2):
        both.iterate()
        alone.iterate()
    for name, part in both.parameters.items():
        assert_close(part[1:], alone.parameters[name], atol=1e-3, rtol=1e-3)


def test_only_whole_windows_are_drawn():
    found = learner(replace(SMALL, buffer_size=24))
    replay = found.experience.replay
    found.experience.explore(2)
    found._remember(2)
    assert not found.priorities.levels[0].any()
    for steps in (1, 3, 12, 5):  # 12 is the length of the ring buffer
        found.experience.explore(steps)
        found._remember(steps)
        drawn = found.priorities.levels[0][0, :24].nonzero().flatten()
        newest = set(replay.newest(2).tolist())
        assert set(drawn.tolist()) == set(replay.newest(replay.filled).tolist()) - newest
        Windows.of(replay.take_sequences(found._draw(), 3))
    assert replay.filled == 12


def test_invalid_steps_are_not_drawn():
    found = learner()
    found.experience.explore(8)
    found.experience.replay.fields["valid"][3, 1, 0] = False
    found._remember(8)
    assert found.priorities.levels[0][1, 6] == 0
    assert found.priorities.levels[0][0, 6] == 1


def test_targets_are_updated_together_and_encoders_learn_between():
    found = learner()
    found.iterate()
    assert found.updates == 8
    assert found.optimizers["encoder"].counts[0].tolist() == [10, 10]
    assert found.optimizers["critics"].counts[0].tolist() == [8, 8]
    before = clone(dict(found.parameters))
    scale = found.scale
    found.updates = 10
    found.renew()
    for name, part in before.items():
        assert torch.equal(found.targets[name], part)
    assert found.target_scale is scale
    rewards = found.experience.replay.fields["rewards"][: found.experience.replay.filled]
    assert_close(found.scale, rewards.abs().mean((0, 2)))


def test_critics_of_another_learner_keep_their_scale_in_the_first_targets():
    first, second = learner(), learner()
    first.iterate()
    first.scale.fill_(20.0)
    load_weights(second, first.learned)
    second.experience.explore(10)
    second.renew()
    assert second.target_scale.tolist() == [20.0, 20.0]
    rewards = second.experience.replay.fields["rewards"][:10]
    assert_close(second.scale, rewards.abs().mean((0, 2)))


def test_a_task_without_rewards_has_the_unit_one():
    found = learner()
    found.experience.explore(10)
    found.experience.replay.fields["rewards"].zero_()
    found.renew()
    assert found.scale.tolist() == found.target_scale.tolist() == [1.0, 1.0]


def test_the_scale_of_rewards_does_not_change_what_critics_learn():
    """The same transitions with rewards and units times 100 give the same gradient."""
    found = learner()
    found.iterate()
    batch = found.sample()
    noise = torch.zeros(2, 16, 4)
    plain = found.critic_gradient(batch, noise, found.scale, found.target_scale)
    larger = replace(batch, rewards=100 * batch.rewards)
    scaled = found.critic_gradient(larger, noise, 100 * found.scale, 100 * found.target_scale)
    assert_close(scaled.critics, plain.critics, rtol=1e-4, atol=1e-6)
    assert_close(scaled.q, 100 * plain.q)


def test_errors_become_priorities():
    found = learner()
    found.iterate()
    batch = found.sample()
    errors = found.critic_gradient(batch, torch.zeros(2, 16, 4), found.scale / 100, found.target_scale).errors
    found.priorities.update(batch.index, errors)
    held = found.priorities.levels[0].gather(1, batch.index)
    same = batch.index.unsqueeze(1) == batch.index.unsqueeze(2)
    for seed in range(2):
        for m in range(16):
            allowed = errors[seed][same[seed, m]].clamp(min=1).pow(0.4)
            assert (held[seed, m] - allowed).abs().min() < 1e-4
    assert bool((held > 1).any())


def test_gradients_of_the_policy_point_to_better_actions():
    found = learner(task="Pendulum-v1")
    found.iterate()
    latent = found._bound.encode(found.sample().obs)
    noise = torch.zeros(2, 16, 1)
    gradient, loss = found.policy_gradient(latent, noise)
    found.parameters["policy"] -= 1e-2 * gradient / gradient.norm(dim=1, keepdim=True)
    _, after = found.policy_gradient(latent, noise)
    assert (after < loss).all()


def test_it_takes_the_configured_number_of_gradient_steps():
    found = learner(budget=52)
    while found.consumed < 52:
        found.iterate()
    assert found.updates == found.gradient_steps == 32


class Broken(Fork):
    """All rewards are NaN."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, np.nan, *rest


def test_training_continues_without_a_valid_step():
    gymnasium.register("test/Broken-v0", Broken)
    try:
        found = learner(replace(SMALL, buffer_size=30), task="test/Broken-v0")
        metrics = [found.iterate() for _ in range(3)]
    finally:
        del gymnasium.registry["test/Broken-v0"]
    assert found.experience.replay.added > found.experience.replay.length
    assert not metrics[-1]["losses/critic"].any()
    assert all(part.isfinite().all() for part in found.parameters.values())


def test_a_seed_that_diverges_leaves_the_others_alone():
    found, well = learner(), learner()
    for each in (found, well):
        each.iterate()
    batch = found.sample()
    well.sample()
    rewards = batch.rewards.clone()
    rewards[1, 0] = torch.nan
    found.update(replace(batch, rewards=rewards))
    well.update(batch)
    assert found.optimizers["critics"].counts[1].tolist() == [0, 1]
    for name, part in well.parameters.items():
        assert torch.equal(found.parameters[name][0], part[0])


@pytest.mark.parametrize("kind", TASKS)
def test_gradients_are_programs_that_look_at_no_numbers(kind):
    found = learner(task=TASKS[kind])
    found.iterate()
    replay = found.experience.replay
    windows = [Windows.of(replay.take_sequences(found._draw(), 3)) for _ in range(2)]
    program = make_fx(lambda *parts: found.encoder_gradient(Windows(*parts)))(*vars(windows[0]).values())
    given = [*vars(windows[1]).values()]
    for traced, computed in zip(program(*given), found.encoder_gradient(windows[1]), strict=True):
        assert_close(traced, computed, atol=1e-5, rtol=1e-4)
    noise = found.actions.noise((2, 16), found.update_streams[0])
    batches = [found.sample() for _ in range(2)]
    names = [name for name, value in vars(batches[0]).items() if value is not None]

    def critics(*parts):
        whole = replace(batches[0], **dict(zip(names, parts, strict=True)))
        return found.critic_gradient(whole, noise, found.scale, found.target_scale)

    program = make_fx(critics)(*(getattr(batches[0], name) for name in names))
    given = [getattr(batches[1], name) for name in names]
    for traced, computed in zip(program(*given), critics(*given), strict=True):
        assert_close(traced, computed, atol=1e-5, rtol=1e-4)


def test_the_networks_of_the_paper_have_their_size():
    config = operant.configure("mrq", "Pendulum-v1", preset="paper")
    found = learner(replace(config, buffer_size=10_000), seeds=(3,), task="Pendulum-v1", budget=20_000)
    assert 3.5e6 < sum(part.numel() for part in found.parameters.values()) < 4.5e6


def test_a_run_is_trained_and_evaluated(tmp_path):
    small = {name: value for name, value in vars(SMALL).items() if value != getattr(MRQConfig(), name)}
    run = operant.train(
        "mrq",
        "operant/ContinuousCartPole-v0",
        seeds=[0, 1],
        budget=60,
        run=tmp_path / "run",
        evaluate_episodes=1,
        progress="silent",
        **small,
    )
    assert operant.load(tmp_path / "run").evaluate(2).scores == run.evaluate(2).scores
