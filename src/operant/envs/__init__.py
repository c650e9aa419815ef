"""Environments: batched tensor environments, Gymnasium's environments, wrappers of both, and small environments."""

import importlib
from typing import TYPE_CHECKING, Any

from operant.envs.cells import Grid, Rules
from operant.envs.drawing import DrawingError, parse_grid
from operant.envs.finite import FiniteEnv, Transitions
from operant.envs.grid import GridWorld, grid_transitions
from operant.envs.workers import EnvError, WorkerError
from operant.envs.worlds import WORLDS, register_worlds

if TYPE_CHECKING:
    from operant.envs.adapter import GymnasiumEnv, RestoreError, without_episodes
    from operant.envs.atari import Atari
    from operant.envs.base import BatchEnv, EndlessError, Step, Tree, begins_anew
    from operant.envs.conformance import ContractError, check_batch_env
    from operant.envs.envpool import EnvPool
    from operant.envs.features import Features, is_image
    from operant.envs.goals import GoalEnd, GoalEnv, GoalReward, goal_end, goal_reward
    from operant.envs.making import EnvMaker, make, maker_like, only_here, resolve_backend
    from operant.envs.noisy_tv import NoisyTV
    from operant.envs.normalize import Normalize
    from operant.envs.randomize import Randomize, randomizer
    from operant.envs.registry import own_files
    from operant.envs.tensor import (
        TENSOR_ENVS,
        Acrobot,
        BoardGame,
        CartPole,
        CartPoleSwingUp,
        ContinuousCartPole,
        MountainCar,
        MountainCarContinuous,
        Pendulum,
        TensorEnv,
        check_board_game,
    )
    from operant.envs.worker_pool import WorkerPool
    from operant.envs.worlds.games import BoardGameEnv
    from operant.envs.wrapper import (
        Wrapper,
        changes_observations,
        deferring,
        for_evaluation,
        learned,
        reporting,
        start,
        unwrapped,
        wrapped,
        wrappers,
    )

__all__ = [
    "TENSOR_ENVS",
    "WORLDS",
    "Acrobot",
    "Atari",
    "BatchEnv",
    "BoardGame",
    "BoardGameEnv",
    "CartPole",
    "CartPoleSwingUp",
    "ContinuousCartPole",
    "ContractError",
    "DrawingError",
    "EndlessError",
    "EnvError",
    "EnvMaker",
    "EnvPool",
    "Features",
    "FiniteEnv",
    "GoalEnd",
    "GoalEnv",
    "GoalReward",
    "Grid",
    "GridWorld",
    "GymnasiumEnv",
    "MountainCar",
    "MountainCarContinuous",
    "NoisyTV",
    "Normalize",
    "Pendulum",
    "Randomize",
    "RestoreError",
    "Rules",
    "Step",
    "TensorEnv",
    "Transitions",
    "Tree",
    "WorkerError",
    "WorkerPool",
    "Wrapper",
    "begins_anew",
    "changes_observations",
    "check_batch_env",
    "check_board_game",
    "deferring",
    "for_evaluation",
    "goal_end",
    "goal_reward",
    "grid_transitions",
    "is_image",
    "learned",
    "make",
    "maker_like",
    "only_here",
    "own_files",
    "parse_grid",
    "randomizer",
    "register_worlds",
    "reporting",
    "resolve_backend",
    "start",
    "unwrapped",
    "without_episodes",
    "wrapped",
    "wrappers",
]


_HOMES = {
    "adapter": ("GymnasiumEnv", "RestoreError", "without_episodes"),
    "atari": ("Atari",),
    "base": ("BatchEnv", "EndlessError", "Step", "Tree", "begins_anew"),
    "conformance": ("ContractError", "check_batch_env"),
    "envpool": ("EnvPool",),
    "features": ("Features", "is_image"),
    "goals": ("GoalEnd", "GoalEnv", "GoalReward", "goal_end", "goal_reward"),
    "making": ("EnvMaker", "make", "maker_like", "only_here", "resolve_backend"),
    "noisy_tv": ("NoisyTV",),
    "normalize": ("Normalize",),
    "randomize": ("Randomize", "randomizer"),
    "registry": ("own_files",),
    "tensor": (
        "TENSOR_ENVS",
        "Acrobot",
        "BoardGame",
        "CartPole",
        "CartPoleSwingUp",
        "ContinuousCartPole",
        "MountainCar",
        "MountainCarContinuous",
        "Pendulum",
        "TensorEnv",
        "check_board_game",
    ),
    "worker_pool": ("WorkerPool",),
    "worlds.games": ("BoardGameEnv",),
    "wrapper": (
        "Wrapper",
        "changes_observations",
        "deferring",
        "for_evaluation",
        "learned",
        "reporting",
        "start",
        "unwrapped",
        "wrapped",
        "wrappers",
    ),
}
"""Public names by the module that defines them; these modules import torch."""


def __getattr__(name: str) -> Any:
    """Import names that need torch only when they are used; finite MDPs and their planners do not need it."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"operant.envs.{module}"), name)
    raise AttributeError(f"module 'operant.envs' has no attribute {name!r}")


register_worlds()
