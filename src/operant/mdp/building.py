"""Entries of a model from environments, arrays, tables or functions."""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import ArrayLike, NDArray

from operant import doors
from operant.mdp import named_tables, sparse, tables
from operant.mdp.entries import COLUMNS, Entries, count_indices, start_distribution
from operant.mdp.graphs import reachable
from operant.mdp.validation import (
    Bools,
    Floats,
    Ints,
    booleans,
    check_indices,
    check_length,
    check_size,
    floats,
    integers,
    pair,
)

if TYPE_CHECKING:
    from operant.envs.finite import Transitions

logger = logging.getLogger(__name__)

_Listed = Mapping[Any, Any] | Sequence[Any]
"""A dictionary, or a list, indexed by number; environments use both."""


def read_gymnasium(env: Any, **options: Any) -> tuple[Entries, ArrayLike | None, int | None]:
    """Return the transitions of an environment, the distribution of its first state and its step limit, if known.

    Without `initial_state_distrib`, the state in which all resets start is the first one; several cause a warning.

    Args:
        env: see `MDP.from_gymnasium`.
        **options: see there.

    Raises:
        ValueError: if the environment has no table, or an invalid one, or does not behave as its table.
    """
    if not isinstance(env, gymnasium.Env):
        instance = _made(env, options)
        try:
            return read_gymnasium(instance)
        finally:
            instance.close()
    if options:
        raise TypeError(f"options ({', '.join(options)}) are for the id of an environment, not for an instance")
    return _read(cast("gymnasium.Env[Any, Any]", env))


def _read(env: gymnasium.Env[Any, Any]) -> tuple[Entries, ArrayLike | None, int | None]:
    """Return the results of `read_gymnasium` for an environment."""
    from operant.envs.finite import FiniteEnv  # noqa: PLC0415 - registers operant's worlds, and imports torch

    if tables.changes(env):
        logger.warning(
            "%s changes with the number of steps: the model and its solution hold at the beginning of training; the "
            "keyword argument frozen_at=N gives the model after N steps",
            _name(env),
        )
    limit, unwrapped = tables.step_limit(env), env.unwrapped
    if isinstance(unwrapped, FiniteEnv):
        _check_table(env)
        return _entries_of(unwrapped.transitions), unwrapped.transitions.start, limit
    table: Any = getattr(unwrapped, "P", None)
    if not tables.has_table(env):
        found = "" if table is None else f", but a {type(table).__name__} of this name"
        raise ValueError(
            f"{_name(env)} has no transition table (env.unwrapped.P){found}: use a toy-text environment such as "
            "FrozenLake-v1 or a world of operant such as operant/Cliff-v0, or learn from samples (`operant train`)"
        )
    columns = list(zip(*_listed(table, range(len(table)), "P"), strict=True)) or [()] * len(COLUMNS)
    entries = Entries.of(
        dict(zip(COLUMNS, columns, strict=True)), len(table), getattr(unwrapped.action_space, "n", None)
    )
    _check_table(env)
    start: ArrayLike | None = getattr(unwrapped, "initial_state_distrib", None)
    if start is None:
        found = tables.first_states(env)
        start = found[0] if len(found) == 1 else None
        sources = np.isin(np.arange(entries.states), found)
        _warn_of_start(env)
    else:
        sources = floats(start, "initial_state_distrib") > 0
        check_length(sources, entries.states, "initial_state_distrib")
    ignored = np.repeat(_entered_by_ending(entries, sources, known=start is not None), entries.actions)
    return replace(entries, ignored=ignored), start, limit


def _warn_of_start(env: gymnasium.Env[Any, Any]) -> None:
    """Log a warning if the distribution of the first state is unknown."""
    reason = tables.start_fault(env)
    if reason is not None:
        logger.warning(
            "the model of %s starts in all states alike, since %s; values and policies of all states are not affected",
            _name(env),
            reason,
        )


