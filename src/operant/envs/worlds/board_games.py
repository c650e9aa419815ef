"""Tic-tac-toe and Connect Four as environments, against an opponent who moves at random: `BoardGameEnv`."""

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
"""The tasks whose rules are known."""

Observation = dict[str, NDArray[Any]]


class BoardGameEnv(gymnasium.Env[Observation, np.int64]):
    """One seat of a board game: +1 for a game won, -1 for one lost, 0 for a draw.

    Who begins is drawn anew for each game. Observations are dictionaries: `observation`, float32
    `[2, rows, columns]`, one's own stones and those of the opponent, and `action_mask`, which actions are allowed:
    all on a full board, where nothing is to be chosen. An action that is not allowed loses the game.

    Args:
        game: "tic-tac-toe" or "connect-four".
        columns: of Connect Four.
        rows: of Connect Four.
        render_mode: "ansi" or None.

    Raises:
        ValueError: there is no such game, or no such board.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        game: Literal["tic-tac-toe", "connect-four"],
        columns: int = 7,
        rows: int = 6,
        render_mode: str | None = None,
    ) -> None:
        if game not in ("tic-tac-toe", "connect-four"):
            raise ValueError(f"game must be 'tic-tac-toe' or 'connect-four', got {game!r}")
        self.game = BoardGame.tic_tac_toe() if game == "tic-tac-toe" else BoardGame.connect_four(columns, rows)
        self.render_mode = render_mode
        shape = (2, self.game.rows, self.game.columns)
        mask = spaces.Box(0, 1, (self.game.actions,), np.int8)
        self.observation_space: spaces.Dict = spaces.Dict(  # pyright: ignore[reportIncompatibleVariableOverride] - a Dict is a Space of dictionaries
            {"observation": spaces.Box(0.0, 1.0, shape), "action_mask": mask}
        )
        self.action_space = spaces.Discrete(self.game.actions)
        self.positions = self.game.start(1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a game; in half of them the opponent moves first."""
        super().reset(seed=seed)
        self.positions = self.game.start(1)
        if self.np_random.integers(2):
            self._answer()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move, and let the opponent answer."""
        if not self._allowed()[action]:
            return self._observation(), -1.0, True, False, {}
        self.positions = self.game.play(self.positions, torch.tensor([int(action)]))
        over, value = self.game.outcomes(self.positions)
        if over:  # the opponent would be to move: what that is worth to them is worth the opposite here
            return self._observation(turned=True), -float(value), True, False, {}
        self._answer()
        over, value = self.game.outcomes(self.positions)
        return self._observation(), float(value), bool(over), False, {}

    def _answer(self) -> None:
        moves = np.flatnonzero(self._allowed())
        self.positions = self.game.play(self.positions, torch.tensor([int(self.np_random.choice(moves))]))

    def _allowed(self) -> NDArray[np.int8]:
        return (self.game.moves(self.positions)[0] != 0).numpy().astype(np.int8)

    def _observation(self, *, turned: bool = False) -> Observation:
        seen = Positions(*reversed(self.positions)) if turned else self.positions
        mask = self._allowed()
        return {"observation": self.game.observe(seen)[0].numpy(), "action_mask": mask if mask.any() else mask + 1}

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride] - Gymnasium's type has lists
        """Return the board as text: x are one's own stones, o those of the opponent."""
        return None if self.render_mode is None else self.game.drawing(self.positions)


def rules_of(env: BatchEnv) -> BoardGame | None:
    """Return the rules of the game that environments in this process play; None if they are not known."""
    bare = env.singles[0].unwrapped if isinstance(env, GymnasiumEnv) and env.singles else None
    return bare.game if isinstance(bare, BoardGameEnv) else None
