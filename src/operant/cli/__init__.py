"""The command line: parses, calls `operant.api`, prints.

Nothing here imports more than a command needs: `operant --help` and `operant list` answer at once.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from operant import __version__

OK, FAILURE, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


@dataclass(frozen=True)
class Command:
    """A word after `operant`.

    Attributes:
        function: `module.function` in this package; it takes the arguments that follow and returns an exit status.
        usage: what follows the word.
        summary: what it does.
    """

    function: str
    usage: str
    summary: str


COMMANDS = {
    "train": Command("training.train", "ALGORITHM TASK", "train an algorithm on a task, several seeds side by side"),
    "solve": Command("solving.solve", "[TASK]", "solve a known model exactly: values, a policy, certified bounds"),
    "resume": Command("training.resume", "RUN", "go on with an interrupted run, exactly"),
    "evaluate": Command("evaluating.evaluate", "RUN", "score the policies of a run greedily over whole episodes"),
    "compare": Command("comparing.compare", "RUN...", "put runs side by side: scores, intervals, learning curves"),
    "tune": Command("tuning.tune", "ALGORITHM TASK", "search for hyperparameters, and score the best on fresh seeds"),
    "sweep": Command("sweeping.sweep", "GRID.toml", "train every cell of a grid, several runs at a time"),
    "identify": Command(
        "identifying.identify", "TASK FILE.npz", "find a simulator's parameters in recorded trajectories"
    ),
    "runs": Command("runs.runs", "[WHAT]", "list the runs here; show, rename, delete, merge or clean some of them"),
    "show": Command("showing.show", "RUN", "show what a run is, and the table that a seed has learned"),
    "watch": Command("watching.watch", "RUN", "film a trained policy, or show it in a window"),
    "play": Command("playing.play", "RUN", "play a board game against a trained policy"),
    "chat": Command("chatting.chat", "RUN|MODEL", "talk to a language model"),
    "export": Command("exporting.export", "RUN FOLDER", "write a trained policy or language model for other programs"),
    "label": Command("labeling.label", "RUN", "compare what a language model has sampled, to teach it preferences"),
    "serve": Command("serving.serve", "", "open the web app: the playground, live runs, labels, the map"),
    "list": Command("listing.list_algorithms", "[ALGORITHM]", "name the algorithms, or tell all about one"),
    "copy": Command("copying.copy", "ALGORITHM FILE.py", "write the file of an algorithm, to be changed and run"),
    "doctor": Command("doctor.doctor", "", "report versions, devices, threads and what is missing"),
    "tour": Command("tour.tour", "", "train, evaluate and show a small policy, with explanations"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: the words after `operant`. Default: the arguments of this process. With `--debug` among them, or with
            OPERANT_DEBUG in the environment, errors are raised.

    Returns:
        0; 1 after a failure; 2 after wrong use; 75 if training was interrupted and can be resumed; 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or any(map(os.environ.get, ("OPERANT_DEBUG", "OPERANT_TRACEBACK")))
    arguments = [word for word in arguments if word != "--debug"]
    try:
        status = _parsed(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("stopped", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        return _fail(error, arguments)
    return status


def _parsed(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except SystemExit as exit_:  # the parser has printed a help text or an error
        return exit_.code if isinstance(exit_.code, int) else OK


def _fail(error: Exception, arguments: Sequence[str]) -> int:
    """Print an error in one line and return the exit status."""
    if isinstance(error, ValueError) and not hasattr(error, "errno") and "operant.runtime.run" not in sys.modules:
        return _complain(f"error: {error}", USAGE)  # of a command that imports nothing heavy
    from operant.cli.errors import explain, report_bug

    known = explain(error, arguments)
    if known is None:
        return _complain(f"unexpected error: {report_bug(error)}", FAILURE)
    message, status = known
    return _complain(f"error: {message}", status)


def _run(arguments: list[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help", "help"):
        print(_help())
        return OK
    if name == "--version":
        print(f"operant {__version__}")
        return OK
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(COMMANDS)}"
        raise ValueError(f"there is no command {name!r}; {hint}")
    module, _, function = COMMANDS[name].function.partition(".")
    return getattr(importlib.import_module(f"operant.cli.{module}"), function)(rest)


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
            wrapped("`operant COMMAND --help` lists the options of a command. To begin with:"),
            "  operant tour",
            "  operant train ppo CartPole-v1",
        ]
    )


def _complain(message: str, status: int) -> int:
    print(f"operant: {' '.join(message.split())}", file=sys.stderr)
    return status
