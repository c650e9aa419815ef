"""Worker process that reads calls from standard input, one per line, and writes responses to standard output.

It imports parts of the library on demand, exits at the end of its input, and has a lower priority than training.
"""

import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, Literal, Union, cast, get_args, get_origin, get_type_hints

from operant.errors import ExplainedError
from operant.runtime.json_values import finite
from operant.web.workers import HEADER, NotFoundError

FUNCTIONS: Mapping[str, str] = {
    "playground.presets": "operant.web.playground:presets",
    "playground.read": "operant.web.playground:read",
    "playground.exact": "operant.web.playground:exact",
    "playground.frames": "operant.web.playground:frames",
    "playground.export": "operant.web.playground:export",
    "explorables.index": "operant.web.explorables:index",
    "explorables.draw": "operant.web.explorables:draw",
    "runs.index": "operant.web.runs:index",
    "runs.show": "operant.web.runs:show",
    "runs.curves": "operant.web.runs:curves",
    "runs.compare": "operant.web.runs:compare",
    "runs.medium": "operant.web.runs:medium",
    "runs.states": "operant.web.states:states",
    "runs.models": "operant.web.models:models",
    "chat.answer": "operant.web.chat:answer",
    "travel.load": "operant.web.travel:load",
    "travel.go": "operant.web.travel:go",
    "travel.scenes": "operant.web.travel:scenes",
    "travel.table": "operant.web.travel:table",
    "travel.batch": "operant.web.batches:batch",
    "runs.batches": "operant.web.batches:index",
    "completions.index": "operant.web.completions:index",
    "completions.steps": "operant.web.completions:steps",
    "completions.batch": "operant.web.completions:batch",
    "labels.index": "operant.web.labels:index",
    "labels.following": "operant.web.labels:following",
    "labels.record": "operant.web.labels:record",
    "labels.undo": "operant.web.labels:undo",
    "labels.overview": "operant.web.labels:overview",
    "labels.exported": "operant.web.labels:exported",
}
"""Modules of functions by name; the first argument of each function is the folder of runs."""


def answer(runs: Path, line: bytes) -> tuple[int, bytes]:
    """Return the HTTP status and JSON for a call.

    Args:
        runs: folder of runs.
        line: JSON of a name in `FUNCTIONS` and keyword arguments.
    """
    try:
        name, arguments = json.loads(line)
        if name not in FUNCTIONS:
            raise NotFoundError(f"unknown function {name}")
        module, _, function = FUNCTIONS[name].partition(":")
        found = getattr(importlib.import_module(module), function)
        try:
            inspect.signature(found).bind(runs, **arguments)
        except TypeError as error:
            return 400, _error(f"{name}: {error}")
        for argument, kind in get_type_hints(found).items():
            if argument in arguments and not _fits(arguments[argument], kind):
                return 400, _error(f"{name}: {argument} must be {_named(kind)}, got {arguments[argument]!r:.80}")
        return 200, json.dumps(finite(found(runs, **arguments)), allow_nan=False).encode()
    except Exception as error:
        return _failure(error, runs)


def _failure(error: Exception, runs: Path) -> tuple[int, bytes]:
    """Return the HTTP status and JSON for an exception; the traceback of an unexpected one is printed."""
    if isinstance(error, NotFoundError):
        return 404, _error(str(error))
    if isinstance(error, FileNotFoundError) and _is_below(error.filename, runs):  # such as a run deleted meanwhile
        return 404, _error(f"{error.filename} does not exist")
    if isinstance(error, ExplainedError | ModuleNotFoundError):
        return 409, _error(str(error))
    if isinstance(error, ValueError):
        return 400, _error(str(error))
    traceback.print_exception(error)
    return 500, _error(f"{type(error).__name__}: {error}")


def _is_below(file: Any, runs: Path) -> bool:
    return file is not None and Path(str(file)).is_relative_to(runs)


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON has the type of an annotation.

    Integers are also floats. In lists of floats, so are booleans, and null is NaN.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Any or origin is Literal:
        return kind is Any or value in parts
    if isinstance(value, Mapping):
        keyed = isinstance(origin, type) and issubclass(origin, Mapping)
        return keyed and all(_fits(item, parts[1]) for item in cast(Mapping[str, Any], value).values())
    if isinstance(value, list):
        listed = isinstance(origin, type) and issubclass(origin, Sequence)
        also = bool | None if parts and parts[0] is float else ()
        return listed and all(isinstance(item, also) or _fits(item, parts[0]) for item in cast(list[Any], value))
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (NoneType if kind is None else kind)


def _named(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def run(runs: Path, calls: BinaryIO, answers: BinaryIO) -> None:
    """Process calls until the input ends."""
    for line in calls:
        status, body = answer(runs, line)
        answers.write(HEADER.pack(status, len(body)) + body)
        answers.flush()


def main() -> None:
    """Process the calls of the parent server."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with responses
    os.environ["HF_HUB_OFFLINE"] = "1"  # runs with a model of the hub use the local copy
    with suppress(OSError, AttributeError):
        os.nice(5)
    with suppress(BrokenPipeError):
        run(Path(sys.argv[1]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
