"""Two-player games in which every move adds a stone: m,n,k-games and Connect Four of any size, batched, on any device.

A position is two bit boards: the stones of the player to move, and those of the opponent. So every position is seen by
the player to move, and one network can play both sides. Cell `(row, column)` is bit `column * (rows + 1) + row`; the
bit above each column stays empty, which separates the columns.

Subclasses of `BoardGame` have other rules; `operant.envs.check_board_game` checks them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from operant.tensors import nested


class Positions(NamedTuple):
    """Positions of a board game.

    Attributes:
        own: int64 `[B]`, the stones of the player to move.
        opponent: int64 `[B]`, those of the player who moved last.
    """

    own: Tensor
    opponent: Tensor


class Symmetries(NamedTuple):
    """The G symmetries of a board: reflections and rotations that do not change the value of a position.

    Attributes:
        cells: int64 `[G, rows * columns]`, the cell that moves to each cell, as in `BoardGame.observe`; the first
            symmetry is the identity.
        actions: int64 `[G, A]`, the same for actions.
        inputs: int64 `[G, 2 * rows * columns + A]`, the same for inputs of networks: the cells of both players and the
            action mask.
    """

    cells: Tensor
    actions: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, cells: Tensor, actions: Tensor) -> Self:
        """Return symmetries by their effect on cells and actions.

        Args:
            cells: int64 `[G, rows * columns]`; the first symmetry is the identity.
            actions: int64 `[G, A]`.
        """
        count = cells.shape[1]
        return cls(cells, actions, torch.cat((cells, count + cells, 2 * count + actions), 1))

    def select(self, kept: Sequence[int]) -> "Symmetries":
        """Return some of the symmetries, by their indices; `[0]` is the identity alone."""
        return Symmetries(*(part[list(kept)] for part in self))


@dataclass(frozen=True)
class BoardGame:
    """A zero-sum game in which `connect` stones in a row, a column or a diagonal win, and a full board is a draw.

    A subclass with other rules overrides `outcomes`, which ends games, `moves`, if each adds one stone of the player to
    move, with `actions` if their number differs, `start`, and `symmetries` if not all of them hold. These depend only
    on the stones, and are computed for a batch of positions on any device.

    Attributes:
        columns: Width of the board.
        rows: Height of the board.
        connect: Stones that make a winning row.
        gravity: Whether an action is a column, and the stone falls to its lowest empty cell. Else an action is the cell
            `row * columns + column`.

    Raises:
        ValueError: If a size is not positive, or `columns * (rows + 1)` bits do not fit into an int64.
    """

    columns: int
    rows: int
    connect: int
    gravity: bool

    def __post_init__(self) -> None:
        if min(self.columns, self.rows, self.connect) < 1:
            raise ValueError(f"columns, rows and connect must be at least 1, got {self}")
        if self.bits > 62:
            raise ValueError(f"columns * (rows + 1) is {self.bits}, at most 62 bits fit: choose a smaller board")

    @classmethod
    def tic_tac_toe(cls) -> Self:
        """Three in a row on 3 x 3 cells."""
        return cls(columns=3, rows=3, connect=3, gravity=False)

    @classmethod
    def connect_four(cls, columns: int = 7, rows: int = 6, connect: int = 4) -> Self:
        """Four in a row, or another number; stones fall."""
        return cls(columns=columns, rows=rows, connect=connect, gravity=True)

    @property
    def bits(self) -> int:
        """Bits of a board, with the empty one above each column."""
        return self.columns * (self.rows + 1)

    @property
    def actions(self) -> int:
        """A, the number of actions, legal or not."""
        return self.columns if self.gravity else self.columns * self.rows

    @cached_property
    def cell_bits(self) -> Tensor:
        """The bit of each cell, int64 `[rows, columns]`, on the CPU."""
        row, column = torch.meshgrid(torch.arange(self.rows), torch.arange(self.columns), indexing="ij")
        return torch.ones((), dtype=torch.int64) << (column * (self.rows + 1) + row)

    @cached_property
    def symmetries(self) -> Symmetries:
        """The symmetries of the board: 8 of a square, 4 of a rectangle, 2 where stones fall.

        In their order: the identity, left and right exchanged; where stones do not fall, both with up and down
        exchanged, too; on a square, these four with rows and columns exchanged.
        """
        board = torch.arange(self.rows * self.columns).view(self.rows, self.columns)
        turned = [board, board.flip(1)]
        if not self.gravity:
            turned += [part.flip(0) for part in turned]
            turned += [part.T for part in turned] if self.rows == self.columns else []
        cells = torch.stack([part.flatten() for part in turned])
        actions = cells[:, : self.columns] if self.gravity else cells
        return Symmetries.of(cells, actions)

    def start(self, batch: int, device: torch.device | str = "cpu") -> Positions:
        """Return `batch` empty boards."""
        return Positions(*torch.zeros(2, batch, dtype=torch.int64, device=device))

    def moves(self, positions: Positions) -> Tensor:
        """Return the bit that each action sets, 0 where it is not legal: int64 `[B, A]`.

        Ends of the game are not checked here: see `outcomes`. Where the game has not ended, an action must be legal.
        """
        stones = (positions.own | positions.opponent)[:, None]
        cells = self.cell_bits.to(stones.device)
        if self.gravity:
            return (stones + cells[0]) & cells.sum(0)  # the carry runs up the column to its first empty cell
        return cells.flatten() & ~stones

    def play(self, positions: Positions, actions: Tensor) -> Positions:
        """Return the positions after the actions, seen by the other player.

        Args:
            positions: `[B]`.
            actions: int64 `[B]`.

        Raises:
            ValueError: If an action is not legal.
        """
        stones = self.moves(positions).gather(1, actions[:, None])[:, 0]
        if bool((stones == 0).any()):
            row = int((stones == 0).nonzero()[0])
            raise ValueError(
                f"action {int(actions[row])} of position {row} is not legal: choose where `moves` is not 0"
            )
        return Positions(positions.opponent, positions.own | stones)

    def outcomes(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return where the game has ended, bool `[B]`, and its value for the player to move, int8 `[B]`.

        The value is -1 where the opponent's last move won, and 0 elsewhere; in a subclass also 1 where that move lost
        the game. It is 0 where the game has not ended.
        """
        lost = self.connected(positions.opponent)
        full = (positions.own | positions.opponent) == int(self.cell_bits.sum())
        return lost | full, -lost.to(torch.int8)

    def connected(self, stones: Tensor) -> Tensor:
        """Return whether `connect` of the stones are in a row, a column or a diagonal, bool `[B]`.

        Args:
            stones: int64 `[B]`, the bits of one player's stones.
        """
        found = torch.zeros_like(stones, dtype=torch.bool)
        for step in (1, self.rows, self.rows + 1, self.rows + 2):  # up, down a diagonal, along a row, up a diagonal
            rows = stones
            for stone in range(1, self.connect):
                rows = rows & (stones >> (stone * step))
            found |= rows != 0
        return found

    def observe(self, positions: Positions) -> Tensor:
        """Return the board for networks: float32 `[B, 2, rows, columns]`, the player's own stones first."""
        boards = torch.stack(positions, dim=1)[:, :, None, None]
        return ((boards & self.cell_bits.to(boards.device)) != 0).float()

    def positions(self, boards: Tensor) -> Positions:
        """Return the positions from `boards [B, 2, rows, columns]` of `observe`."""
        return Positions(*((boards != 0) * self.cell_bits.to(boards.device)).sum((2, 3)).unbind(1))

    def openings(self, draws: Tensor, share: float) -> Positions:
        """Return starts of games: empty boards, or boards after random moves that do not end the game.

        Args:
            draws: uniform random numbers `[rows * columns + 1, B, A]`.
            share: of the games that begin with random moves, fewer than the cells of the board.
        """
        cells = self.rows * self.columns
        opens = draws[0, :, 0] < share
        many = draws.shape[2] > 1  # with a single action there is one number, which is uniform below the share
        length = draws[0, :, 1] if many else draws[0, :, 0] / max(share, torch.finfo(draws.dtype).tiny)
        moves = (length.masked_fill(~opens, 0.0) * cells).long()
        found = self.start(len(opens), draws.device)
        for t in range(int(moves.max())):
            legal = self.moves(found)
            stone = legal.gather(1, (draws[t + 1] * (legal != 0)).argmax(1, keepdim=True))[:, 0]
            after = Positions(found.opponent, found.own | stone)
            over, _ = self.outcomes(after)
            moves = torch.where(over, 0, moves)  # this game is decided: start earlier
            goes_on = t < moves
            found = Positions(*(torch.where(goes_on, new, old) for new, old in zip(after, found, strict=True)))
        return found

    def drawing(self, positions: Positions, *, own: str = "x", other: str = "o") -> str:
        """Return the first board as text, its highest row at the top for games in which stones fall."""
        boards: list[list[list[bool]]] = nested(self.observe(positions)[0].bool())
        stones, theirs = boards
        lines = [
            " ".join(own if mine else other if their else "." for mine, their in zip(*row, strict=True))
            for row in zip(stones, theirs, strict=True)
        ]
        return "\n".join(lines[::-1] if self.gravity else lines)
