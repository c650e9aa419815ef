"""Goal-conditioned environments: rewards and terminations for relabeled goals: `goal_reward`, `goal_end`."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv
from operant.envs.registry import make_single, specified
from operant.envs.workers import env_error
from operant.envs.wrapper import unwrapped, wrappers

OBSERVATION, ACHIEVED, DESIRED = "observation", "achieved_goal", "desired_goal"
"""Parts of goal-conditioned observations, as in Gymnasium-Robotics."""

GoalReward = Callable[[Tensor, Tensor], Tensor]
"""Function `(achieved [M, G], desired [M, G]) -> rewards [M]`."""

GoalEnd = Callable[[Tensor, Tensor], Tensor]
"""Function `(achieved [M, G], desired [M, G]) -> terminated [M]`."""


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
            as in Gymnasium-Robotics. The outermost wrapper that is a `GoalEnv` takes precedence.

    Raises:
        ValueError: the environment cannot compute rewards, or not for batches.
        EnvError: the method raised an error.
    """
    if (own := _goal_env(env)) is not None:
        return own.compute_reward
    compute = _of_single(env, "compute_reward")
    if compute is None:
        raise ValueError(
            f"{env.task} has no method compute_reward(achieved_goal, desired_goal, info), which is needed for the "
            "rewards of relabeled goals: implement it"
        )

    def reward(achieved: Tensor, desired: Tensor) -> Tensor:
        rewards: Any = np.asarray(compute(achieved.cpu().numpy(), desired.cpu().numpy()))
        if rewards.shape != achieved.shape[:1]:
            raise ValueError(
                f"compute_reward of {env.task} returned shape {[*rewards.shape]} for {len(achieved)} goals, "
                f"[{len(achieved)}] is needed: let it work on the last axis of its arguments"
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
    compute = _of_single(env, "compute_terminated")
    if compute is None:
        return None

    def end(achieved: Tensor, desired: Tensor) -> Tensor:
        reached, wanted = achieved.cpu().numpy(), desired.cpu().numpy()
        ends: Any = np.asarray(compute(reached, wanted))
        if ends.shape != reached.shape[:1]:
            ends = np.array([compute(*goals) for goals in zip(reached, wanted, strict=True)])
        return torch.as_tensor(ends, dtype=torch.bool, device=achieved.device)

    return end


def _goal_env(env: BatchEnv) -> GoalEnv | None:
    """Return the outermost wrapper, or the environment, that computes rewards."""
    return next((each for each in (*reversed(wrappers(env)), unwrapped(env)) if isinstance(each, GoalEnv)), None)


def _of_single(env: BatchEnv, name: str) -> Callable[[Any, Any], Any] | None:
    """Return a method of a single environment as a function of goals `(achieved, desired)`.

    Errors are raised as `EnvError`, as in `reset` and `step`.
    """
    inner = unwrapped(env)
    if not isinstance(inner, GymnasiumEnv):
        return None
    single = make_single(inner.spec or specified(inner.task)).unwrapped
    method = getattr(single, name, None)
    if method is None:
        return None

    def call(achieved: Any, desired: Any) -> Any:
        try:
            return method(achieved, desired, {})
        except Exception as error:
            raise env_error(inner.task, name, error) from error

    return call
