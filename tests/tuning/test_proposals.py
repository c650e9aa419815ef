from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("optuna", reason="the extra tune")

from operant.tuning import Choices, Range, Trial
from operant.tuning.proposals import evaluation_point, is_hopeless, propose

SPACE = {
    "x": Range(0.001, 1.0, log=True),
    "n": Range(1, 9, whole=True),
    "width": Choices((16, 32, 64)),
    "layers": Choices(([8], [8, 8])),
}
FIRST = {"x": 0.5, "n": 2, "width": 16, "layers": [8]}


def search(count):
    """Return trials whose score is highest at x = 0.03 and width 64."""
    trials = []
    for number in range(count):
        values = propose(SPACE, trials, FIRST, seed=0)
        score = -abs(np.log10(values["x"] / 0.03)) + values["width"] / 64
        trials.append(Trial(number, values, "complete", float(score)))
    return trials


def test_the_first_trial_is_what_tuning_begins_with_and_the_others_are_in_the_space():
    trials = search(12)
    assert trials[0].values == FIRST
    for trial in trials:
        assert 0.001 <= trial.values["x"] <= 1.0
        assert trial.values["x"] == float(f"{trial.values['x']:.3g}")
        assert trial.values["n"] in range(1, 10)
        assert trial.values["width"] in (16, 32, 64)
        assert trial.values["layers"] in ([8], [8, 8])


def test_values_of_earlier_runs_are_not_proposed_again():
    space = {"width": Choices((16, 32, 64, 128))}
    earlier = [
        Trial(n, {"width": width}, "complete", 1.0 * width, source="run") for n, width in enumerate((128, 64, 32))
    ]
    assert propose(space, earlier, {"width": 64}, seed=0) == {"width": 16}
    assert propose(space, earlier, {"width": 16}, seed=0) == {"width": 16}
    every = [*earlier, Trial(3, {"width": 16}, "complete", 16.0, source="run")]
    assert propose(space, every, {"width": 64}, seed=0)["width"] in space["width"].choices


def test_values_that_failed_are_not_proposed_again():
    space = {"width": Choices((16, 32, 64, 128))}
    ended = [Trial(n, {"width": width}, "failed") for n, width in enumerate((16, 32, 128))]
    assert propose(space, ended, {"width": 16}, seed=0) == {"width": 64}


def test_regions_in_which_trials_fail_are_avoided():
    """Learning rates above 0.1 diverge, and scores are highest just below; 16 of 20 trials failed when none counted."""
    failures = []
    for seed in range(3):
        trials: list[Trial] = []
        for number in range(30):
            rate = propose({"x": SPACE["x"]}, trials, {"x": 0.5}, seed)["x"]
            result = ("failed", None) if rate > 0.1 else ("complete", float(np.log10(rate)))
            trials.append(Trial(number, {"x": rate}, *result))
        failures.append(sum(trial.state == "failed" for trial in trials[10:]))
    assert np.mean(failures) <= 10


def test_invalid_values_are_proposed_only_if_all_proposals_are():
    space = {"width": Choices((16, 32, 64, 128))}
    ended = [Trial(0, {"width": 16}, "complete", 1.0)]
    for seed in range(10):
        values = propose(space, ended, {"width": 16}, seed, is_valid=lambda values: values["width"] > 32)
        assert values["width"] in (64, 128)
    assert propose(space, ended, {"width": 16}, 0, is_valid=lambda _: False)["width"] in space["width"].choices


def test_proposals_depend_on_the_trials_alone():
    trials = search(15)
    assert [trial.values for trial in search(15)] == [trial.values for trial in trials]
    assert propose(SPACE, trials[:12], FIRST, seed=0) == trials[12].values
    assert propose(SPACE, trials[:12], FIRST, seed=1) != trials[12].values


def test_the_search_is_better_than_chance():
    scores = [trial.value for trial in search(40)]
    assert np.mean(scores[25:]) > np.mean(scores[1:10]) + 0.3


def test_trials_without_a_value_teach_nothing_but_count():
    trials = search(11)
    failed = [*trials, Trial(11, FIRST, "failed")]
    assert propose(SPACE, failed, FIRST, seed=0) != propose(SPACE, trials, FIRST, seed=0)


@pytest.mark.parametrize(
    ("interval", "points", "numbers"),
    [
        (400, (400, 800, 1000), [1, 2, 3]),
        (400, (416, 832, 1024), [1, 2, 3]),
        (400, (416, 1248), [1, 3]),
        (500, (500, 1000), [1, 2]),
        (2000, (1000,), [1]),
    ],
)
def test_the_last_evaluation_has_its_own_number(interval, points, numbers):
    curve = [evaluation_point({"consumed": n, "scores": [1.0, 2.0]}, interval, 1000) for n in points]
    assert curve == [(number, 1.5) for number in numbers]


def test_the_median_decides_what_is_hopeless():
    ended = [Trial(n, FIRST, "complete", 10.0, {1: float(n), 2: 5.0 + n}) for n in range(6)]
    assert not is_hopeless(ended, Trial(6, FIRST), patience=0)
    assert not is_hopeless(ended, Trial(6, FIRST, curve={1: 2.6}), patience=0)  # the median is 2.5
    assert is_hopeless(ended, Trial(6, FIRST, curve={1: 2.4}), patience=0)
    assert not is_hopeless(ended, Trial(6, FIRST, curve={1: 2.4}), patience=2)
    assert is_hopeless(ended, Trial(6, FIRST, curve={1: 2.4, 2: 7.4}), patience=2)
    assert not is_hopeless(ended, Trial(6, FIRST, curve={1: 9.0, 2: 7.4}), patience=1)  # its best result counts
    assert not is_hopeless(ended[:4], Trial(4, FIRST, curve={1: -9.0}), patience=0)  # too few for a comparison


def test_pruned_trials_belong_to_the_median_and_failed_ones_do_not():
    def ended(state, *scores):
        return [Trial(0, FIRST, state, curve={2: score}) for score in scores]

    trial = Trial(9, FIRST, curve={2: 4.0})
    complete, pruned = ended("complete", 9.0, 8.0), ended("pruned", 1.0, 2.0, 3.0)
    assert not is_hopeless(complete + pruned, trial, patience=2)  # the median is 3
    assert is_hopeless(complete + pruned, replace(trial, curve={2: 2.9}), patience=2)
    assert is_hopeless(complete * 3, trial, patience=2)
    assert not is_hopeless(complete + ended("failed", 8.0, 8.0, 8.0), trial, patience=2)  # two have a score
    assert not is_hopeless(complete * 3, replace(trial, curve={2: 4.0, 3: 1.0}), patience=2)  # none at evaluation 3
    assert is_hopeless(complete * 3, replace(trial, curve={2: float("nan")}), patience=2)
