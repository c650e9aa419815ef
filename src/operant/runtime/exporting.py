"""Export of trained policies to files that need only NumPy: `write_policy`."""

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from operant.envs import BatchEnv, wrappers
from operant.envs.registry import make_single, specified
from operant.envs.spaces import first_member
from operant.runtime import exported_policy
from operant.runtime.settings import Settings

Network = tuple[dict[str, Any], dict[str, Tensor]]
"""Network in the format of `operant.runtime.exported_policy.Policy`: JSON values, and tensors by name."""

Arrays = Sequence[NDArray[Any]]

TRIALS = (1, 7, 64)
"""Numbers of random observations on which an exported policy is compared with the policy."""
RTOL, ATOL = 1e-4, 1e-5
"""Tolerance of actions and scores; actions whose scores differ by less are equivalent."""


def write_policy(
    settings: Settings,
    seed: int,
    network: Network,
    folder: Path,
    *,
    predict: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> list[str]:
    """Write the greedy policy of one seed: `policy.py`, `policy.json` and `policy.safetensors`.

    Args:
        settings: settings of the run, whose environment is created for its spaces.
        seed: seed of the policy.
        network: network of the policy.
        folder: existing folder.
        predict: function that returns the policy's greedy actions for observations `[N, ...]`, with which the files
            are compared. Default: no comparison.

    Returns:
        The names of the files.

    Raises:
        ValueError: the observation or action space is not supported, or the files give other actions than `predict`.
    """
    env = make_single(specified(settings.task, settings.env_kwargs))
    env.close()
    facts, tensors = network
    if facts["kind"] == "table" and not isinstance(env.action_space, spaces.Discrete):
        raise ValueError(
            f"export of tables is for Discrete actions, but {settings.task} has {env.action_space}: use "
            "`operant.load(run).predict`"
        )
    action, ends = action_form(env.action_space)
    facts = facts | {"observation": observation_form(env.observation_space, facts), "action": action}
    facts |= {"algorithm": settings.algorithm, "task": settings.task, "seed": seed}
    every = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in (tensors | ends).items()}
    (folder / "policy.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    save_file(every, folder / "policy.safetensors")
    shutil.copyfile(exported_policy.__file__, folder / "policy.py")
    if predict is not None:
        _compare(exported_policy.Policy(folder), env, predict)
    return sorted(path.name for path in folder.iterdir())


def _compare(
    policy: exported_policy.Policy,
    env: gymnasium.Env[Any, Any],
    predict: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """Compare an exported policy with `predict` on random observations.

    Raises:
        ValueError: it gives other actions.
    """
    facts = policy.facts | {"first": np.asarray(first_member(env.action_space)).ravel().tolist()}
    for given in (random_observations(env.observation_space, count) for count in TRIALS):
        scores = [policy.scores(given)] if facts["kind"] == "choices" else []
        require_same(
            facts,
            [policy.predict(given), *scores],
            [predict(given), *scores],
            what="the exported policy",
            reason="its actions are not those of its network alone, such as in a subclass with its own distribution",
        )


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


def first_members(settings: Settings) -> tuple[int, int]:
    """Return the first state and the first action of a task; 0 unless the space is Discrete and has another start."""
    env = make_single(specified(settings.task, settings.env_kwargs))
    env.close()
    both: tuple[Any, Any] = env.observation_space, env.action_space
    state, action = (int(space.start) if isinstance(cast(object, space), spaces.Discrete) else 0 for space in both)
    return state, action


def write_table(
    path: Path, actions: NDArray[Any], values: NDArray[Any] | None, *, starts: tuple[int, int] = (0, 0)
) -> None:
    """Write a table as CSV: one row per state, with its greedy action, and the values of all actions if known.

    Args:
        path: output file.
        actions: greedy actions, `[states]`.
        values: action values, `[states, A]`, or None.
        starts: first members of the observation space and of the action space.
    """
    first_state, first_action = starts
    names = [] if values is None else [f"q_{first_action + action}" for action in range(values.shape[1])]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["state", "action", *names])
        for state, action in enumerate(actions.tolist()):
            numbers: list[str] = [] if values is None else [*map(repr, values[state].tolist())]
            writer.writerow([first_state + state, first_action + action, *numbers])


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


def random_observations(space: spaces.Space[Any], count: int) -> NDArray[Any]:
    """Draw `count` random observations: normal numbers clipped to the bounds of boxes."""
    rng, own = np.random.default_rng(count), cast(Any, space)
    if isinstance(space, spaces.Box) and np.issubdtype(own.dtype, np.floating):
        drawn: Any = rng.normal(0.0, 3.0, size=(count, *own.shape))
        return np.clip(drawn, own.low, own.high).astype(own.dtype)
    own.seed(count)
    return np.stack([np.asarray(own.sample()) for _ in range(count)])


def require_same(facts: dict[str, Any], found: Arrays, expected: Arrays, *, what: str, reason: str) -> None:
    """Check that an exported policy gives the same actions as the policy.

    Args:
        facts: preprocessing and postprocessing, in the format of `operant.runtime.exported_policy`.
        found: actions and, of discrete ones, their scores.
        expected: the same of the policy.
        what: the exported policy, for errors.
        reason: likely reason of a difference.

    Raises:
        ValueError: actions differ by more than rounding.
    """
    same = [
        one.shape == two.shape and np.allclose(one, two, RTOL, ATOL) for one, two in zip(found, expected, strict=True)
    ]
    if facts["kind"] == "choices" and len(found) > 1 and same[1]:
        same[0] = found[0].shape == expected[0].shape and _ties(facts, found, expected)
    if not all(same) or found[0].dtype != expected[0].dtype:
        raise ValueError(f"{what} gives other actions than the policy: {reason}; use `operant.load(run).predict`")


def _ties(facts: dict[str, Any], found: Arrays, expected: Arrays) -> bool:
    """Return whether differing actions have equal scores up to rounding."""
    rows, first = len(found[0]), 0
    starts = np.broadcast_to(np.asarray(facts.get("first", 0)).ravel(), len(facts["choices"]))
    pairs = zip(found[0].reshape(rows, -1).T, expected[0].reshape(rows, -1).T, facts["choices"], starts, strict=True)
    for one, two, count, start in pairs:
        scores = found[1][:, first : first + count]
        left, right = (scores[np.arange(rows), np.asarray(side, np.int64) - start] for side in (one, two))
        if not np.allclose(left, right, RTOL, ATOL):
            return False
        first += count
    return True
