"""Registration of the worlds by name, for `gymnasium.make("operant/Cliff-v0")`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium

from operant.envs.worlds import drawings

TEN_ARMS = (0.1, *[0.05] * 3, *[0.02] * 3, *[0.01] * 3)
"""Probabilities of the arms in the comparison of Garivier and Cappé 2011."""


class World(NamedTuple):
    """Registration of a world.

    Attributes:
        entry_point: the class, as `module:name`.
        max_steps: number of steps after which an episode is truncated; None: never.
        options: arguments of the class.
    """

    entry_point: str
    max_steps: int | None = None
    options: Mapping[str, Any] = MappingProxyType({})


def _grid(drawing: str, max_steps: int) -> World:
    return World("operant.envs.grid:GridWorld", max_steps, {"drawing": drawing})


def _maze(before: str, after: str, change_at: int) -> World:
    options = {"before": before, "after": after, "change_at": change_at}
    return World("operant.envs.worlds.mazes:ChangingMaze", 10_000, options)


def _world(module: str, name: str, max_steps: int | None = None, **options: Any) -> World:
    return World(f"operant.envs.worlds.{module}:{name}", max_steps, options)


WORLDS = {
    "operant/Grid-v0": World("operant.envs.grid:GridWorld"),
    "operant/Trap8x8-v0": _grid(drawings.TRAP_8X8, 200),
    "operant/Maze2x3-v0": _grid(drawings.MAZE_2X3, 100),
    "operant/Goal4x4-v0": _grid(drawings.GOAL_4X4, 200),
    "operant/Corners4x4-v0": _grid(drawings.CORNERS_4X4, 1000),
    "operant/Jumps5x5-v0": _grid(drawings.JUMPS_5X5, 100),
    "operant/Cliff-v0": _grid(drawings.CLIFF, 10_000),
    "operant/Windy-v0": _grid(drawings.WINDY, 10_000),
    "operant/DynaMaze-v0": _grid(drawings.DYNA_MAZE, 10_000),
    "operant/BlockingMaze-v0": _maze(drawings.WALL_OPEN_RIGHT, drawings.WALL_OPEN_LEFT, 1000),
    "operant/ShortcutMaze-v0": _maze(drawings.WALL_OPEN_LEFT, drawings.WALL_OPEN_BOTH, 3000),
    "operant/RandomWalk5-v0": _world("chains", "RandomWalk", states=5),
    "operant/RandomWalk19-v0": _world("chains", "RandomWalk", states=19, left=-1.0),
    "operant/RiverSwim-v0": _world("chains", "RiverSwim", 5000),
    "operant/SixArms-v0": _world("chains", "SixArms", 5000),
    "operant/DeepSea-v0": _world("chains", "DeepSea"),
    "operant/KeyDoor-v0": _world("key_door", "KeyDoor"),
    "operant/KeyMoves-v0": _world("chains", "KeyMoves"),
    "operant/ShortCorridor-v0": _world("chains", "ShortCorridor", 1000),
    "operant/MaximizationBias-v0": _world("chains", "MaximizationBias"),
    "operant/Gambler-v0": _world("gambler", "Gambler"),
    "operant/CarRental-v0": _world("car_rental", "CarRental", 1000),
    "operant/Testbed-v0": _world("bandits", "Testbed", 1000),
    "operant/BernoulliBandit-v0": _world("bandits", "BernoulliBandit", 10_000),
    "operant/TwoArms-v0": _world("bandits", "BernoulliBandit", 10_000, probabilities=(0.9, 0.8)),
    "operant/TenArms-v0": _world("bandits", "BernoulliBandit", 10_000, probabilities=TEN_ARMS),
    "operant/PixelCatch-v0": _world("pixels", "PixelCatch"),
    "operant/HiddenCartPole-v0": _world("hidden", "HiddenCartPole", 500),
    "operant/ContinuousCartPole-v0": _world("cart_poles", "ContinuousCartPole", 500),
    "operant/CartPoleSwingUp-v0": _world("cart_poles", "CartPoleSwingUp", 500),
    "operant/BitFlip-v0": _world("goal_worlds", "BitFlip"),
    "operant/Reach-v0": _world("goal_worlds", "Reach", 50),
    "operant/TicTacToe-v0": _world("games", "BoardGameEnv", game="tic-tac-toe"),
    "operant/ConnectFour-v0": _world("games", "BoardGameEnv", game="connect-four"),
    "operant/MNK-v0": _world("games", "BoardGameEnv", game="mnk"),
}
"""Every world, by its Gymnasium id. `operant/Grid-v0` needs the option `drawing`."""

OLD_IDS = {"operant/MaximisationBias-v0": "operant/MaximizationBias-v0"}
"""New ids by those of 0.1, which runs of that version name."""


def register_worlds() -> None:
    """Register all worlds that Gymnasium does not know yet."""
    for name, world in (WORLDS | {old: WORLDS[new] for old, new in OLD_IDS.items()}).items():
        if name not in gymnasium.registry:
            gymnasium.register(  # pyright: ignore[reportUnknownMemberType] - its kwargs are a bare dict
                name,
                entry_point=world.entry_point,
                max_episode_steps=world.max_steps,
                kwargs=dict(world.options),
            )
