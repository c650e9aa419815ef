"""Several seeds with separate networks, trained in turns as one learner: `InTurn`."""

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from operant.runtime.learner import Learner, Metrics
from operant.runtime.metrics_window import LOSSES
from operant.state import DeclaredState, State, all_or_nothing

L = TypeVar("L", bound=Learner)

_LAST = "last_losses"
"""Entry of a state with the losses of learners that wait."""


class InTurn(DeclaredState, Generic[L]):
    """A learner of several seeds that iterates one learner per seed in turn.

    Args:
        learners: one learner for each of S seeds.
        budget: budget of each learner; learners that have used it wait for the others.

    Attributes:
        learners: the learners of the seeds.
        budget: budget of each learner.
    """

    STATE = ("learners",)

    def __init__(self, learners: Sequence[L], *, budget: int):
        self.learners, self.budget = list(learners), budget
        self._last: list[Metrics] = [{} for _ in learners]

    @property
    def consumed(self) -> int:
        """Smallest budget used by a learner."""
        return min(learner.consumed for learner in self.learners)

    def iterate(self) -> Metrics:
        """Run one iteration of each learner, and return metrics of shape `[S]`.

        Learners that wait or do not report a metric have NaN, or under `losses/` the last value.
        """
        reports: list[Metrics] = []
        for position, learner in enumerate(self.learners):
            if learner.consumed < self.budget:
                self._last[position] = report = learner.iterate()
            else:
                report = _losses(self._last[position])
            reports.append(report)
        names = {name: None for report in reports for name in report}
        whole = [name for name in names if not name.startswith(LOSSES) or all(name in report for report in reports)]
        return {name: _column(name, reports) for name in whole}

    def state_dict(self) -> State:
        """Return the states of the learners and, while some wait for others, their last losses, `{}` of the others."""
        state, waits = super().state_dict(), [learner.consumed >= self.budget for learner in self.learners]
        last = [_losses(report) if waiting else {} for report, waiting in zip(self._last, waits, strict=True)]
        if all(waits) or not any(last):
            return state
        return state | {_LAST: [{name: float(value) for name, value in losses.items()} for losses in last]}

    @all_or_nothing
    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict`; an invalid state leaves the learners unchanged.

        Raises:
            ValueError: the number of learners differs.
        """
        last = state.get(_LAST, [{} for _ in self.learners])  # earlier versions did not save them
        for count in (len(state["learners"]), len(last)):
            if count != len(self.learners):
                raise ValueError(f"the state has {count} seeds, expected {len(self.learners)}")
        super().load_state_dict({name: part for name, part in state.items() if name != _LAST})
        self._last = [dict(losses) for losses in last]


def _losses(report: Metrics) -> dict[str, Tensor | float]:
    return {name: value for name, value in report.items() if name.startswith(LOSSES)}


def _column(name: str, reports: Sequence[Metrics]) -> Tensor:
    missing = 0.0 if name.startswith("health/") else math.nan
    return torch.stack([torch.as_tensor(report.get(name, missing), dtype=torch.float64).cpu() for report in reports])
