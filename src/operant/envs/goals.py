"""Environments with goals, whose reward can be computed again for another goal: `goal_reward`."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
import torch
from torch import Tensor

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv
from operant.envs.registry import make_single, specified
from operant.envs.wrapper import unwrapped, wrappers

OBSERVATION, ACHIEVED, DESIRED = "observation", "achieved_goal", "desired_goal"
"""Parts of the observations of an environment with goals, as in Gymnasium-Robotics."""

GoalReward = Callable[[Tensor, Tensor], Tensor]
"""`reward(achieved [M, G], desired [M, G]) -> rewards [M]`."""


@runtime_checkable
class GoalEnv(Protocol):
    """A batched environment whose observations have the parts `observation`, `achieved_goal` and `desired_goal`."""

    def compute_reward(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return the rewards `[M]` of having achieved `[M, G]` where `[M, G]` was desired."""
        ...


def goal_reward(env: BatchEnv) -> GoalReward:
    """Return the function that computes rewards for other goals, many at once.

    Args:
        env: a `GoalEnv`, or one of Gymnasium with a method `compute_reward(achieved_goal, desired_goal, info)`, as
            those of Gymnasium-Robotics have. The outermost wrapper that is a `GoalEnv` comes first.

    Raises:
        ValueError: the environment cannot compute rewards, or only one at a time.
    """
    for each in (*reversed(wrappers(env)), inner := unwrapped(env)):
        if isinstance(each, GoalEnv):
            return each.compute_reward
    single = _single(inner)
    compute = None if single is None else getattr(single.unwrapped, "compute_reward", None)
    if compute is None:
        raise ValueError(
            f"{env.task} has no compute_reward(achieved_goal, desired_goal, info), without which nobody knows what "
            "another goal would have earned: give the environment such a method"
        )

    def reward(achieved: Tensor, desired: Tensor) -> Tensor:
        rewards: Any = np.asarray(compute(achieved.cpu().numpy(), desired.cpu().numpy(), {}))
        if rewards.shape != achieved.shape[:1]:
            raise ValueError(
                f"compute_reward of {env.task} returned shape {[*rewards.shape]} for {len(achieved)} goals at once, "
                f"[{len(achieved)}] is needed: let it work on the last axis of its arguments"
            )
        return torch.as_tensor(rewards, dtype=torch.float32, device=achieved.device)

    return reward


def _single(env: BatchEnv) -> gymnasium.Env[Any, Any] | None:
    """Return one environment of the kind that a batch consists of, made for its `compute_reward` alone."""
    if not isinstance(env, GymnasiumEnv):
        return None
    return make_single(specified(env.task, env.env_kwargs))
