"""Finite MDPs with known transition probabilities as environments."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Outcome = tuple[float, int, float, bool]
"""An outcome of an action, as in Gymnasium's toy-text environments:
`(probability, successor, reward, terminated)`."""


class Transitions(NamedTuple):
    """Outcomes of all actions in all states as sparse rows, with the fields of `operant.mdp.MDP`.

    Row `s * actions + a` of the arrays has the outcomes of action `a` in state `s`. If it is empty, the action is
    infeasible; a state without feasible actions is terminal, or never entered.

    Attributes:
        states: number of states, S.
        actions: number of actions, A.
        indptr: start of each row, int64 `[S * A + 1]`.
        successors: successor states, int64 `[n]`.
        probabilities: positive probabilities, float64 `[n]`; every non-empty row sums to 1.
        rewards: rewards, float64 `[n]`.
        terminates: whether the episode ends with the transition, bool `[n]`.
        start: start distribution, float64 `[S]`.
    """

    states: int
    actions: int
    indptr: Ints
    successors: Ints
    probabilities: Floats
    rewards: Floats
    terminates: Bools
    start: Floats

    @classmethod
    def of(cls, states: int, actions: int, outcomes: Iterable[tuple[int, int, Outcome]], start: Iterable[int]) -> Self:
        """Create transitions from `(state, action, outcome)` in any order, with a uniform start over `start`."""
        table = sorted(((s * actions + a, outcome) for s, a, outcome in outcomes), key=lambda entry: entry[0])
        counts = np.bincount([row for row, _ in table], minlength=states * actions)
        probabilities, successors, rewards, terminates = zip(*(outcome for _, outcome in table), strict=True)
        return cls(
            states=states,
            actions=actions,
            indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            successors=np.array(successors, np.int64),
            probabilities=np.array(probabilities, np.float64),
            rewards=np.array(rewards, np.float64),
            terminates=np.array(terminates, np.bool_),
            start=uniform(states, start),
        )

    def feasible(self) -> Bools:
        """Return the mask of feasible actions, `[S, A]`."""
        return (np.diff(self.indptr) > 0).reshape(self.states, self.actions)

    def outcomes(self, state: int, action: int) -> list[Outcome]:
        """Return the outcomes of `action` in `state`; empty if it is infeasible."""
        row = state * self.actions + action
        span = slice(self.indptr[row], self.indptr[row + 1])
        columns = (self.probabilities, self.successors, self.rewards, self.terminates)
        return list(zip(*(column[span].tolist() for column in columns), strict=True))


def uniform(states: int, support: Iterable[int]) -> Floats:
    """Return the uniform distribution over the states of `support`, `[S]`."""
    weights = np.zeros(states)
    weights[list(support)] = 1.0
    return weights / weights.sum()


class FiniteEnv(gymnasium.Env[Any, Any]):
    """An environment that samples from `Transitions`.

    Like Gymnasium's toy-text environments it has `P` and `initial_state_distrib`. In `P` a terminal state leads to
    itself with reward 0, and an infeasible action has no outcomes. `reset` takes the option `"state"`, the start state.
    If some actions are infeasible, `info["action_mask"]` (int8 `[A]`) is the mask of feasible ones.

    Attributes:
        state: current state, which may be set; None before the first reset.
        transitions: model of the MDP.
        action_space: `Discrete(A)`.
        observation_space: `Discrete(S)`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, transitions: Transitions, *, render_mode: str | None = None) -> None:
        """Create the environment of a model.

        Args:
            transitions: model of the MDP; it is not copied.
            render_mode: one of `metadata["render_modes"]`, or None.

        Raises:
            ValueError: there is no such render mode.
        """
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode must be None or one of {', '.join(modes)}, got {render_mode!r}")
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(transitions.states)
        self.action_space = spaces.Discrete(transitions.actions)
        self.state: int | None = None
        self._use(transitions)

    def _use(self, transitions: Transitions) -> None:
        """Sample the next steps from `transitions`."""
        self.transitions = transitions
        self._cumulative = np.cumsum(transitions.start)
        self._mask = transitions.feasible().astype(np.int8)
        open_states = self._mask.any(axis=1)
        self._masked = not self._mask[open_states].all()
        self.__dict__.pop("P", None)

    @property
    def initial_state_distrib(self) -> Floats:
        """Start distribution, `[S]`."""
        return self.transitions.start

    @cached_property
    def P(self) -> dict[int, dict[int, list[Outcome]]]:  # noqa: N802 - the name of Gymnasium's toy-text environments
        """The model as `P[state][action]`, a list of outcomes; built on first access."""
        model = self.transitions
        terminal = self._mask.sum(axis=1) == 0
        return {
            s: {a: [(1.0, s, 0.0, True)] if ends else model.outcomes(s, a) for a in range(model.actions)}
            for s, ends in enumerate(terminal.tolist())
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Start an episode, in a state drawn from the start distribution or in `options["state"]`.

        Raises:
            ValueError: the requested state does not exist.
        """
        super().reset(seed=seed)
        asked = None if options is None else options.get("state")
        if asked is None:
            drawn: float = self.np_random.random() * self._cumulative[-1]
            asked = np.searchsorted(self._cumulative, drawn, side="right")
        elif not self._exists(asked):
            raise ValueError(f"options['state'] is {asked!r}, but the states are 0 to {self.transitions.states - 1}")
        self.state = int(asked)
        return self._observation(), self._info(1.0)

    def _exists(self, state: Any) -> bool:
        return isinstance(state, int | np.integer) and 0 <= int(cast(int, state)) < self.transitions.states

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Raises:
            ValueError: the action is infeasible, or the episode has ended.
            RuntimeError: `reset` has not been called.
        """
        if self.state is None:
            raise RuntimeError("there is no current episode: call reset() first")
        model = self.transitions
        if not 0 <= action < model.actions or not self._mask[self.state, action]:
            raise ValueError(self._refusal(action))
        row = self.state * model.actions + int(action)
        entry, end = int(model.indptr[row]), int(model.indptr[row + 1])
        if end - entry > 1:
            cumulative = np.cumsum(model.probabilities[entry:end])
            drawn: float = self.np_random.random() * cumulative[-1]
            entry += int(np.searchsorted(cumulative, drawn, side="right"))
        self.state = int(model.successors[entry])
        info = self._info(float(model.probabilities[entry]))
        return self._observation(), float(model.rewards[entry]), bool(model.terminates[entry]), False, info

    def _refusal(self, action: int) -> str:
        feasible = np.flatnonzero(self._mask[self.state]).tolist()
        if not feasible:
            return f"state {self.state} is terminal: call reset() to start the next episode"
        return f"action {action} is not feasible in state {self.state}, but these are: {feasible}"

    @property
    def shows_states(self) -> bool:
        """Whether observations are the states."""
        return type(self)._observation is FiniteEnv._observation

    def _observation(self) -> int:
        return int(self.state or 0)

    def _info(self, probability: float) -> dict[str, Any]:
        info: dict[str, Any] = {"prob": probability}
        return info | {"action_mask": self._mask[self.state].copy()} if self._masked else info

    def render(self) -> Any:
        """Return the current state as text, for the render mode "ansi"."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() shows nothing: make the environment with render_mode="ansi"')
            return None
        return f"state {self.state} of {self.transitions.states}\n"
