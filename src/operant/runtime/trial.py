"""Test whether another process can create the environments of a task, before anything is written."""

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from operant.envs import BatchEnv
from operant.runtime.local_hosts import start_method


def require_makeable(
    task: str,
    make_env: Callable[[int], BatchEnv],
    *,
    deadline: float,
    algorithm: str,
    instead: str,
    method: str | None = None,
) -> None:
    """Check that another process can create the environments of a task.

    A class or function of a script is registered by the process that runs the script. Another process knows it only if
    importing the script registers it, too.

    Args:
        task: name of the task for the message.
        make_env: function that creates environments from a seed.
        deadline: time limit in seconds.
        algorithm: name of the algorithm that needs another process, for the message.
        instead: alternative in the same process, for the message.
        method: start method of the process. Default: that of workers.

    Raises:
        ValueError: creating the environments failed; the message contains the reason.
    """
    context: Any = multiprocessing.get_context(method or start_method())
    ours, theirs = context.Pipe()
    process = context.Process(target=_make, args=(make_env, theirs), daemon=True)
    process.start()
    theirs.close()
    found = "it did not respond in time"
    try:
        if ours.poll(deadline):
            found = ours.recv()
    except EOFError:
        found = "the process died"
    finally:
        process.kill()
        process.join()
        ours.close()
    if found:
        raise ValueError(
            f"{task} cannot be created in another process, which {algorithm} needs: {found}. Put its class in a "
            f"module, and register it as 'module:Class'; or use {instead}, which runs in this process"
        )


def _make(make_env: Callable[[int], BatchEnv], pipe: Connection) -> None:
    found = ""
    try:
        make_env(0).close()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    with suppress(OSError):  # the parent has closed the pipe
        pipe.send(found)