def _made(task: Any, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Create an environment of a task in any form that `operant.train` accepts."""
    from operant.envs.registry import from_object, make_single, specified  # noqa: PLC0415 - as above

    name, render_mode = doors.named(task), options.pop("render_mode", None)
    if isinstance(name, EnvSpec):
        name, options = from_object(name, options)
    if not isinstance(name, str):
        raise ValueError(
            f"env must be an environment or an id such as 'FrozenLake-v1', got {task!r:.80} (use from_dict for a table)"
        )
    return make_single(specified(name, options), render_mode=render_mode)


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return str(env) if env.spec is None else env.spec.id


def _check_table(env: gymnasium.Env[Any, Any]) -> None:
    """Raise ValueError if an environment does not behave as its table."""
    reason = tables.fault(env)
    if reason is not None:
        raise ValueError(
            f"{_name(env)} does not behave as its transition table (env.unwrapped.P): {reason}; solve the environment "
            "without what differs, or learn from samples (`operant train`)"
        )


def _entries_of(model: "Transitions") -> Entries:
    """Return the entries of sparse rows."""
    return Entries(
        states=model.states,
        actions=model.actions,
        rows=np.repeat(np.arange(model.states * model.actions), np.diff(model.indptr)),
        successors=model.successors,
        probabilities=model.probabilities,
        rewards=model.rewards,
        terminates=model.terminates,
    )


def _listed(table: _Listed, states: Iterable[Any], name: str) -> Iterator[tuple[Any, ...]]:
    """Yield `(s, a, successor, probability, reward, terminated)` of the given states of `table[s][a]`."""
    for s in states:
        if isinstance(table, Mapping) and s not in table:
            raise ValueError(f"P has {len(table)} states but no state {s}, expected them to be numbered from 0")
        choices: _Listed = table[s]
        for a, outcomes in choices.items() if isinstance(choices, Mapping) else enumerate(choices):
            for outcome in outcomes:
                if not _is_outcome(outcome):
                    expected = "(probability, successor, reward, terminated)"
                    raise ValueError(f"{name}[{s!r}][{a!r}] holds {outcome!r}, expected {expected}")
                probability, successor, reward, terminated = outcome
                yield s, a, successor, probability, reward, terminated


def _is_outcome(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and len(cast(Sequence[object], value)) == 4


def _entered_by_ending(entries: Entries, sources: Bools, *, known: bool) -> Bools:
    """Return the states, `[S]`, that are entered only at the end of an episode.

    Args:
        entries: the transitions.
        sources: `[S]`, states in which episodes start.
        known: whether these are all. If not, so does every state that no other state enters by ending.
    """
    origins = entries.rows // entries.actions
    live = entries.probabilities > 0
    ends = live & entries.terminates & (origins != entries.successors)
    entered = np.bincount(entries.successors[ends], minlength=entries.states) > 0
    goes_on = live & ~entries.terminates
    reached = reachable(origins[goes_on], entries.successors[goes_on], sources if known else sources | ~entered)
    entered = np.bincount(entries.successors[ends & reached[origins]], minlength=entries.states) > 0
    return entered & ~reached


def read_arrays(
    transitions: Any, rewards: Any, *, order: str, terminal: ArrayLike | None, feasible: ArrayLike | None
) -> Entries:
    """Return the entries of dense or sparse arrays."""
    if order not in ("sas", "ass"):
        raise ValueError(f'order is {order!r}, expected "sas" or "ass"')
    if isinstance(transitions, Mapping):
        raise ValueError(
            "transitions is a dictionary, expected arrays; MDP.from_dict reads {s: {a: [(p, s', r, ends)]}}"
        )
    matrix = _by_rows(transitions, order, "transitions")
    height, states = matrix.shape
    actions = height // states
    check_size(states, actions)
    rows = np.repeat(np.arange(states * actions), np.diff(matrix.indptr))
    successors = matrix.indices.astype(np.int64)
    allowed = np.ones((states, actions), np.bool_) if feasible is None else booleans(feasible, "feasible")
    if allowed.shape != (states, actions):
        raise ValueError(f"feasible has shape {allowed.shape}, expected {(states, actions)}")
    return Entries(
        states=states,
        actions=actions,
        rows=rows,
        successors=successors,
        probabilities=floats(matrix.data, "transitions"),
        rewards=_rewards_at(rewards, order, rows, successors, (states, actions), as_matrix=_is_sparse(transitions)),
        terminates=np.zeros(rows.size, np.bool_),
        ignored=(~allowed | _state_mask(terminal, states)[:, None]).ravel(),
        required=np.ones(states * actions, np.bool_),
    )


def _is_sparse(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(sparse.issparse, cast(Sequence[object], value)))
    return sparse.issparse(value)


def _by_rows(matrices: Any, order: str, name: str) -> sparse.Sparse:
    """Return the input as a sparse matrix with row `s * A + a`, `[S * A, S]`."""
    if not _is_sparse(matrices):
        dense = _states_first(floats(matrices, name), order)
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or not dense.size:
            expected = "(S, A, S)" if order == "sas" else "(A, S, S)"
            raise ValueError(f'{name} has shape {np.shape(matrices)}, expected {expected} with order "{order}"')
        return sparse.csr_array(dense.reshape(-1, dense.shape[2]))
    if isinstance(matrices, list | tuple):
        if order == "sas":
            raise ValueError(f'{name} is a list of matrices, which needs order "ass": one matrix per action')
        matrices = sparse.vstack(cast(Sequence[Any], matrices))
    matrix = sparse.csr_array(matrices)
    matrix.check_format(full_check=True)
    count, states = matrix.shape
    if not count or not states or count % states:
        expected = "(S * A, S)" if order == "sas" else "(A * S, S)"
        raise ValueError(f"{name} has shape {matrix.shape}, expected {expected}, the first a multiple of the second")
    return matrix[np.arange(count).reshape(-1, states).T.ravel()] if order == "ass" else matrix


def _states_first(dense: Floats, order: str) -> Floats:
    return np.moveaxis(dense, 0, 1) if order == "ass" and dense.ndim == 3 else dense


def _rewards_at(
    rewards: Any, order: str, rows: Ints, successors: Ints, shape: tuple[int, int], *, as_matrix: bool
) -> Floats:
    """Return the reward of every transition, `[n]`; with `as_matrix` those of a dense matrix `[S * A, S]`, too."""
    states, actions = shape
    if not _is_sparse(rewards):
        rewards = floats(rewards, "rewards")
        rewards = sparse.csr_array(rewards) if as_matrix and rewards.shape == (states * actions, states) else rewards
    if _is_sparse(rewards):
        matrix = _by_rows(rewards, order, "rewards")
        if matrix.shape != (states * actions, states):
            raise ValueError(f"rewards has shape {matrix.shape}, expected that of transitions")
        return floats(matrix[rows, successors], "rewards")
    dense = _states_first(floats(rewards, "rewards"), order)
    if dense.shape not in ((), (states,), (states, actions), (states, actions, states)):
        full = (states, actions, states) if order == "sas" else (actions, states, states)
        options = f"({states},), {(states, actions)} or {full}"
        raise ValueError(f'rewards has shape {np.shape(rewards)}, expected a number, {options} with order "{order}"')
    s, a = np.divmod(rows, actions)
    return dense[(s, a, successors)[: dense.ndim]] if dense.ndim else np.full(rows.size, dense)


def read_table(
    table: str | Path | ArrayLike | Mapping[str, ArrayLike], separator: str | None = None
) -> named_tables.Table:
    """Return the columns of a CSV file, an array `[n, 5 or 6]` or named columns, and the names in them."""
    if isinstance(table, str | Path):
        return named_tables.read_csv(Path(table), separator)
    if separator is not None:
        raise ValueError(f"separator is {separator!r}, but table is not the path of a file")
    named = named_tables.of_columns(table)
    if named is not None:
        return named
    array = floats(table, "table")
    if array.ndim != 2 or array.shape[1] not in (5, 6):
        raise ValueError(f"table has shape {array.shape}, expected (n, 5) or (n, 6) for {', '.join(COLUMNS)}")
    return named_tables.Table(dict(zip(COLUMNS, array.T, strict=False)))


def entries_of_table(
    columns: Mapping[str, Any], states: int | None, actions: int | None, *, terminal: ArrayLike | None
) -> Entries:
    """Return the entries of the columns of a table."""
    entries = Entries.of(columns, states, actions)
    return replace(entries, ignored=np.repeat(_state_mask(terminal, entries.states), entries.actions))


def read_dict(table: Mapping[Any, Any] | Sequence[Any]) -> tuple[named_tables.Table, list[Any]]:
    """Return the columns of a dictionary `{s: {a: [(probability, successor, reward, terminated)]}}`, and its states.

    Raises:
        ValueError: if it has another form, or states or actions are both numbers and names.
    """
    if not tables.is_table(table):
        expected = "{s: {a: [(probability, successor, reward, terminated), ...]}}"
        raise ValueError(f"table is {table!r:.80}, expected a dictionary of this form: {expected}")
    keys = list(table) if isinstance(table, Mapping) else list(range(len(table)))
    columns = list(zip(*_listed(table, keys, "table"), strict=True))
    if not columns:
        raise ValueError("the table is empty, expected transitions")
    return named_tables.of_labels(dict(zip(COLUMNS, columns, strict=True)), keys), keys


def entries_of_dict(named: named_tables.Table, keys: Sequence[Any], start: Any) -> tuple[Entries, ArrayLike | None]:
    """Return the entries of the columns of a dictionary, and the start as a distribution, an index or None.

    Args:
        named: the columns, and the names of states and actions.
        keys: the states of the dictionary, in order.
        start: one of `keys` if they are no numbers, the name of a state, a distribution, an index or None.
    """
    columns = named.columns
    states = len(named.states) or count_indices(
        integers([*keys, *columns["s'"]], "the states"), "state", "number without gaps, or add it without actions, {}"
    )
    actions = len(named.actions) or count_indices(
        integers(columns["a"], "the actions"), "action", "number without gaps, or use names such as strings"
    )
    entries = Entries.of(columns, states, actions)
    if named.states and _is_one_of(keys, start):
        start = keys.index(start)
    elif isinstance(start, str):
        start = named_tables.index_of(start, named.states)
    sources = np.zeros(states, np.bool_)
    if start is not None:
        sources = start_distribution(start, sources) > 0
        check_length(sources, states, "start")
    ignored = np.repeat(_entered_by_ending(entries, sources, known=start is not None), entries.actions)
    return replace(entries, ignored=ignored), start


def _is_one_of(keys: Sequence[Any], value: object) -> bool:
    return isinstance(value, Hashable) and value in keys


def read_function(
    states: int,
    actions: int,
    function: Callable[[int, int], Iterable[Any] | None],
    *,
    terminal: ArrayLike | None,
) -> Entries:
    """Return the entries from a function of state and action."""
    check_size(states, actions)
    ended = _state_mask(terminal, states)
    pieces = [
        _outcomes(result, row, actions)
        for row in range(states * actions)
        if not ended[row // actions] and (result := function(*divmod(row, actions))) is not None
    ]
    if not pieces:
        raise ValueError("the function returned None for every state and action, expected at least one transition")
    columns = (np.concatenate(column) for column in zip(*pieces, strict=True))
    entries = Entries.of(dict(zip(COLUMNS, columns, strict=True)), states, actions)
    return replace(entries, required=np.bincount(entries.rows, minlength=states * actions) > 0)


def _outcomes(result: Any, row: int, actions: int) -> tuple[NDArray[Any], ...]:
    """Return the columns of a table, each `[k]`, from one result of a function."""
    try:
        p, successors, r, *optional = map(np.asarray, result)
        (ends,) = optional or [np.array(False)]
        if p.ndim != 1 or not p.size or successors.shape != p.shape:
            raise ValueError(f"{p.shape} probabilities and {successors.shape} successors")
        r, ends = np.broadcast_to(r, p.shape), np.broadcast_to(ends, p.shape)
    except (TypeError, ValueError) as error:
        expected = "None or (probabilities, successors, rewards[, terminates]), each of k > 0 numbers"
        raise ValueError(f"{pair(row, actions)}: the function must return {expected}; got: {error}") from error
    s, a = divmod(row, actions)
    return np.full(p.size, s), np.full(p.size, a), successors, p, r, ends


def _state_mask(given: ArrayLike | None, states: int) -> Bools:
    """Return a mask `[S]` from a mask, indices, an index, or None; raise for 0 and 1 that look like a mask."""
    array = np.asarray([] if given is None else given)
    if array.dtype == np.bool_:
        check_length(array, states, "terminal")
        return array
    indices = integers(array, "terminal").reshape(-1) if array.ndim == 0 else integers(array, "terminal")
    check_length(indices, indices.size, "terminal")
    if indices.size == states > 2 and np.isin(indices, (0, 1)).all() and not indices.all():
        raise ValueError(
            f"terminal is {indices.tolist()}, which is read as a list of states but looks like a mask: pass a mask as "
            "bools, such as [False, True], or each state once"
        )
    check_indices(indices, states, lambda i: f"terminal number {i}")
    mask = np.zeros(states, np.bool_)
    mask[indices] = True
    return mask
