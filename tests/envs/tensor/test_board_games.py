import pytest
import torch

from operant.envs.tensor.board_games import BoardGame, Positions


def play(game: BoardGame, actions: list[int]) -> Positions:
    positions = game.start(1)
    for action in actions:
        positions = game.play(positions, torch.tensor([action]))
    return positions


@pytest.mark.parametrize(
    "actions",
    [
        [0, 3, 1, 4, 2],  # the top row
        [0, 1, 3, 2, 6],  # the left column
        [0, 1, 4, 2, 8],  # one diagonal
        [2, 0, 4, 1, 6],  # the other
    ],
)
def test_three_in_a_row_win_tic_tac_toe(actions: list[int]):
    game = BoardGame.tic_tac_toe()
    ended, values = game.outcomes(play(game, actions[:-1]))
    assert not ended.item()
    ended, values = game.outcomes(play(game, actions))
    assert ended.item()
    assert values.item() == -1


def test_stones_fall_and_do_not_connect_around_the_edge():
    game = BoardGame.connect_four(5, 4)
    seen = game.observe(play(game, [1, 1, 3]))[0]
    assert seen[0].nonzero().tolist() == [[1, 1]]  # the second player moves next, and owns the stone on the first
    assert seen[1].nonzero().tolist() == [[0, 1], [0, 3]]
    around = game.play(play(game, [0, 0, 0, 1, 0, 1, 1]), torch.tensor([4]))  # stones at the top of column 0 and on
    assert not game.outcomes(around)[0].item()
    assert game.outcomes(play(game, [0, 1, 0, 1, 0, 1, 0]))[0].item()
    full = play(game, [2, 2, 2, 2])
    assert (game.moves(full) != 0).tolist() == [[True, True, False, True, True]]
    with pytest.raises(ValueError, match="action 2 of position 0 is not legal"):
        game.play(full, torch.tensor([2]))


def test_a_full_board_without_a_row_is_a_draw():
    game = BoardGame.tic_tac_toe()
    ended, values = game.outcomes(play(game, [0, 1, 2, 4, 3, 5, 7, 6, 8]))
    assert (ended.item(), values.item()) == (True, 0)


def test_sizes_that_cannot_work_are_errors():
    with pytest.raises(ValueError, match="at least 1"):
        BoardGame.connect_four(0, 4)
    with pytest.raises(ValueError, match="at most 62 bits"):
        BoardGame.connect_four(9, 9)
