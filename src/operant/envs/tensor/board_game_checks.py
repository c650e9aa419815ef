"""Checks of the rules of a board game: `check_board_game`."""

from collections.abc import Callable
from typing import Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from operant import streams
from operant.envs.tensor.board_games import BoardGame, Positions, Symmetries
from operant.tensors import integers

MOST_POSITIONS = 2048
"""Maximum number of positions with the same number of stones that are checked."""

MOST_NUMBERS = 2**20
"""Maximum of these positions times cells times actions, which is less than `MOST_POSITIONS` on large boards."""


def check_board_game(game: BoardGame) -> None:
    """Play a game from its start, and check its rules in every position, or in a sample of many positions.

    Checks shapes and dtypes; that every action adds one stone to an empty cell, and that some action is legal unless
    the game has ended; that results depend only on the stones, not on other positions of a batch; that no first move
    ends the game; and that the rules are the same under each of its `symmetries`. Up to 2048 positions with the same
    number of stones are checked, which are all of tic-tac-toe, and fewer on large boards.

    Args:
        game: the rules.

    Raises:
        TypeError: it is no instance of `BoardGame`.
        ValueError: a check fails; the message has the method, what it returned and what is expected.
    """
    if not isinstance(cast(object, game), BoardGame):
        raise TypeError(f"the rules must be an instance of BoardGame, such as BoardGame(3, 3, 3, False), got {game!r}")
    chance = streams.torch_generator(0, "check of a board game")
    positions, stones = _start(game), 0
    most = max(1, min(MOST_POSITIONS, MOST_NUMBERS // (game.rows * game.columns * max(game.actions, 1))))
    while True:
        ended, values = _outcomes(game, positions)
        if stones < 2 and bool(ended.any()):
            raise ValueError(
                f"{_name(game)}.outcomes must not end a game with fewer than two stones, because the opponent may add "
                f"the first, but ends {_drawn(game, positions, ended)}"
            )
        moves = _moves(game, positions, ended)
        if not stones:
            _require_symmetries(game)
        for number in range(1, len(game.symmetries.cells)):
            _require_same(game, number, positions, moves, (ended, values))
        going = ~ended
        if not bool(going.any()):
            return
        positions = _successors(game, _rows(positions, going), moves[going], most, chance)
        stones += 1


_checked: WeakKeyDictionary[type[BoardGame], set[str]] = WeakKeyDictionary()
"""Games that have been checked in this process, by their classes and fields."""


def check_once(game: BoardGame) -> None:
    """Check the rules of a game (see `check_board_game`), unless an equal game has passed in this process."""
    passed = _checked.setdefault(type(game), set())
    if repr(game) not in passed:
        check_board_game(game)
        passed.add(repr(game))


def _name(game: BoardGame) -> str:
    return type(game).__name__


def _drawn(game: BoardGame, positions: Positions, where: Tensor) -> str:
    """Return the first of some positions for messages, in one line."""
    return f"the position {' / '.join(game.drawing(_rows(positions, where)).splitlines())} (x moves)"


def _rows(positions: Positions, where: Tensor) -> Positions:
    return Positions(positions.own[where], positions.opponent[where])


def _tensor(what: str, found: object, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of the expected dtype and shape.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(found, Tensor):
        raise ValueError(f"{what} must be a tensor, {dtype} {[*shape]}, got {found!r:.80}")
    if found.shape != shape:
        raise ValueError(f"{what} must have the shape {[*shape]}, got {[*found.shape]}")
    if found.dtype != dtype:
        raise ValueError(f"{what} must be {dtype}, got {found.dtype}: convert it with .to({dtype})")
    return found


def _start(game: BoardGame) -> Positions:
    """Return the start of a game."""
    found = game.start(2)
    if not isinstance(cast(object, found), Positions):
        raise ValueError(f"{_name(game)}.start must return Positions, got {found!r:.80}")
    for name, part in found._asdict().items():
        _tensor(f"{name} of {_name(game)}.start(2)", part, torch.int64, (2,))
    outside = (found.own | found.opponent) & ~game.cell_bits.sum()
    if bool(((found.own & found.opponent) | outside).any()) or len({*zip(*map(integers, found), strict=True)}) != 1:
        raise ValueError(
            f"{_name(game)}.start must return the same position for every game, with at most one stone in each cell, "
            f"got {found}"
        )
    return Positions(found.own[:1], found.opponent[:1])


def _pure(
    game: BoardGame, name: Literal["moves", "outcomes"], positions: Positions
) -> tuple[object, object, Positions]:
    """Call a method for positions `[B]`, and for the one in the middle alone; return both results and that position.

    Raises:
        ValueError: the method modifies the positions.
    """
    method: Callable[[Positions], object] = getattr(game, name)
    middle = _rows(positions, torch.tensor([len(positions.own) // 2]))
    given = Positions(*(part.clone() for part in positions))
    found = method(given)
    if not all(torch.equal(one, other) for one, other in zip(given, positions, strict=True)):
        raise ValueError(f"{_name(game)}.{name} must not modify positions: return new tensors")
    return found, method(middle), middle


def _require_alone(game: BoardGame, name: str, found: Tensor, alone: Tensor, middle: Positions) -> None:
    """Check that the result for a position is the same alone as in a batch."""
    if not torch.equal(found[len(found) // 2], alone[0]):
        raise ValueError(
            f"{_name(game)}.{name} must depend only on the stones of each position, but differs for "
            f"{_drawn(game, middle, torch.tensor([0]))} alone and in a batch: compute it for each position, with "
            "operations on whole tensors"
        )


def _outcomes(game: BoardGame, positions: Positions) -> tuple[Tensor, Tensor]:
    """Return checked outcomes: ended, bool `[B]`, and values, int8 `[B]`."""
    found, alone, middle = _pure(game, "outcomes", positions)
    what, count = f"{_name(game)}.outcomes", len(positions.own)
    if not isinstance(found, tuple) or len(pair := cast(tuple[object, ...], found)) != 2:
        raise ValueError(f"{what} must return two tensors, ended [B] and values [B], got {found!r:.80}")
    ended = _tensor(f"ended of {what}", pair[0], torch.bool, (count,))
    values = _tensor(f"the values of {what}", pair[1], torch.int8, (count,))
    for part, single in zip((ended, values), cast(tuple[Tensor, Tensor], alone), strict=True):
        _require_alone(game, "outcomes", part, single, middle)
    wrong = (values.abs() > 1) | (~ended & (values != 0))
    if bool(wrong.any()):
        raise ValueError(
            f"the values of {what} must be -1, 0 or 1 for the player to move, and 0 where the game has not ended, got "
            f"{int(values[wrong][0])} with ended {bool(ended[wrong][0])} for {_drawn(game, positions, wrong)}"
        )
    return ended, values


def _moves(game: BoardGame, positions: Positions, ended: Tensor) -> Tensor:
    """Return checked moves, int64 `[B, A]`."""
    found, alone, middle = _pure(game, "moves", positions)
    what, shape = f"{_name(game)}.moves", (len(positions.own), game.actions)
    moves = _tensor(what, found, torch.int64, shape)
    _require_alone(game, "moves", moves, _tensor(what, alone, torch.int64, (1, game.actions)), middle)
    stones = (positions.own | positions.opponent).unsqueeze(1)
    taken = (moves & stones) | (moves & ~game.cell_bits.sum()) | (moves & (moves - 1))  # or more than one bit
    wrong = (taken != 0).any(1)
    if bool(wrong.any()):
        row, action = integers((taken != 0).nonzero()[0])
        raise ValueError(
            f"{what} must return the bit of one empty cell (see BoardGame.cell_bits) for every legal action, and 0 for "
            f"others, got {int(moves[row, action]):#x} for action {action} in {_drawn(game, positions, wrong)}"
        )
    stuck = ~ended & (moves == 0).all(1)
    if bool(stuck.any()):
        raise ValueError(
            f"{_name(game)}: a game must end where no action is legal, but it continues in "
            f"{_drawn(game, positions, stuck)}: end it in outcomes, or allow an action in moves"
        )
    boards = _tensor(
        f"{_name(game)}.observe", game.observe(positions), torch.float32, (shape[0], 2, game.rows, game.columns)
    )
    if not all(torch.equal(one, other) for one, other in zip(game.positions(boards), positions, strict=True)):
        raise ValueError(f"{_name(game)}.positions must return the positions that observe shows: override neither")
    return moves


def _successors(game: BoardGame, positions: Positions, moves: Tensor, most: int, chance: torch.Generator) -> Positions:
    """Return the different positions after all moves, or `most` of them at random."""
    row, action = (moves != 0).nonzero(as_tuple=True)
    after = Positions(positions.opponent[row], positions.own[row] | moves[row, action])
    played = game.play(_rows(positions, row), action)
    wrong = (played.own != after.own) | (played.opponent != after.opponent)
    if bool(wrong.any()):
        raise ValueError(
            f"{_name(game)}.play must add the stone of `moves` and give the turn to the other player, which is what "
            f"searches do, but differs for action {int(action[wrong][0])} in {_drawn(game, positions, row[wrong])}: "
            "leave it as it is"
        )
    numbers = after.own * 0x9E3779B97F4A7C1 + after.opponent  # equal for different positions: one is not checked
    order = numbers.argsort()
    new = numbers[order].diff(prepend=numbers[order][:1] - 1) != 0
    found = order[new]
    return _rows(after, found[torch.randperm(len(found), generator=chance)[:most]])


def _require_symmetries(game: BoardGame) -> None:
    """Check the shapes of the symmetries, and that each is a permutation, the first the identity."""
    what, cells = f"{_name(game)}.symmetries", game.rows * game.columns
    found = game.symmetries
    if not isinstance(cast(object, found), Symmetries) or not found.cells.ndim or not len(found.cells):
        raise ValueError(f"{what} must be Symmetries with at least the identity, got {found!r:.80}")
    widths = {"cells": cells, "actions": game.actions, "inputs": 2 * cells + game.actions}
    for name, part in found._asdict().items():
        _tensor(f"{name} of {what}", part, torch.int64, (len(found.cells), widths[name]))
        same = torch.arange(widths[name])
        if not torch.equal(part.sort(1).values, same.expand_as(part)) or not torch.equal(part[0], same):
            raise ValueError(
                f"{name} of {what} must be permutations of 0 to {widths[name] - 1}, the first the identity, got "
                f"{integers(part[0]) if len(part) == 1 else part}"
            )
    if not torch.equal(found.inputs, Symmetries.of(found.cells, found.actions).inputs):
        raise ValueError(f"inputs of {what} must be those of its cells and actions: create it with Symmetries.of")


def _require_same(
    game: BoardGame, number: int, positions: Positions, moves: Tensor, outcomes: tuple[Tensor, Tensor]
) -> None:
    """Check that the rules are the same under a symmetry, given the checked results of positions."""
    cells, actions, _ = (part[number] for part in game.symmetries)
    boards = game.observe(positions).flatten(2)[..., cells]
    image = game.positions(boards.view(-1, 2, game.rows, game.columns))
    bits = game.cell_bits.flatten()
    moved = torch.zeros(64, dtype=torch.int64)
    moved[_log2(bits[cells])] = bits
    expected = torch.where(moves == 0, 0, moved[_log2(moves.clamp(min=1))])[:, actions]
    wrong = ~outcomes[0] & (game.moves(image) != expected).any(1)
    for found, known in zip(game.outcomes(image), outcomes, strict=True):
        wrong |= found != known
    if bool(wrong.any()):
        raise ValueError(
            f"{_name(game)}.symmetries: number {number} is no symmetry, since moves or outcomes differ in "
            f"{_drawn(game, positions, wrong)} and its image, {_drawn(game, image, wrong)}: override symmetries with "
            "those that hold, such as super().symmetries.select([0]), the identity alone"
        )


def _log2(bits: Tensor) -> Tensor:
    """Return the logarithms of powers of two, which are exact."""
    return bits.double().log2().long()
