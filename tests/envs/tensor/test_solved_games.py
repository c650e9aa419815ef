"""The counts are those of the literature; values and certificates agree with plain recursion over boards of tuples."""

from functools import cache, cached_property

import pytest
import torch

from operant.envs import check_board_game
from operant.envs.tensor import solved_games
from operant.envs.tensor.board_games import BoardGame, Positions
from operant.envs.tensor.solved_games import SolvedGame, is_small

Board = tuple[int, ...]  # by cells, row by row from the bottom: 1 the player to move, -1 the opponent, 0 empty


def twin(game: BoardGame):
    """Return value(board) and children(board) -> {action: board}, written without bits."""
    rows, columns, k = game.rows, game.columns, game.connect

    def lost(board: Board) -> bool:
        for r in range(rows):
            for c in range(columns):
                for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    cells = [(r + i * dr, c + i * dc) for i in range(k)]
                    if all(0 <= y < rows and 0 <= x < columns and board[y * columns + x] == -1 for y, x in cells):
                        return True
        return False

    def children(board: Board) -> dict[int, Board]:
        if lost(board):
            return {}
        found = {}
        for action in range(game.actions):
            cells = range(action, rows * columns, columns) if game.gravity else [action]
            free = [cell for cell in cells if board[cell] == 0]
            if free:
                found[action] = tuple(-1 if cell == free[0] else -stone for cell, stone in enumerate(board))
        return found

    @cache
    def value(board: Board) -> int:
        return -1 if lost(board) else max((-value(child) for child in children(board).values()), default=0)

    return value, children


def boards(game: BoardGame, positions: Positions) -> list[Board]:
    seen = game.observe(positions).flatten(2)
    return [tuple(row) for row in (seen[:, 0] - seen[:, 1]).int().tolist()]


def first_legal(game: BoardGame):
    return lambda positions: (game.moves(positions) != 0).int().argmax(1)


GAMES = [
    BoardGame(columns=3, rows=3, connect=3, gravity=True),
    BoardGame(columns=4, rows=2, connect=3, gravity=True),
    BoardGame(columns=3, rows=2, connect=2, gravity=False),
    BoardGame(columns=3, rows=3, connect=3, gravity=False),
]


@pytest.mark.parametrize("game", GAMES, ids=str)
def test_values_and_certificates_agree_with_recursion(game: BoardGame):
    solved = SolvedGame(game)
    value, children = twin(game)
    optimal: dict[Board, set[int]] = {}
    for stones in range(len(solved.layers) - 1):
        positions = solved.undecided(stones)
        table = solved.action_values(positions, stones).tolist()
        for board, values in zip(boards(game, positions), table, strict=True):
            expected = {action: -value(child) for action, child in children(board).items()}
            assert {a: v for a, v in enumerate(values) if v > -2} == expected
            optimal[board] = {a for a, v in expected.items() if v == max(expected.values())}
    root: Board = (0,) * (game.rows * game.columns)
    reachable = {root}
    frontier = [root]
    while frontier:
        new = {child for board in frontier for child in children(board).values()} - reachable
        reachable |= new
        frontier = list(new)
    assert len(solved) == len(reachable)

    faced: set[Board] = set()

    def visit(board: Board, mine: bool) -> None:
        moves = children(board)
        if mine and moves:
            faced.add(board)
            visit(moves[min(moves)], False)
        for child in () if mine else moves.values():
            visit(child, True)

    visit(root, True)
    visit(root, False)
    wrong = {board for board, best in optimal.items() if min(children(board)) not in best}
    assert solved.certify(first_legal(game)) == (len(optimal), len(wrong), len(faced), len(wrong & faced))
    counts = len(faced), len(wrong & faced)
    assert solved.certify(first_legal(game), faced_only=True) == counts * 2


@pytest.mark.parametrize(
    ("game", "positions", "undecided"),
    [(BoardGame.tic_tac_toe(), 5478, 4520), (BoardGame.connect_four(4, 4), 161029, 134289)],
    ids=["tic-tac-toe", "connect four, 4 x 4"],
)
def test_known_counts_and_draws(game: BoardGame, positions: int, undecided: int):
    solved = SolvedGame(game)
    assert len(solved) == positions
    assert solved.values[0].tolist() == [0]

    def perfect(faced: Positions) -> torch.Tensor:
        stones = int((game.observe(faced)[0] != 0).sum())
        return solved.action_values(faced, stones).argmax(1)

    certificate = solved.certify(perfect)
    assert certificate.positions == undecided
    assert (certificate.mistakes, certificate.faced_mistakes) == (0, 0)


def test_a_board_too_large_to_enumerate_is_an_error():
    with pytest.raises(ValueError, match="too large to enumerate"):
        SolvedGame(BoardGame.connect_four())


def test_too_many_positions_to_enumerate_are_an_error(monkeypatch):
    monkeypatch.setattr(solved_games, "MOST_MOVES", 40)
    with pytest.raises(
        ValueError, match=r"3 x 3 cells has too many positions .*: 9 of them .* have 72 moves, at most 40"
    ):
        SolvedGame(BoardGame.tic_tac_toe())
    assert is_small(BoardGame(4, 4, 4, gravity=False))
    assert not is_small(BoardGame(5, 5, 4, gravity=False))


class Misere(BoardGame):
    """A row loses."""

    def outcomes(self, positions):
        ended, values = super().outcomes(positions)
        return ended, -values


class Rows(BoardGame):
    """Columns and diagonals win nothing."""

    def connected(self, stones):
        boards = self.observe(Positions(stones, torch.zeros_like(stones)))[:, 0]
        return (boards.unfold(2, self.connect, 1).sum(-1) == self.connect).flatten(1).any(1)

    @cached_property
    def symmetries(self):
        return super().symmetries.select(range(4))  # no rows and columns exchanged


@pytest.mark.parametrize("game", [Misere.tic_tac_toe(), Rows.tic_tac_toe(), Misere.connect_four(3, 3, 3)], ids=str)
def test_values_are_those_of_every_symmetric_position(game: BoardGame):
    check_board_game(game)
    solved = SolvedGame(game)
    for layer, values in zip(solved.layers, solved.values, strict=True):
        boards = game.observe(solved._positions(layer)).flatten(2)
        for cells in game.symmetries.cells:
            image = game.positions(boards[..., cells].view(-1, 2, game.rows, game.columns))
            assert torch.equal(values[torch.searchsorted(layer, solved._key(image))], values)


def test_misere_tic_tac_toe_is_a_draw():
    """Its value is known: the first player draws by playing the center, and then opposite to the second."""
    game = Misere.tic_tac_toe()
    solved = SolvedGame(game)
    assert (len(solved), solved.values[0].tolist()) == (5478, [0])
    center = game.play(game.start(1), torch.tensor([4]))
    assert solved.action_values(game.start(1), 0).tolist() == [[-1, -1, -1, -1, 0, -1, -1, -1, -1]]
    assert max(solved.action_values(center, 1)[0].tolist()) == 0
