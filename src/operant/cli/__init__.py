"""The command line: parses arguments, calls `operant.api`, prints results.

Each command imports only what it needs: `operant --help` and `operant list` answer immediately.
"""

import gc
import importlib
import io
import os
import select
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from operant import __version__

OK, FAILURE, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

PACKAGE = Path(__file__).parents[1]
"""Folder of the source files of operant."""

STDOUT = "standard output"
"""Name of the stream in errors."""

GARBAGE = (700, 10, 50)
"""Thresholds of the garbage collector, the third one 50 in place of 10.

Importing torch and transformers creates a million objects; to look through all of them again and again took 1 of the 7
seconds of a short run of SFT.
"""


@dataclass(frozen=True)
class Command:
    """A command of `operant`.

    Attributes:
        function: `module.function` in this package; it takes the remaining arguments and returns an exit status.
        usage: arguments, for the overview.
        summary: one line of help.
    """

    function: str
    usage: str
    summary: str


COMMANDS = {
    "train": Command("training.train", "ALGORITHM TASK", "train an algorithm on a task, several seeds in parallel"),
    "solve": Command("solving.solve", "[TASK]", "solve a known model exactly: values, a policy, certified bounds"),
    "resume": Command("training.resume", "RUN", "continue an interrupted run, exactly"),
    "evaluate": Command("evaluating.evaluate", "RUN", "evaluate the policies of a run with greedy actions"),
    "compare": Command("comparing.compare", "RUN...", "compare runs: scores, intervals, learning curves"),
    "tune": Command("tuning.tune", "ALGORITHM TASK", "search for hyperparameters, and evaluate the best on new seeds"),
    "sweep": Command("sweeping.sweep", "GRID.toml", "train every configuration of a grid, several runs in parallel"),
    "identify": Command(
        "identifying.identify", "TASK FILE.npz", "estimate a simulator's parameters from recorded trajectories"
    ),
    "runs": Command("runs.runs", "[COMMAND]", "list runs; show, rename, delete, merge or clean them"),
    "show": Command("showing.show", "RUN", "show a run, and the learned table of a seed"),
    "watch": Command("watching.watch", "RUN", "record a video of a trained policy, or show it in a window"),
    "play": Command("playing.play", "RUN", "play a board game against a trained policy"),
    "chat": Command("chatting.chat", "RUN|MODEL ...", "chat with a language model, or two"),
    "export": Command("exporting.export", "RUN FOLDER", "write a trained policy or language model for other programs"),
    "label": Command("labeling.label", "RUN", "collect human preferences between sampled answers"),
    "serve": Command("serving.serve", "", "start the web app: playground, live runs, labels, map of algorithms"),
    "list": Command("listing.list_algorithms", "[NAME]", "list the algorithms and bonuses, or describe one"),
    "copy": Command("copying.copy", "NAME FILE.py", "copy the source file of an algorithm or bonus, to modify it"),
    "doctor": Command("doctor.doctor", "", "report versions, devices, threads and missing extras"),
    "tour": Command("tour.tour", "", "solve, train and evaluate four small tasks, with explanations"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: arguments after `operant`. Default: those of this process. With `--debug`, or if the environment
            variable OPERANT_DEBUG is 1, errors are raised with their traceback.

    Returns:
        0 on success; 1 after a failure; 2 after invalid arguments; 75 if training was interrupted and can be resumed;
        130 after Ctrl-C; 141 if the reader of the output has closed the pipe.
    """
    if argv is None:
        gc.set_threshold(*GARBAGE)
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or any(map(_is_on, ("OPERANT_DEBUG", "OPERANT_TRACEBACK")))
    arguments = [argument for argument in arguments if argument != "--debug"]
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":  # not all encodings have all characters
            stream.reconfigure(errors="backslashreplace")
    written = warnings.formatwarning
    if not debug:
        warnings.formatwarning = partial(_one_line, written)
    try:
        status = _parsed(arguments)
        _flush()
    except KeyboardInterrupt:
        return _complain("stopped", INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader(sys.stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        if debug:
            raise
        return _fail(error, arguments)
    finally:
        warnings.formatwarning = written
    return status


def _is_on(variable: str) -> bool:
    """Return whether an environment variable is set to something else than 0, false, no or off."""
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "no", "off")


def _has_no_reader(stream: TextIO) -> bool:
    """Return whether a stream is a pipe that its reader has closed."""
    try:
        stream.flush()
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors are always reported
        return bool(poll.poll(0))
    except BrokenPipeError:
        return True
    except (AttributeError, OSError, ValueError):  # no `poll` on Windows; a stream that is no file
        return False


def _one_line(written: Callable[..., str], message: Any, category: type[Warning], filename: str, *rest: Any) -> str:
    """Return a warning as text: one of operant as its message, like those that are logged, without the line of code."""
    own = Path(filename).is_relative_to(PACKAGE) and issubclass(category, RuntimeWarning)
    return f"{message}\n" if own else written(message, category, filename, *rest)


def _open_closed_streams() -> None:
    """Connect closed standard streams, such as those of daemons, to the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process


def _parsed(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except SystemExit as exit_:  # the parser has printed a help text or an error
        return exit_.code if isinstance(exit_.code, int) else OK


def _flush() -> None:
    """Write the buffered output; an error, such as of a full disk, names standard output."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # The interpreter would try again at exit, and change the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error.filename = STDOUT
        raise


def _of_print(error: Exception) -> bool:
    """Return whether `print` raised an error, as output that is too long for the buffer of a stream does."""
    from traceback import extract_tb

    frames = extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].line or "").startswith("print(")


def _fail(error: Exception, arguments: Sequence[str]) -> int:
    """Print an error in one line and return the exit status."""
    if isinstance(error, OSError) and error.filename is None and _of_print(error):
        error.filename = STDOUT
    if isinstance(error, ValueError) and not hasattr(error, "errno") and "operant.runtime.run" not in sys.modules:
        return _complain(f"error: {error}", USAGE)  # from a command without heavy imports
    from operant.cli.errors import explain, report_bug

    explained = explain(error, arguments)
    if explained is None:
        return _complain(f"unexpected error: {report_bug(error)}", FAILURE)
    message, status = explained
    return _complain(f"error: {message}", status)


def _run(arguments: list[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name == "help" and rest:
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("-h", "--help", "help"):
        print(_help())
        return OK
    if name == "--version":
        print(f"operant {__version__}")
        return OK
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        raise ValueError(f"there is no command {name!r}; {hint}")
    module, _, function = COMMANDS[name].function.partition(".")
    command = getattr(importlib.import_module(f"operant.cli.{module}"), function)
    if "--json" not in rest or {"-h", "--help"} & set(rest):
        return command(rest)
    from operant.cli.output import only_json

    with only_json():
        return command(rest)


def _help() -> str:
    calls = {f"{name} {command.usage}": command.summary for name, command in COMMANDS.items()}
    from operant.cli.output import two_columns, wrapped

    return "\n".join(
        [
            wrapped(f"operant {__version__}: reinforcement learning in one library"),
            "",
            "usage: operant COMMAND ...",
            "",
            two_columns(list(calls.items()), indent="  "),
            "",
            wrapped("`operant COMMAND --help` lists the options of a command. To start:"),
            "  operant tour",
            "  operant train ppo CartPole-v1",
        ]
    )


def _complain(message: str, status: int) -> int:
    print(f"operant: {' '.join(message.split())}", file=sys.stderr)
    return status
