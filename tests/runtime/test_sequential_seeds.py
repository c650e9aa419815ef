import math

import pytest
import torch

from operant.runtime.encoding import flatten, unflatten
from operant.runtime.sequential_seeds import InTurn
from operant.state import clone
from runtime.tiny import Regression


class One(Regression):
    """Regression of one seed, whose metrics are floats."""

    def __init__(self, seed):
        super().__init__([seed])

    def iterate(self):
        return {name: float(value) for name, value in super().iterate().items()}


class Counter:
    """Learner that counts in steps of a given size."""

    def __init__(self, step, **metrics):
        self.step, self.metrics, self.consumed = step, metrics, 0

    def iterate(self):
        self.consumed += self.step
        return {"losses/value": float(self.consumed), **self.metrics}

    def state_dict(self):
        return {"consumed": self.consumed}

    def load_state_dict(self, state):
        self.consumed = state["consumed"]


def finish(learner, budget):
    reports = []
    while learner.consumed < budget:
        reports.append(learner.iterate())
    return reports


def test_each_learner_does_what_it_does_alone():
    together = InTurn([One(seed) for seed in (0, 5)], budget=100)
    reports = finish(together, 100)
    for position, seed in enumerate((0, 5)):
        alone = One(seed)
        for report, own in zip(reports, finish(alone, 100), strict=True):
            assert report["losses/value"].shape == (2,)
            assert report["losses/value"][position] == own["losses/value"]
            assert report["constant"].tolist() == [2.5, 2.5]
        assert torch.equal(together.learners[position].weight, alone.weight)


def test_the_slowest_determines_the_consumed_budget():
    both = InTurn([Counter(3), Counter(5)], budget=9)
    both.iterate()
    assert both.consumed == 3
    finish(both, 9)
    assert [learner.consumed for learner in both.learners] == [9, 10]


def test_a_learner_that_waits_repeats_its_losses_and_reports_nothing_else():
    quick, slow = Counter(10, reward=1.0, **{"health/skipped_updates": 1.0}), Counter(4, reward=2.0)
    both = InTurn([quick, slow], budget=8)
    both.iterate()
    report = both.iterate()
    assert report["losses/value"].tolist() == [10.0, 8.0]
    assert math.isnan(report["reward"][0])
    assert report["reward"][1] == 2.0
    assert "health/skipped_updates" not in report
    assert quick.consumed == 10, "its `iterate` is not called again"


def test_a_number_that_one_does_not_report_is_missing():
    report = InTurn([Counter(1, reward=3.0, **{"health/empty": 1.0}), Counter(1)], budget=5).iterate()
    assert report["reward"][0] == 3.0
    assert math.isnan(report["reward"][1])
    assert report["health/empty"].tolist() == [1.0, 0.0]


def test_a_loss_that_one_does_not_report_is_left_out():
    class Silent(Counter):
        def iterate(self):
            super().iterate()
            return {"reward": 1.0}

    report = InTurn([Counter(1), Silent(1)], budget=5).iterate()
    assert set(report) == {"reward"}, "NaN as a loss would stop the run"


def test_the_state_resumes_exactly():
    one, two = (InTurn([One(seed) for seed in (0, 5)], budget=100) for _ in range(2))
    one.iterate()
    two.load_state_dict(one.state_dict())
    finish(one, 100)
    finish(two, 100)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(one.learners, two.learners, strict=True))


@pytest.mark.parametrize("loss", [0.1, math.nan])
def test_a_resumed_learner_that_waits_repeats_its_losses(loss):
    whole, resumed = (
        InTurn([Counter(10, **{"losses/policy": loss}), Counter(4, **{"losses/policy": 0.4})], budget=12)
        for _ in range(2)
    )
    for _ in range(2):
        whole.iterate()
    state = unflatten(*flatten(clone(whole.state_dict())))
    assert whole.consumed == 8
    resumed.load_state_dict(state)
    expected, report = whole.iterate(), resumed.iterate()
    assert set(report) == {"losses/value", "losses/policy"}
    assert all(report[name].numpy().tobytes() == value.numpy().tobytes() for name, value in expected.items())
    assert set(whole.state_dict()) == {"learners"}, "nothing waits at the end"


def test_a_state_of_an_earlier_version_has_no_losses():
    quick, slow = Counter(10), Counter(4)
    both = InTurn([quick, slow], budget=12)
    both.iterate()
    both.iterate()
    state = {"learners": both.state_dict()["learners"]}
    both.load_state_dict(state)
    assert both.state_dict() == state
    assert both.iterate() == {}


def test_a_state_that_one_rejects_leaves_all_unchanged():
    both = InTurn([One(seed) for seed in (0, 5)], budget=100)
    before = clone(both.state_dict())
    other = InTurn([One(seed) for seed in (0, 5)], budget=100)
    other.iterate()
    state = other.state_dict()
    del state["learners"][1]["consumed"]
    with pytest.raises(KeyError, match="consumed"):
        both.load_state_dict(state)
    assert both.consumed == 0
    for left, right in zip(both.state_dict()["learners"], before["learners"], strict=True):
        assert torch.equal(left["weight"], right["weight"])


def test_a_state_of_other_seeds_is_rejected():
    state = InTurn([Counter(1)], budget=5).state_dict()
    with pytest.raises(ValueError, match="the state has 1 seeds, expected 2"):
        InTurn([Counter(1), Counter(1)], budget=5).load_state_dict(state)
