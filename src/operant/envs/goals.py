"""Goal-conditioned environments: rewards and terminations for relabeled goals: `goal_reward`, `goal_end`."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv
from operant.envs.registry import make_single, specified, wrapper_chain
from operant.envs.spaces import is_box, is_dict, is_multi_discrete
from operant.envs.workers import EnvError, env_error
from operant.envs.wrapper import unwrapped, wrappers

OBSERVATION, ACHIEVED, DESIRED = "observation", "achieved_goal", "desired_goal"
"""Parts of goal-conditioned observations, as in Gymnasium-Robotics."""

GoalReward = Callable[[Tensor, Tensor], Tensor]
"""Function `(achieved [M, G], desired [M, G]) -> rewards [M]`."""

GoalEnd = Callable[[Tensor, Tensor], Tensor]
"""Function `(achieved [M, G], desired [M, G]) -> terminated [M]`."""

Decode = Callable[[Tensor, Tensor], tuple[NDArray[Any], NDArray[Any]]]
"""Function from encoded goals `(achieved [M, G], desired [M, G])` to arrays of the goal space."""

_OTHERS = (spaces.MultiBinary, spaces.Discrete)


@runtime_checkable
class GoalEnv(Protocol):
    """A batched environment whose observations have the parts `observation`, `achieved_goal` and `desired_goal`."""

    def compute_reward(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return the rewards `[M]` of achieved goals `[M, G]` for desired goals `[M, G]`."""
        ...


@runtime_checkable
class EndingGoalEnv(GoalEnv, Protocol):
    """A goal-conditioned environment whose terminations depend on the goal."""

    def compute_terminated(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return whether episodes end, bool `[M]`, for achieved goals `[M, G]` and desired goals `[M, G]`."""
        ...


def goal_reward(env: BatchEnv) -> GoalReward:
    """Return a function that computes rewards for a batch of goals.

    Args:
        env: a `GoalEnv`, or a Gymnasium environment with a method `compute_reward(achieved_goal, desired_goal, info)`,
            as in Gymnasium-Robotics, which takes goals of their space: numbers for Discrete, arrays for others. The
            outermost wrapper that is a `GoalEnv` takes precedence, then the outermost Gymnasium wrapper with the
            method.

    Raises:
        ValueError: the environment cannot compute rewards, or not for batches; or a `gymnasium.RewardWrapper` outside
            the method changes them.
        EnvError: the method raised an error.
    """
    if (own := _goal_env(env)) is not None:
        return own.compute_reward
    found = _of_single(env, "compute_reward")
    if found is None:
        raise ValueError(
            f"{env.task} has no method compute_reward(achieved_goal, desired_goal, info), which is needed for the "
            "rewards of relabeled goals: implement it"
        )
    compute, decode = found

    def reward(achieved: Tensor, desired: Tensor) -> Tensor:
        rewards: Any = np.asarray(compute(*decode(achieved, desired)))
        if rewards.shape != achieved.shape[:1]:
            raise ValueError(
                f"compute_reward of {env.task} returned shape {[*rewards.shape]} for {len(achieved)} goals, "
                f"[{len(achieved)}] is needed: let it work on arguments whose first axis is that of the goals"
            )
        return torch.as_tensor(rewards, dtype=torch.float32, device=achieved.device)

    return reward


def goal_end(env: BatchEnv) -> GoalEnd | None:
    """Return a function that computes terminations for a batch of goals.

    Args:
        env: as for `goal_reward`, with a method `compute_terminated`. A method for single goals, as in
            Gymnasium-Robotics, is called for each.

    Returns:
        The function; None if there is no such method, so that terminations do not depend on the goal.
    """
    if (own := _goal_env(env)) is not None:
        return own.compute_terminated if isinstance(own, EndingGoalEnv) else None
    found = _of_single(env, "compute_terminated")
    if found is None:
        return None
    compute, decode = found

    def end(achieved: Tensor, desired: Tensor) -> Tensor:
        reached, wanted = decode(achieved, desired)
        ends: Any = None
        with contextlib.suppress(EnvError):  # of a method for single goals, such as one with an `if`
            ends = np.asarray(compute(reached, wanted))
        if ends is None or ends.shape != achieved.shape[:1]:
            ends = np.array([compute(*goals) for goals in zip(reached, wanted, strict=True)])
        return torch.as_tensor(ends, dtype=torch.bool, device=achieved.device)

    return end


def _goal_env(env: BatchEnv) -> GoalEnv | None:
    """Return the outermost wrapper, or the environment, that computes rewards."""
    return next((each for each in (*reversed(wrappers(env)), unwrapped(env)) if isinstance(each, GoalEnv)), None)


def _of_single(env: BatchEnv, name: str) -> tuple[Callable[[Any, Any], Any], Decode] | None:
    """Return a method of a single environment as a function of goals `(achieved, desired)`, and how to decode goals.

    The method is that of the outermost Gymnasium wrapper that has it. Errors are raised as `EnvError`, as in `reset`
    and `step`.

    Raises:
        ValueError: a wrapper outside it changes rewards, or goals have no form that it could take.
    """
    inner = unwrapped(env)
    if not isinstance(inner, GymnasiumEnv):
        return None
    single = make_single(inner.spec or specified(inner.task))
    layers = [*wrapper_chain(single), single.unwrapped]
    owner = next((layer for layer in layers if hasattr(layer, name)), None)
    if owner is None:
        single.close()
        return None
    for layer in layers[: layers.index(owner)]:
        if isinstance(layer, gymnasium.RewardWrapper):
            single.close()
            raise ValueError(
                f"the rewards of {env.task} are changed by {type(layer).__name__}, which has no {name}, so relabeled "
                f"transitions would have others: add the method to it, or move the change into {name}"
            )
    method, decode = getattr(owner, name), _decoder(single.observation_space, env.task)

    def call(achieved: Any, desired: Any) -> Any:
        try:
            return method(achieved, desired, {})
        except Exception as error:
            raise env_error(inner.task, name, error) from error

    weakref.finalize(call, single.close).atexit = False
    return call, decode


def _decoder(space: gymnasium.Space[Any], task: str) -> Decode:
    """Return a function from encoded goals `[M, G]` (`operant.envs.Features`) to arrays `[M, ...]` of the goal space.

    Raises:
        ValueError: goals of that space cannot be decoded.
    """
    parts: dict[str, Any] = dict(space.spaces) if is_dict(space) else {}
    kinds: list[Any] = [parts.get(part) for part in (ACHIEVED, DESIRED)]
    for kind in kinds:
        if kind is not None and not (is_box(kind) or is_multi_discrete(kind) or isinstance(kind, _OTHERS)):
            raise ValueError(
                f"goals of {task} are {kind}: a Box, MultiBinary, Discrete or MultiDiscrete is needed for hindsight"
            )

    def decode(achieved: Tensor, desired: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        reached, wanted = (_decoded(goals.cpu(), kind) for goals, kind in zip((achieved, desired), kinds, strict=True))
        return reached, wanted

    return decode


def _decoded(goals: Tensor, kind: Any) -> NDArray[Any]:
    if kind is None:
        return goals.numpy()
    if not hasattr(kind, "start"):
        return goals.reshape(len(goals), *kind.shape).numpy()
    sizes: list[int] = kind.nvec.ravel().tolist() if hasattr(kind, "nvec") else [int(kind.n)]
    chosen = np.stack([part.argmax(1).numpy() for part in goals.split_with_sizes(sizes, dim=1)], axis=1)
    return (chosen.reshape(len(goals), *kind.shape) + kind.start).astype(kind.dtype)
