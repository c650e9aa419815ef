"""The process of a cell of a sweep, on whatever node: `CellActor` there, `RemoteCell` here.

`python -m operant.scale.cell ARGUMENTS` runs `operant ARGUMENTS`, and ends immediately when its parent has ended:
another process may then continue the run, on any node. With `--parent PID` before the arguments, which only the cells
on the machine of the sweep have, it saves its state first.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from operant.hosts import Host
from operant.runtime.signals import EXIT_REQUEUE

PAUSE = 0.2
"""Seconds between two checks whether the parent is alive."""

PARENT = "--parent"
"""First argument of a cell that saves its state when the process has ended whose id follows."""

_SHARED = ("OMP_NUM_THREADS", "PYTHONPATH")
"""Environment variables of this process that hold for a cell, which Ray would choose."""


class CellActor:
    """Runs a command in a process of the node that it is on.

    Args:
        words: the arguments after `operant`.
        folder: working folder.
        log: file for the output, which is appended.
        environment: variables with their values; None: unset.
    """

    def __init__(self, words: Sequence[str], folder: str, log: str, environment: Mapping[str, str | None]) -> None:
        variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        command = [sys.executable, "-m", "operant.scale.cell", *words]
        with Path(log).open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def begun(self) -> bool:
        """Return true: the process has started."""
        return True

    def wait(self) -> int:
        """Wait for the process and return its exit status."""
        return self._process.wait()

    def terminate(self) -> None:
        """Let the process save its state and end."""
        self._process.terminate()


class RemoteCell:
    """A cell on a host, used like a `subprocess.Popen`.

    A lost actor counts as status 75: the cell is to be continued.
    """

    def __init__(self, host: Host, words: Sequence[str], log: Path) -> None:
        environment = {name: os.environ.get(name) for name in _SHARED}
        folder = str(Path.cwd())
        self._actor = host.actor(CellActor, list(words), folder, str(log.resolve()), environment, threads=2)
        self._begun = self._actor.call("begun")
        self._status = self._actor.call("wait")

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self.wait() if self._status.done() else None

    def wait(self) -> int:
        """Wait for the process and return its exit status."""
        try:
            return self._status.result()
        except ConnectionError:
            return EXIT_REQUEUE
        finally:
            self._actor.kill()

    def terminate(self) -> None:
        """Let the process save its state and end; one that has not started never does."""
        if self._begun.done():
            self._actor.call("terminate")
        else:
            self._actor.kill()


def _end_with(parent: int, *, save: bool) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE)
    if save:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        os._exit(EXIT_REQUEUE)  # the last checkpoint stays


if __name__ == "__main__":
    save = sys.argv[1] == PARENT
    parent = int(sys.argv[2]) if save else os.getppid()
    sys.argv = ["operant", *sys.argv[3 if save else 1 :]]
    threading.Thread(target=_end_with, args=(parent,), kwargs={"save": save}, daemon=True).start()
    runpy.run_module("operant", run_name="__main__")
