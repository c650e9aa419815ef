import numpy as np
import pytest
from scipy import stats

from operant.runtime.course import Course, Hints, Point, change
from operant.runtime.evaluation import Evaluation


def scored(*rows):
    return Evaluation.of(rows)


RIGHT = np.array([1.0] * 135 + [0.0] * 65)
"""67.5 % of 200 answers."""


def share(right, of=200):
    return scored([1.0] * right + [0.0] * (of - right))


def test_a_change_is_that_of_pairs_and_its_interval_is_students():
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(3, 30)), rng.normal(size=(3, 30))
    found = change(scored(*before), scored(*after))
    differences = (after - before).mean(0)
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.99)
    assert found.mean == pytest.approx(differences.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.examples == 30


@pytest.mark.parametrize(
    ("before", "after"),
    [(share(1, 7), share(0, 7)), (share(5, 10), share(5, 11)), (share(5, 10), scored([float("nan")] * 10))],
    ids=["few", "others", "nan"],
)
def test_incomparable_evaluations_give_no_change(before, after):
    assert change(before, after) is None


def course(*points):
    return Course([Point(consumed, evaluation) for consumed, evaluation in points])


def test_a_loss_beyond_noise_is_reported_with_the_best_and_with_advice():
    told = course((0, share(135)), (3200, share(142)), (6400, share(92))).warning(
        Hints("prompts", kept=True, advice="a smaller --learning-rate (now 0.01)")
    )
    assert told.startswith("eval 0.46 is below the start, 0.675 (-0.21, 99 % interval -0.29 to -0.14 over 200 pairs")
    assert "the best was 0.71 at 3,200 prompts (saved: --best). Try a smaller --learning-rate (now 0.01)" in told
    told = course((0, share(135)), (6400, share(92))).warning(Hints())
    assert told.endswith("; the start is the best so far")


@pytest.mark.parametrize(
    "points",
    [
        [(0, share(135))],
        [(100, share(135)), (200, share(20))],
        [(0, share(135)), (100, share(150))],
        [(0, scored([1.0, 0.0] * 100)), (100, scored([0.0, 1.0] * 99 + [0.0, 0.0]))],
        [],
    ],
    ids=["start alone", "no start", "better", "noise", "nothing"],
)
def test_there_is_no_warning_without_a_loss(points):
    assert course(*points).warning(Hints()) is None


def test_a_course_is_read_from_the_records_of_a_run():
    records = [{"consumed": n} | share(n + 5, 20).record() for n in (0, 10, 5)]
    found = Course.of_records([*records, {"consumed": 3}])
    assert [point.consumed for point in found.points] == [0, 10, 5]
    assert (found.start.evaluation, found.best.consumed) == (share(5, 20), 10)
    assert Course.of_records([]).best is None


UP = [0.1, 0.2, 0.15, 0.1, 0.5, 0.6, 0.5, 0.4, 1.8, 1.9, 1.9, 1.8]


def parted(points, rewards, **hints):
    found = course(*points)
    for reward in rewards:
        found.add_reward(reward)
    return found.parting(Hints("prompts", kept=True, **hints))


def test_a_reward_that_rises_while_the_score_falls_is_named():
    told = parted([(0, share(135)), (100, share(92))], UP, penalty="--beta")
    assert told.startswith(
        "the reward of sampled answers rises (0.1375 to 1.85) while the held-out score falls (0.675,"
    )
    assert "start, to 0.46)" in told
    assert "reward hacking" in told
    assert told.endswith(
        "Try a larger --beta, fewer prompts, another reward model, a clipped score, or use the best weights: --best"
    )
    told = parted([(0, share(100)), (50, share(180)), (100, share(120))], UP)
    assert "(0.9, best at 50 prompts, to 0.6)" in told


@pytest.mark.parametrize(
    ("points", "rewards"),
    [
        ([(0, share(135)), (100, share(92))], UP[::-1]),
        ([(0, share(135)), (100, share(92))], UP[:11]),
        ([(0, share(135)), (100, share(92))], [0.0, 2.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 0.0, 2.1]),
        ([(0, share(135)), (100, share(140))], UP),
        ([(0, share(100)), (50, share(105)), (100, share(100))], UP),
        ([], UP),
    ],
    ids=["reward falls", "too few", "noisy reward", "score rises", "score within noise", "no score"],
)
def test_nothing_is_named_where_they_do_not_part(points, rewards):
    assert parted(points, rewards) is None


def test_rewards_of_seeds_are_averaged_and_nothing_is_left_out_silently():
    found = Course()
    for reward in (1.0, [1.0, 3.0], [float("nan"), 5.0], float("nan"), None):
        found.add_reward(reward)
    assert found.rewards == [1.0, 2.0, 5.0]
