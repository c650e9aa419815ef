"""Named tuples of arrays, nested, as the state of a learner and back."""

from collections.abc import Set
from typing import Any

import numpy as np
import torch

from operant.state import State


def state_of(record: Any) -> State:
    """Return copies of all arrays of a record as tensors, by name; nested records become nested dicts.

    Words of random streams (uint64) are handed over as int64 of the same bits.
    """
    state: State = {}
    for name in record._fields:
        value = getattr(record, name)
        if isinstance(value, np.ndarray):
            bits = value.view(np.int64) if value.dtype == np.uint64 else value
            state[name] = torch.from_numpy(bits.copy())
        elif isinstance(value, tuple):
            state[name] = state_of(value)
    return state


def restored(record: Any, state: State, *, growing: Set[str] = frozenset(), path: str = "") -> Any:
    """Return the record with the arrays of a state.

    Args:
        record: what the state was taken of, or one of the same shapes.
        state: of `state_of`.
        growing: names of arrays whose last dimension may differ.
        path: where the record stands, for messages.

    Raises:
        ValueError: an array has another shape, so that the state belongs to another configuration.
    """
    values: dict[str, Any] = {}
    for name in record._fields:
        value = getattr(record, name)
        where = f"{path}/{name}"
        if isinstance(value, np.ndarray):
            values[name] = _array(state[name].numpy(), value, where, growing=name in growing)
        elif isinstance(value, tuple):
            values[name] = restored(value, state[name], growing=growing, path=where)
    return record._replace(**values)


def _array(saved: Any, like: Any, where: str, *, growing: bool) -> Any:
    compared = (saved.shape[:-1], like.shape[:-1]) if growing else (saved.shape, like.shape)
    if compared[0] != compared[1] or saved.ndim != like.ndim:
        raise ValueError(
            f"state entry {where} has shape {saved.shape} but {like.shape} is needed: "
            "the state was saved by a different configuration; load it with the configuration of its own run"
        )
    return np.array(saved).view(np.uint64) if like.dtype == np.uint64 else np.array(saved, like.dtype)
