"""Learned tables of a run as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.runtime.experiment import Experiment
from operant.runtime.run import Run


class LearnedTables:
    """Learned tables of a run for all S seeds; raises an error for other runs."""

    run: Run
    experiment: Experiment

    @property
    def q(self) -> NDArray[np.float64]:
        """Learned action values, `[S, n_states, n_actions]`; a copy.

        Raises:
            ValueError: the run has no action values.
        """
        learner = self._table("q")
        if not learner.learns_action_values:
            raise ValueError(f"{self.run.settings.algorithm} learns state values, not action values: use `values`")
        return learner.q.copy()

    @property
    def values(self) -> NDArray[np.float64]:
        """Learned state values, `[S, n_states]`; a copy.

        Raises:
            ValueError: the run has no state values.
        """
        return self._table("values").values.copy()

    @property
    def policy(self) -> NDArray[np.float64]:
        """Probabilities of the greedy policy of a table, `[S, n_states, n_actions]`; tied actions share it equally.

        Raises:
            ValueError: the run has no table.
        """
        return self._table("policy", values=False).policy()

    def _table(self, what: str, *, values: bool = True) -> Any:
        """Return the tabular learner, if it has the requested table."""
        name = self.run.settings.algorithm
        if self.run.entry.package != "tabular":
            raise ValueError(f"{name} has learned no table, so there is no `{what}`; `predict` returns its actions")
        learner = self.experiment.learner
        if values and not learner.learns_values:
            raise ValueError(f"{name} learns no values, so there is no `{what}`")
        return learner
