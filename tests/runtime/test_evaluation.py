import dataclasses
import json
import math

import pytest
import torch

from operant.envs import EndlessError, WorkerError
from operant.runtime.evaluation import Evaluation, SamplingPolicy, StoppedError, evaluate_policy
from runtime.tiny import Corridor


class Constant:
    """Policy that always takes action 1, so that the return of an episode is its length; checks its arguments."""

    def act(self, obs, hidden_state, noise):
        assert noise is None
        assert hidden_state is None
        assert not torch.is_grad_enabled()
        obs = obs["time"] if isinstance(obs, dict) else obs
        return torch.ones(obs.shape[:2], dtype=torch.int64), None


class Recurrent:
    """Policy that counts the steps of the episode and takes that number as its action."""

    def act(self, obs, hidden_state, noise):
        count = torch.zeros(*obs.shape[:2], 2) if hidden_state is None else hidden_state["count"]
        return count[..., 0].long(), {"count": count + 1}


class Drawn:
    """Policy whose actions are its noise."""

    def act(self, obs, hidden_state, noise):
        return noise.long(), None

    def noise(self, rows, generator):
        return torch.randint(10, (rows,), generator=generator).double()


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("dictionary", [False, True])
def test_returns_are_exact(next_step, dictionary):
    env = Corridor([3, 5, 8, 2], next_step=next_step, dictionary=dictionary)
    result = evaluate_policy(Constant(), env, seeds=2, episodes=4)
    assert result.scores == (4.0, 5.0)
    assert result.lengths == (4.0, 5.0)
    assert result.episode_scores == ((3.0, 3.0, 5.0, 5.0), (8.0, 8.0, 2.0, 2.0))
    assert result.episodes == 4
    assert result.mean == result.iqm == 4.5


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_actions_of_every_seed_are_sampled_by_its_own_stream():
    result = evaluate_policy(SamplingPolicy(Drawn(), 2, generators(7, 8)), Corridor([3] * 4), seeds=2, episodes=2)
    drawn = [torch.stack([Drawn().noise(2, stream) for _ in range(3)]) for stream in generators(7, 8)]
    assert result.episode_scores == tuple(tuple(own.sum(0).tolist()) for own in drawn)


def test_short_episodes_count_no_more_than_long_ones():
    result = evaluate_policy(Constant(), Corridor([1, 99]), seeds=1, episodes=2)
    assert result.scores == (50.0,)


@pytest.mark.parametrize("next_step", [False, True])
def test_rows_that_are_through_before_others_add_nothing(next_step):
    env = Corridor([1, 20], next_step=next_step, growth=1)
    result = evaluate_policy(Constant(), env, seeds=1, episodes=4)
    assert result.episode_scores == ((1.0, 2.0, 20.0, 21.0),)


def test_it_stops_as_soon_as_the_slowest_row_is_through():
    env = Corridor([2, 7])
    evaluate_policy(Constant(), env, seeds=1, episodes=6)
    assert env.steps == 21


def test_it_is_given_up_when_asked_to_stop():
    env = Corridor([2, 7])
    with pytest.raises(StoppedError, match="during an evaluation"):
        evaluate_policy(Constant(), env, seeds=1, episodes=6, interrupted=lambda: env.steps == 3)
    assert env.steps == 3


@pytest.mark.parametrize("next_step", [False, True])
def test_memory_is_zeroed_where_an_episode_starts(next_step):
    env = Corridor([3, 5], next_step=next_step)
    result = evaluate_policy(Recurrent(), env, seeds=1, episodes=6)
    assert result.episode_scores == ((3.0, 3.0, 3.0, 10.0, 10.0, 10.0),)  # 0 + 1 + 2 and 0 + ... + 4


def test_one_seed_has_no_interval_but_the_point():
    result = evaluate_policy(Constant(), Corridor([4]), seeds=1, episodes=3)
    assert result.interval == (4.0, 4.0)


def test_several_seeds_have_one():
    result = evaluate_policy(Constant(), Corridor([1, 2, 3, 4, 50]), seeds=5, episodes=1)
    assert result.iqm == 3.0
    assert result.interval[0] < result.iqm < result.interval[1]


@pytest.mark.parametrize(
    ("seeds", "episodes", "message"),
    [(3, 4, "4 environments cannot be divided among 3 seeds"), (2, 5, "use 4 episodes"), (2, 0, "use 2 episodes")],
)
def test_counts_that_do_not_divide(seeds, episodes, message):
    with pytest.raises(ValueError, match=message):
        evaluate_policy(Constant(), Corridor([1, 1, 1, 1]), seeds=seeds, episodes=episodes)


def test_an_episode_without_end_is_an_error():
    expected = r"environment 1 of Corridor has not ended its episode after 1024 steps; .*max_episode_steps"
    with pytest.raises(EndlessError, match=expected):
        evaluate_policy(Constant(), Corridor([2, 10_000]), seeds=1, episodes=4, max_steps=50)
    evaluate_policy(Constant(), Corridor([2, 2000]), seeds=1, episodes=2, max_steps=3000)


