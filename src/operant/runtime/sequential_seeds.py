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
                report = {name: self._last[position][name] for name in self._last[position] if name.startswith(LOSSES)}
            reports.append(report)
        names = {name: None for report in reports for name in report}
        whole = [name for name in names if not name.startswith(LOSSES) or all(name in report for report in reports)]
        return {name: _column(name, reports) for name in whole}

    @all_or_nothing
    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict`; an invalid state leaves the learners unchanged.

        Raises:
            ValueError: the number of learners differs.
        """
        if len(state["learners"]) != len(self.learners):
            raise ValueError(f"the state has {len(state['learners'])} seeds, expected {len(self.learners)}")
        super().load_state_dict(state)


def _column(name: str, reports: Sequence[Metrics]) -> Tensor:
    missing = 0.0 if name.startswith("health/") else math.nan
    return torch.stack([torch.as_tensor(report.get(name, missing), dtype=torch.float64).cpu() for report in reports])
