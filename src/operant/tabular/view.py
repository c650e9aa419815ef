"""View of one seed's table in the layout of the task, for `operant show`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from operant.mdp.maps import Mapped, read
from operant.mdp.policies import reachable_states
from operant.runtime.experiment import Experiment
from operant.tabular.bandit_factory import BanditExperiment
from operant.tabular.factory import Experiment as TabularExperiment

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LARGEST_MAP = 100_000
"""Maximum number of states for a map layout."""


@dataclass(frozen=True, eq=False)
class View:
    """The table of one seed.

    Attributes:
        q: `[states, A]`, action values, or None.
        values: `[states]`, or None.
        policy: `[states, A]`, probabilities: greedy, with ties shared equally, or the policy of prediction.
        visits: `[states, A]` (prediction: `[states, 1]`), updates or pulls of every cell, or None.
        ends: bool `[states]`, terminal states.
        unreached: bool `[states]`, unreachable states, such as walls.
        shape: rows and columns of the map whose cells are the states, or None.
        symbols: `[R, C]`, one character per cell, or None.
        arrows: one character per action; empty without directions.
    """

    q: Floats | None
    values: Floats | None
    policy: Floats
    visits: NDArray[np.int64] | None
    ends: Bools
    unreached: Bools
    shape: tuple[int, int] | None = None
    symbols: NDArray[np.str_] | None = None
    arrows: str = ""

    def choice(self, state: int) -> int | None:
        """Return the action of a state, or None for ties or no feasible action."""
        best = np.flatnonzero(self.policy[state] >= self.policy[state].max() - 1e-12)
        return int(best[0]) if best.size == 1 and self.policy[state, best[0]] > 0 else None

    def symbol(self, state: int) -> str:
        """Return the character of a cell of the map: a wall, a terminal state, or an arrow; `+` for ties."""
        drawn = "" if self.symbols is None else str(self.symbols.flat[state])
        if self.ends[state]:
            return drawn if drawn not in ("", ".") else "★"
        if self.unreached[state]:
            return drawn if drawn not in ("", ".") else "·"
        action = self.choice(state)
        if action is None:
            return "+"
        return self.arrows[action] if action < len(self.arrows) else str(action % 10)


def view_of(experiment: Experiment, index: int) -> View:
    """Return the table of one seed of a tabular experiment."""
    if isinstance(experiment, BanditExperiment):
        learner = experiment.learner
        q = learner.q[index] if learner.learns_action_values else None
        values = learner.values[index] if learner.learns_values else None
        one = np.zeros(1, np.bool_)
        return View(q, values, learner.policy()[index], learner.pulls.counts[index][None], one, one)
    if not isinstance(experiment, TabularExperiment):
        name = type(experiment).__name__
        raise TypeError(
            f"experiment is a {name} of {experiment.settings.algorithm}, expected a tabular or bandit experiment"
        )
    learner, mdp = experiment.learner, experiment.mdp
    has_values = learner.learns_values
    q = learner.q[index] if has_values and learner.learns_action_values else None
    ends, unreached = np.zeros((2, learner.states), np.bool_)
    mapped: Mapped | None = None
    if mdp is not None:
        reached = reachable_states(mdp)
        ends[mdp.successors[mdp.terminates]] = True
        ends &= ~reached  # an episode may also end in a state in which others continue
        unreached = ~ends & ~reached
        settings = experiment.settings
        mapped = read(settings.task, env_kwargs=settings.env_kwargs) if mdp.states <= LARGEST_MAP else None
    return View(
        q=q,
        values=learner.values[index] if has_values else None,
        policy=learner.policy()[index],
        visits=learner.visits[index] if has_values else None,
        ends=ends,
        unreached=unreached,
        shape=None if mapped is None else mapped.shape,
        symbols=None if mapped is None else mapped.symbols,
        arrows="" if mapped is None else mapped.arrows,
    )
