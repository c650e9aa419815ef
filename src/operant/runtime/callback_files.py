"""Callbacks in user files, `file.py:Name`, and the callbacks of a saved run."""

import inspect
import logging
from collections.abc import Iterable
from typing import Any, cast

from operant import doors
from operant.runtime.callbacks import Callback, check
from operant.runtime.run import Run

logger = logging.getLogger(__name__)

GROUP = "operant.callbacks"
"""Entry-point group of callbacks in installed packages."""

_FORM = "'file.py:Name' or 'file.py:Name(patience=3)'"


def callbacks_of(given: Any) -> list[Callback]:
    """Return callbacks, loading those given as strings.

    Args:
        given: list of callbacks, or of strings such as `file.py:Name(patience=3)` with a class or function and Python
            literals as keyword arguments.

    Raises:
        ValueError: `given` has another type, the file or name does not exist, or it does not create a callback.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"callbacks must be a list of callbacks and of strings such as {_FORM}, got {given!r}")
    doors.refresh()  # files may have changed since they were imported
    found: list[Any] = [_made(one) if isinstance(one, str) else one for one in cast(Iterable[Any], given)]
    for one in found:
        check(one)
    return found


def recorded(run: Run, given: Iterable[Any] = (), *, accept_changes: bool = False) -> list[Callback]:
    """Return the callbacks of a saved run; warn about those that cannot be created.

    Args:
        run: the run.
        given: additional callbacks.
        accept_changes: whether to continue without callbacks whose files are missing.

    Raises:
        RunError: a file has changed, and changes are not accepted.
        ValueError: a file no longer defines a callback.
    """
    run.require_inputs(("callbacks",), accept=accept_changes)
    gone = [text for text in run.settings.callbacks if _gone(text)]
    for text in gone:
        logger.warning("%s: the file of callback %s is missing; training continues without it", run.path, text)
    sessions = run.facts()["sessions"]
    for name in dict.fromkeys(sessions[-1].get("callbacks", ())) if sessions else ():
        if name not in unnamed(given):
            logger.warning(
                "%s: the callback %s was a Python object, which cannot be restored: pass it again in "
                "callbacks=[...] of operant.resume, or pass it to operant.train as a string, file.py:%s",
                *(run.path, name, name),
            )
    return callbacks_of([text for text in run.settings.callbacks if text not in gone])


def named(given: Iterable[Any]) -> tuple[str, ...]:
    """Return the callbacks given as strings, which a run can save."""
    return tuple(one for one in given if isinstance(one, str))


def unnamed(given: Iterable[Any]) -> tuple[str, ...]:
    """Return the class names of the callbacks given as objects, which a run cannot restore."""
    return tuple(type(one).__qualname__ for one in given if not isinstance(one, str))


def _made(text: str) -> Callback:
    call = doors.Call.of(text)
    maker = doors.load(
        call.name, expected="a subclass of operant.Callback, or a function that returns one", group=GROUP
    )
    try:
        inspect.signature(maker).bind(**call.parameters)
    except TypeError as error:
        raise ValueError(f"{text!r} cannot be called: {error}") from error
    made = maker(**call.parameters)
    if not isinstance(made, Callback):
        raise ValueError(f"{text!r} must be or return an operant.Callback, got {_shown(made)}: inherit from that class")
    return made


def _shown(made: object) -> str:
    return "None" if made is None else f"an object of {type(made).__name__}"


def _gone(text: str) -> bool:
    place = doors.place_of(doors.Call.of(text).name)
    return place is not None and place.path is not None and not place.path.is_file()
