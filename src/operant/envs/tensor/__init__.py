"""Environments whose rows are columns of one tensor."""

from operant.envs.tensor.classic import (
    CLASSIC_CONTROL,
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
)
from operant.envs.tensor.core import TensorEnv
from operant.envs.tensor.deep_sea import DeepSea
from operant.envs.tensor.goal_tasks import GOAL_TASKS, BitFlip, Reach

TENSOR_ENVS = {**CLASSIC_CONTROL, **GOAL_TASKS, DeepSea.task: DeepSea}
"""The tasks that have a tensor environment."""

__all__ = [
    "CLASSIC_CONTROL",
    "GOAL_TASKS",
    "TENSOR_ENVS",
    "Acrobot",
    "BitFlip",
    "CartPole",
    "DeepSea",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Reach",
    "TensorEnv",
]
