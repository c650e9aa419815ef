"""Names with parameters, such as `my.py:Bonus(scale=0.1)`: `Call`."""

import ast
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

from operant.doors.importing import is_installed
from operant.doors.naming import DoorError, load

T = TypeVar("T")

_PACKAGE = Path(__file__).resolve().parents[1]

_CALL = re.compile(r"(?P<name>.*?\.py:[\w.]+|[\w.-]+(?::[\w.]+)?)\s*(?:\((?P<parameters>.*)\))?", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A name with parameters of its object.

    Attributes:
        name: name for `operant.doors.load`.
        parameters: parameters by name.
    """

    name: str
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, text: str) -> "Call":
        """Parse a text such as `my.py:Bonus(scale=0.1, kind="count")`, or a name alone.

        Raises:
            DoorError: if the syntax is wrong, or a parameter is not a Python literal.
        """
        if not isinstance(cast(object, text), str):
            raise DoorError(f"expected a name with parameters or without, such as my.py:Bonus(scale=0.1), got {text!r}")
        match = _CALL.fullmatch(text)
        try:
            if match is None:
                raise ValueError("there is no name")
            call = ast.parse(f"f({match['parameters'] or ''})", mode="eval").body
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                raise ValueError("a text has one name; give several as a list, or repeat the flag")
            given = {keyword.arg: _literal(keyword) for keyword in call.keywords if keyword.arg}
            if call.args or len(given) < len(call.keywords):
                raise ValueError("parameters are given by name, each once")
            return cls(match["name"], given)
        except (SyntaxError, ValueError) as error:
            raise DoorError(
                f"expected a name with parameters or without, such as my.py:Bonus(scale=0.1), got {text!r}: {error}"
            ) from error

    def load(self, *, expected: str, accepts: Callable[[Any], bool] = callable, group: str = "") -> Any:
        """Return the object of the name, with its parameters bound; see `operant.doors.load`."""
        found = load(self.name, expected=expected, accepts=accepts, group=group)
        return partial(found, **self.parameters) if self.parameters else found


def _literal(keyword: ast.keyword) -> Any:
    try:
        return ast.literal_eval(keyword.value)
    except ValueError:
        value = f"{keyword.arg}={ast.unparse(keyword.value)}"
        raise ValueError(
            f"{value} is no value: put texts in quotes, and write True, False and None like this"
        ) from None


def chosen(table: Mapping[str, T], name: str, *, arguments: int, expected: str, group: str) -> T:
    """Return a built-in function by name, or else the function of the name (see `operant.doors.load`).

    Args:
        table: built-in functions by name.
        name: name of one of them, or of another function.
        arguments: number of positional arguments that it is called with.
        expected: description of the expected function.
        group: group of entry points, `operant.<kind>`.

    Raises:
        DoorError: if there is neither, or it does not take these arguments.
    """
    if name in table:
        return table[name]
    function = load(name, expected=expected, group=group)
    kind = group.removeprefix("operant.").removesuffix("s")
    require_arguments(function, f"{kind} {name}", arguments, expected)
    return function


def place_of_error(error: BaseException, caller: str) -> str:
    """Return file and line of the user's code that raised an error, or that called the code that did.

    Args:
        error: the error, with its traceback.
        caller: file that called the user's code.

    Returns:
        `my.py, line 3`; empty if the error is from before the call.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != caller]
    frames = [frame for frame in frames if Path(frame.filename).parent.name not in ("asyncio", "futures")]
    last = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{last[-1].filename}, line {last[-1].lineno}" if last else ""


def user_location(error: BaseException) -> str:
    """Return file and line of the user's code that raised an error, itself or in a library; empty if operant did."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = Path(frame.f_code.co_filename)
        if path.is_file() and path.resolve().is_relative_to(_PACKAGE):
            return ""
        if path.is_file() and not is_installed(path.resolve()):
            return f"{path}, line {line}"
    return ""


def require_arguments(function: Callable[..., Any], what: str, count: int, expected: str) -> None:
    """Check that a function can be called with `count` positional arguments.

    Raises:
        DoorError: it cannot.
    """
    try:
        signature(function).bind(*[None] * count)
    except TypeError as error:
        raise DoorError(f"{what} cannot be called: {error}; expected {expected}") from error
    except ValueError:  # a function in C without a signature
        return
