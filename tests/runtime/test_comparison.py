from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest

from operant.runtime import comparison
from operant.runtime.comparison import (
    compare,
    different_settings,
    evaluations,
    improvement_probability,
    learning_curve,
    metric_curve,
    two_sample_bootstrap,
)
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import RecordWriter
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings


@dataclass(frozen=True)
class Config:
    pass


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a run with evaluations: by the budget consumed, the scores [seeds, episodes]."""

    def call(name, scores, **settings):
        settings = {"task": "CartPole-v1", "budget": 100, "seeds": (0, 1)} | settings
        run = Run.create(tmp_path / name, Settings("ppo", **settings), Config())
        writer = RecordWriter(run.evaluations_path)
        for consumed, table in scores.items():
            writer.write({"consumed": consumed, "time/seconds": 1.0} | Evaluation.of(table, [5.0, 6.0]).record())
        writer.close()
        return run

    return call


def test_evaluations_are_read_as_they_were(make):
    run = make("a", {50: [[1.0, 3.0], [5.0, 7.0]], 100: [[2.0], [4.0]]})
    first, second = evaluations(run)
    assert first == (50, Evaluation.of([[1.0, 3.0], [5.0, 7.0]], [5.0, 6.0]))
    assert second[0] == 100


def test_a_curve_and_what_lies_between_its_points(make):
    curve = learning_curve(make("a", {20: [[1.0], [3.0]], 100: [[4.0], [6.0]]}))
    np.testing.assert_array_equal(curve.consumed, [20, 100])
    np.testing.assert_array_equal(curve.scores, [[1.0, 3.0], [4.0, 6.0]])
    np.testing.assert_array_equal(curve.iqm, [2.0, 5.0])
    assert (curve.low <= curve.iqm).all()
    assert (curve.iqm <= curve.high).all()
    np.testing.assert_array_equal(curve.at([10, 20, 60, 100, 101]), [np.nan, 2.0, 3.5, 5.0, np.nan])


def test_a_record_that_is_no_evaluation(make):
    run = make("a", {100: [[1.0], [2.0]]})
    run.evaluations_path.write_text('{"consumed": 100}\n')
    with pytest.raises(RunError, match="contains a record that is not an evaluation"):
        evaluations(run)


def test_no_evaluation_yet(make):
    with pytest.raises(RunError, match="has no evaluation yet; train it with `operant resume"):
        learning_curve(make("a", {}))


def test_commands_for_runs_in_a_folder_with_a_space_are_quoted(make, tmp_path):
    (tmp_path / "my runs").mkdir()
    with pytest.raises(RunError, match=r"no evaluation yet; train it with `operant resume '/.*/my runs/a'`"):
        learning_curve(make("my runs/a", {}))
    with pytest.raises(RunError, match=r"at 60 of 100; continue it with `operant resume '/.*/my runs/b'`"):
        compare([make("my runs/b", {60: [[1.0], [2.0]]})])


def test_compared_runs_may_differ_in_settings(make):
    first = make("a", {100: [[1.0], [3.0]]})
    other = make("b", {100: [[2.0], [3.0], [9.0]]}, seeds=(4, 5, 6), env_backend="tensor", evaluate_every=5)
    one, two = compare([first, other])
    assert (one.run, two.run) == (first, other)
    assert one.improvement == 0.5
    assert two.improvement == (1 + 0 + 1 + 0.5 + 1 + 1) / 6
    assert two.final.scores == (2.0, 3.0, 9.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "Acrobot-v1"}, "task is CartPole-v1 and Acrobot-v1"),
        ({"evaluate_episodes": 7}, "--evaluate-episodes is 20 and 7"),
        (
            {"env_kwargs": {"max_episode_steps": 5}, "env_backend": "gymnasium"},
            "--env-kwargs is {} and {.max_episode_steps.: 5}",
        ),
        ({"env_backend": "gymnasium"}, "--env-backend is tensor and gymnasium"),
    ],
)
def test_another_protocol_is_rejected(settings, message, make):
    with pytest.raises(RunError, match=message):
        compare([make("a", {100: [[1.0], [2.0]]}), make("b", {100: [[1.0], [2.0]]}, **settings)])


def test_an_unfinished_run_is_rejected(make):
    with pytest.raises(RunError, match="was last scored at 60 of 100; continue it with `operant resume"):
        compare([make("a", {60: [[1.0], [2.0]]})])


def test_a_run_that_a_callback_stopped_has_the_budget_that_it_used(make):
    stopped = make("a", {60: [[1.0], [2.0]]})
    stopped.add_session(["operant"], 0)
    stopped.end_session("finished", 60, "callback Stop stopped it")
    other = make("b", {50: [[5.0], [6.0]], 100: [[7.0], [8.0]]})
    found = compare([stopped, other])
    assert [standing.budget for standing in found] == [60, 60]
    assert [standing.final.scores for standing in found] == [(1.0, 2.0), (5.0, 6.0)]


def test_runs_are_needed_and_no_run_twice(make):
    run = make("a", {100: [[1.0], [2.0]]})
    for runs in ([], [run, run]):
        with pytest.raises(ValueError, match="one or more different runs"):
            compare(runs)


def test_improvement_is_the_share_of_pairs_that_win():
    generator = np.random.default_rng(0)
    scores, others = generator.integers(5, size=7), generator.integers(5, size=4)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores for b in others]
    assert improvement_probability(scores, others) == pytest.approx(np.mean(pairs))
    assert improvement_probability(scores, others) + improvement_probability(others, scores) == pytest.approx(1.0)


def recorded(run, records):
    writer = RecordWriter(run.metrics_path)
    for consumed, returns, episodes in records:
        writer.write({"consumed": consumed, "rollout/episode_return": returns, "rollout/episodes": episodes, "x": 1.0})
    writer.close()


def test_the_evaluations_of_a_run_are_read_once(make, monkeypatch):
    runs, read = [make(name, {100: [[1.0, 3.0], [5.0, 7.0]]}) for name in "ab"], []
    own = comparison.read_records
    monkeypatch.setattr(comparison, "read_records", lambda path: read.append(path) or own(path))
    compare(runs)
    assert sorted(read) == sorted(run.evaluations_path for run in runs)


def test_a_metric_is_averaged_over_episodes_between_evaluations(make):
    run = make("a", {100: [[1.0], [2.0]]}, evaluate_every=50)
    rows = [(10, [1.0, 2.0], [1, 3]), (50, [5.0, 6.0], [3, 1]), (80, [np.nan, 7.0], [0, 2]), (100, [9.0, 9.0], [1, 6])]
    recorded(run, rows)
    curve = metric_curve(run, "rollout/episode_return")
    np.testing.assert_array_equal(curve.consumed, [50, 100])
    np.testing.assert_allclose(curve.scores, [[4.0, 3.0], [9.0, 8.5]])
    np.testing.assert_allclose(curve.iqm, [3.5, 8.75])
    np.testing.assert_array_equal(metric_curve(run, "x").scores, [[1.0], [1.0]])


def test_a_record_belongs_to_the_evaluation_that_follows_it(make):
    run = make("a", {120: [[1.0], [2.0]]}, budget=100, evaluate_every=50)
    none, last = [np.nan, np.nan], [7.0, 8.0]
    recorded(run, [(30, [1.0, 2.0], [1, 1]), (60, [3.0, 4.0], [1, 1]), (90, last, [1, 1]), (120, none, [0, 0])])
    curve = metric_curve(run, "rollout/episode_return")  # evaluated at 60, the first multiple of 30 from 50, and at 120
    np.testing.assert_array_equal(curve.consumed, [60, 120])
    np.testing.assert_array_equal(curve.scores, [[2.0, 3.0], last])


def test_runs_are_compared_by_a_metric(make):
    runs = [make(name, {100: [[1.0], [1.0]]}) for name in ("a", "b")]
    recorded(runs[0], [(100, [1.0, 2.0], [1, 1])])
    recorded(runs[1], [(100, [3.0, 4.0], [1, 1])])
    first, second = compare(runs, metric="rollout/episode_return")
    assert (first.final.mean, second.final.mean, second.improvement) == (1.5, 3.5, 1.0)
    assert first.metric == "rollout/episode_return"
    assert compare(runs)[0].metric is None


def test_metrics_of_bandits_are_compared_by_means(make):
    """Regret is a sum whose rare large values count, so that the IQM would be too low."""
    seeds, few = (0, 1, 2, 3), [1.0, 2.0, 3.0, 14.0]
    runs = [make(name, {100: [[1.0]] * 4}, seeds=seeds) for name in ("a", "b")]
    for run, regret in zip(runs, (few, [2 * x for x in few]), strict=True):
        with closing(RecordWriter(run.metrics_path)) as writer:
            for consumed, share in ((50, 0.5), (100, 1.0)):
                writer.write({"consumed": consumed, "bandit/regret": [share * x for x in regret]})
    first, second = compare(runs, metric="bandit/regret")
    assert (first.center, first.final.iqm, second.difference) == (5.0, 2.5, 5.0)
    assert first.interval[0] < 5.0 < first.interval[1] == first.curve.high[-1]
    assert first.curve.iqm[-1] == 5.0
    scores = compare(runs)[0]
    assert (scores.center, scores.interval) == (scores.final.iqm, scores.final.interval)


def test_a_metric_that_is_not_there_is_named(make):
    run = make("a", {100: [[1.0], [1.0]]})
    with pytest.raises(RunError, match="has no metric 'rollout/return'; it has none yet"):
        metric_curve(run, "rollout/return")
    recorded(run, [(100, [1.0, np.nan], [1, 0])])
    with pytest.raises(RunError, match=r"'rollout/episode_returns'; did you mean rollout/episode_return\?"):
        metric_curve(run, "rollout/episode_returns")
    with pytest.raises(RunError, match="no final value for seed 1: no episode ended there"):
        metric_curve(run, "rollout/episode_return")


def test_records_of_earlier_versions_are_read(make):
    run = make("a", {100: [[1.0], [2.0]]})
    text = run.evaluations_path.read_text()
    run.evaluations_path.write_text(text.replace(', "cut": [], "exact": false', ""))
    assert run.evaluations_path.read_text() != text
    assert evaluations(run)[0][1].cut == ()


def test_runs_of_different_budgets_are_compared_within_the_least(make):
    short = make("a", {60: [[0.0], [0.0]], 100: [[1.0], [3.0]]})
    long = make("b", {50: [[2.0], [2.0]], 90: [[4.0], [6.0]], 200: [[9.0], [9.0]]}, budget=200)
    one, two = compare([short, long])
    assert (one.budget, two.budget) == (100, 100)
    assert two.final.scores == (4.0, 6.0)
    assert two.difference == 3.0
    assert two.curve.consumed.tolist() == [50, 90, 200]
    late = make("c", {200: [[9.0], [9.0]]}, budget=200)
    with pytest.raises(RunError, match="no evaluation within a budget of 100"):
        compare([short, late])


def test_intervals_of_the_difference_and_of_improvement(make):
    first = make("a", {100: [[1.0], [2.0], [3.0]]}, seeds=(0, 1, 2))
    one, two = compare([first, make("b", {100: [[11.0], [12.0], [13.0]]}, seeds=(0, 1, 2))])
    assert (one.improvement_interval, one.difference_interval) == ((0.5, 0.5), (0.0, 0.0))
    assert (two.improvement, two.improvement_interval) == (1.0, (1.0, 1.0))
    low, high = two.difference_interval
    assert 8.0 <= low < two.difference == 10.0 < high <= 12.0


def test_the_interval_covers_the_true_probability_about_at_its_level():
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(60):
        low, high = two_sample_bootstrap(
            generator.normal(size=20), generator.normal(size=20), improvement_probability, repetitions=200
        )
        hits += low <= 0.5 <= high
    assert hits >= 50


def test_settings_that_differ(make):
    first = make("a", {100: [[1.0], [2.0]]})
    other = make("b", {100: [[1.0], [2.0]]}, seeds=(4, 5), threads=2)
    assert different_settings([first, other]) == {"threads": [0, 2]}
    assert different_settings([first]) == {}


def test_a_score_that_is_missing_hides_no_others_from_the_profile(make):
    failed, other = make("a", {100: [[np.nan], [2.0]]}), make("b", {100: [[3.0], [4.0]]})
    profile = compare([failed, other])[1].profile
    assert (profile.thresholds[0], profile.thresholds[-1]) == (2.0, 4.0)
    assert profile.share[0] == 1.0
