"""Export of trained policies to files that need only NumPy: `write_policy`."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from operant.envs import BatchEnv, wrappers
from operant.envs.registry import make_single, specified
from operant.runtime import exported_policy
from operant.runtime.settings import Settings

Network = tuple[dict[str, Any], dict[str, Tensor]]
"""Network in the format of `operant.runtime.exported_policy.Policy`: JSON values, and tensors by name."""


def write_policy(settings: Settings, seed: int, network: Network, folder: Path) -> list[str]:
    """Write the greedy policy of one seed: `policy.py`, `policy.json` and `policy.safetensors`.

    Args:
        settings: settings of the run, whose environment is created for its spaces.
        seed: seed of the policy.
        network: network of the policy.
        folder: existing folder.

    Returns:
        The names of the files.

    Raises:
        ValueError: the observation or action space is not supported.
    """
    env = make_single(specified(settings.task, settings.env_kwargs))
    env.close()
    facts, tensors = network
    action, ends = action_form(env.action_space)
    facts = facts | {"observation": observation_form(env.observation_space, facts), "action": action}
    facts |= {"algorithm": settings.algorithm, "task": settings.task, "seed": seed}
    every = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in (tensors | ends).items()}
    (folder / "policy.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    save_file(every, folder / "policy.safetensors")
    shutil.copyfile(exported_policy.__file__, folder / "policy.py")
    return sorted(path.name for path in folder.iterdir())


def require_bare(env: BatchEnv | None) -> None:
    """Check that a policy does not depend on wrappers.

    Raises:
        ValueError: the policy was trained with wrappers that are used in evaluations.
    """
    changing = [] if env is None else [type(one).__name__ for one in wrappers(env) if one.in_evaluation]
    if changing:
        raise ValueError(
            f"export writes only the policy, but this one depends on the wrappers {', '.join(changing)}: "
            "use `operant.load(run).predict`"
        )


def table_of(actions: NDArray[Any]) -> Network:
    """Return a table of one action per state as a network.

    Args:
        actions: action of each state in the learner's action space, `[states]`.
    """
    return {"kind": "table"}, {"actions": torch.as_tensor(np.ascontiguousarray(actions, np.int64))}


def write_table(path: Path, actions: NDArray[Any], values: NDArray[Any] | None) -> None:
    """Write a table as CSV: one row per state, with its greedy action, and the values of all actions if known.

    Args:
        path: output file.
        actions: greedy actions, `[states]`.
        values: action values, `[states, A]`, or None.
    """
    names = [] if values is None else [f"q_{action}" for action in range(values.shape[1])]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["state", "action", *names])
        for state, action in enumerate(actions.tolist()):
            writer.writerow([state, action, *([] if values is None else map(repr, values[state].tolist()))])


def observation_form(space: spaces.Space[Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the conversion of observations to a vector."""
    own: Any = space
    shape = list(space.shape or ())
    found: dict[str, Any] = {"shape": shape, **({"clip": facts["clip"]} if "clip" in facts else {})}
    if isinstance(space, spaces.Discrete):
        if facts["kind"] == "table":
            return found | {"start": int(own.start)}
        return found | {"sizes": [int(own.n)], "starts": [int(own.start)]}
    if facts["kind"] != "table" and isinstance(space, spaces.MultiDiscrete):
        return found | {"sizes": own.nvec.ravel().tolist(), "starts": own.start.ravel().tolist()}
    if facts["kind"] != "table" and isinstance(space, spaces.Box | spaces.MultiBinary):
        return found
    raise ValueError(
        f"export supports observations that are one array (for tables: Discrete), got {space}; use "
        "`operant.load(run).predict`"
    )


def action_form(space: spaces.Space[Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the conversion of a learner's output to an action (`operant.envs.spaces.GymnasiumActions`)."""
    own: Any = space
    found: dict[str, Tensor] = {}
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        first = np.asarray(own.start, np.int64)
        found = {"action.first": torch.as_tensor(first).reshape(-1)} if first.any() else {}
    elif isinstance(space, spaces.Box):
        found = {f"action.{name}": torch.as_tensor(getattr(own, name).astype(np.float64)) for name in ("low", "high")}
    return {"shape": list(space.shape or ()), "dtype": str(own.dtype)}, found
