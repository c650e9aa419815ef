"""Worker process of `operant.language.sandbox`, which runs one function.

It is started as a script and does not import operant, so it starts in milliseconds. Standard input has one call per
line, `{"id": 1, "args": [...], "kwargs": {...}, "seconds": 5.0}`; standard output has one reply per line, `{"id": 1,
"result": ...}`, `{"id": 1, "error": "...", "traceback": "..."}`, `{"id": 1, "invalid": "..."}` for a result that JSON
cannot represent, or `{"id": 1, "memory": "..."}`. The first reply is `{"id": 0, "result": true}` when the function is
loaded. The function has another standard input (empty) and output (the
error stream), so that its output is not taken for replies.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, TextIO

GRACE = 5.0
"""Seconds beyond the time limit of a call after which a worker without a parent process exits."""


TRAINER_KEY = "operant_trainer"
"""Keyword argument with the trainer state, for TRL's `trainer_state`, `log_metric` and `log_extra`."""


class _CurrentSource(SourceFileLoader):
    """Runs the current source, since cached bytecode is also used after a change within a second to equal length."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def load(target: str) -> Callable[..., Any]:
    """Return the function of `path/to/file.py:function` or `package.module:function`.

    Raises:
        AttributeError: the module has no such name.
        TypeError: it is not a function, or a class.
    """
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where).resolve()
        # The name of the file, by which its own processes import it, unless a file named random.py would hide a module.
        own = path.stem.isidentifier() and path.stem not in sys.modules and importlib.util.find_spec(path.stem) is None
        name_of_module = path.stem if own else f"sandboxed_{path.stem}"
        sys.path.insert(0, str(path.parent))
        loader = _CurrentSource(name_of_module, str(path))
        spec = importlib.util.spec_from_file_location(name_of_module, path, loader=loader)
        if spec is None:
            raise ImportError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name_of_module] = module
        loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function = getattr(module, name, None)
    if function is None:
        there = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        raise AttributeError(f"{where} has no {name!r}; it defines {', '.join(there) or 'no function'}")
    if not callable(function):
        raise TypeError(f"{name} in {where} is {function!r}, not a function")
    if inspect.isclass(function):
        raise TypeError(
            f"{name} in {where} is a class: name an instance of it, such as `reward = {name}()` in the file"
        )
    return function


def answer(function: Callable[..., Any], call: dict[str, Any]) -> str:
    """Run one call and return its reply as a line of JSON."""
    own = {"id": call.get("id", 0)}
    try:
        kwargs, logged = call["kwargs"], None
        if TRAINER_KEY in kwargs:
            kwargs, logged = with_trainer(function, kwargs)
        result = function(*call["args"], **kwargs)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        try:
            return json.dumps(
                {**own, "result": result if logged is None else {"result": result, **logged}}, default=_plain
            )
        except (TypeError, ValueError) as error:
            return json.dumps({**own, "invalid": _unlike(function, result, call["kwargs"], error)})
    except MemoryError:
        return json.dumps({**own, "memory": "ran out of memory"})
    except Exception as error:  # every exception is reported to the parent
        return json.dumps({**own, **_described(error)})


def _unlike(function: Callable[..., Any], result: Any, kwargs: dict[str, Any], error: Exception) -> str:
    """Return the description of a result that JSON cannot represent, with the expected one and the function's place."""
    expected, got = "numbers, strings, lists and None", str(error)
    if TRAINER_KEY in kwargs and "completions" in kwargs:
        expected = f"a list of {len(kwargs['completions'])} rewards"
        if not isinstance(result, list | tuple) and not hasattr(result, "tolist"):
            got = f"a {type(result).__name__}"
    own = inspect.unwrap(function)
    code = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    place = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    return f"must return {expected}, got {got}{place}"


def _described(error: BaseException) -> dict[str, str]:
    """Return an exception as one line, with its last location outside this file, and its full traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}, line {error.lineno})"
    else:
        place = next((f" ({f.filename}, line {f.lineno})" for f in reversed(frames) if f.filename[0] != "<"), "")
    line = " ".join(traceback.format_exception_only(error)[-1].split())
    return {"error": line + place, "traceback": "".join(traceback.format_exception(error))}


def with_trainer(function: Callable[..., Any], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments in the signature of a reward function, and the values that it logs.

    Args:
        function: reward function with TRL's signature.
        kwargs: columns, and the trainer state under `TRAINER_KEY`.
    """
    logged: dict[str, Any] = {"metrics": [], "extra": {}}
    given = {name: value for name, value in kwargs.items() if name != TRAINER_KEY}
    given["trainer_state"] = types.SimpleNamespace(**kwargs[TRAINER_KEY])

    def log_metric(name: str, value: float) -> None:
        logged["metrics"].append((name, float(value)))

    def log_extra(column: str, values: Iterable[Any]) -> None:
        logged["extra"][column] = list(values)

    given["log_metric"], given["log_extra"] = log_metric, log_extra
    parameters = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    return given, logged


async def _awaited(result: Any) -> Any:
    return await result


def _plain(value: Any) -> Any:
    """Convert arrays, tensors and their elements to plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}: {value!r}")


def _limit_memory(limit: int) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows and macOS have no such limit
        import resource

        # RLIMIT_DATA instead of the address space, of which libraries such as CUDA's reserve more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _set_alarm(seconds: float) -> None:
    """End this process after the given seconds, even if it hangs; 0 cancels the alarm."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _take_channels() -> tuple[TextIO, TextIO]:
    """Return copies of standard input and output, and redirect the originals.

    That of the output is closed only by the end of the process, when its exit code is known.
    """
    calls = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", closefd=False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = io.StringIO(), sys.stderr
    return calls, answers


def main(target: str, memory: int) -> None:
    """Load the function, limit the memory (bytes; 0: no limit), and reply to calls until standard input ends."""
    calls, answers = _take_channels()
    process = os.getpid()
    if memory:
        _limit_memory(memory)
    try:
        function = load(target)
        first = json.dumps({"id": 0, "result": True})
    except (Exception, SystemExit) as error:
        function = None
        first = json.dumps({"id": 0, **_described(error)})
    answers.write(first + "\n")
    answers.flush()
    for line in calls if function is not None else ():
        call = json.loads(line)
        _set_alarm(call["seconds"] + GRACE)
        text = answer(function, call)  # pyright: ignore[reportArgumentType]
        _set_alarm(0)
        if os.getpid() != process:  # the function forked: the child must not reply
            os._exit(0)
        answers.write(text + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
