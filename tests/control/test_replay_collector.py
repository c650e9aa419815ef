from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from control.learners import assert_resumes_exactly, build, next_step, poison, same
from control.probes import Pendular
from operant.control import DQN, DQNConfig
from operant.control.replay_collector import Experience
from operant.envs import Wrapper, make
from operant.envs.adapter import without_episodes
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.state import clone
from operant.streams import row_seeds


def experience(seeds=(3, 5), rows=4, *, wrap=None, capacity=40, env=None):
    if env is None:
        env = make("CartPole-v1", rows, seeds)
    return Experience(
        env if wrap is None else wrap(env),
        seeds=seeds,
        rows=rows,
        capacity=capacity,
        to_env=lambda actions: actions,
        random=lambda shape, generator: torch.randint(2, shape, generator=generator),
    )


def test_the_buffer_contains_the_collected_transitions():
    memory = experience(capacity=1000)
    seen = []

    def act(obs, t, _):
        seen.append(obs)
        return torch.full(obs.shape[:2], t % 2)

    metrics = memory.collect(30, act)
    assert memory.replay.size == 30 * 4
    batch = memory.replay.take(torch.arange(120).expand(2, -1), gamma=0.9)
    assert torch.equal(batch.obs, torch.stack(seen).movedim(1, 0).flatten(1, 2))
    assert torch.equal(batch.actions[0], (torch.arange(120) // 4) % 2)
    assert batch.terminated.sum(1).tolist() == metrics["rollout/episodes"].tolist()
    assert metrics["health/dropped_transitions"].tolist() == [0, 0]
    assert batch.weights is None


def test_successors_at_a_truncation_are_the_final_observations():
    memory = experience(env=Pendular(row_seeds((3, 5), 4, "environment")), capacity=400)
    memory.collect(20, lambda obs, t, _: torch.zeros(obs.shape[:2], dtype=torch.int64))
    batch = memory.replay.take(torch.arange(80).expand(2, -1), gamma=0.9)
    assert torch.equal(batch.next_obs, 1.0 - batch.obs), "the two states alternate, also where an episode is truncated"
    assert not batch.terminated.any()


def test_random_actions_belong_to_the_seed():
    block, alone = experience((3, 5, 8)), experience((5,))
    for memory in (block, alone):
        memory.explore(7)
        memory.explore(5)
    assert torch.equal(block.replay.fields["actions"][:, 1:2], alone.replay.fields["actions"])
    assert torch.equal(block.replay.fields["next_obs"][:, 1:2], alone.replay.fields["next_obs"])
    assert block.replay.fields["actions"].float().std() > 0.4
    assert torch.equal(block.sample(9, gamma=0.9).index[1:2], alone.sample(9, gamma=0.9).index)


def test_a_number_that_is_not_finite_is_counted_for_its_seed():
    memory = experience(wrap=poison(row=5, when=3))
    counts = [memory.explore(2)["health/dropped_transitions"].tolist() for _ in range(4)]
    assert counts == [[0, 0], [0, 1], [0, 0], [0, 0]]


def test_transitions_of_autoreset_are_held_without_weight():
    memory = experience(wrap=next_step(1e6), capacity=400)
    metrics = memory.explore(40)
    batch = memory.replay.take(torch.arange(160).expand(2, -1), gamma=0.9)
    assert metrics["health/dropped_transitions"].tolist() == [0, 0]
    dummies = (batch.weights == 0).sum(1)
    assert (dummies >= metrics["rollout/episodes"] - 4).all()
    assert dummies.min() > 0
    assert not batch.obs[batch.weights == 0].any()
    live = batch.weights > 0
    assert batch.obs[live].abs().max() < 1e6


def test_experience_resumes_bit_for_bit(tmp_path):
    first, second = experience(), experience()
    first.explore(13)
    first.sample(8, gamma=0.9)
    second.load_state_dict(load_checkpoint(Checkpoints(tmp_path / "checkpoints").save(first.state_dict(), 1)))
    for memory in (first, second):
        memory.explore(5)
    one, other = first.sample(16, gamma=0.9, n=3), second.sample(16, gamma=0.9, n=3)
    assert torch.equal(one.index, other.index)
    assert torch.equal(one.rewards, other.rewards)
    assert same(first.state_dict(), second.state_dict())


def test_windows_end_where_new_episodes_begin_after_loading():
    first, second = (experience(env=make("CartPole-v1", 4, (3, 5), backend="gymnasium")) for _ in range(2))
    first.explore(5)
    second.load_state_dict(without_episodes(clone(first.state_dict())))
    second.explore(5)
    newest = torch.arange(4 * 4, 5 * 4).expand(2, -1)
    one, other = (memory.replay.take(newest, gamma=0.9, n=3) for memory in (first, second))
    assert torch.equal(one.next_obs, other.next_obs)
    assert torch.equal(one.rewards, other.rewards)
    assert torch.equal(one.terminated, other.terminated)


def test_another_number_of_rows_is_rejected():
    with pytest.raises(ValueError, match="2 seeds with 3 environments each need 6, but there are 8"):
        experience(rows=3, env=make("CartPole-v1", 4, (3, 5)))


class Reach(Wrapper):
    """Task in which a cart must reach the position drawn for the episode: reward 0 there, -1 elsewhere."""

    STATE = ("goal", "turn")

    def __init__(self, env):
        super().__init__(env)
        box = spaces.Box(np.float32(-9), np.float32(9), (1,))
        self.observation_space = spaces.Dict(observation=env.observation_space, achieved_goal=box, desired_goal=box)

    def start(self, seeds):
        self.goal, self.turn = torch.linspace(-1, 1, self.rows).unsqueeze(1), 0

    def observation(self, obs):
        return {"observation": obs, "achieved_goal": obs[:, :1], "desired_goal": self.goal.clone()}

    def step(self, actions):
        step = self.env.step(actions)
        final = self.observation(step.final_obs)
        self.turn += 1
        ended = (step.terminated | step.truncated).unsqueeze(1)
        self.goal.copy_(torch.where(ended, (self.goal + 0.1 * self.turn).sin(), self.goal))
        reward = self.compute_reward(final["achieved_goal"], final["desired_goal"])
        return step._replace(obs=self.observation(step.obs), final_obs=final, reward=reward)

    def compute_reward(self, achieved_goal, desired_goal):
        return -((achieved_goal - desired_goal).abs().squeeze(-1) > 0.02).float()


def hindsight(env, slices, strategy):
    """Return a relabeling that replaces goals with goals achieved later (Andrychowicz et al. 2017)."""
    achieved, desired = slices["achieved_goal"], slices["desired_goal"]

    def relabel(batch, episodes, streams):
        if strategy == "final":
            later = episodes.last
        else:
            later = episodes.draw(episodes.steps if strategy == "future" else episodes.first, episodes.last, streams)
        goal = episodes.at("next_obs", later)[..., achieved]
        obs, next_obs = batch.obs.clone(), batch.next_obs.clone()
        obs[..., desired] = next_obs[..., desired] = goal
        rewards = env.compute_reward(next_obs[..., achieved].flatten(0, 1), goal.flatten(0, 1)).view_as(batch.rewards)
        return replace(batch, obs=obs, next_obs=next_obs, rewards=rewards)

    return relabel


@pytest.mark.parametrize("strategy", ["final", "future", "episode"])
def test_transitions_are_seen_in_the_light_of_their_episodes(strategy):
    memory = experience(capacity=4 * 60, wrap=Reach)
    slices = memory.collector.features.slices
    assert slices["achieved_goal"] == slice(0, 1)
    for _ in range(9):
        memory.explore(11)
    plain = memory.take(torch.arange(240).expand(2, -1), gamma=0.9)
    assert (plain.rewards == 0).float().mean() < 0.2
    memory.relabel = hindsight(memory.collector.env, slices, strategy)
    found = memory.take(plain.index, gamma=0.9)
    for name in ("actions", "terminated", "discounts"):
        assert torch.equal(getattr(found, name), getattr(plain, name))
    where, goals = slices["achieved_goal"], found.obs[..., slices["desired_goal"]]
    assert torch.equal(found.next_obs[..., slices["desired_goal"]], goals)
    assert torch.equal(found.obs[..., where], plain.obs[..., where])
    replay, episodes = memory.replay, memory.episodes.of(plain.index)
    for s in range(2):
        for m in range(0, 240, 7):
            first = int(episodes.last[s, m] if strategy == "final" else episodes.first[s, m])
            first = int(episodes.steps[s, m]) if strategy == "future" else first
            row = int(episodes.columns[s, m]) - s * 4
            reached = {
                float(replay.fields["next_obs"][step % replay.length, s, row, 0])
                for step in range(first, int(episodes.last[s, m]) + 1)
            }
            assert float(goals[s, m]) in reached
    expected = memory.collector.env.compute_reward(found.next_obs[..., where].flatten(0, 1), goals.flatten(0, 1))
    assert torch.equal(found.rewards.flatten(), expected)
    assert (found.rewards == 0).float().mean() > 0.05


def test_a_learner_that_relabels_resumes_exactly(tmp_path):
    def fresh():
        config = DQNConfig(
            num_envs=2, learning_starts=20, train_freq=4, batch_size=8, buffer_size=60, hidden_sizes=(8,)
        )
        it = build(DQN, config, wrap=Reach)
        collector = it.experience.collector
        it.experience.relabel = hindsight(collector.env, collector.features.slices, "future")
        return it

    assert_resumes_exactly(fresh, tmp_path, iterations=6)


def test_windows_of_several_steps_cannot_be_relabeled():
    memory = experience()
    memory.explore(5)
    memory.relabel = lambda batch, episodes, streams: batch
    with pytest.raises(ValueError, match="set n_step to 1, got 3"):
        memory.sample(4, gamma=0.9, n=3)
