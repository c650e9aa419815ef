"""Tables of a run, with the exact solution of its world if the model is known."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant import mdp as known
from operant.envs.drawing import parse_grid
from operant.envs.grid import GridWorld
from operant.envs.registry import make_single, specified
from operant.mdp import MDP
from operant.runtime.trained import Trained
from operant.tabular import value_errors
from operant.web.playground import MOST_STATES, TOLERANCE, described, packed
from operant.web.worlds import WORLDS


class Tables:
    """Learner of a run, and model of its world.

    Args:
        trained: the run, whose learner may change its state.
    """

    def __init__(self, trained: Trained) -> None:
        self._learner, self._settings = trained.experiment.learner, trained.run.settings
        tabular = trained.run.entry.package == "tabular" and hasattr(self._learner, "feasible")
        self._has_table = tabular and self._learner.learns_values and self._learner.states <= MOST_STATES
        self._mdp: MDP | None = getattr(trained.experiment, "mdp", None)

    def show(self, seed_index: int) -> dict[str, Any]:
        """Return the table of a seed, the exact values, and the errors; `table` is false without a table."""
        if not self._has_table:
            return {"table": False}
        learner = self._learner
        if not 0 <= seed_index < len(learner.seeds):
            raise ValueError(f"seed_index must be from 0 to {len(learner.seeds) - 1}, got {seed_index!r}")
        values, policy = learner.values[seed_index], learner.policy()[seed_index]
        q = np.where(learner.feasible, learner.q[seed_index], -np.inf) if learner.learns_action_values else None
        return {
            "table": True,
            "world": self._world,
            "states": learner.states,
            "actions": learner.actions,
            "values": packed(values),
            "q": None if q is None else packed(q),
            "policy": packed(policy > 0, "<u1"),
            "visits": packed(learner.visits[seed_index].sum(axis=1), "<i4"),
            **self._exactly(values, policy),
        }

    def _exactly(self, values: NDArray[np.float64], policy: NDArray[np.float64]) -> dict[str, Any]:
        """Return the exact values, the errors, and the loss of the greedy policy at the start."""
        truth = self._truth
        if truth is None or self._mdp is None:
            return {"exact": None}
        if not self._learner.learns_action_values:
            gamma, followed = self._learner.config.gamma, self._learner.followed
            errors = value_errors(self._mdp, values[None], followed, gamma=gamma, truth=truth)
            largest, mean = float(errors.largest[0]), float(errors.mean[0])
            return {"exact": packed(truth), "error": largest, "mean_error": mean, "symbol": "V^π"}
        error = np.abs(values - truth)
        found = {"exact": packed(truth), "error": float(error.max(initial=0.0)), "mean_error": float(error.mean())}
        try:
            own = known.policy_evaluation(self._mdp, policy, gamma=self._learner.config.gamma).values
        except ValueError:  # a policy that loops forever has no value at γ = 1
            return found | {"symbol": "V*", "loss": None}
        return found | {"symbol": "V*", "loss": float(self._mdp.start @ (truth - own))}

    @cached_property
    def _truth(self) -> NDArray[np.float64] | None:
        """Exact values of the optimal policy, or of the evaluated one."""
        if self._mdp is None:
            return None
        gamma, followed = self._learner.config.gamma, getattr(self._learner, "followed", None)
        try:
            if followed is not None:
                return known.policy_evaluation(self._mdp, followed, gamma=gamma).values
            return known.solve(self._mdp, gamma=gamma, tolerance=TOLERANCE).values
        except ValueError:
            return None

    @cached_property
    def _world(self) -> dict[str, Any] | None:
        """Cells of a grid world; None for other worlds."""
        task, env_kwargs = self._settings.task, self._settings.env_kwargs
        env = make_single(specified(task, env_kwargs))
        bare = env.unwrapped
        env.close()
        if isinstance(bare, GridWorld):
            return described(bare.grid)
        found = [world for world in WORLDS if world.task == task and not env_kwargs]
        return described(parse_grid(found[0].drawing)) if found else None
