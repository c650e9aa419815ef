"""What plays board games: `BoardGamePlayer`, whose mistakes can be counted."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from operant.envs.tensor.board_games import BoardGame, Positions
from operant.envs.tensor.solved_games import Certificate, SolvedGame
from operant.worlds.search import Planner

CERTIFIED_AT_ONCE = 8192
"""Positions that a certificate searches from at once."""


class BoardGamePlayer(ABC):
    """A learner that finds moves by a search.

    Attributes:
        seeds: of the S runs.
        planner: how it searches.
        game: the rules; None where it plays no board game.
        close: closes the environments.
    """

    seeds: list[int]
    planner: Planner
    game: BoardGame | None
    close: Callable[[], None]

    @abstractmethod
    def for_seed(self, seed: int) -> Self:
        """Return what plays with the networks of the seed in one place alone."""

    @abstractmethod
    def moves(self, positions: Positions) -> Tensor:
        """Return the best actions `[S * M]` that are found in positions that have not ended."""

    @torch.no_grad()
    def certify(self, solved: SolvedGame, seed: int, simulations: int | None = None) -> Certificate:
        """Count the mistakes of the greedy policy of the seed in one place, over every position of the game.

        Args:
            solved: the game's exact solution.
            seed: its place.
            simulations: of each search. Default: as in training; 0 judges the network alone.
        """
        player = self.for_seed(seed)
        if simulations is not None:
            player.planner = replace(self.planner, simulations=simulations)

        def policy(positions: Positions) -> Tensor:
            parts = zip(*(torch.split(part, CERTIFIED_AT_ONCE) for part in positions), strict=True)
            return torch.cat([player.moves(Positions(*part)) for part in parts])

        return solved.certify(policy)

    def certificates(self) -> list[Certificate]:
        """Return the certificate of every seed (see `certify`).

        Raises:
            ValueError: it is no board game, or the board is too large to be solved by enumeration.
        """
        if self.game is None:
            raise ValueError("mistakes can be counted in board games alone: train operant/TicTacToe-v0, for one")
        solved = SolvedGame(self.game)
        return [self.certify(solved, seed) for seed in range(len(self.seeds))]
