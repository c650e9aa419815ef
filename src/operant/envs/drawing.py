"""Grid worlds drawn as text.

A drawing is a map below settings, one per line as `name: value`:

```text
; lines that begin with a semicolon are comments
step: -1
slip: 0.2

S . . # +10
. # . .   .
. . . .  -5
```

| Cell | Meaning |
|---|---|
| `.` or `F` | floor |
| `#` | wall |
| `S` | floor where episodes start; several are equally likely; with none, episodes start on any open cell |
| `G` | goal: the episode ends, with the reward `goal` |
| `H` | hole: the episode ends, with the reward `hole` |
| `+1`, `-0.5`, ... | the episode ends, with this reward |
| `(+1)`, `(-0.5)`, ... | floor that pays this reward whenever it is entered |
| `C` | cliff: the reward is `cliff`, the agent returns to the start `S`, and the episode continues |
| another letter | the end of a `jump` |

Cells are adjacent, or, as above, all separated by blanks; numbers need blanks, except in a single column. The
letters are those of Gymnasium's FrozenLake, so its maps can be used.

| Setting | Default | Meaning |
|---|---|---|
| `step` | 0 | reward of a step, unless the entered cell has its own reward |
| `goal`, `hole`, `cliff` | 1, 0, -100 | reward of entering `G`, `H`, `C`, instead of `step` |
| `bump` | as `step` | reward of a move against a wall or over the edge; the agent stays where it is |
| `slip` | 0 | probability of moving sideways, half of it to each side (2/3 is the slippery FrozenLake) |
| `wind` | 0 ... | cells per column, by which every step from it is shifted upwards |
| `gusts` | no | `yes`: wind that is not 0 varies by -1, 0 or +1, equally likely |
| `actions` | 4 | 4: up, right, down, left; 8: also the diagonals from up-right clockwise; 9: also to stay |
| `jump: A a +10` | | every action in the cell `A` leads to the cell `a` with the reward 10; may be repeated |
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.envs.cells import BONUS, CLIFF, FLOOR, GOAL, HOLE, START, WALL, Grid, Jump, Rules

_PLAIN = {FLOOR: FLOOR, "F": FLOOR, **{symbol: symbol for symbol in (WALL, START, GOAL, HOLE, CLIFF)}}
"""Cells of one character, and their symbols."""
_NUMBER = re.compile(r"[+-]\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_REWARD = re.compile(rf"{_NUMBER.pattern}|\({_NUMBER.pattern}\)")
_SETTING = re.compile(r"\s*([A-Za-z]+)\s*:\s*(.*?)\s*$")


class DrawingError(ValueError):
    """A drawing that cannot be read.

    Attributes:
        line: line number, from 1.
        column: column number, from 1.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line, self.column = line, column


def parse_grid(drawing: str, **settings: Any) -> Grid:
    """Read a drawing.

    Args:
        drawing: the text, in the format of this module.
        **settings: by name, as in `Rules`; they override those in the drawing.

    Raises:
        DrawingError: the drawing is wrong; the message names line and column.
        ValueError: one of `settings` is wrong.
    """
    Rules.of(settings)
    lines = _split(drawing)
    values = {name: line.convert(_CONVERTERS[name]) for name, line in lines.settings.items()}
    tokens = _tokens(lines.map)
    try:
        rules = Rules.of(values | settings)
        symbols, rewards = _cells(tokens, rules, _letters(lines.jumps))
        return Grid(symbols, rewards, rules, tuple(_jump(line, symbols) for line in lines.jumps))
    except DrawingError:
        raise
    except ValueError as error:
        name = str(error).partition(" ")[0]
        if name in settings:
            raise
        raise lines.settings.get(name, tokens[0][0]).error(str(error)) from None


class _Text(NamedTuple):
    """A token of a drawing and its position, from 1."""

    text: str
    line: int
    column: int

    def convert(self, converter: Callable[[str], Any]) -> Any:
        try:
            return converter(self.text)
        except ValueError as error:
            raise self.error(str(error)) from None

    def error(self, message: str) -> DrawingError:
        return DrawingError(message, self.line, self.column)


class _Lines(NamedTuple):
    settings: dict[str, _Text]
    jumps: list[_Text]
    map: list[_Text]


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text == "yes"


