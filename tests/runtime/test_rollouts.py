from collections.abc import Sequence
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.envs import Wrapper
from operant.envs.base import Step
from operant.ops import gae
from operant.runtime.metrics_window import DROPPED
from operant.runtime.rollouts import Collector, all_episodes, by_seed, without_broken
from operant.state import clone

FEATURES = 3


class Scripted:
    """Environment whose episodes end by a script; observations are ``(row, episode, step)`` and determine the rest.

    With ``next_step`` a row whose episode has ended takes an invalid step, at which nothing of the script happens.
    """

    task = "Scripted-v0"
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (FEATURES,))
    action_space = gymnasium.spaces.Discrete(1000)
    device = torch.device("cpu")

    def __init__(self, terminated: Tensor, truncated: Tensor, *, next_step: bool = False):
        self.terminated, self.truncated = terminated, truncated
        self.rows = terminated.shape[1]
        self.always_valid = not next_step
        self.row = torch.arange(self.rows)
        self.closed = False

    def _obs(self) -> Tensor:
        return torch.stack((self.row, self.episode, self.step_), dim=-1).float()

    def reset(self, seeds: Sequence[int] | None = None) -> Tensor:
        self.time = 0
        self.episode, self.step_ = torch.zeros(2, self.rows, dtype=torch.int64)
        self.over = torch.zeros(self.rows, dtype=torch.bool)
        return self._obs()

    def step(self, actions: Tensor) -> Step:
        assert torch.equal(actions, self.row), "actions must be in the order of the rows"
        valid = ~self.over
        self.episode = self.episode + self.over
        self.step_ = torch.where(valid, self.step_ + 1, 0)
        terminated, truncated = self.terminated[self.time] & valid, self.truncated[self.time] & valid
        ended = terminated | truncated
        self.time += 1
        final = self._obs()
        reward = reward_of(self.row, self.episode, self.step_).masked_fill(~valid, 0.0)
        if self.always_valid:
            self.episode, self.step_ = self.episode + ended, torch.where(ended, 0, self.step_)
        else:
            self.over = ended
        score = score_of(reward).masked_fill(~valid, torch.nan)
        return Step(self._obs(), reward, terminated, truncated, final, valid, score)

    def state_dict(self):
        return clone({"time": self.time, "episode": self.episode, "step": self.step_, "over": self.over})

    def load_state_dict(self, state):
        state = clone(state)
        self.time, self.episode, self.step_, self.over = (state[n] for n in ("time", "episode", "step", "over"))
        return self._obs()

    def close(self):
        self.closed = True


def reward_of(row, episode, step):
    return (100 * row + 10 * episode + step).float()


def score_of(reward):
    return 2 * reward + 1


def play(env, steps):
    """Compute in loops the content of a rollout of ``steps`` steps: lists ``[B][steps]`` of dicts."""
    story = []
    for row in range(env.rows):
        episode = step = 0
        over = False
        lines = []
        for t in range(steps):
            line = {"obs": (row, episode, step), "valid": not over}
            if over:
                episode, step, over = episode + 1, 0, False
                line |= {"reward": 0.0, "terminated": False, "truncated": False, "final": (row, episode, 0)}
            else:
                step += 1
                line["reward"] = 100.0 * row + 10 * episode + step
                line["terminated"], line["truncated"] = bool(env.terminated[t, row]), bool(env.truncated[t, row])
                line["final"] = (row, episode, step)
                if line["terminated"] or line["truncated"]:
                    if env.always_valid:
                        episode, step = episode + 1, 0
                    else:
                        over = True
            line["next"] = (row, episode, step)
            lines.append(line)
        story.append(lines)
    return story


def expected_column(story, name, seeds, span):
    """Return one column of the expected steps as a tensor ``[T, S, N, ...]``."""
    table = torch.tensor([[line[name] for line in row[span]] for row in story])
    return table.movedim(0, 1).view(table.shape[1], seeds, -1, *table.shape[2:])


def act(obs, t):
    """Return a part of each step to keep, and the row numbers as actions."""
    return (obs.sum(-1), torch.full(obs.shape[:2], t)), obs[..., 0].long()


def value(obs):
    """Return a number that identifies every observation of every seed."""
    seed = torch.arange(1.0, len(obs) + 1).view(-1, 1)
    return seed * (1 + 10_000 * obs[..., 0] + 100 * obs[..., 1] + obs[..., 2])


