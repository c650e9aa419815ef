"""Board games as environments, against a random opponent: `BoardGameEnv`."""

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from numpy.typing import NDArray

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv
from operant.envs.features import MASK
from operant.envs.registry import make_single, wrapper_chain
from operant.envs.spaces import is_dict
from operant.envs.tensor.board_game_checks import check_once
from operant.envs.tensor.board_games import BoardGame, Positions

BOARD_GAMES = ("operant/TicTacToe-v0", "operant/ConnectFour-v0", "operant/MNK-v0")
"""The built-in tasks with known rules."""

DEFAULTS = {"connect-four": BoardGame(7, 6, 4, gravity=True), "mnk": BoardGame(4, 4, 4, gravity=False)}
"""The games with sizes, by name, with their default ones."""

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
        game: name of the game, "tic-tac-toe", "connect-four" or "mnk" (m,n,k-games: as tic-tac-toe, of any size), or
            the rules, of a subclass of `BoardGame`, too.
        columns: number of columns; None: 7 of Connect Four, 4 of m,n,k-games.
        rows: number of rows; None: 6 of Connect Four, 4 of m,n,k-games.
        connect: number of stones in a row that win; None: 4.
        render_mode: "ansi", "rgb_array" or None.

    Raises:
        ValueError: unknown game, invalid board, or rules of a subclass that fail `operant.envs.check_board_game`.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        game: Literal["tic-tac-toe", "connect-four", "mnk"] | BoardGame,
        columns: int | None = None,
        rows: int | None = None,
        connect: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.game = _game(game, {"columns": columns, "rows": rows, "connect": connect})
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


def _game(game: object, size: Mapping[str, int | None]) -> BoardGame:
    """Return the rules of a game by its name, or the given ones after a check."""
    given = {name: value for name, value in size.items() if value is not None}
    if given and (isinstance(game, BoardGame) or game == "tic-tac-toe"):
        what = "tic-tac-toe has 3 x 3 cells" if game == "tic-tac-toe" else f"{game} has its own size"
        raise ValueError(f"{what}: remove {' and '.join(f'{name}={value}' for name, value in given.items())}")
    if isinstance(game, BoardGame):
        check_once(game)
        return game
    if game == "tic-tac-toe":
        return BoardGame.tic_tac_toe()
    if not isinstance(game, str) or game not in DEFAULTS:
        raise ValueError(
            f"game must be 'tic-tac-toe', {', '.join(map(repr, DEFAULTS))} or the rules, an instance of BoardGame such "
            f"as BoardGame(columns=4, rows=4, connect=3, gravity=False), got {game!r}"
        )
    found = replace(DEFAULTS[game], **given)
    if not 2 <= found.connect <= max(found.columns, found.rows):
        raise ValueError(
            f"connect must be from 2 to {max(found.columns, found.rows)}, the longest row of {found.columns} columns "
            f"and {found.rows} rows, got {found.connect}{'' if 'connect' in given else ', the default'}"
        )
    return found


def rules_of(env: BatchEnv) -> BoardGame | None:
    """Return the rules of the game of environments, or None.

    If the environments are in worker processes and look like a board game, another one is created here.
    """
    with _one_of(env) as single:
        bare = None if single is None else single.unwrapped
        return bare.game if isinstance(bare, BoardGameEnv) else None


def changing_wrappers(env: BatchEnv) -> list[str]:
    """Return the names of Gymnasium's wrappers of environments that may change a game, from the outermost."""
    with _one_of(env) as single:
        layers = [] if single is None else wrapper_chain(single)
        return [type(layer).__name__ for layer in layers if not _is_harmless(layer)]


def _is_harmless(wrapper: object) -> bool:
    """Return whether a wrapper changes no game: two of Gymnasium's, and those of all environments here."""
    return isinstance(wrapper, OrderEnforcing | PassiveEnvChecker) or type(wrapper).__module__.startswith("operant.")


@contextlib.contextmanager
def _one_of(env: BatchEnv) -> Generator[gymnasium.Env[Any, Any] | None]:
    """Yield one of the environments; None if they are in worker processes and do not look like a board game."""
    if isinstance(env, GymnasiumEnv) and env.singles:
        yield env.singles[0]
    elif isinstance(env, GymnasiumEnv) and env.spec is not None and _looks_like_a_game(env):
        with contextlib.closing(make_single(env.spec)) as single:
            yield single
    else:
        yield None


def _looks_like_a_game(env: BatchEnv) -> bool:
    """Return whether the spaces of environments are those of `BoardGameEnv`."""
    space = env.observation_space
    discrete = isinstance(env.action_space, spaces.Discrete)
    return discrete and is_dict(space) and set(space.spaces) == {"observation", MASK}
