"""Exact values of board games, by enumeration of reachable positions, and the mistakes of policies."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from operant.envs.tensor.board_games import BoardGame, Positions
from operant.tensors import integers, unique

MOST_BITS = 31
"""Maximum bits of a board whose positions can be enumerated: two boards fit into an int64."""

MOST_MOVES = 2**26
"""Maximum number of moves in all positions with the same number of stones; enumeration takes some 100 bytes each."""

MOST_CELLS = 16
"""Number of cells up to which boards on which stones do not fall are small, whatever the rules."""

GamePolicy = Callable[[Positions], Tensor]
"""From positions `[B]` that have not ended to actions, int64 `[B]`."""


def is_small(game: BoardGame) -> bool:
    """Return whether the positions of a game can probably be enumerated, by the size of its board."""
    return game.bits <= MOST_BITS and (game.gravity or game.columns * game.rows <= MOST_CELLS)


class Certificate(NamedTuple):
    """The mistakes of a policy: actions that lower the value of the game.

    Attributes:
        positions: Reachable positions in which the game has not ended.
        mistakes: Those with a mistake of the policy.
        faced: Positions that the policy can reach as either player, whatever the opponent does.
        faced_mistakes: Those with a mistake. If 0, the policy never gets less than the value of the game.
    """

    positions: int
    mistakes: int
    faced: int
    faced_mistakes: int


class SolvedGame:
    """A solved game: every reachable position enumerated, move by move, and valued from the last move back.

    Memory grows with the number of positions: 5 478 for tic-tac-toe; 161 029 for Connect Four on 4 x 4 cells;
    3 945 711 on 5 columns and 4 rows; 9 722 011 for four in a row on 4 x 4 cells without gravity.

    Attributes:
        game: The rules.
        layers: The keys of the positions with n stones, int64, sorted.
        values: Their values to the player to move under perfect play, int8: 1 won, 0 drawn, -1 lost.

    Raises:
        ValueError: If two boards do not fit into an int64, or there are too many positions for memory.
    """

    def __init__(self, game: BoardGame) -> None:
        if game.bits > MOST_BITS:
            raise ValueError(
                f"a board of {game.columns} x {game.rows} cells is too large to enumerate: columns * (rows + 1) "
                f"must be at most {MOST_BITS}, got {game.bits}"
            )
        self.game = game
        self.layers = [self._keys(game.start(1))]
        while len(following := self._keys(self._children(self.undecided(len(self.layers) - 1))[0])):
            self.layers.append(following)
        self.values = [torch.empty(0, dtype=torch.int8)] * len(self.layers)
        for stones in reversed(range(len(self.layers))):
            self.values[stones] = self._backup(stones)

    def __len__(self) -> int:
        """The number of reachable positions, including terminal ones."""
        return sum(len(layer) for layer in self.layers)

    def undecided(self, stones: int) -> Positions:
        """Return the reachable positions with `stones` stones in which the game has not ended."""
        positions = self._positions(self.layers[stones])
        ended, _ = self.game.outcomes(positions)
        return Positions(positions.own[~ended], positions.opponent[~ended])

    def action_values(self, positions: Positions, stones: int) -> Tensor:
        """Return the value of each action to the player to move, int8 `[B, A]`, -2 where it is not legal.

        Args:
            positions: `[B]` reachable positions that have not ended.
            stones: The number of stones on each of their boards.
        """
        children, legal = self._children(positions)
        found = torch.searchsorted(self.layers[stones + 1], self._key(children))
        values = torch.full(legal.shape, -2, dtype=torch.int8)
        values[legal] = -self.values[stones + 1][found]
        return values

    def certify(self, policy: GamePolicy, *, faced_only: bool = False) -> Certificate:
        """Count the mistakes of a policy, over all positions and over those that it can reach.

        Args:
            policy: The policy.
            faced_only: Whether to ask it only in positions that it can reach, which are few on large boards; the counts
                of all positions are then those of these.

        Raises:
            ValueError: If the policy plays an action that is not legal.
        """
        counts = torch.zeros(4, dtype=torch.int64)
        facing, opposing = self.layers[0], self.layers[0]  # positions where the policy or its opponent moves
        for stones in range(len(self.layers) - 1):
            positions = self.undecided(stones)
            keys = self._key(positions)
            met = torch.isin(keys, opposing)
            replies = self._children(Positions(positions.own[met], positions.opponent[met]))[0]
            faced = torch.isin(keys, facing)
            if faced_only:
                positions, faced = Positions(positions.own[faced], positions.opponent[faced]), faced[faced]
            values = self.action_values(positions, stones)
            actions = policy(positions) if len(faced) else positions.own
            after = self.game.play(positions, actions)
            wrong = values.gather(1, actions[:, None])[:, 0] < values.max(1).values
            counts += torch.stack([torch.tensor(len(faced)), wrong.sum(), faced.sum(), (wrong & faced).sum()])
            facing, opposing = self._keys(replies), unique(self._key(after)[faced])
        return Certificate(*integers(counts))

    def _backup(self, stones: int) -> Tensor:
        positions = self._positions(self.layers[stones])
        ended, values = self.game.outcomes(positions)
        if not bool(ended.all()):
            values[~ended] = self.action_values(self.undecided(stones), stones).max(1).values
        return values

    def _children(self, positions: Positions) -> tuple[Positions, Tensor]:
        """Return the successors `[n]`, in the order of the legal actions, and their mask, bool `[B, A]`."""
        moves = self.game.moves(positions)
        row, _ = (moves != 0).nonzero(as_tuple=True)
        if len(row) > MOST_MOVES:
            raise ValueError(
                f"a board of {self.game.columns} x {self.game.rows} cells has too many positions to enumerate: "
                f"{len(moves)} of them with the same number of stones have {len(row)} moves, at most {MOST_MOVES} fit "
                "into memory: choose a smaller board"
            )
        return Positions(positions.opponent[row], positions.own[row] | moves[moves != 0]), moves != 0

    def _key(self, positions: Positions) -> Tensor:
        return positions.own << self.game.bits | positions.opponent

    def _keys(self, positions: Positions) -> Tensor:
        return unique(self._key(positions))

    def _positions(self, keys: Tensor) -> Positions:
        return Positions(keys >> self.game.bits, keys & ((1 << self.game.bits) - 1))
