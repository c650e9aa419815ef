"""Validation of models; an error names the first problem and counts the others."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

logger = logging.getLogger(__name__)

TOLERANCE = 1e-9
"""Tolerance of a sum of probabilities."""
SINGLE = float(np.finfo(np.float32).eps)
"""Rounding error of float32, per probability of a row."""
ROUNDING = float(np.finfo(np.float64).eps)
"""Rounding error of float64, per probability of a row."""


def raise_if_any(wrong: Bools, describe: Callable[[int], str], advice: str = "") -> None:
    """Raise a ValueError about the first true element of `wrong`, if any, with the number of others."""
    count = int(np.count_nonzero(wrong))
    if count:
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        raise ValueError(f"{describe(int(np.argmax(wrong)))}{more}{advice and '; '}{advice}")


def floats(values: Any, name: str) -> Floats:
    """Return numbers as float64."""
    return _numeric(values, name).astype(np.float64, copy=False)


def integers(values: Any, name: str) -> Ints:
    """Return whole numbers as int64; floats are accepted if exact."""
    array = _numeric(values, name)
    with np.errstate(invalid="ignore"):
        converted = array.astype(np.int64, copy=False)
    raise_if_any(
        (converted != array).ravel(), lambda i: f"{name} number {i} is {array.flat[i]}, expected a whole number"
    )
    return converted


def booleans(values: Any, name: str) -> Bools:
    """Return bools; the numbers 0 and 1 are accepted."""
    array = _numeric(values, name)
    truth = array.astype(np.bool_, copy=False)
    raise_if_any(
        (truth != array).ravel(), lambda i: f"{name} number {i} is {array.flat[i]}, expected true, false, 0 or 1"
    )
    return truth


def check_length(array: NDArray[Any], length: int, name: str) -> None:
    """Raise ValueError unless an array is a vector of the given length."""
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {array.shape}, expected ({length},)")


def check_count(count: object, name: str, *, least: int = 1) -> int:
    """Return an integer of at least `least` as an int; raise for anything else."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(f"{name} is {count!r}, expected an int")
    if count < least:
        raise ValueError(f"{name} is {count}, expected at least {least}")
    return int(cast(int, count))


def check_size(states: object, actions: object) -> tuple[int, int]:
    """Return both counts as ints; raise if 64-bit indices cannot address the model."""
    states, actions = check_count(states, "states"), check_count(actions, "actions")
    if states**2 * actions >= 2**63:
        raise ValueError(f"{states} states with {actions} actions are more than 64-bit indices can address")
    return states, actions


def check_indices(indices: Ints, bound: int, describe: Callable[[int], str]) -> None:
    """Raise for indices outside 0 to `bound - 1`; `describe` names an index by its position."""
    raise_if_any(
        (indices < 0) | (indices >= bound),
        lambda i: f"{describe(i)} is {indices[i]}, expected 0 to {bound - 1}",
    )


def check_transitions(
    rows: Ints, successors: Ints, probabilities: Floats, rewards: Floats, *, states: int, actions: int
) -> None:
    """Raise for invalid successors, probabilities and rewards; row `s * actions + a` belongs to (s, a)."""

    def label(i: int) -> str:
        return pair(int(rows[i]), actions)

    def target(i: int) -> str:
        return f"{label(i)}: the probability of state {successors[i]} is {probabilities[i]}"

    check_indices(successors, states, lambda i: f"{label(i)}: the successor")
    raise_if_any(~((probabilities >= 0) & (probabilities <= 1 + TOLERANCE)), lambda i: f"{target(i)}, expected 0 to 1")
    raise_if_any(
        ~np.isfinite(rewards),
        lambda i: (
            f"{label(i)}: the reward on the way to state {successors[i]} is {rewards[i]}, expected a finite number"
        ),
        "omit an infeasible action or mask it, without an infinite reward",
    )


