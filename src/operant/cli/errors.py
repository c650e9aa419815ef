"""One-line error messages and exit statuses of the command line."""

import re
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from operant.doors import user_location
from operant.runtime.files import meant
from operant.runtime.run import RUN_NOTE, TRAINING_NOTE

FAILURE, USAGE = 1, 2

MEMORY_SETTINGS = (
    *("buffer_size", "num_envs", "num_steps", "batch_size", "num_minibatches", "hidden_sizes", "rnn_hidden_size"),
    *("prompts_per_batch", "num_generations", "max_completion_length", "max_prompt_length", "micro_batch_tokens"),
)
"""Configuration fields that determine the memory use of an algorithm."""

_NO_MEMORY = re.compile(
    r"out of memory|(can't|cannot|unable to|failed to) allocate|not enough memory|Invalid buffer size"
)
_MISSING = re.compile(r"__init__\(\) missing \d+ required")


def explain(error: Exception, arguments: Sequence[str] = ()) -> tuple[str, int] | None:
    """Return the one-line message and the exit status of an error; None for an internal error.

    Args:
        error: exception raised by a command.
        arguments: arguments of the command line, for advice on its settings.
    """
    from operant.envs import EndlessError, EnvError, RestoreError, WorkerError
    from operant.runtime.checkpoints import CheckpointError, NonFiniteError
    from operant.runtime.run import RunError

    failures = CheckpointError | EndlessError | EnvError | NonFiniteError | RestoreError | WorkerError | OSError
    message = str(error)
    if isinstance(error, OSError) and message.startswith("[Errno") and error.filename is not None:
        message = f"{meant(str(error.filename))}: {error.strerror}"
    usage = ValueError | ModuleNotFoundError | FileNotFoundError | IsADirectoryError | NotADirectoryError | RunError
    if location := "" if ran_out_of_memory(error) else user_location(error):
        training = any(note.startswith(RUN_NOTE) for note in getattr(error, "__notes__", []))
        status = USAGE if isinstance(error, usage) and not training else FAILURE
        return f"{location}: {type(error).__name__}: {error}; --debug shows the traceback", status
    if isinstance(error, usage) and not isinstance(error, UnicodeEncodeError):
        return message, FAILURE if TRAINING_NOTE in getattr(error, "__notes__", []) else USAGE
    if isinstance(error, UnicodeEncodeError):
        return f"{error}: set PYTHONIOENCODING=utf-8", FAILURE
    return (message, FAILURE) if isinstance(error, failures) else _explain_others(error, arguments)


def _explain_others(error: Exception, arguments: Sequence[str]) -> tuple[str, int] | None:
    """Return message and status of an error raised by Python or a library that the input or the machine caused."""
    explanation = None
    if ran_out_of_memory(error):
        explanation = f"out of memory ({_first_line(error)}); {_memory_advice(arguments)}", FAILURE
    elif isinstance(error, RecursionError) and _innermost(error).startswith(("json", "tomllib")):
        explanation = "a file is nested too deeply", USAGE
    elif isinstance(error, TypeError) and _MISSING.search(str(error)) and _innermost(error).startswith("gymnasium"):
        explanation = f"{error}; pass the arguments to gymnasium.register(..., kwargs={{...}})", USAGE
    elif isinstance(error, SyntaxError) and error.filename:
        explanation = f"{error.filename}, line {error.lineno}: {error.msg}", USAGE
    elif type(error).__name__ in ("LoadError", "SandboxError", "RewardError"):
        training = TRAINING_NOTE in getattr(error, "__notes__", [])
        of_user = type(error).__name__ == "LoadError" and not training
        explanation = _first_and_last_lines(error), USAGE if of_user else FAILURE
    return explanation


def report_bug(error: Exception) -> str:
    """Write the traceback of an internal error to the run's folder or a temporary file, and return the message."""
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
    """Return whether the machine or a device ran out of memory."""
    is_memory_error = type(error).__name__ in ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
    return is_memory_error or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None)


def _memory_advice(arguments: Sequence[str]) -> str:
    from dataclasses import fields

    from operant import catalog

    if arguments[:1] == ["evaluate"]:
        return "lower --episodes"
    try:
        available = {field.name for field in fields(catalog.find("".join(arguments[1:2])).config_class)}
    except ValueError:
        return "use a smaller task, or a machine with more memory"
    flags = [f"--{name.replace('_', '-')}" for name in (*MEMORY_SETTINGS, "seeds") if name in {*available, "seeds"}]
    return f"lower {', '.join(flags[:-1])}{' or ' * (len(flags) > 1)}{flags[-1]}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("[enforce fail at ")


def _first_and_last_lines(error: BaseException) -> str:
    """Return the first line, the last location and the last line of an error whose message ends with a traceback."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    locations = [line for line in lines if line.startswith("File ")]
    parts = [lines[0], *([locations[-1]] if locations else []), *([lines[-1]] if len(lines) > 1 else [])]
    return ": ".join(part.rstrip(":") for part in parts) if lines else type(error).__name__


def _innermost(error: BaseException) -> str:
    """Return the name of the module that raised an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""


def _temporary() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="operant-", suffix=".txt")
    open(descriptor, "wb").close()  # noqa: PTH123 - it is a descriptor
    return Path(name)
