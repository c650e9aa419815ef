"""Players of board games, with exact counts of their mistakes: `BoardGamePlayer`."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from operant.envs import BatchEnv
from operant.envs.tensor.board_games import BoardGame, Positions
from operant.envs.tensor.solved_games import Certificate, SolvedGame
from operant.envs.worlds.games import changing_wrappers, rules_of
from operant.envs.wrapper import unwrapped
from operant.worlds.search import Planner

logger = logging.getLogger(__name__)

LEAST_RATE = 0.05
"""Final fraction of the learning rate with a linear schedule."""

CERTIFIED_AT_ONCE = 8192
"""Maximum number of positions per batch of searches in a certificate."""

NODES_AT_ONCE = 256 * CERTIFIED_AT_ONCE
"""Maximum number of nodes of all trees of such a batch, of which each takes some 200 bytes."""


class BoardGamePlayer(ABC):
    """A learner that selects moves by a search.

    Attributes:
        seeds: seeds of the S runs.
        planner: settings of the search.
        game: the rules; None if it is not a board game.
        close: function that closes the environments.
        device: device of the networks.
    """

    seeds: list[int]
    planner: Planner
    game: BoardGame | None
    close: Callable[[], None]
    device: torch.device = torch.device("cpu")

    @abstractmethod
    def for_seed(self, seed: int) -> Self:
        """Return a player of a single seed."""

    @abstractmethod
    def moves(self, positions: Positions) -> Tensor:
        """Return the best actions `[S * M]` by search in positions that have not ended, on `device`."""

    def reply(self, positions: Positions) -> Tensor:
        """Return the best actions `[S * M]` by search in positions on any device that have not ended."""
        own, opponent = (part.to(self.device) for part in positions)
        return self.moves(Positions(own, opponent)).to(positions.own.device)

    def search_with(self, simulations: int) -> None:
        """Search with another number of simulations from now on; it is not saved with the run.

        Args:
            simulations: simulations per search; 0 evaluates only the network.

        Raises:
            ValueError: if it is negative.
        """
        self.planner = replace(self.planner, simulations=simulations)

    @torch.no_grad()
    def certify(
        self, solved: SolvedGame, seed: int, simulations: int | None = None, *, faced_only: bool = False
    ) -> Certificate:
        """Count the mistakes of the greedy policy of one seed, over every position of the game.

        Args:
            solved: the game's exact solution.
            seed: index of the seed.
            simulations: simulations per search. Default: as in training; 0 evaluates only the network.
            faced_only: whether to count only positions that the policy can reach.
        """
        player = self.for_seed(seed)
        if simulations is not None:
            player.search_with(simulations)

        at_once = max(1, min(CERTIFIED_AT_ONCE, NODES_AT_ONCE // (player.planner.simulations + 1)))

        def policy(positions: Positions) -> Tensor:
            parts = zip(*(torch.split(part, at_once) for part in positions), strict=True)
            return torch.cat([player.reply(Positions(*part)) for part in parts])

        return solved.certify(policy, faced_only=faced_only)

    def certificates(self, *, faced_only: bool = False) -> list[Certificate]:
        """Return the certificate of every seed (see `certify`).

        Args:
            faced_only: whether to count only positions that the policies can reach.

        Raises:
            ValueError: if it is not a board game, or the board is too large for enumeration.
        """
        if self.game is None:
            raise ValueError("mistakes can be counted only in board games: train e.g. operant/TicTacToe-v0")
        solved = SolvedGame(self.game)
        return [self.certify(solved, seed, faced_only=faced_only) for seed in range(len(self.seeds))]


def rules_for_self_play(env: BatchEnv) -> BoardGame | None:
    """Return the rules of the game of environments, or None, with a warning if it has wrappers."""
    inner = unwrapped(env)
    rules, changing = rules_of(inner), changing_wrappers(inner)
    if rules is None or (env is inner and not changing):
        return rules
    logger.warning(
        "%s has wrappers, which self-play does not apply, so policies are trained against its random opponent: "
        "leave out %s for self-play",
        env.task,
        ", ".join(changing) or "--bonus and --wrapper",
    )
    return None
