"""Transitions in any order, and their conversion to the sorted sparse rows of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.validation import (
    SINGLE,
    Bools,
    Floats,
    Ints,
    booleans,
    check_indices,
    check_length,
    check_size,
    check_sums,
    check_transitions,
    floats,
    integers,
    raise_if_any,
    rescaled,
)

COLUMNS = ("s", "a", "s'", "p", "r", "terminates")
"""Columns of a table of transitions; the last may be missing."""


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Unsorted transitions.

    Attributes:
        states: S.
        actions: A.
        rows: `[n]`, `s * actions + a`.
        successors: `[n]`, each from 0 to `states - 1`.
        probabilities: `[n]`.
        rewards: `[n]`.
        terminates: `[n]`.
        ignored: `[S * A]`, ignored rows; None: none.
        required: `[S * A]`, rows that must not be empty unless they are ignored; None: none.
    """

    states: int
    actions: int
    rows: Ints
    successors: Ints
    probabilities: Floats
    rewards: Floats
    terminates: Bools
    ignored: Bools | None = None
    required: Bools | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Any], states: int | None, actions: int | None) -> "Entries":
        """Return the entries of columns named as in `COLUMNS`; S and A default to the largest index plus one."""
        s, a, successors = (integers(columns[name], f"column {name}") for name in ("s", "a", "s'"))
        p, r = (floats(columns[name], f"column {name}") for name in ("p", "r"))
        ends = booleans(columns.get("terminates", np.zeros(s.size, np.bool_)), "column terminates")
        if not s.size:
            raise ValueError("the table is empty, expected transitions")
        for name, column in zip(COLUMNS, (s, a, successors, p, r, ends), strict=True):
            check_length(column, s.size, f"column {name}")
        states = count_indices(np.concatenate([s, successors]), "state") if states is None else states
        actions = count_indices(a, "action") if actions is None else actions
        states, actions = check_size(states, actions)
        check_indices(s, states, lambda i: f"column s number {i}")
        check_indices(a, actions, lambda i: f"state {s[i]}: the action")
        check_indices(successors, states, lambda i: f"state {s[i]}, action {a[i]}: the successor")
        rows = s * actions + a
        return cls(
            states=states,
            actions=actions,
            rows=rows,
            successors=successors,
            probabilities=p,
            rewards=r,
            terminates=ends,
        )


class Rows(NamedTuple):
    """The sparse arrays of a model."""

    indptr: Ints
    successors: Ints
    probabilities: Floats
    rewards: Floats
    terminates: Bools


def compress(entries: Entries) -> Rows:
    """Validate the entries, sort them, merge duplicates, and drop those of probability 0.

    Raises:
        ValueError: for invalid probabilities or rewards; the message names the first wrong state and action.
    """
    rows, successors, probabilities = entries.rows, entries.successors, entries.probabilities
    rewards, terminates = entries.rewards, entries.terminates
    size = entries.states * entries.actions
    required = np.zeros(size, np.bool_) if entries.required is None else entries.required
    if entries.ignored is not None and entries.ignored.any():
        kept = ~entries.ignored[rows]
        rows, successors, probabilities = rows[kept], successors[kept], probabilities[kept]
        rewards, terminates = rewards[kept], terminates[kept]
        required = required & ~entries.ignored
    check_transitions(rows, successors, probabilities, rewards, states=entries.states, actions=entries.actions)
    probabilities = rescaled(rows, probabilities, actions=entries.actions)
    check_sums(rows, probabilities, required, actions=entries.actions)
    kept = probabilities > 0
    kept = slice(None) if kept.all() else kept
    columns = (rows[kept], successors[kept], probabilities[kept], rewards[kept], terminates[kept])
    rows, *columns = _merged(*_sorted(entries.states, *columns))
    counts = np.bincount(rows, minlength=size)
    successors, probabilities, rewards, terminates = (column.copy() for column in columns)
    return Rows(np.concatenate([[0], np.cumsum(counts)]), successors, probabilities, rewards, terminates)


def start_distribution(start: ArrayLike | None, terminal: Bools) -> Floats:
    """Return the distribution of the first state, `[S]`, from a distribution, an index, or None.

    A distribution of float32 that sums to 1 within its rounding is divided by its sum.
    """
    if start is None:
        return ~terminal / max(np.count_nonzero(~terminal), 1)
    if np.ndim(start) == 0:
        index = integers([start], "start")
        check_indices(index, terminal.size, lambda _: "start")
        return (np.arange(terminal.size) == index[0]).astype(np.float64)
    table = floats(start, "start").copy()
    single = np.asarray(start).dtype == np.float32
    return table / table.sum() if single and abs(table.sum() - 1) <= SINGLE * (table.size + 1) else table


def count_indices(indices: Ints, name: str, advice: str | None = None) -> int:
    """Return the largest index plus one; every smaller one must occur, or `advice` says what to do."""
    raise_if_any(indices < 0, lambda i: f"a {name} is {indices[i]}, expected 0 or more")
    count = int(indices.max()) + 1
    size = min(count, indices.size)  # a gap is among the first `size` indices, even if the largest index is huge
    counts = np.bincount(indices[indices < size], minlength=size)
    raise_if_any(
        counts == 0,
        lambda i: f"{name} {i} does not occur, but {name} {count - 1} does",
        "numbering starts at 0"
        if not counts[0]
        else advice or f"number without gaps, or pass {name}s={count} in Python",
    )
    return count


def _sorted(states: int, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Sort the columns (row, successor, probability, reward, termination) by row, successor, termination, reward."""
    rows, successors, *_ = columns
    keys = rows * states + successors
    if (np.diff(keys) < 0).any():
        order = np.argsort(keys, kind="stable")
        keys, columns = keys[order], tuple(column[order] for column in columns)
    same = np.concatenate([[False], np.diff(keys) == 0, [False]])
    tied = np.flatnonzero(same[1:] | same[:-1])
    if tied.size:
        *_, rewards, terminates = columns
        order = np.arange(keys.size)
        order[tied] = tied[np.lexsort((rewards[tied], terminates[tied], keys[tied]))]
        columns = tuple(column[order] for column in columns)
    return columns


def _merged(*columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Add the probabilities of neighbors that agree in row, successor, reward and termination."""
    rows, successors, probabilities, rewards, terminates = columns
    alike = [column[1:] == column[:-1] for column in (rows, successors, rewards, terminates)]
    first = np.concatenate([[True], ~np.logical_and.reduce(alike)])[: rows.size]
    if first.all():
        return columns
    begins = np.flatnonzero(first)
    summed = np.add.reduceat(probabilities, begins)
    return rows[begins], successors[begins], summed, rewards[begins], terminates[begins]
