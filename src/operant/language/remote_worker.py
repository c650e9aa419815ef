"""Sandbox worker on a remote host: `RemoteWorker`."""

import contextlib
import logging
from typing import Any

from operant.hosts import Actor, Host

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Maximum number of consecutive replacements of a lost actor; then training fails."""

STARTING = 120.0
"""Time limit in seconds for starting an actor."""

CLOSING = 5.0
"""Time limit in seconds for ending the process of an actor."""


class RemoteWorker:
    """An actor with a worker process on the same node.

    The worker handles functions that hang, die or fail, as on this machine. If the actor is lost, a new one repeats the
    call.

    Args:
        host: host of the actor.
        kind: class of the worker.
        *args: arguments of its constructor: target, memory limit, and time limits of a call and of loading the
            function.
    """

    def __init__(self, host: Host, kind: type, *args: Any) -> None:
        self._host, self._kind, self._args = host, kind, args
        self._limit = args[-2] + args[-1] + STARTING
        self._actor: Actor | None = None

    def ready(self) -> None:
        """Ensure that the process is running.

        Raises:
            SandboxError: the function cannot be loaded.
            ConnectionError: the actor was lost more than `ATTEMPTS` times in a row.
        """
        self._call("ready")

    def attempt(self, call: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Send a call and return its reply, or a description of the failure (see `ready`)."""
        return self._call("attempt", call)

    def _call(self, method: str, *args: Any) -> Any:
        losses: list[Exception] = []
        while len(losses) <= ATTEMPTS:
            if self._actor is None:
                self._actor = self._host.actor(self._kind, *self._args)
            try:
                return self._actor.call(method, *args).result(self._limit)
            except (ConnectionError, TimeoutError) as error:
                logger.warning("The actor of %s is lost: %s. A new one repeats the call", self._args[0], error)
                losses.append(error)
                self._actor.kill()
                self._actor = None
        raise ConnectionError(
            f"the actor of {self._args[0]} was replaced {ATTEMPTS} times and lost each time: {losses[-1]}. "
            "`operant resume` continues from the last checkpoint"
        ) from losses[-1]

    def kill(self) -> None:
        """Kill the process and the actor. Repeated calls are safe."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                actor.call("kill").result(CLOSING)
            actor.kill()