@st.composite
def cases(draw):
    seeds, rows, steps = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 7))
    stretches = draw(st.integers(1, 4))
    flags = draw(st.lists(st.integers(0, 7), min_size=(n := seeds * rows * steps * stretches), max_size=n))
    table = torch.tensor(flags).view(-1, seeds * rows)
    # 0 to 4 continue, 5 terminates, 6 truncates, 7 does both
    terminated, truncated = (table == 5) | (table == 7), table >= 6
    return seeds, steps, stretches, Scripted(terminated, truncated, next_step=draw(st.booleans()))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_rollouts_tell_what_happened_in_order(case):
    seeds, steps, stretches, env = case
    story = play(env, steps * stretches)
    collector = Collector(env, seeds=seeds)
    assert collector.starts().tolist() == [[True] * (env.rows // seeds)] * seeds
    for stretch in range(stretches):
        rollout = collector.collect(steps, act)
        span = slice(stretch * steps, (stretch + 1) * steps)
        for name, got in (
            ("obs", rollout.obs.long()),
            ("final", rollout.final_obs.long()),
            ("reward", rollout.rewards),
            ("terminated", rollout.terminated),
            ("truncated", rollout.truncated),
        ):
            assert torch.equal(got, expected_column(story, name, seeds, span)), name
        last = slice(span.stop - 1, span.stop)
        assert torch.equal(rollout.last_obs.long(), expected_column(story, "next", seeds, last)[0])
        terminated, truncated, valid = (
            expected_column(story, name, seeds, last)[0] for name in ("terminated", "truncated", "valid")
        )
        assert torch.equal(collector.starts(), terminated | truncated | ~valid)
        assert torch.equal(rollout.kept[0], rollout.obs.sum(-1))
        assert torch.equal(rollout.kept[1], torch.arange(steps).view(-1, 1, 1).expand_as(rollout.rewards))
        if env.always_valid:
            assert rollout.valid is None
        else:
            assert torch.equal(rollout.valid, expected_column(story, "valid", seeds, span))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_successor_values_are_those_of_the_true_successors(case):
    seeds, steps, stretches, env = case
    story = play(env, steps * stretches)
    collector = Collector(env, seeds=seeds)
    weight = torch.arange(1, seeds + 1).view(1, -1, 1)
    code = torch.tensor([10_000, 100, 1])
    for stretch in range(stretches):
        calls = []
        rollout = collector.collect(steps, act)
        values, successors = rollout.successor_values(lambda obs: calls.append(1) or value(obs))  # noqa: B023
        span = slice(stretch * steps, (stretch + 1) * steps)
        obs, final = (expected_column(story, name, seeds, span) for name in ("obs", "final"))
        assert torch.equal(values.long(), weight * (1 + (obs * code).sum(-1)))
        expected = weight * (1 + (final * code).sum(-1))
        matters = ~rollout.terminated
        assert torch.equal(successors.long()[matters], expected[matters])
        assert len(calls) == (2 if (rollout.truncated & ~rollout.terminated).any() else 1)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_several_values_of_each_observation_have_their_successors_each(case):
    seeds, steps, _, env = case
    rollout = Collector(env, seeds=seeds).collect(steps, act)
    values, successors = rollout.successor_values(lambda obs: torch.stack((value(obs), -value(obs)), dim=-1))
    assert values.shape == successors.shape == (*rollout.rewards.shape, 2)
    for column, one in enumerate((value, lambda obs: -value(obs))):
        expected = rollout.successor_values(one)
        assert torch.equal(values[..., column], expected[0])
        assert torch.equal(successors[..., column], expected[1])


@settings(deadline=None, max_examples=60)
@given(cases())
def test_episodes_are_counted_across_rollouts(case):
    seeds, steps, stretches, env = case
    story = play(env, steps * stretches)
    collector = Collector(env, seeds=seeds)
    rows = env.rows // seeds
    running = [(0.0, 0)] * env.rows
    for stretch in range(stretches):
        ended = [[] for _ in range(seeds)]
        for row, lines in enumerate(story):
            total, length = running[row]
            for line in lines[stretch * steps : (stretch + 1) * steps]:
                if line["valid"]:
                    total, length = total + 2 * line["reward"] + 1, length + 1
                if line["terminated"] or line["truncated"]:
                    ended[row // rows].append((total, length))
                    total, length = 0.0, 0
            running[row] = total, length
        metrics = collector.collect(steps, act).metrics
        assert metrics["rollout/episodes"].tolist() == [len(episodes) for episodes in ended]
        for name, column in (("rollout/episode_return", 0), ("rollout/episode_length", 1)):
            means = [np.mean([e[column] for e in episodes]) if episodes else np.nan for episodes in ended]
            assert metrics[name].tolist() == pytest.approx(means, nan_ok=True), name


def no_ends(steps, rows):
    return torch.zeros(steps, rows, dtype=torch.bool)


def test_a_seed_without_an_ended_episode_has_no_return():
    terminated = no_ends(3, 4)
    terminated[1, 3] = True
    metrics = Collector(Scripted(terminated, no_ends(3, 4)), seeds=2).collect(3, act).metrics
    assert metrics["rollout/episodes"].tolist() == [0, 1]
    assert metrics["rollout/episode_return"].isnan().tolist() == [True, False]
    assert metrics["rollout/episode_length"].isnan().tolist() == [True, False]


def test_the_return_is_the_environments_score_not_the_reward_learned_from():
    terminated = no_ends(2, 1)
    terminated[1] = True
    metrics = Collector(Scripted(terminated, no_ends(2, 1)), seeds=1).collect(2, act).metrics
    assert metrics["rollout/episode_return"].tolist() == [2 * (1 + 2) + 2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_score_is_forgotten_with_its_episode(bad):
    class Spoilt(Scripted):
        def step(self, actions):
            time = self.time
            step = super().step(actions)
            return step._replace(score=step.score.masked_fill((self.row == 0) & (time == 1), bad))

    terminated = no_ends(12, 2)
    terminated[2::3] = True
    collector = Collector(Spoilt(terminated, no_ends(12, 2)), seeds=2)
    returns = [collector.collect(2, act).metrics["rollout/episode_return"] for _ in range(6)]
    assert not returns[1].isfinite()[0]
    assert returns[1].isfinite()[1]
    assert all(later.isfinite().all() for later in returns[2:] if not later.isnan().all())
    assert returns[2:][-1].tolist() == [2 * (30 * 3 + 6) + 3, 2 * (130 * 3 + 6) + 3]


@settings(deadline=None, max_examples=30)
@given(cases())
def test_a_state_resumes_within_episodes(case):
    seeds, steps, stretches, env = case
    whole = Collector(env, seeds=seeds)
    for _ in range(stretches - 1):
        whole.collect(steps, act)
    state = clone(whole.state_dict())
    again = Collector(Scripted(env.terminated, env.truncated, next_step=not env.always_valid), seeds=seeds)
    again.load_state_dict(state)
    expected, got = whole.collect(steps, act), again.collect(steps, act)
    for name in ("obs", "last_obs", "rewards", "terminated", "truncated", "final_obs"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    for name, metric in expected.metrics.items():
        assert torch.equal(got.metrics[name].nan_to_num(-1), metric.nan_to_num(-1)), name


def test_a_state_does_not_change_while_the_collector_continues():
    collector = Collector(Scripted(no_ends(9, 2), no_ends(9, 2)), seeds=2)
    collector.collect(3, act)
    state = collector.state_dict()
    before = clone(state)
    collector.collect(3, act)
    assert torch.equal(state["statistics"], before["statistics"])


def test_a_state_of_another_number_of_rows_is_rejected():
    state = Collector(Scripted(no_ends(1, 4), no_ends(1, 4)), seeds=2).state_dict()
    with pytest.raises(ValueError, match=r"'statistics' has shape \(2, 4\) but \(2, 2\) is needed"):
        Collector(Scripted(no_ends(1, 2), no_ends(1, 2)), seeds=2).load_state_dict(state)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_rollout_does_not_change_while_the_collector_continues(steps):
    terminated = no_ends(12, 2)
    terminated[4] = True
    collector = Collector(Scripted(terminated, no_ends(12, 2)), seeds=2)
    rollouts = [collector.collect(steps, act) for _ in range(2)]
    names = ("obs", "last_obs", "rewards", "terminated", "truncated", "final_obs", "metrics")
    before = clone([{name: getattr(rollout, name) for name in names} for rollout in rollouts])
    for _ in range(2):
        collector.collect(steps, act)
    for rollout, kept in zip(rollouts, before, strict=True):
        for name in names[:-1]:
            assert torch.equal(getattr(rollout, name), kept[name]), name
        for name, metric in kept["metrics"].items():
            assert torch.equal(rollout.metrics[name].nan_to_num(-1), metric.nan_to_num(-1)), name


def test_rows_that_cannot_be_shared_equally_are_rejected():
    with pytest.raises(ValueError, match="5 environments cannot be shared equally by 2 seeds"):
        Collector(Scripted(no_ends(1, 5), no_ends(1, 5)), seeds=2)


def test_observations_other_than_tensors_are_rejected():
    class Tree(Scripted):
        def reset(self, seeds=None):
            return {"a": super().reset(seeds)}

    with pytest.raises(TypeError, match="observations must be one tensor, got a dict"):
        Collector(Tree(no_ends(1, 2), no_ends(1, 2)), seeds=1)


def test_observations_of_any_shape_are_flattened():
    class Picture(Scripted):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2, FEATURES))

        def _obs(self):
            return super()._obs().view(-1, 1, 3).expand(-1, 2, 3).contiguous()

    rollout = Collector(Picture(no_ends(2, 4), no_ends(2, 4)), seeds=2).collect(2, act)
    assert rollout.obs.shape == (2, 2, 2, 6)
    assert rollout.final_obs.shape == (2, 2, 2, 6)
    assert rollout.last_obs.shape == (2, 2, 6)


def test_images_are_stored_as_bytes_and_bootstrap_from_the_final_one():
    class Picture(Scripted):
        observation_space = gymnasium.spaces.Box(0, 255, (1, 1, FEATURES), np.uint8)

        def _obs(self):
            return super()._obs().to(torch.uint8).view(-1, 1, 1, 3)

    truncated = no_ends(3, 4)
    truncated[1, 2] = True
    env = Picture(no_ends(3, 4), truncated)
    rollout = Collector(env, seeds=2).collect(3, lambda obs, t: ((), obs[:, :, 0, 0, 0].long()))
    assert rollout.obs.shape == rollout.final_obs.shape == (3, 2, 2, 1, 1, 3)
    assert rollout.obs.dtype is torch.uint8
    values, successors = rollout.successor_values(lambda obs: value(obs.flatten(2).float()))
    expected = torch.stack([value(obs.flatten(2).float()) for obs in rollout.final_obs])
    assert torch.equal(successors, expected)
    assert not torch.equal(successors[1], values[2])


class Extra(Scripted):
    """Wrapper that returns the reward and an observation as extras, too; or only at even steps."""

    sometimes = False

    def step(self, actions):
        step = super().step(actions)
        goal = {"goal": step.obs} if not self.sometimes or self.time % 2 else {}
        return step._replace(extras={"bonus": -step.reward, **goal})


def test_extra_tensors_of_steps_are_collected():
    rollout = Collector(Extra(no_ends(3, 4), no_ends(3, 4)), seeds=2).collect(3, act_row)
    assert rollout.extras.keys() == {"bonus", "goal"}
    assert torch.equal(rollout.extras["bonus"], -rollout.rewards)
    assert torch.equal(rollout.extras["goal"], torch.cat((rollout.obs[1:], rollout.last_obs[None])))
    assert Collector(Scripted(no_ends(3, 4), no_ends(3, 4)), seeds=2).collect(3, act_row).extras == {}


def test_extra_tensors_that_are_not_always_there_are_an_error():
    env = Extra(no_ends(3, 4), no_ends(3, 4))
    env.sometimes = True
    with pytest.raises(ValueError, match=r"Scripted-v0 must have extras\['goal'\] with 4 rows, but 2 of 3 steps"):
        Collector(env, seeds=2).collect(3, act_row)


def test_extra_tensors_of_a_step_in_the_middle_alone_are_an_error():
    class Middle(Scripted):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(extras={"bonus": step.reward}) if self.time == 2 else step

    with pytest.raises(ValueError, match=r"must have extras\['bonus'\] with 4 rows, but 1 of 3 steps"):
        Collector(Middle(no_ends(3, 4), no_ends(3, 4)), seeds=2).collect(3, act_row)


def test_extra_tensors_need_one_row_for_each_environment():
    class Short(Scripted):
        def step(self, actions):
            return super().step(actions)._replace(extras={"bonus": torch.zeros(3)})

    with pytest.raises(ValueError, match=r"extras\['bonus'\] with 4 rows, .* with \[3\] rows"):
        Collector(Short(no_ends(3, 4), no_ends(3, 4)), seeds=2).collect(3, act_row)


def test_by_seed_gathers_all_samples_of_each_seed():
    tensor = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    flat = by_seed(tensor)
    assert flat.shape == (3, 8, 5)
    for t, s, n in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
        assert torch.equal(flat[s, 4 * t + n], tensor[t, s, n])


class Told(Scripted):
    """Environment that reports the return of every episode of its even rows, and loses those in the script."""

    lost: Tensor | None = None

    def step(self, actions):
        step = super().step(actions)
        if self.lost is not None:
            lost = self.lost[self.time - 1]
            self.episode, self.step_ = self.episode + lost, self.step_.masked_fill(lost, 0)
            step = step._replace(
                truncated=step.truncated | lost, valid=step.valid & ~lost, obs=self._obs(), reward=step.reward * ~lost
            )
        ended = (step.terminated | step.truncated) & step.valid & (self.row % 2 == 0)
        return step._replace(infos={"reward": step.reward.double().where(ended, torch.nan)}) if ended.any() else step


def act_row(obs, t):
    return (), torch.arange(obs.shape[0] * obs.shape[1]).view(obs.shape[:2])


def test_infos_of_episodes_become_metrics():
    terminated = torch.zeros(6, 4, dtype=torch.bool)
    terminated[2, 0] = terminated[5, 0] = terminated[3, 3] = True
    collector = Collector(Told(terminated, torch.zeros_like(terminated)), seeds=2)
    first, second, third = (collector.collect(2, act_row).metrics for _ in range(3))
    assert "rollout/info/reward" not in first
    reported = second["rollout/info/reward"]
    assert reported[0] == reward_of(torch.tensor(0), torch.tensor(0), torch.tensor(3))
    assert reported[1].isnan()
    together = all_episodes([first, second, third])["rollout/info/reward"]
    assert together[0] == (reported[0] + third["rollout/info/reward"][0]) / 2
    assert together[1].isnan()


def test_lost_episodes_are_cut_where_they_were_seen_last_and_count_nowhere():
    terminated = torch.zeros(8, 2, dtype=torch.bool)
    terminated[6, :] = True
    env = Told(terminated, torch.zeros_like(terminated))
    env.always_valid = False
    env.lost = torch.zeros_like(terminated)
    env.lost[3, 1] = True
    collector = Collector(env, seeds=1)
    first, second = (collector.collect(4, act_row) for _ in range(2))
    assert first.truncated[:, 0, 1].tolist() == [False, False, True, True]
    assert not first.truncated[:, 0, 0].any()
    assert first.valid[:, 0, 1].tolist() == [True, True, True, False]
    assert first.metrics["health/lost_episodes"].tolist() == [1]
    assert first.metrics["rollout/episodes"].tolist() == [0]
    assert "health/lost_episodes" not in second.metrics
    assert second.metrics["rollout/episodes"].tolist() == [2]
    assert second.metrics["rollout/episode_length"].tolist() == [(7 + 3) / 2]


def test_the_latest_of_what_wrappers_report_is_kept():
    class Reporting(Wrapper):
        asked = 0

        def metrics(self):
            self.asked += 1
            return {"wrapper/asked": torch.tensor([self.asked, 10 * self.asked])}

    collector = Collector(Reporting(Scripted(no_ends(6, 4), no_ends(6, 4))), seeds=2)
    reports = [collector.collect(2, act_row).metrics for _ in range(3)]
    assert reports[1]["wrapper/asked"].tolist() == [2, 20]
    together = all_episodes(reports)
    assert together["wrapper/asked"].tolist() == [3, 30]
    assert together["rollout/episodes"].tolist() == [0, 0]


def test_transitions_with_nan_are_invalid_and_returns_end_before_them():
    ends = no_ends(6, 2), no_ends(6, 2)
    whole = Collector(Scripted(*ends), seeds=1).collect(6, act)
    assert without_broken(whole) is whole
    rewards, obs, final = whole.rewards.clone(), whole.obs.clone(), whole.final_obs.clone()
    rewards[3, 0, 0], obs[4, 0, 1, 2], final[3, 0, 1, 2] = torch.nan, torch.inf, torch.inf
    found = without_broken(replace(whole, rewards=rewards, obs=obs, final_obs=final))
    valid = torch.ones(6, 1, 2, dtype=torch.bool)
    valid[3, 0, 0] = valid[3, 0, 1] = valid[4, 0, 1] = False
    assert torch.equal(found.valid, valid)
    assert found.metrics[DROPPED].tolist() == [3]
    values, next_values = found.successor_values(value)
    advantages = gae(
        found.rewards, values, next_values, gamma=0.9, lam=0.8, terminated=found.terminated, truncated=found.truncated
    )
    assert advantages.isfinite().all()
    part = Collector(Scripted(*ends), seeds=1).collect(3, act)
    before = gae(
        part.rewards,
        *part.successor_values(value),
        gamma=0.9,
        lam=0.8,
        terminated=part.terminated,
        truncated=part.truncated,
    )
    assert torch.equal(advantages[:3], before)
