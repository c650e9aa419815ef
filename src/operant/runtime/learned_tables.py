"""Access to the learned tables of a run as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.runtime.experiment import Experiment
from operant.runtime.run import Run


class LearnedTables:
    """Learned tables of a tabular run, for all S seeds."""

    run: Run
    experiment: Experiment

    @property
    def q(self) -> NDArray[np.float64]:
        """Copy of the learned action values, `[S, n_states, n_actions]`.

        Raises:
            ValueError: the run has no action values.
        """
        learner = self._table("q")
        if not learner.learns_action_values:
            raise ValueError(f"{self.run.settings.algorithm} learns state values, not action values: use `values`")
        return learner.q.copy()

    @property
    def values(self) -> NDArray[np.float64]:
        """Copy of the learned state values, `[S, n_states]`.

        Raises:
            ValueError: the run has no state values.
        """
        return self._table("values").values.copy()

    @property
    def policy(self) -> NDArray[np.float64]:
        """Action probabilities of the greedy policy, `[S, n_states, n_actions]`; tied actions are equally likely.

        Raises:
            ValueError: the run has no table.
        """
        return self._table("policy", values=False).policy()

    def _table(self, what: str, *, values: bool = True) -> Any:
        """Return the tabular learner if it has the requested table."""
        name = self.run.settings.algorithm
        if self.run.entry.package != "tabular":
            raise ValueError(f"{name} is not a tabular method, so there is no `{what}`; use `predict` for its actions")
        learner = self.experiment.learner
        if values and not learner.learns_values:
            raise ValueError(f"{name} learns no values, so there is no `{what}`")
        return learner
