"""One-line error messages, and their exit status."""

import re
import sysconfig
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from operant.runtime.files import meant
from operant.runtime.run import RUN_NOTE

FAILURE, USAGE = 1, 2

MEMORY_SETTINGS = (
    *("buffer_size", "num_envs", "num_steps", "batch_size", "num_minibatches", "hidden_sizes", "rnn_hidden_size"),
    *("prompts_per_batch", "num_generations", "max_completion_length", "max_prompt_length", "micro_batch_tokens"),
)
"""Fields of configurations that determine the memory of an algorithm."""

_NO_MEMORY = re.compile(
    r"out of memory|(can't|cannot|unable to|failed to) allocate|not enough memory|Invalid buffer size"
)
_MISSING = re.compile(r"__init__\(\) missing \d+ required")
_PACKAGE = Path(__file__).resolve().parents[1]


def explain(error: Exception, arguments: Sequence[str] = ()) -> tuple[str, int] | None:
    """Return a one-line message of an error and its exit status; None for an internal error.

    Args:
        error: raised by a command.
        arguments: of the command line, for advice on its settings.
    """
    from operant.envs import EndlessError, EnvError, RestoreError, WorkerError
    from operant.runtime.checkpoints import CheckpointError, NonFiniteError
    from operant.runtime.run import RunError

    failures = CheckpointError | EndlessError | EnvError | NonFiniteError | RestoreError | WorkerError | OSError
    said = str(error)
    if isinstance(error, OSError) and said.startswith("[Errno") and error.filename is not None:
        said = f"{meant(str(error.filename))}: {error.strerror}"
    if isinstance(error, ValueError | ModuleNotFoundError | FileNotFoundError | RunError):
        return said, USAGE
    return (said, FAILURE) if isinstance(error, failures) else _explain_others(error, arguments)


def _explain_others(error: Exception, arguments: Sequence[str]) -> tuple[str, int] | None:
    """Explain an error of Python or a library, if the user's input or machine is the cause."""
    found = None
    if ran_out_of_memory(error):
        found = f"out of memory ({_first_line(error)}); {_memory_advice(arguments)}", FAILURE
    elif isinstance(error, RecursionError) and _innermost(error).startswith(("json", "tomllib")):
        found = "a file is nested too deeply", USAGE
    elif isinstance(error, TypeError) and _MISSING.search(str(error)):
        found = f"{error}; pass the arguments to gymnasium.register(..., kwargs={{...}})", USAGE
    elif isinstance(error, SyntaxError) and error.filename:
        found = f"{error.filename}, line {error.lineno}: {error.msg}", USAGE
    elif type(error).__name__ in ("SandboxError", "RewardError"):
        found = _last_words(error), FAILURE
    elif place := _foreign_place(error):
        found = f"{place}: {type(error).__name__}: {error}; --debug shows the traceback", FAILURE
    return found


def report_bug(error: Exception) -> str:
    """Write the traceback to the folder of the run, or else to a temporary file; return a one-line message."""
    text = "".join(traceback.format_exception(error))
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith(RUN_NOTE)]
    folder = Path(notes[-1].removeprefix(RUN_NOTE)) if notes else None
    try:
        path = _temporary() if folder is None or not folder.is_dir() else folder / "traceback.txt"
        path.write_text(text, encoding="utf-8")
        where = f"which is also in {path}"
    except OSError as failure:
        where = f"which cannot be written: {failure.strerror}"
    return f"{type(error).__name__}: {error}; run again with --debug for the traceback, {where}"


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports exhausted memory of the machine or of a device."""
    named = type(error).__name__ in ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
    return named or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None)


def _memory_advice(arguments: Sequence[str]) -> str:
    from dataclasses import fields

    from operant import catalog

    if arguments[:1] == ["evaluate"]:
        return "lower --episodes"
    try:
        there = {field.name for field in fields(catalog.find("".join(arguments[1:2])).config_class)}
    except ValueError:
        return "use a smaller task, or a machine with more memory"
    flags = [f"--{name.replace('_', '-')}" for name in (*MEMORY_SETTINGS, "seeds") if name in {*there, "seeds"}]
    return f"lower {', '.join(flags[:-1])}{' or ' * (len(flags) > 1)}{flags[-1]}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("[enforce fail at ")


def _last_words(error: BaseException) -> str:
    """Return the first and last line of an error whose message ends with a traceback."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ")]
    found = [lines[0], *([places[-1]] if places else []), *([lines[-1]] if len(lines) > 1 else [])]
    return ": ".join(part.rstrip(":") for part in found) if lines else type(error).__name__


def _innermost(error: BaseException) -> str:
    """Return the module that raised an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""


def _foreign_place(error: BaseException) -> str:
    """Return file and line of the user's code that raised an error; empty for operant or a library."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    frame, line = frames[-1]
    path = Path(frame.f_code.co_filename)
    library = [_PACKAGE, *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))]
    if not path.is_file() or any(path.resolve().is_relative_to(folder) for folder in library):
        return ""
    return "" if "site-packages" in path.parts else f"{path}, line {line}"


def _temporary() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="operant-", suffix=".txt")
    open(descriptor, "wb").close()  # noqa: PTH123 - it is a descriptor
    return Path(name)
