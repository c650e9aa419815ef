"""The tables of a run as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.runtime.experiment import Experiment
from operant.runtime.run import Run


class LearnedTables:
    """What a run that has learned a table knows, for all S seeds; other runs raise an error that says so."""

    run: Run
    experiment: Experiment

    @property
    def q(self) -> NDArray[np.float64]:
        """Values of actions that a table has learned, `[S, n_states, n_actions]`; a copy.

        Raises:
            ValueError: the run has learned no values of actions.
        """
        learner = self._table("q")
        if not learner.learns_action_values:
            raise ValueError(f"{self.run.settings.algorithm} learns values of states, not of actions: take `values`")
        return learner.q.copy()

    @property
    def values(self) -> NDArray[np.float64]:
        """Values of states that a table has learned, `[S, n_states]`; a copy.

        Raises:
            ValueError: the run has learned no values of states.
        """
        return self._table("values").values.copy()

    @property
    def policy(self) -> NDArray[np.float64]:
        """Probabilities of the greedy policy of a table, `[S, n_states, n_actions]`; tied actions share theirs.

        Raises:
            ValueError: the run has learned no table.
        """
        return self._table("policy", values=False).policy()

    def _table(self, what: str, *, values: bool = True) -> Any:
        """Return the learner of a table, which has what is asked for."""
        name = self.run.settings.algorithm
        if self.run.entry.package != "tabular":
            raise ValueError(f"{name} has learned no table, so that there is no `{what}`; `predict` says what it does")
        learner = self.experiment.learner
        if values and not learner.learns_values:
            raise ValueError(f"{name} learns no values, so that there is no `{what}`")
        return learner
