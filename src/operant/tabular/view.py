"""What one seed's table holds, laid out as the task is: what `operant show` prints and draws."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.mdp import MDP
from operant.mdp.maps import read
from operant.tabular.bandits import BanditLearner
from operant.tabular.exact import reachable_states

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LARGEST_MAP = 100_000
"""States up to which a task is laid out as its map."""


@dataclass(frozen=True, eq=False)
class View:
    """The table of one seed.

    Attributes:
        q: `[states, A]`, values of actions; None where values of states are learned, or none at all.
        values: `[states]`; None where none are learned.
        policy: `[states, A]`, probabilities: greedy, tied actions sharing theirs, or what prediction follows.
        visits: `[states, A]` (prediction: `[states, 1]`), updates or pulls of every cell; None where none are counted.
        ends: bool `[states]`, where episodes end.
        unreached: bool `[states]`, where no episode comes, such as walls.
        shape: rows and columns of the map whose cells are the states; None where there is no map.
        symbols: `[R, C]`, one character a cell; None where the map has none.
        arrows: one character an action; empty where they have no direction.
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
        """Return the action of a state, or None where several are equally good or none can be taken."""
        best = np.flatnonzero(self.policy[state] >= self.policy[state].max() - 1e-12)
        return int(best[0]) if best.size == 1 and self.policy[state, best[0]] > 0 else None

    def symbol(self, state: int) -> str:
        """Return what a cell of the map shows: a wall, an end, or an arrow; `+` where several actions are as good."""
        drawn = "" if self.symbols is None else str(self.symbols.flat[state])
        if self.ends[state]:
            return drawn if drawn not in ("", ".") else "★"
        if self.unreached[state]:
            return drawn if drawn not in ("", ".") else "·"
        action = self.choice(state)
        if action is None:
            return "+"
        return self.arrows[action] if action < len(self.arrows) else str(action % 10)


def view_of(experiment: Any, index: int) -> View:
    """Return the table of the seed at a place among those of a tabular experiment."""
    learner = experiment.learner
    if isinstance(learner, BanditLearner):
        q, one = learner.q[index], np.zeros(1, np.bool_)
        return View(q, learner.values[index], learner.policy()[index], learner.pulls.counts[index][None], one, one)
    mdp: MDP | None = experiment.mdp
    known = learner.learns_values
    q = learner.q[index] if known and learner.learns_action_values else None
    ends, unreached = np.zeros((2, learner.states), np.bool_)
    layout = {}
    if mdp is not None:
        ends[mdp.successors[mdp.terminates]] = True
        unreached = ~ends & ~reachable_states(mdp)
        settings = experiment.settings
        mapped = read(settings.task, env_kwargs=settings.env_kwargs) if mdp.states <= LARGEST_MAP else None
        layout = {} if mapped is None else {"shape": mapped.shape, "symbols": mapped.symbols, "arrows": mapped.arrows}
    return View(
        q=q,
        values=learner.values[index] if known else None,
        policy=learner.policy()[index],
        visits=learner.visits[index] if known else None,
        ends=ends,
        unreached=unreached,
        **layout,
    )
