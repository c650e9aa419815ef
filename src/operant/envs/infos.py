"""Numbers in the last `info` of an episode."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant.envs.base import is_array
from operant.tensors import from_numpy

SUCCESS = ("is_success", "success")
"""Entries of `info` for the success of an episode."""

_ELSEWHERE = {"episode", "final_obs", "final_info", "TimeLimit.truncated"}
"""Entries that are measured or returned in another way."""


def scalars(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers and bools of an `info`, as floats, by name."""
    found: dict[str, float] = {}
    for name, value in info.items():
        scalar = isinstance(value, np.generic | np.ndarray) and value.ndim == 0
        plain = cast(Any, value).item() if scalar else cast(Any, value)
        if name not in _ELSEWHERE and isinstance(plain, bool | int | float):
            found[name] = float(plain)
    return found


def gather(infos: Sequence[Mapping[str, Any] | None]) -> dict[str, NDArray[Any]]:
    """Return the infos of B environments as Gymnasium merges them: `name` `[B]`, and its mask `_name`.

    Args:
        infos: of numbers; None for an environment without.
    """
    merged: dict[str, NDArray[Any]] = {}
    for index, info in enumerate(infos):
        for name, value in (info or {}).items():
            values = merged.setdefault(name, np.full(len(infos), np.nan))
            told = merged.setdefault(f"_{name}", np.zeros(len(infos), np.bool_))
            values[index], told[index] = value, True
    return merged


def final_infos(info: Mapping[str, Any], ended: NDArray[np.bool_], device: torch.device) -> dict[str, Tensor] | None:
    """Return the numbers of a merged info for the ended episodes.

    Args:
        info: of a vector environment, or its `final_info`.
        ended: `[B]`, whether the episode ended.
        device: of the tensors.

    Returns:
        By name, float64 `[B]`; NaN where missing or not ended. None without any.
    """
    found: dict[str, Tensor] = {}
    for name, values in info.items():
        told = info.get(f"_{name}")
        if told is None or name in _ELSEWHERE or not is_array(values):
            continue
        if values.shape == ended.shape and values.dtype.kind in "biuf" and (told & ended).any():
            numbers = np.where(told & ended, values.astype(np.float64), np.nan)
            found[name] = from_numpy(numbers).to(device)
    return found or None


def metric(name: str) -> str:
    """Return the metric's name for the mean of an entry of `info`."""
    return "rollout/success_rate" if name in SUCCESS else f"rollout/info/{name}"
