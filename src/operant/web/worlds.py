"""Initial worlds of the playground."""

from dataclasses import dataclass

from operant.envs.worlds import drawings

FROZEN_LAKE = """
slip: 0.6666666666666666

SFFF
FHFH
FFFH
HFFG
"""
"""FrozenLake-v1 of Gymnasium: two of three moves go sideways."""


@dataclass(frozen=True)
class World:
    """An initial world.

    Attributes:
        name: name in URLs.
        title: heading.
        note: explanation.
        drawing: in the format of `operant.envs.drawing`.
        gamma: a suitable discount factor.
        task: id of the Gymnasium environment with the same model; empty without one.
    """

    name: str
    title: str
    note: str
    drawing: str
    gamma: float
    task: str = ""


WORLDS: tuple[World, ...] = (
    World(
        "trap",
        "8 × 8 with a trap",
        "One reward, one trap, and 62 cells without reward. Move either and watch the values change.",
        drawings.TRAP_8X8,
        0.9,
        "operant/Trap8x8-v0",
    ),
    World("maze", "2 × 3 maze", "Small enough to do by hand.", drawings.MAZE_2X3, 0.9, "operant/Maze2x3-v0"),
    World(
        "goal", "4 × 4", "From corner to corner, with a cost per step.", drawings.GOAL_4X4, 0.99, "operant/Goal4x4-v0"
    ),
    World(
        "lake",
        "FrozenLake",
        "Two of three moves slip sideways, so the optimal policy avoids cells next to holes.",
        FROZEN_LAKE,
        0.99,
        "FrozenLake-v1",
    ),
    World(
        "cliff",
        "Cliff walking",
        "Q-learning walks along the edge; SARSA, which accounts for exploration, keeps away (S&B example 6.6).",
        drawings.CLIFF,
        1.0,
        "operant/Cliff-v0",
    ),
    World(
        "windy",
        "Windy grid",
        "Wind moves the agent upwards by the number below each column (S&B example 6.5).",
        drawings.WINDY,
        1.0,
        "operant/Windy-v0",
    ),
    World(
        "dyna",
        "Dyna maze",
        "Planning with stored steps finds the path in a few episodes (S&B figure 8.2).",
        drawings.DYNA_MAZE,
        0.95,
        "operant/DynaMaze-v0",
    ),
    World(
        "corners",
        "4 × 4 with two corners",
        "Policy evaluation of random moves, as in S&B example 4.1.",
        drawings.CORNERS_4X4,
        1.0,
        "operant/Corners4x4-v0",
    ),
    World(
        "jumps",
        "5 × 5 with jumps",
        "Continuing task: A gives reward 10 and leads to a, B gives 5 and leads to b (S&B example 3.5).",
        drawings.JUMPS_5X5,
        0.9,
        "operant/Jumps5x5-v0",
    ),
)
"""Initial worlds; the first one is the default."""
