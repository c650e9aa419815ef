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
def test_nothing_is_said_where_nothing_can_be(before, after):
    assert change(before, after) is None


def course(*points):
    return Course([Point(consumed, evaluation) for consumed, evaluation in points])


def test_a_loss_beyond_noise_is_told_with_the_best_and_with_what_to_try():
    told = course((0, share(135)), (3200, share(142)), (6400, share(92))).warning(
        Hints("prompts", kept=True, advice="a smaller --learning-rate (now 0.01)")
    )
    assert told.startswith("eval 0.46 is below the start, 0.675 (-0.21, 99 % interval -0.29 to -0.14 over 200 pairs")
    assert "the best was 0.71 at 3,200 prompts, kept: --best. Try a smaller --learning-rate (now 0.01)" in told
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
