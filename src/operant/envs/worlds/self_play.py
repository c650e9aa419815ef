"""Self-play of board games: `SelfPlay`."""

from collections.abc import Sequence

import torch
from gymnasium import Space
from torch import Tensor

from operant import streams
from operant.envs.base import BatchEnv, Step, Tree
from operant.envs.features import MASK
from operant.envs.tensor.board_games import BoardGame, Positions
from operant.state import DeclaredState, State


class SelfPlay(DeclaredState):
    """`N` games of each of `S` seeds on tensors, in which every step is a move of the player to move.

    Observations are those of `BoardGameEnv`, seen by the player to move; rewards are those of the player who moved,
    and an illegal action loses the game. A share of the games begins with random moves, to visit positions that two
    good players never reach.

    Args:
        game: rules of the game.
        env: an environment of the game, for name and spaces.
        seeds: one non-negative integer for each of the S runs.
        rows: number of games per seed, N.
        random_openings: share of games that begin with random moves.
    """

    STATE = ("own", "opponent", "streams")
    always_valid = True

    def __init__(
        self, game: BoardGame, env: BatchEnv, *, seeds: Sequence[int], rows: int, random_openings: float
    ) -> None:
        self.game, self.random_openings = game, random_openings
        self.task, self.device = env.task, env.device
        self.observation_space: Space[object] = env.observation_space
        self.action_space: Space[object] = env.action_space
        self.rows, self._rows = len(seeds) * rows, rows
        self._seeds = list(seeds)
        self.reset()

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start all games, with the random numbers of the runs' seeds."""
        self.streams = [streams.torch_generator(seed, "openings", device=self.device) for seed in self._seeds]
        self.own, self.opponent = self._openings()
        return observed(self.game, Positions(self.own, self.opponent))

    def step(self, actions: Tensor) -> Step:
        """Move in every game."""
        before = Positions(self.own, self.opponent)
        stone = self.game.moves(before).gather(1, actions.unsqueeze(1))[:, 0]
        wrong = stone == 0
        after = Positions(before.opponent, before.own | stone)
        over, value = self.game.outcomes(after)
        over = over | wrong
        begun = self._openings()
        self.own, self.opponent = (torch.where(over, new, old) for new, old in zip(begun, after, strict=True))
        # The value for the mover is minus the value for the other player.
        reward = torch.where(wrong, -1.0, -value.float())
        return Step(
            obs=observed(self.game, Positions(self.own, self.opponent)),
            reward=reward,
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=observed(self.game, after),
            valid=torch.ones_like(over),
            score=reward,
        )

    def _openings(self) -> Positions:
        shape = self.game.rows * self.game.columns + 1, self._rows, self.game.actions
        draws = [torch.rand(shape, generator=stream, device=self.device) for stream in self.streams]
        return self.game.openings(torch.stack(draws, 1).flatten(1, 2), self.random_openings)

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state exactly, and return the next observations."""
        super().load_state_dict(state)
        return observed(self.game, Positions(self.own, self.opponent))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def observed(game: BoardGame, positions: Positions) -> dict[str, Tensor]:
    """Return positions `[B]` as `BoardGameEnv` shows them; on a full board all actions are allowed."""
    allowed = game.moves(positions) != 0
    return {"observation": game.observe(positions), MASK: (allowed | ~allowed.any(1, keepdim=True)).to(torch.int8)}
