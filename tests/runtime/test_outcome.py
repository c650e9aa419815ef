import pytest

from operant.runtime.evaluation import Evaluation
from operant.runtime.outcome import Outcome

GOOD, BAD = Evaluation.of([[1.0], [2.0]]), Evaluation.of([[1.0], [float("nan")]])


@pytest.mark.parametrize(
    ("interrupted", "evaluation", "code"),
    [(False, None, 0), (False, GOOD, 0), (False, BAD, 1), (True, GOOD, 75), (True, BAD, 75)],
)
def test_exit_codes(interrupted, evaluation, code):
    assert Outcome(10, interrupted, evaluation, None, 1.0, 10.0, 0, 0).exit_code == code


def test_the_seed_without_a_score_is_named():
    assert GOOD.fault() == ""
    assert BAD.fault() == "the score of seed 1 (counted from 0) is NaN"
