"""Environments whose rows are columns of one tensor."""

from operant.envs.tensor.classic import (
    TENSOR_ENVS,
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
)
from operant.envs.tensor.core import TensorEnv

__all__ = ["TENSOR_ENVS", "Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum", "TensorEnv"]
