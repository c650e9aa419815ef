"""Whether other processes can make the environments of a task: `require_makeable`, before anything is written."""

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
    """Make environments in another process, and check that it works.

    A class of a script, or a function, is registered by the process that runs it. Another one knows it only if it
    registers it, too, when it imports the script.

    Args:
        task: what the message calls it.
        make_env: makes environments from a seed.
        deadline: seconds that it may take.
        algorithm: what needs that.
        instead: what does not.
        method: how the process starts. Default: as workers do.

    Raises:
        ValueError: it failed; the message says why.
    """
    context: Any = multiprocessing.get_context(method or start_method())
    ours, theirs = context.Pipe()
    process = context.Process(target=_make, args=(make_env, theirs), daemon=True)
    process.start()
    theirs.close()
    found = "it did not answer in time"
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
            f"{task} cannot be made in a process of its own, which {algorithm} needs: {found}. Put its class in a "
            f"module, and register it as 'module:Class'; or use {instead}, in this process"
        )


def _make(make_env: Callable[[int], BatchEnv], pipe: Connection) -> None:
    found = ""
    try:
        make_env(0).close()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    with suppress(OSError):  # of a parent that has given up
        pipe.send(found)
