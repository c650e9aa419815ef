"""Greedy policy of one seed, exported by `operant export` next to this file. It needs only NumPy.

from policy import Policy

policy = Policy()
action = policy.predict(observation)
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64}


def read_tensors(path: Path) -> dict[str, Any]:
    """Return the arrays in a safetensors file, by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length :]
    found: dict[str, Any] = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        found[name] = np.frombuffer(body[begin:end], DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    return found


class Policy:
    """Exported greedy policy.

    Args:
        folder: folder of `policy.json` and `policy.safetensors`. Default: the folder of this file.
    """

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        self.facts: dict[str, Any] = json.loads((Path(folder) / "policy.json").read_text(encoding="utf-8"))
        self.tensors = read_tensors(Path(folder) / "policy.safetensors")

    def predict(self, observations: Any) -> Any:
        """Return the action for one observation, or actions for N observations stacked along the first axis.

        Raises:
            ValueError: the observations have a wrong shape, contain NaN or Inf, or are not in their discrete space.
        """
        given, shape = np.asarray(observations), tuple(self.facts["observation"]["shape"])
        if given.dtype.kind not in "biuf":
            raise ValueError(f"observations must be numbers, got {observations!r:.80}")
        if given.shape[given.ndim - len(shape) :] != shape or given.ndim - len(shape) not in (0, 1):
            raise ValueError(f"observations must have shape {shape}, or (N, *{shape}); got {given.shape}")
        if not np.isfinite(given).all():
            raise ValueError(f"observations must be finite, got {given[~np.isfinite(given)][0]}")
        single = given.ndim == len(shape)
        actions = self._actions(given[None] if single else given)
        return actions[0] if single else actions

    def scores(self, observations: Any) -> Any:
        """Return the outputs of the network `[N, all choices]` for N observations: the highest of each choice acts."""
        return self._outputs(self._seen(np.asarray(observations)))

    def _actions(self, observations: Any) -> Any:
        """Return the actions for observations `[N, ...]`, in the action space."""
        action, tensors = self.facts["action"], self.tensors
        if self.facts["kind"] == "table":
            states = _within(observations, self.facts["observation"]["start"], len(tensors["actions"]))
            chosen = tensors["actions"][states]
        else:
            chosen = self._chosen(self._outputs(self._seen(observations)))
        chosen = chosen.reshape(len(observations), *action["shape"]).astype(action["dtype"])
        if "action.first" in tensors:
            chosen = chosen + tensors["action.first"].astype(action["dtype"]).reshape(action["shape"])
        if "action.low" in tensors:
            bounds = [tensors[name].astype(action["dtype"]) for name in ("action.low", "action.high")]
            chosen = np.clip(chosen, *bounds)
        return chosen

    def _seen(self, observations: Any) -> Any:
        """Return the network's inputs for observations, vectors `[N, D]`."""
        facts, tensors = self.facts["observation"], self.tensors
        if "sizes" in facts:
            columns = observations.reshape(len(observations), -1).T
            parts = [
                np.eye(size, dtype=np.float32)[_within(column, start, size)]
                for column, start, size in zip(columns, facts["starts"], facts["sizes"], strict=True)
            ]
            return np.concatenate(parts, axis=1)
        seen = observations.astype(np.float32)
        if "observations.mean" in tensors:
            scaled = (seen - tensors["observations.mean"]) * tensors["observations.scale"]
            seen = np.clip(scaled, -facts["clip"], facts["clip"]).astype(np.float32)
        seen = seen.reshape(len(seen), -1)
        if "affine.scale" in tensors:
            seen = tensors["affine.shift"] + seen * tensors["affine.scale"]
        return seen

    def _outputs(self, seen: Any) -> Any:
        """Return the outputs `[N, O]` of the network."""
        for index in range(layers := self.facts["layers"]):
            seen = seen @ self.tensors[f"layers.{index}.weight"] + self.tensors[f"layers.{index}.bias"]
            if index + 1 < layers:
                seen = np.tanh(seen) if self.facts["activation"] == "tanh" else np.maximum(seen, 0.0)
        first, last = self.facts["outputs"]
        return seen[:, first:last]

    def _chosen(self, outputs: Any) -> Any:
        """Return the most probable actions `[N, K]` or `[N, A]`."""
        if self.facts["kind"] == "choices":
            parts = np.split(outputs, np.cumsum(self.facts["choices"])[:-1], axis=1)
            return np.stack([part.argmax(axis=1) for part in parts], axis=1)
        tensors = self.tensors
        actions = np.tanh(outputs) if self.facts["kind"] == "squashed" else outputs
        return np.clip(tensors["middle"] + actions * tensors["half"], tensors["low"], tensors["high"])


def _within(numbers: Any, start: int, size: int) -> Any:
    """Return whole numbers counted from `start` as indices from 0; negative ones would count from the end of a table.

    Raises:
        ValueError: a number is not whole, or outside of the space.
    """
    broken = numbers % 1 != 0
    if broken.any():
        raise ValueError(f"observations must be whole numbers, got {numbers[broken][0]}")
    outside = (numbers < start) | (numbers >= start + size)
    if outside.any():
        last = start + size - 1
        raise ValueError(f"observations must lie between {start} and {last}, got {numbers[outside][0]}")
    return numbers.astype(np.int64) - start
