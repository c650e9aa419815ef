"""Batched environments with their states in one tensor."""

from operant.envs.tensor.board_game_checks import check_board_game
from operant.envs.tensor.board_games import BoardGame, Positions
from operant.envs.tensor.cart_pole import CART_POLES, CartPoleSwingUp, ContinuousCartPole
from operant.envs.tensor.classic import (
    CLASSIC_CONTROL,
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
)
from operant.envs.tensor.core import TensorEnv
from operant.envs.tensor.finite_worlds import FINITE_WORLDS, DeepSea, KeyDoor
from operant.envs.tensor.goal_tasks import GOAL_TASKS, BitFlip, Reach
from operant.envs.tensor.solved_games import Certificate, SolvedGame

TENSOR_ENVS = {**CLASSIC_CONTROL, **CART_POLES, **GOAL_TASKS, **FINITE_WORLDS}
"""The tasks that have a tensor environment."""

__all__ = [
    "CART_POLES",
    "CLASSIC_CONTROL",
    "FINITE_WORLDS",
    "GOAL_TASKS",
    "TENSOR_ENVS",
    "Acrobot",
    "BitFlip",
    "BoardGame",
    "CartPole",
    "CartPoleSwingUp",
    "Certificate",
    "ContinuousCartPole",
    "DeepSea",
    "KeyDoor",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Positions",
    "Reach",
    "SolvedGame",
    "TensorEnv",
    "check_board_game",
]
