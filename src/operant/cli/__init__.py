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
    "show": Command("showing.show", "RUN", "show what a run is, and the table that a seed has learned"),
    "watch": Command("watching.watch", "RUN", "film a trained policy, or show it in a window"),
    "chat": Command("chatting.chat", "RUN|MODEL", "talk to a language model"),
    "export": Command("exporting.export", "RUN FOLDER", "write a trained language model in Hugging Face's format"),
    "label": Command("labelling.label", "RUN", "compare what a language model has sampled, to teach it preferences"),
    "list": Command("listing.list_algorithms", "[ALGORITHM]", "name the algorithms, or tell all about one"),
    "doctor": Command("doctor.doctor", "", "report versions, devices, threads and what is missing"),
    "tour": Command("tour.tour", "", "train, evaluate and show a small policy, with explanations"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: what follows `operant`. Default: the arguments of this process.

    Returns:
        0; 1 after a failure; 2 after wrong use; 75 if training was interrupted and can be resumed; 130 after Ctrl-C.
        A failure that operant does not know is raised.
    """
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except SystemExit as exit_:  # the parser has printed a help text or what is wrong
        return exit_.code if isinstance(exit_.code, int) else OK
    except KeyboardInterrupt:
        return _complain("stopped", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        known = _status(error)
        if known is None or os.environ.get("OPERANT_TRACEBACK"):
            raise
        return _complain(f"error: {error}", known)
    return status


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
    width = max(map(len, calls))
    lines = [f"  {call:{width}}  {summary}" for call, summary in calls.items()]
    return "\n".join(
        [
            f"operant {__version__}: reinforcement learning in one library",
            "",
            "usage: operant COMMAND ...",
            "",
            *lines,
            "",
            "`operant COMMAND --help` lists the options of a command. To begin with:",
            "  operant tour",
            "  operant train ppo CartPole-v1",
        ]
    )


def _status(error: Exception) -> int | None:
    """Return the exit status of an error whose message says all there is to say, None for any other."""
    if isinstance(error, ValueError | ModuleNotFoundError | FileNotFoundError):
        return USAGE
    if isinstance(error, OSError):
        return FAILURE
    from operant.envs import EndlessError, EnvError, RestoreError, WorkerError
    from operant.runtime.checkpoints import CheckpointError, NonFiniteError
    from operant.runtime.run import RunError

    if isinstance(error, RunError):
        return USAGE
    failures = CheckpointError | EndlessError | EnvError | NonFiniteError | RestoreError | WorkerError
    return FAILURE if isinstance(error, failures) else None


def _complain(message: str, status: int) -> int:
    print(f"operant: {' '.join(message.split())}", file=sys.stderr)
    return status