def check_sums(rows: Ints, probabilities: Floats, required: Bools, *, actions: int) -> None:
    """Raise for rows whose probabilities do not sum to 1.

    Args:
        rows: `[n]`, the row of each probability.
        probabilities: `[n]`.
        required: `[S * A]`, required rows; the others may be empty.
        actions: A.
    """
    sums = np.bincount(rows, probabilities, minlength=required.size)
    present = required.copy()
    present[rows] = True
    raise_if_any(
        present & ~(np.abs(sums - 1) <= TOLERANCE),
        lambda row: f"{pair(row, actions)}: the probabilities sum to {sums[row]:.12g}, expected 1 within {TOLERANCE}",
        "divide a rounded row by its sum; omit infeasible actions and terminal states",
    )


def rescaled(rows: Ints, probabilities: Floats, *, actions: int) -> Floats:
    """Return probabilities normalized per row, if they sum to 1 within float32 rounding.

    Rows that sum to 1 within float64 rounding are unchanged, as are those with errors beyond float32 rounding, for
    which `check_sums` raises. Errors above `TOLERANCE` are logged.

    Args:
        rows: `[n]`, the row of each probability.
        probabilities: `[n]`.
        actions: A.
    """
    if not rows.size:
        return probabilities
    sums, lengths = np.bincount(rows, probabilities), np.bincount(rows)
    off = np.abs(sums - 1)
    rounded = (off > ROUNDING * (lengths + 1)) & (off <= np.maximum(SINGLE * (lengths + 1), TOLERANCE)) & (lengths > 0)
    if not rounded.any():
        return probabilities
    coarse = rounded & (off > TOLERANCE)
    if coarse.any():
        first = int(np.argmax(coarse))
        logger.warning(
            "%d rows of probabilities sum to 1 only within float32 rounding (%s: %.9g) and were divided by their sums",
            np.count_nonzero(coarse),
            pair(first, actions),
            sums[first],
        )
    return np.where(rounded[rows], probabilities / sums[rows], probabilities)


def check_start(start: Floats, terminal: Bools) -> None:
    """Raise ValueError unless `start` is a distribution over non-terminal states."""
    check_length(start, terminal.size, "start")
    raise_if_any(~(start >= 0), lambda s: f"start gives state {s} the probability {start[s]}, expected 0 to 1")
    if not abs(start.sum() - 1) <= TOLERANCE:
        raise ValueError(f"start sums to {start.sum():.12g}, expected 1 within {TOLERANCE}")
    raise_if_any(
        (start > 0) & terminal,
        lambda s: (
            f"start gives state {s} the probability {start[s]:.12g}, but this state is terminal: it has no actions"
        ),
    )


def check_names(names: object, count: int, what: str) -> tuple[str, ...]:
    """Return names as a tuple; raise unless they are `count` different strings, or none."""
    given: object = names.tolist() if isinstance(names, np.ndarray) else names
    listed = tuple(cast(Sequence[object], given)) if isinstance(given, Sequence) else None
    if listed is None or isinstance(given, str) or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"{what} is {names!r:.80}, expected strings")
    if listed and len(listed) != count:
        raise ValueError(f"{what} has {len(listed)} names, expected {count}")
    twice = [name for name, number in Counter(listed).items() if number > 1]
    if twice:
        raise ValueError(f"{what} has the name {twice[0]!r} twice, expected different names")
    return cast(tuple[str, ...], listed)


def check_terminal(terminal: Bools) -> None:
    """Raise ValueError for a model without feasible actions."""
    if terminal.all():
        raise ValueError(f"none of the {terminal.size} states has a feasible action, expected at least one transition")


def labeled(state: int, names: Sequence[str]) -> str:
    """Return the number of a state, and its name if states have names."""
    return f"{state} ({names[state]})" if names else str(state)


def pair(row: int, actions: int) -> str:
    """Return a description of the state and the action of a row."""
    state, action = divmod(row, actions)
    return f"state {state}, action {action}"


def _numeric(values: Any, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is ragged, expected an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} is an array of {array.dtype}, expected real numbers")
    return array
