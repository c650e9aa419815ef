"""Wrong rules of a board game are errors that name the method, the value and the fix."""

from functools import cached_property

import pytest
import torch

from operant.envs import BoardGame, check_board_game
from operant.envs.tensor import board_game_checks
from operant.envs.tensor.board_games import Positions, Symmetries


def changed(**members):
    """Return 2 x 3 cells with three in a row, with changed members."""
    return type("Changed", (BoardGame,), members)(columns=2, rows=3, connect=3, gravity=False)


def outcomes(change):
    """Return a game with changed outcomes."""
    return changed(outcomes=lambda self, positions: change(*BoardGame.outcomes(self, positions)))


def moves(change):
    """Return a game with changed moves."""
    return changed(moves=lambda self, positions: change(BoardGame.moves(self, positions), positions))


def symmetries(change):
    """Return a game with changed symmetries."""
    return changed(symmetries=cached_property(lambda self: change(super(type(self), self).symmetries)))


def named(game):
    """Bind the names of cached properties, which only a class statement does."""
    for name, member in vars(type(game)).items():
        if isinstance(member, cached_property):
            member.__set_name__(type(game), name)
    return game


def modifying(self, positions):
    positions.own.bitwise_or_(1)
    return BoardGame.outcomes(self, positions)


def flipping(self, positions, actions):
    after = BoardGame.play(self, positions, actions)
    return Positions(torch.zeros_like(after.own), after.own | after.opponent)


def twice(found: torch.Tensor, positions: Positions) -> torch.Tensor:
    return found | 4 * (found == 1) * (positions.own == 0)


WRONG = {
    "ended_int": (
        outcomes(lambda ended, values: (ended.int(), values)),
        r"ended of Changed\.outcomes must be torch\.bool, got torch\.int32: convert it with \.to\(torch\.bool\)",
    ),
    "float": (
        outcomes(lambda ended, values: (ended, values.float())),
        r"the values of Changed\.outcomes must be torch\.int8, got torch\.float32: convert it with \.to\(torch\.int8\)",
    ),
    "shape": (
        outcomes(lambda ended, values: (ended, values[:, None])),
        r"the values of Changed\.outcomes must have the shape \[1\], got \[1, 1\]",
    ),
    "one": (
        outcomes(lambda ended, values: values),
        r"outcomes must return two tensors, ended \[B\] and values \[B\], got tensor",
    ),
    "list": (
        outcomes(lambda ended, values: (ended.tolist(), values)),
        r"ended of Changed\.outcomes must be a tensor, torch\.bool \[1\], got \[False\]",
    ),
    "two": (
        outcomes(lambda ended, values: (ended, 2 * values)),
        r"must be -1, 0 or 1 for the player to move, .*, got -2 with ended True for the position \S \S / ",
    ),
    "early": (
        outcomes(lambda ended, values: (ended, values + ~ended)),
        r"and 0 where the game has not ended, got 1 with ended False for the position \. \. / \. \. / \. \. \(x m",
    ),
    "first": (outcomes(lambda ended, values: (~ended, values)), "must not end a game with fewer than two stones"),
    "endless": (
        outcomes(lambda ended, values: (values != 0, values)),
        r"must end where no action is legal, but it continues in the position [xo ]* / .*: end it in outcomes",
    ),
    "batch": (
        outcomes(lambda ended, values: (ended | ended.any(), values)),
        r"outcomes must depend only on the stones of each position, but differs for the position .* alone and in a",
    ),
    "modify": (changed(outcomes=modifying), r"Changed\.outcomes must not modify positions: return new tensors"),
    "int32": (moves(lambda found, _: found.int()), r"Changed\.moves must be torch\.int64, got torch\.int32"),
    "actions": (changed(actions=5), r"Changed\.moves must have the shape \[1, 5\], got \[1, 6\]"),
    "taken": (
        moves(lambda found, positions: found | (positions.opponent[:, None] & 1)),
        "of one empty cell .* for every legal action, and 0 for others, got 0x",
    ),
    "two stones": (moves(twice), "must return the bit of one empty cell .*, got 0x5 for action 0 in the position"),
    "outside": (moves(lambda found, _: found << 1), "must return the bit of one empty cell"),
    "flip": (
        changed(play=flipping),
        r"Changed\.play must add the stone of `moves` and give the turn .* action \d in the position",
    ),
    "start": (
        changed(start=lambda self, batch, device="cpu": Positions(*torch.ones(2, batch, dtype=torch.int64))),
        "start must return the same position for every game, with at most one stone in each cell",
    ),
    "start type": (
        changed(start=lambda self, batch, device="cpu": torch.zeros(2, batch)),
        "start must return Positions, got tensor",
    ),
    "observe": (
        changed(positions=lambda self, boards: Positions(*(boards != 0).sum((2, 3)).unbind(1))),
        "positions that observe shows: override neither",
    ),
    "identity": (
        symmetries(lambda found: found.select([1])),
        r"cells of Changed\.symmetries must be permutations of 0 to 5, the first the identity, got \[1, 0, 3",
    ),
    "none": (symmetries(lambda found: found.select([])), "symmetries must be Symmetries with at least the identity"),
    "tuple": (symmetries(tuple), "symmetries must be Symmetries with"),
    "inputs": (
        symmetries(lambda found: found._replace(inputs=found.inputs[:1].expand_as(found.inputs))),
        r"must be those of its cells and actions: create it with Symmetries\.of",
    ),
    "wrong": (
        symmetries(lambda found: Symmetries.of(found.cells, found.actions[:1].expand_as(found.actions))),
        r"number 1 is no symmetry, since moves or outcomes differ in the position .* and its image, .*select\(\[0\]\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_named(name):
    game, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        check_board_game(named(game))


class Top(BoardGame):
    """Only three in the last row of cells win, so that up and down differ."""

    def connected(self, stones):
        return super().connected(stones & self.cell_bits[-1].sum())


def test_rules_that_differ_between_the_halves_of_a_board_need_symmetries_of_their_own():
    with pytest.raises(
        ValueError, match=r"Top\.symmetries: number 2 is no symmetry, .* override symmetries with those"
    ):
        check_board_game(Top(3, 3, 3, gravity=False))

    class Own(Top):
        @cached_property
        def symmetries(self):
            return super().symmetries.select([0, 1])

    check_board_game(Own(3, 3, 3, gravity=False))
    check_board_game(Top(4, 4, 4, gravity=True))


def test_the_rules_must_be_an_instance():
    with pytest.raises(TypeError, match=r"must be an instance of BoardGame, .*, got <class '.*Top'>"):
        check_board_game(Top)


@pytest.mark.parametrize(
    "game", [BoardGame.tic_tac_toe(), BoardGame.connect_four(5, 4), BoardGame(6, 5, 4, False)], ids=str
)
def test_the_games_pass(game, monkeypatch):
    monkeypatch.setattr(board_game_checks, "MOST_POSITIONS", 64)
    check_board_game(game)


def test_a_game_is_checked_once(monkeypatch):
    found = []
    monkeypatch.setattr(board_game_checks, "check_board_game", found.append)
    for rows in (3, 3, 4):
        board_game_checks.check_once(Top(3, rows, 3, gravity=True))
    assert [game.rows for game in found] == [3, 4]
