"""Callbacks in files of the user's own, `file.py:Name`, and those that a run was made with."""

import ast
import inspect
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from operant import doors
from operant.runtime.callbacks import Callback, check
from operant.runtime.run import Run

logger = logging.getLogger(__name__)

GROUP = "operant.callbacks"
"""Of the entry points by which installed packages offer callbacks."""

_CALL = re.compile(r"(?P<name>.+?:[\w.]+|[\w.-]+)(?:\((?P<arguments>.*)\))?", re.DOTALL)
_FORM = "'file.py:Name' or 'file.py:Name(patience=3)'"


def callbacks_of(given: Any) -> list[Callback]:
    """Return callbacks, some of which are named.

    Args:
        given: a list of callbacks, or of texts such as `file.py:Name(patience=3)`: a class or function there makes one,
            with keyword arguments that are Python literals.

    Raises:
        ValueError: something else is given, or there is no such file or name, or it makes no callback.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"callbacks must be a list of callbacks and of texts such as {_FORM}, got {given!r}")
    doors.refresh()  # a file may have been edited since it was imported
    found: list[Any] = [_made(one) if isinstance(one, str) else one for one in cast(Iterable[Any], given)]
    for one in found:
        check(one)
    return found


def recorded(run: Run, *, accept_changes: bool = False) -> list[Callback]:
    """Return the callbacks that a run was made with, to be called again.

    Args:
        run: the run.
        accept_changes: whether to go on without those whose files are gone.

    Raises:
        RunError: a file has changed, and that is not accepted.
        ValueError: a file does not make a callback any more.
    """
    run.require_inputs(("callbacks",), accept=accept_changes)
    gone = [text for text in run.settings.callbacks if _gone(text)]
    for text in gone:
        logger.warning("%s: the callback %s is gone; training goes on without it", run.path, text)
    return callbacks_of([text for text in run.settings.callbacks if text not in gone])


def named(given: Sequence[Any]) -> tuple[str, ...]:
    """Return the texts among callbacks, which a run can write down."""
    return tuple(one for one in given if isinstance(one, str))


def _made(text: str) -> Callback:
    name, arguments = _parts(text)
    maker = doors.load(name, expected="a subclass of operant.Callback, or a function that makes one", group=GROUP)
    try:
        inspect.signature(maker).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{text!r} cannot be called: {error}") from error
    made = maker(**arguments)
    if not isinstance(made, Callback):
        raise ValueError(f"{text!r} must be or make an operant.Callback, got {made!r:.120}")
    return made


def _parts(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of what makes a callback, and the keyword arguments."""
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"a callback is named like {_FORM}, got {text!r}")
    try:
        call = cast(ast.Call, ast.parse(f"f({match['arguments'] or ''})", mode="eval").body)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("they have no names")
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"the arguments of a callback are names with numbers, texts, lists and the like, such as {_FORM}, got "
            f"{text!r} ({error})"
        ) from error
    return match["name"], arguments


def _gone(text: str) -> bool:
    place = doors.place_of(_parts(text)[0])
    return place is not None and place.path is not None and not place.path.is_file()
