"""What agents act in: batched tensor environments, Gymnasium's environments and wrappers of both."""

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv, Step, Tree
from operant.envs.making import make, require_space, resolve_backend
from operant.envs.normalise import Normalise
from operant.envs.tensor import (
    TENSOR_ENVS,
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    TensorEnv,
)

__all__ = [
    "TENSOR_ENVS",
    "Acrobot",
    "BatchEnv",
    "CartPole",
    "GymnasiumEnv",
    "MountainCar",
    "MountainCarContinuous",
    "Normalise",
    "Pendulum",
    "Step",
    "TensorEnv",
    "Tree",
    "make",
    "require_space",
    "resolve_backend",
]
