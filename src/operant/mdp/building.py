"""Entries of a model from environments, arrays, tables or functions."""

import csv
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import sparse, tables
from operant.mdp.entries import COLUMNS, Entries
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

_HEADERS = (COLUMNS, COLUMNS[:5])
_SEPARATORS = ";\t,"
_Listed = Mapping[int, Any] | Sequence[Any]
"""A dictionary or a list, indexed by number; environments use both."""


def read_gymnasium(env: gymnasium.Env[Any, Any] | str, **options: Any) -> tuple[Entries, ArrayLike | None, int | None]:
    """Return the transitions of an environment, the distribution of its first state and its step limit, if known.

    Without `initial_state_distrib`, the state in which all resets start is the first one; several cause a warning.

    Raises:
        ValueError: if the environment has no table, or an invalid one, or does not behave as its table.
    """
    from operant.envs.finite import FiniteEnv  # noqa: PLC0415 - registers operant's worlds, and imports torch

    if isinstance(env, str):
        instance = gymnasium.make(env, **options)
        try:
            return read_gymnasium(instance)
        finally:
            instance.close()
    if not isinstance(cast(object, env), gymnasium.Env):
        raise ValueError(f"env must be an environment or an id such as 'FrozenLake-v1', got {env!r:.80}")
    if options:
        raise TypeError(f"options ({', '.join(options)}) are for the id of an environment, not for an instance")
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
    columns = list(zip(*_listed(table), strict=True)) or [()] * len(COLUMNS)
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


def _listed(table: _Listed) -> Iterator[tuple[Any, ...]]:
    """Yield `(s, a, successor, probability, reward, terminated)` of Gymnasium's `P[s][a]`."""
    for s in range(len(table)):
        if isinstance(table, Mapping) and s not in table:
            raise ValueError(f"P has {len(table)} states but no state {s}, expected them to be numbered from 0")
        choices: _Listed = table[s]
        for a, outcomes in choices.items() if isinstance(choices, Mapping) else enumerate(choices):
            for outcome in outcomes:
                if not _is_outcome(outcome):
                    expected = "(probability, successor, reward, terminated)"
                    raise ValueError(f"P[{s}][{a}] holds {outcome!r}, expected {expected}")
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
        rewards=_rewards_at(rewards, order, rows, successors, (states, actions)),
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


def _rewards_at(rewards: Any, order: str, rows: Ints, successors: Ints, shape: tuple[int, int]) -> Floats:
    """Return the reward of every transition, `[n]`."""
    states, actions = shape
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
    table: str | Path | ArrayLike | Mapping[str, ArrayLike],
    states: int | None,
    actions: int | None,
    *,
    terminal: ArrayLike | None,
) -> Entries:
    """Return the entries of a CSV file, an array `[n, 5 or 6]` or named columns."""
    if isinstance(table, str | Path):
        table = read_csv(Path(table)).columns
    if not isinstance(table, Mapping):
        array = floats(table, "table")
        if array.ndim != 2 or array.shape[1] not in (5, 6):
            raise ValueError(f"table has shape {array.shape}, expected (n, 5) or (n, 6) for {', '.join(COLUMNS)}")
        table = dict(zip(COLUMNS, array.T, strict=False))
    if set(table) not in [set(header) for header in _HEADERS]:
        raise ValueError(f"table has the columns {', '.join(map(str, table))}, expected {', '.join(COLUMNS)}")
    entries = Entries.of(table, states, actions)
    return replace(entries, ignored=np.repeat(_state_mask(terminal, entries.states), entries.actions))


@dataclass(frozen=True)
class Table:
    """A table of transitions from a file.

    Attributes:
        columns: `[n]` each, by their names; states and actions as indices.
        states: their names in the order of their indices; empty if the file numbers them.
        actions: as `states`.
    """

    columns: dict[str, NDArray[Any]]
    states: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


def read_csv(path: Path, separator: str | None = None) -> Table:
    """Read a CSV file with the header `s,a,s',p,r` or `s,a,s',p,r,terminates`.

    States and actions are numbers, or names, which are indexed in the order of their first occurrence in `s` and `s'`.

    Args:
        path: the file.
        separator: column separator. Default: the comma, semicolon or tab of the header.

    Raises:
        ValueError: if it is not such a table; the message has the reason.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            mark = separator or next((mark for mark in _SEPARATORS if mark in first), ",")
            names = tuple(name.strip() for name in next(csv.reader([first], delimiter=mark), ()))
            if names not in _HEADERS:
                raise ValueError(f"it begins with {first.strip()[:80]!r}, expected the header {','.join(COLUMNS)!r}")
            start = file.tell()
            try:
                with warnings.catch_warnings(action="ignore", category=UserWarning):
                    values = np.loadtxt(file, delimiter=mark, comments=None, ndmin=2)
                if values.size and values.shape[1] != len(names):
                    raise ValueError(f"{values.shape[1]} columns, expected {len(names)}")
            except ValueError:
                file.seek(start)
                reader = csv.reader(file, delimiter=mark)
                return _named_columns(names, {number: line for number, line in enumerate(reader, 2) if line})
        if not values.size:
            raise ValueError("it has no line below its header, expected transitions")
        return Table(dict(zip(names, values.T, strict=True)))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error


def _named_columns(names: Sequence[str], lines: Mapping[int, Sequence[str]]) -> Table:
    """Return a table with numbered or named states and actions, from lines by their number in the file."""
    for number, line in lines.items():
        if len(line) != len(names):
            raise ValueError(f"line {number} has {len(line)} columns, expected {len(names)}")
    cells = {name: [line[i].strip() for line in lines.values()] for i, name in enumerate(names)}
    columns: dict[str, NDArray[Any]] = {}
    for name in names[3:]:
        for number, cell in zip(lines, cells[name], strict=True):
            if not _is_number(cell):
                raise ValueError(f"line {number}: column {name} is {cell!r}, expected a number")
        columns[name] = np.array(cells[name], np.float64)
    for name in names[:3]:
        for number, cell in zip(lines, cells[name], strict=True):
            if not cell:
                raise ValueError(f"line {number}: column {name} is empty, expected a number or a name")
    _require_alike(lines, [*zip(cells["s"], cells["s'"], strict=True)], "states")
    _require_alike(lines, [(cell,) for cell in cells["a"]], "actions")
    pairs = [cell for both in zip(cells["s"], cells["s'"], strict=True) for cell in both]
    states, actions = (
        [] if all(map(_is_number, values)) else list(dict.fromkeys(values)) for values in (pairs, cells["a"])
    )
    for name, known in (("s", states), ("s'", states), ("a", actions)):
        indices = {word: i for i, word in enumerate(known)}
        columns[name] = np.array([indices[cell] if known else float(cell) for cell in cells[name]])
    return Table({name: columns[name] for name in names}, tuple(states), tuple(actions))


def _require_alike(numbers: Iterable[int], rows: Sequence[tuple[str, ...]], what: str) -> None:
    """Check that all states or all actions are numbers, or none: a typing error would rename all of them."""
    first = _is_number(rows[0][0])
    for number, row in zip(numbers, rows, strict=True):
        for cell in row:
            if _is_number(cell) is not first:
                kinds = ("numbers", "names") if first else ("names", "numbers")
                raise ValueError(f"line {number} has {cell!r}, but the {what} before are {kinds[0]}, not {kinds[1]}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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
    """Return a mask `[S]` from a mask, a list of indices, or None; raise for 0 and 1 that look like a mask."""
    array = np.asarray([] if given is None else given)
    if array.dtype == np.bool_:
        check_length(array, states, "terminal")
        return array
    indices = integers(array, "terminal")
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
