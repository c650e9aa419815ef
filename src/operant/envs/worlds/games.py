"""Tic-tac-toe and Connect Four as environments, against a random opponent: `BoardGameEnv`."""

from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv
from operant.envs.tensor.board_games import BoardGame, Positions

BOARD_GAMES = ("operant/TicTacToe-v0", "operant/ConnectFour-v0")
"""The tasks with known rules."""

CELL = 48
"""Pixels of a side of a cell."""
BOARD, EMPTY, OWN, OTHER = (52, 73, 110), (236, 240, 245), (230, 126, 34), (241, 196, 15)
"""Colors of images: red, green, blue."""

Observation = dict[str, NDArray[Any]]


class BoardGameEnv(gymnasium.Env[Observation, np.int64]):
    """One player of a board game: +1 for a win, -1 for a loss, 0 for a draw.

    The first player is random in each game. Observations are dictionaries: `observation`, float32 `[2, rows, columns]`,
    the player's stones and those of the opponent, and `action_mask`, all true on a full board. An illegal action loses
    the game.

    Args:
        game: name of the game, "tic-tac-toe" or "connect-four".
        columns: number of columns of Connect Four; None: 7.
        rows: number of rows of Connect Four; None: 6.
        render_mode: "ansi", "rgb_array" or None.

    Raises:
        ValueError: unknown game, or invalid board.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        game: Literal["tic-tac-toe", "connect-four"],
        columns: int | None = None,
        rows: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if game not in ("tic-tac-toe", "connect-four"):
            raise ValueError(f"game must be 'tic-tac-toe' or 'connect-four', got {game!r}")
        if game == "tic-tac-toe" and (columns, rows) != (None, None):
            raise ValueError(f"tic-tac-toe has 3 x 3 cells: remove columns={columns} and rows={rows}")
        size = 7 if columns is None else columns, 6 if rows is None else rows
        self.game = BoardGame.tic_tac_toe() if game == "tic-tac-toe" else BoardGame.connect_four(*size)
        self.render_mode = render_mode
        shape = (2, self.game.rows, self.game.columns)
        mask = spaces.Box(0, 1, (self.game.actions,), np.int8)
        self.observation_space: spaces.Dict = spaces.Dict(  # pyright: ignore[reportIncompatibleVariableOverride] - a Dict is a Space of dictionaries
            {"observation": spaces.Box(0.0, 1.0, shape), "action_mask": mask}
        )
        self.action_space = spaces.Discrete(self.game.actions)
        self.positions, self.turned = self.game.start(1), False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a game; in half of them the opponent moves first."""
        super().reset(seed=seed)
        self.positions, self.turned = self.game.start(1), False
        if self.np_random.integers(2):
            self._answer()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move, and let the opponent answer."""
        if not self._allowed()[action]:
            return self._observation(), -1.0, True, False, {}
        self.positions = self.game.play(self.positions, torch.tensor([int(action)]))
        over, value = self.game.outcomes(self.positions)
        if over:  # the opponent is to move: the value has the opposite sign
            self.turned = True
            return self._observation(), -float(value), True, False, {}
        self._answer()
        over, value = self.game.outcomes(self.positions)
        return self._observation(), float(value), bool(over), False, {}

    def _answer(self) -> None:
        moves = np.flatnonzero(self._allowed())
        self.positions = self.game.play(self.positions, torch.tensor([int(self.np_random.choice(moves))]))

    def _allowed(self) -> NDArray[np.int8]:
        return (self.game.moves(self.positions)[0] != 0).numpy().astype(np.int8)

    @property
    def _seen(self) -> Positions:
        """The position as the player sees it, also after the last move of the player."""
        return Positions(*reversed(self.positions)) if self.turned else self.positions

    def _observation(self) -> Observation:
        mask = self._allowed()
        return {
            "observation": self.game.observe(self._seen)[0].numpy(),
            "action_mask": mask if mask.any() else mask + 1,
        }

    def render(self) -> Any:
        """Return the board, as text with x for the player's stones, or as an image `[H, W, 3]` of bytes."""
        if self.render_mode is None:
            return None
        return self.game.drawing(self._seen) if self.render_mode == "ansi" else self._image()

    def _image(self) -> NDArray[np.uint8]:
        stones, theirs = (self.game.observe(self._seen)[0] != 0).numpy()
        image = np.full((self.game.rows * CELL, self.game.columns * CELL, 3), BOARD, np.uint8)
        y, x = np.mgrid[:CELL, :CELL] - (CELL - 1) / 2
        disc = x**2 + y**2 < (0.4 * CELL) ** 2
        for row, column in np.ndindex(stones.shape):
            top = (self.game.rows - 1 - row if self.game.gravity else row) * CELL
            color = OWN if stones[row, column] else OTHER if theirs[row, column] else EMPTY
            image[top : top + CELL, column * CELL : (column + 1) * CELL][disc] = color
        return image


def rules_of(env: BatchEnv) -> BoardGame | None:
    """Return the rules of the game of environments, or None; in worker processes only of `BOARD_GAMES`."""
    if not isinstance(env, GymnasiumEnv):
        return None
    bare = env.singles[0].unwrapped if env.singles else None
    if bare is None and env.spec is not None and env.task in BOARD_GAMES:
        bare = gymnasium.make(env.spec).unwrapped
    return bare.game if isinstance(bare, BoardGameEnv) else None
