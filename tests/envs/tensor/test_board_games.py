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


@pytest.mark.parametrize(
    ("game", "count"),
    [
        (BoardGame.tic_tac_toe(), 8),
        (BoardGame(columns=4, rows=3, connect=3, gravity=False), 4),
        (BoardGame.connect_four(4, 4), 2),
        (BoardGame.connect_four(5, 4), 2),
    ],
)
def test_a_game_on_a_reflected_or_rotated_board_is_the_same_game(game: BoardGame, count: int):
    """Check random games: the image of a position after a move is the position after the image of the move."""
    cells, actions, inputs = game.symmetries
    assert len(cells.unique(dim=0)) == len(cells) == count
    assert cells[0].tolist() == list(range(game.rows * game.columns)), "the first is the identity"
    chance, moved = torch.Generator().manual_seed(3), actions.argsort(1)

    def turned(positions: Positions, turn: int) -> Positions:
        boards = game.observe(positions).flatten(2)[..., cells[turn]]
        return game.positions(boards.view(-1, 2, game.rows, game.columns))

    positions = game.start(64)
    while len(positions.own):
        legal = game.moves(positions) != 0
        seen = torch.cat((game.observe(positions).flatten(1), legal.float()), 1)
        taken = (torch.rand(legal.shape, generator=chance) * legal).argmax(1)
        after = game.play(positions, taken)
        over, value = game.outcomes(after)
        for turn in range(count):
            image = turned(positions, turn)
            legal_there = game.moves(image) != 0
            assert torch.equal(seen[:, inputs[turn]], torch.cat((game.observe(image).flatten(1), legal_there), 1))
            there = game.play(image, moved[turn][taken])
            assert all(torch.equal(a, b) for a, b in zip(there, turned(after, turn), strict=True))
            assert all(torch.equal(a, b) for a, b in zip(game.outcomes(there), (over, value), strict=True))
        positions = Positions(*(part[~over] for part in after))


def test_sizes_that_cannot_work_are_errors():
    with pytest.raises(ValueError, match="at least 1"):
        BoardGame.connect_four(0, 4)
    with pytest.raises(ValueError, match="at most 62 bits"):
        BoardGame.connect_four(9, 9)


def test_openings_of_a_board_with_one_column_have_every_length():
    game = BoardGame.connect_four(1, 3)
    draws = torch.rand(4, 4000, 1, generator=torch.Generator().manual_seed(0))
    found = game.openings(draws, 0.6)
    stones = game.observe(found).sum((1, 2, 3))
    shares = torch.stack([(stones == count).float().mean() for count in range(3)])
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.2, 0.2]), atol=0.03, rtol=0)
    assert not game.observe(game.openings(draws, 0.0)).any()