def _integers(text: str) -> tuple[int, ...]:
    return tuple(_integer(part) for part in text.split())


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("step", "goal", "hole", "cliff", "bump", "slip"), _number),
    "wind": _integers,
    "gusts": _flag,
    "actions": _integer,
}


def _split(drawing: str) -> _Lines:
    """Sort the lines of a drawing."""
    lines = _Lines({}, [], [])
    for number, line in enumerate(drawing.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        setting = _SETTING.match(line)
        if setting is None:
            lines.map.append(_Text(line, number, 1))
            continue
        name, value = setting[1], _Text(setting[2], number, setting.start(2) + 1)
        if name == "jump":
            lines.jumps.append(value)
        elif name not in _CONVERTERS:
            names = ", ".join([*_CONVERTERS, "jump"])
            raise DrawingError(f"{name!r} is not a setting; the settings are {names}", number, setting.start(1) + 1)
        elif name in lines.settings:
            message = f"{name!r} is set twice, first in line {lines.settings[name].line}"
            raise DrawingError(message, number, setting.start(1) + 1)
        else:
            lines.settings[name] = value
    if not lines.map:
        raise DrawingError("the drawing has no map", 1, 1)
    return lines


def _tokens(rows: list[_Text]) -> list[list[_Text]]:
    """Cut the rows of a map into cells."""
    spaced = any(len(row.text.split()) > 1 or _REWARD.fullmatch(row.text.strip()) for row in rows)
    cell = re.compile(r"\S+" if spaced else r"\S")
    table = [[_Text(match[0], row.line, match.start() + 1) for match in cell.finditer(row.text)] for row in rows]
    width = len(table[0])
    for cells in table:
        if len(cells) != width:
            last = cells[min(len(cells), width + 1) - 1]
            raise last.error(f"the row has {len(cells)} cells, but the first one has {width}")
    return table


def _letters(jumps: list[_Text]) -> set[str]:
    """Check the form of the jumps; return the letters that they use."""
    used: set[str] = set()
    for line in jumps:
        parts = line.text.split()
        if len(parts) != 3 or not all(len(part) == 1 and part.isalpha() for part in parts[:2]):
            raise line.error(f"a jump is two letters and a reward, such as 'A a +10', got {line.text!r}")
        taken = sorted(set(parts[:2]) & set("SGHCF"))
        if taken:
            raise line.error(f"the letter {taken[0]!r} has another meaning; take one that is not S, G, H, C or F")
        used.update(parts[:2])
    return used


def _cells(tokens: list[list[_Text]], rules: Rules, letters: set[str]) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
    """Return symbols and rewards of the cells."""
    plain = _PLAIN | {letter: letter for letter in letters}
    entering = {GOAL: rules.goal, HOLE: rules.hole, CLIFF: rules.cliff}
    symbols = np.full((len(tokens), len(tokens[0])), FLOOR)
    rewards = np.full(symbols.shape, rules.step)
    for place, token in zip(np.ndindex(symbols.shape), (token for row in tokens for token in row), strict=True):
        if token.text in plain:
            symbols[place] = plain[token.text]
            rewards[place] = entering.get(token.text, rules.step)
        elif _NUMBER.fullmatch(token.text):
            symbols[place], rewards[place] = token.text[0], token.convert(_number)
        elif _NUMBER.fullmatch(token.text[1:-1]) and token.text[0] + token.text[-1] == "()":
            symbols[place], rewards[place] = BONUS, _Text(token.text[1:-1], *token[1:]).convert(_number)
        else:
            known = " ".join([*plain, "and, with blanks between cells, numbers such as +1 and (+1)"])
            raise token.error(f"{token.text!r} is not a cell; the cells are {known}")
    return symbols, rewards


def _jump(line: _Text, symbols: NDArray[np.str_]) -> Jump:
    """Find the two ends of a jump."""
    cell, target, reward = line.text.split()
    places: list[int] = []
    for letter in (cell, target):
        found = np.flatnonzero(symbols == letter)
        if len(found) != 1:
            raise line.error(f"the letter {letter!r} must occur in the map once, but occurs {len(found)} times")
        places.append(int(found[0]))
    return Jump(places[0], places[1], line.convert(lambda _: _number(reward)))