def test_a_record_is_json_and_complete():
    result = Evaluation.of([[1.0, 3.0], [5.0, 5.0]])
    record = json.loads(json.dumps(result.record()))
    assert record.keys() == {field.name for field in dataclasses.fields(Evaluation)} - {"metrics"}
    assert record["scores"] == [2.0, 5.0]
    assert record["lengths"] == []


@pytest.mark.parametrize("bad", [[], [[]], [1.0, 2.0]])
def test_scores_must_be_a_table(bad):
    with pytest.raises(ValueError, match="seeds, episodes"):
        Evaluation.of(bad)


class Telling(Corridor):
    """Environment that reports at the end of episodes whether their number is even, and in odd rows their length."""

    def reset(self, seeds=None):
        self.ended = torch.zeros(self.rows, dtype=torch.int64)
        return super().reset(seeds)

    def step(self, actions):
        step = super().step(actions)
        over = (step.terminated | step.truncated) & step.valid
        if not over.any():
            return step
        success = (self.ended % 2 == 0).double().where(over, torch.nan)
        length = step.score.double().where(over & (torch.arange(self.rows) % 2 == 1), torch.nan)
        self.ended += over
        return step._replace(infos={"is_success": success, "length": length})


def test_infos_are_averaged_over_the_episodes_that_count():
    result = evaluate_policy(Constant(), Telling([3, 5, 8, 2]), seeds=2, episodes=6)
    assert result.success_rate == pytest.approx((2 / 3, 2 / 3))
    assert set(result.infos) == {"length"}
    assert json.loads(json.dumps(result.record()))["success_rate"] == pytest.approx([2 / 3, 2 / 3])
    silent = evaluate_policy(Constant(), Corridor([3]), seeds=1, episodes=1)
    assert (silent.success_rate, silent.infos) == ((), {})


class Losing(Corridor):
    """Environment that loses its rows in the third step of its first lives."""

    lives = 0

    def reset(self, seeds=None):
        self.clock, self.lives = 0, self.lives - 1
        return super().reset(seeds)

    def step(self, actions):
        self.clock += 1
        step = super().step(actions)
        lost = torch.full((self.rows,), self.clock == 3 and self.lives >= 0)
        return step._replace(truncated=step.truncated | lost, valid=step.valid & ~lost)


def test_an_evaluation_in_which_a_worker_is_lost_is_made_again():
    env = Losing([4, 6], next_step=True)
    env.lives = 2
    assert evaluate_policy(Constant(), env, seeds=1, episodes=4).episode_scores == ((4.0, 4.0, 6.0, 6.0),)
    env.lives = 9
    with pytest.raises(WorkerError, match="in each of 3 attempts"):
        evaluate_policy(Constant(), env, seeds=1, episodes=4)


def test_sampled_actions_are_the_same_after_a_worker_is_lost():
    scores = []
    for lost in (0, 2):
        env = Losing([4, 6], next_step=True)
        env.lives = lost
        policy = SamplingPolicy(Drawn(), 1, generators(7, 8))
        scores.append(evaluate_policy(policy, env, seeds=2, episodes=2).episode_scores)
    assert scores[0] == scores[1]


def test_invalid_sampled_actions_name_the_policy_that_returned_them():
    policy = SamplingPolicy(Drawn(), 3, generators(7, 8))
    with pytest.raises(ValueError, match=r"^Drawn.act must return actions of shape \(2, 1\)"):
        evaluate_policy(policy, Corridor([4, 6]), seeds=2, episodes=1)


def test_episodes_that_were_cut_count_and_are_warned_of(caplog):
    result = evaluate_policy(Constant(), Corridor([2, 50]), seeds=1, episodes=4, max_steps=50, cut=True)
    assert result.episode_scores == ((2.0, 2.0, 50.0, 50.0),)
    assert [record.message for record in caplog.records] == [
        "evaluations in Corridor truncate episodes after 50 steps (evaluate_max_steps), which count with their return "
        "so far: 2 of 4 of seed 0 (counted from 0) in this one (reported once per run)"
    ]


def test_a_long_episode_is_reported_while_it_runs(caplog):
    evaluate_policy(Constant(), Corridor([2, 12_000]), seeds=1, episodes=2)
    assert [record.message for record in caplog.records] == [
        "evaluations in Corridor have long episodes: one has not ended after 10240 steps (environment 1); "
        "evaluations take long (reported once per run)"
    ]


def test_other_metrics_are_recorded_by_seed():
    plain, measured = Evaluation.of([[1.0], [2.0]]), Evaluation.of([[1.0], [2.0]], metrics=[{"kl": 3.0}, {}])
    assert "metrics" not in plain.record()
    assert measured.record()["metrics"]["kl"][0] == 3.0
    assert math.isnan(measured.metrics["kl"][1])
    for one in (plain, Evaluation.of([[1.0], [2.0]], metrics=[{"kl": 3.0}, {"kl": 4.0}])):
        assert Evaluation.of_record(json.loads(json.dumps(one.record()))) == one


def test_an_evaluation_of_many_episodes_fits_a_line():
    shown = repr(Evaluation.of([range(2000 * seed, 2000 * (seed + 1)) for seed in range(5)]))
    assert shown.startswith("Evaluation(mean=4999.5, iqm=4999.5, interval=(")
    assert shown.endswith("), 5 seeds, 2000 episodes each)")
    assert len(shown) < 120
