"""A known Markov decision process, stored as sparse rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import ArrayLike

from operant.mdp import building, named_tables
from operant.mdp.bellman_kernels import Rows
from operant.mdp.entries import Entries, compress, start_distribution
from operant.mdp.rows import Facts, examine, rows_of
from operant.mdp.validation import (
    Bools,
    Floats,
    Ints,
    booleans,
    check_count,
    check_length,
    check_names,
    check_size,
    check_start,
    check_sums,
    check_terminal,
    check_transitions,
    floats,
    integers,
    raise_if_any,
    rescaled,
)


@dataclass(frozen=True, eq=False)
class MDP:
    """States, actions, transition probabilities and rewards.

    Row `s * actions + a` of the sparse arrays lists the outcomes of action `a` in state `s`. A transition that
    terminates ends the episode, so the value of its successor is ignored. An infeasible action has an empty row. A
    state without a feasible action is terminal; its value is 0.

    The constructors `from_gymnasium`, `from_dict`, `from_arrays`, `from_table` and `from_function` sort the successors
    of each row. Entries that agree in state, action, successor, reward and termination are merged, with their
    probabilities added; entries that differ only in the reward stay separate, so simulated rewards have their true
    distribution. Every model is checked: a ValueError or TypeError names the first invalid state and action, the found
    and the expected value, and the number of similar errors.

    Attributes:
        states: S.
        actions: A.
        indptr: `[S * A + 1]`, start of each row.
        successors: `[n]`, the next state of every transition.
        probabilities: `[n]`, positive; every row that is not empty sums to 1 within rounding; larger errors, up to
            those of float32, are divided out.
        rewards: `[n]`, R(s, a, s').
        terminates: `[n]`, whether the episode ends with the transition; always true where the successor is terminal.
        start: `[S]`, the distribution of the first state, 0 in terminal states; uniform if unknown.
        max_steps: steps after which a simulated episode is truncated; None: never. Solvers ignore it.
        state_names: names of the states, `S` different strings; empty if they are only numbered.
        action_names: names of the actions, as `state_names`.
    """

    states: int
    actions: int
    indptr: Ints
    successors: Ints
    probabilities: Floats
    rewards: Floats
    terminates: Bools
    start: Floats
    max_steps: int | None = None
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        states, actions = check_size(self.states, self.actions)
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "actions", actions)
        self._convert(integers, "indptr", "successors")
        self._convert(floats, "probabilities", "rewards", "start")
        self._convert(booleans, "terminates")
        rows = self._check_rows()
        object.__setattr__(self, "probabilities", rescaled(rows, self.probabilities, actions=self.actions))
        columns = (rows, self.successors, self.probabilities, self.rewards)
        check_transitions(*columns, states=self.states, actions=self.actions)
        raise_if_any(self.probabilities == 0, lambda i: f"transition {i} has probability 0, expected no entry")
        check_sums(rows, self.probabilities, self.feasible.ravel(), actions=self.actions)
        check_terminal(self.terminal)
        check_start(self.start, self.terminal)
        object.__setattr__(self, "terminates", self.terminates | self.terminal[self.successors])
        if self.max_steps is not None:
            object.__setattr__(self, "max_steps", check_count(self.max_steps, "max_steps"))
        for what, count in (("state_names", states), ("action_names", actions)):
            object.__setattr__(self, what, check_names(getattr(self, what), count, what))

    def _convert(self, convert: Callable[[Any, str], Any], *names: str) -> None:
        for name in names:
            object.__setattr__(self, name, np.ascontiguousarray(convert(getattr(self, name), name)))

    def _check_rows(self) -> Ints:
        """Check that the sparse arrays fit together, and return the row of every transition, `[n]`."""
        check_length(self.indptr, self.states * self.actions + 1, "indptr")
        for name in ("probabilities", "rewards", "terminates"):
            check_length(getattr(self, name), self.successors.size, name)
        lengths = np.diff(self.indptr)
        raise_if_any(
            lengths < 0,
            lambda i: f"indptr decreases from {self.indptr[i]} to {self.indptr[i + 1]}, expected it not to decrease",
        )
        if self.indptr[0] != 0 or self.indptr[-1] != self.successors.size:
            span = f"{self.indptr[0]} to {self.indptr[-1]}"
            raise ValueError(
                f"indptr runs from {span}, expected 0 to {self.successors.size}, the number of transitions"
            )
        return np.repeat(np.arange(lengths.size), lengths)

    @cached_property
    def feasible(self) -> Bools:
        """Mask of feasible actions, `[S, A]`."""
        return (np.diff(self.indptr) > 0).reshape(self.states, self.actions)

    @cached_property
    def terminal(self) -> Bools:
        """Terminal states, `[S]`: no action is feasible."""
        return np.logical_not(self.feasible.any(axis=1))

    @cached_property
    def exits(self) -> Bools:
        """Actions that may end the episode, `[S, A]`."""
        return (np.diff(self.indptr) > np.diff(self.continuation[0])).reshape(self.states, self.actions)

    @cached_property
    def expected_rewards(self) -> Floats:
        """Expected reward of every action, `[S, A]`; minus infinity if infeasible."""
        rows = np.repeat(np.arange(self.states * self.actions), np.diff(self.indptr))
        sums = np.bincount(rows, self.probabilities * self.rewards, minlength=self.states * self.actions)
        return np.where(self.feasible, sums.reshape(self.states, self.actions), -np.inf)

    @cached_property
    def continuation(self) -> tuple[Ints, Ints, Floats]:
        """Transitions that do not terminate, as `(indptr, successors, probabilities)`; rows may sum to less than 1."""
        if not self.terminates.any():
            return self.indptr, self.successors, self.probabilities
        going_on = ~self.terminates
        counts = np.concatenate([[0], np.cumsum(going_on)])
        return counts[self.indptr], self.successors[going_on], self.probabilities[going_on]

    @cached_property
    def rows(self) -> Rows:
        """Transitions that do not terminate, for the solvers' kernels, without a discount."""
        return rows_of(self.continuation, self.expected_rewards.ravel(), self.actions, 1.0)

    @cached_property
    def facts(self) -> Facts:
        """Facts about `rows` for the solvers, at any discount."""
        facts = examine(self.rows, self.exits.ravel())
        terms = np.abs(self.rewards).max(initial=0.0)
        longest = int(np.diff(self.indptr).max())
        return facts._replace(longest=longest, largest=max(facts.largest, float(terms)))

    @classmethod
    def from_gymnasium(
        cls, env: gymnasium.Env[Any, Any] | str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]], **options: Any
    ) -> Self:
        """Read the transition table `env.unwrapped.P` of an environment.

        `P[s][a]` lists `(probability, successor, reward, terminated)`. A state that an episode can enter only by ending
        there is terminal, even if its row has transitions, as in Gymnasium's cliff and taxi. The first state
        is distributed as `initial_state_distrib`, `[S]`. Without this attribute it is the one in which all of 100
        resets start; if they start in several states, `start` is uniform, with a warning. The step limit is the
        smallest of those of the environment's spec and its TimeLimit wrappers.

        The environment must behave as its table. Wrappers may limit steps, record or render, but not change
        observations, actions, rewards or ends. For an environment that is neither a toy-text environment of Gymnasium
        nor a world of operant, 200 steps of a copy are compared with the table.

        Args:
            env: an environment; or a task as for `operant.train`: an id, `"path/to/file.py:MyEnv"`, a subclass of
                `gymnasium.Env`, a function that creates an environment, or an `EnvSpec`.
            **options: for a task, arguments of the constructor, and `max_episode_steps`.

        Raises:
            ValueError: if the environment has no table, or an invalid one, or does not behave as its table.
        """
        return cls._from(*building.read_gymnasium(env, **options))

    @classmethod
    def from_dict(
        cls,
        table: Mapping[Any, Mapping[Any, Sequence[Any]]] | Sequence[Any],
        *,
        start: Any = None,
        max_steps: int | None = None,
    ) -> Self:
        """Create a model from a dictionary `{s: {a: [(probability, successor, reward, terminated), ...]}}`.

        This is the form of `env.unwrapped.P` of Gymnasium's toy-text environments. As in `from_gymnasium`, a state that
        an episode can enter only by ending there is terminal, even if its row has transitions. A state without actions
        (`{}`) is terminal, and so is one that occurs only as a successor.

        Args:
            table: states and actions are numbers from 0 on, or other keys such as strings or tuples, whose texts become
                `state_names` and `action_names`; states are then numbered in the order of the dictionary. Lists in
                place of dictionaries are indexed by number.
            start: as in `from_arrays`, or the key or the name of a state. Without it, episodes may start in every state
                that no other state enters by ending.
            max_steps: step limit of simulated episodes; None: none.

        Raises:
            ValueError: if the table has another form, or is not a model.
        """
        named, keys = building.read_dict(table)
        with named_tables.naming(named):
            entries, start = building.entries_of_dict(named, keys, start)
            return cls._from(entries, start, max_steps, named)

    @classmethod
    def from_arrays(
        cls,
        transitions: Any,
        rewards: Any,
        *,
        order: Literal["sas", "ass"] = "sas",
        terminal: ArrayLike | None = None,
        feasible: ArrayLike | None = None,
        start: ArrayLike | None = None,
        max_steps: int | None = None,
    ) -> Self:
        """Create a model from arrays of probabilities and rewards, dense or sparse.

        Args:
            transitions: P(s' | s, a), dense `[S, A, S]` or a sparse SciPy matrix `[S * A, S]` with row `s * A + a`.
                With order "ass", dense `[A, S, S]`, a sparse matrix `[A * S, S]` with row `a * S + s`, or a list of A
                matrices.
            rewards: a number for every step; `[S]`, earned on leaving s; `[S, A]`; or R(s, a, s') in the shape and
                order of the transitions. Rewards at probability 0 are ignored; entries missing in a sparse matrix are
                0.
            order: "sas" or "ass".
            terminal: states whose rows are ignored, as a mask `[S]`, a list of indices, or an index.
            feasible: `[S, A]`, mask of feasible actions; the rows of others are ignored. Default: all.
            start: `[S]`, the distribution of the first state, or the index of the only one. Default: uniform over
                the non-terminal states.
            max_steps: step limit of simulated episodes; None: none.

        Raises:
            ValueError: if shapes do not match, or the numbers are not a model.
        """
        entries = building.read_arrays(transitions, rewards, order=order, terminal=terminal, feasible=feasible)
        return cls._from(entries, start, max_steps)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        states: int | None = None,
        actions: int | None = None,
        terminal: ArrayLike | None = None,
        start: ArrayLike | str | None = None,
        max_steps: int | None = None,
        separator: str | None = None,
    ) -> Self:
        """Create a model from a list of transitions; an action without one is infeasible, a state without one terminal.

        Args:
            table: the path of a CSV file with the columns `s`, `a`, `s'`, `p`, `r` and optionally `terminates` (0, 1,
                true or false); a mapping from these names to arrays `[n]`, a data frame or a structured array with
                these columns, in any order; or an array `[n, 5]` or `[n, 6]` with the columns in this order. States and
                actions are numbers from 0 on; or names, which are numbered as they first occur in `s` and `s'`, and
                become `state_names` and `action_names`.
            states: S. Default: the largest index plus one; then every state must occur.
            actions: A. Default: the largest index plus one; then every action must occur.
            terminal: states whose rows are ignored, as a mask `[S]`, a list of indices, or an index.
            start: as in `from_arrays`, or the name of a state.
            max_steps: step limit of simulated episodes; None: none.
            separator: column separator of a file. Default: the comma, semicolon or tab of its header.

        Raises:
            ValueError: if the table cannot be read, or is not a model.
        """
        named = building.read_table(table, separator)
        with named_tables.naming(named):
            entries = building.entries_of_table(named.columns, states, actions, terminal=terminal)
            return cls._from(entries, start, max_steps, named)

    @classmethod
    def from_function(
        cls,
        states: int,
        actions: int,
        function: Callable[[int, int], Iterable[Any] | None],
        *,
        terminal: ArrayLike | None = None,
        start: ArrayLike | None = None,
        max_steps: int | None = None,
    ) -> Self:
        """Create a model from a function of state and action.

        Args:
            states: S.
            actions: A.
            function: `function(s, a)` returns `(probabilities, successors, rewards)`, arrays `[k]`, with `terminates`
                as a fourth if episodes can end; rewards and terminates may be single numbers. None: the action is
                infeasible.
            terminal: states for which the function is not called, as a mask `[S]`, a list of indices, or an index.
            start: as in `from_arrays`.
            max_steps: step limit of simulated episodes; None: none.

        Raises:
            ValueError: if the function returns anything else, or not a model.
        """
        return cls._from(building.read_function(states, actions, function, terminal=terminal), start, max_steps)

    @classmethod
    def _from(
        cls,
        entries: Entries,
        start: ArrayLike | str | None,
        max_steps: int | None,
        named: named_tables.Table | None = None,
    ) -> Self:
        rows = compress(entries)
        states, actions = ((), ()) if named is None else (named.states, named.actions)
        if isinstance(start, str):
            start = named_tables.index_of(start, states)
        feasible = (np.diff(rows.indptr) > 0).reshape(entries.states, entries.actions)
        first = start_distribution(start, np.logical_not(feasible.any(axis=1)))
        return cls(
            entries.states,
            entries.actions,
            *rows,
            start=first,
            max_steps=max_steps,
            state_names=states,
            action_names=actions,
        )
