"""Players of board games and their certificates: a player with the solution, and one that plays the opposite."""

import pytest
import torch

from operant.envs.tensor.board_games import BoardGame
from operant.envs.tensor.solved_games import SolvedGame
from operant.worlds.board_game_player import BoardGamePlayer
from operant.worlds.search import Planner

SOLVED = SolvedGame(BoardGame.tic_tac_toe())


class Solver(BoardGamePlayer):
    """Player of the best action, or of one of the worst, by the exact solution."""

    def __init__(self, sign, game=SOLVED.game):
        self.sign, self.game, self.seeds, self.planner = sign, game, [0], Planner()

    def for_seed(self, seed):
        return self

    def moves(self, positions):
        stones = SOLVED.game.observe(positions).sum((1, 2, 3)).long()
        found = torch.zeros_like(positions.own)
        for count in stones.unique().tolist():
            rows = stones == count
            part = type(positions)(*(board[rows] for board in positions))
            values = SOLVED.action_values(part, count).float()
            legal = SOLVED.game.moves(part) != 0
            found[rows] = (self.sign * values).masked_fill(~legal, -9.0).argmax(1)
        return found


def test_a_player_by_the_solution_makes_no_mistake():
    (certificate,) = Solver(1).certificates()
    assert certificate.positions == 4520
    assert certificate.mistakes == certificate.faced_mistakes == 0
    assert 0 < certificate.faced < 4520


def test_the_worst_player_makes_every_mistake():
    worst = Solver(-1).certify(SOLVED, 0)
    assert worst.mistakes > 2000
    assert worst.faced_mistakes > 0


def test_searches_of_another_number_of_simulations_are_those_of_another_player():
    player = Solver(1)
    seen = []
    player.for_seed = lambda seed: seen.append(twin := Solver(1)) or twin
    player.certify(SOLVED, 0, simulations=7)
    assert seen[0].planner.simulations == 7
    assert player.planner.simulations == 32


@pytest.mark.parametrize(("simulations", "largest"), [(255, 1372), (9999, 209)])
def test_large_searches_are_of_fewer_positions_at_once(simulations, largest):
    """The largest layer of tic-tac-toe has 1372 positions that have not ended."""
    counts = []

    class Counting(Solver):
        def moves(self, positions):
            counts.append(len(positions.own))
            return super().moves(positions)

    assert Counting(1).certify(SOLVED, 0, simulations).mistakes == 0
    assert max(counts) == largest


def test_positions_are_moved_to_the_device_of_the_networks():
    class Elsewhere(Solver):
        device = torch.device("meta")

        def moves(self, positions):
            assert {part.device.type for part in positions} == {"meta"}
            return torch.arange(9)[: len(positions.own)]

    player = Elsewhere(1)
    assert player.reply(SOLVED.game.start(3)).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="is not legal"):
        player.certify(SOLVED, 0)


def test_mistakes_are_counted_only_in_board_games():
    with pytest.raises(ValueError, match=r"only in board games: train e\.g\. operant/TicTacToe-v0"):
        Solver(1, game=None).certificates()
