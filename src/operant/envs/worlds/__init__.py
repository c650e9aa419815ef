"""Small worlds with known exact values: grids, mazes, chains, gambles, a car rental and bandits.

Importing `operant.envs` registers them with Gymnasium, as `operant/Cliff-v0` and so on.
"""

from operant.envs.worlds.bandits import Bandit, BernoulliBandit, Testbed
from operant.envs.worlds.car_rental import CarRental
from operant.envs.worlds.chains import (
    DeepSea,
    KeyMoves,
    MaximizationBias,
    RandomWalk,
    RiverSwim,
    ShortCorridor,
    SixArms,
)
from operant.envs.worlds.gambler import Gambler
from operant.envs.worlds.key_door import KeyDoor
from operant.envs.worlds.mazes import ChangingMaze
from operant.envs.worlds.registration import WORLDS, World, register_worlds

__all__ = [
    "WORLDS",
    "Bandit",
    "BernoulliBandit",
    "CarRental",
    "ChangingMaze",
    "DeepSea",
    "Gambler",
    "KeyDoor",
    "KeyMoves",
    "MaximizationBias",
    "RandomWalk",
    "RiverSwim",
    "ShortCorridor",
    "SixArms",
    "Testbed",
    "World",
    "register_worlds",
]
