"""A worker of a sandbox on a host: `RemoteWorker`."""

import contextlib
import logging
from typing import Any

from operant.hosts import Actor, Host

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Replacements of an actor that is lost again and again; then training ends."""

STARTING = 120.0
"""Seconds that an actor may take to start."""

CLOSING = 5.0
"""Seconds that an actor has to end its process."""


class RemoteWorker:
    """An actor with a worker process, next to it on its node.

    A function that hangs, dies or fails is the worker's business, as on this machine. A lost actor is no error of the
    function: another one repeats the call.

    Args:
        host: of the actor.
        kind: class of the worker.
        *args: of its constructor: the target, its memory, and the time limits of a call and of loading the function.
    """

    def __init__(self, host: Host, kind: type, *args: Any) -> None:
        self._host, self._kind, self._args = host, kind, args
        self._limit = args[-2] + args[-1] + STARTING
        self._actor: Actor | None = None

    def ready(self) -> None:
        """Ensure that the process is running.

        Raises:
            SandboxError: the function cannot be loaded.
            ConnectionError: actors are lost again and again.
        """
        self._call("ready")

    def attempt(self, call: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Send a call and return its answer, or the failure (see `ready`)."""
        return self._call("attempt", call)

    def _call(self, method: str, *args: Any) -> Any:
        losses: list[Exception] = []
        while len(losses) <= ATTEMPTS:
            if self._actor is None:
                self._actor = self._host.actor(self._kind, *self._args)
            try:
                return self._actor.call(method, *args).result(self._limit)
            except (ConnectionError, TimeoutError) as error:
                logger.warning("The actor of %s is lost: %s. Another one repeats the call", self._args[0], error)
                losses.append(error)
                self._actor.kill()
                self._actor = None
        raise ConnectionError(
            f"the actor of {self._args[0]} was replaced {ATTEMPTS} times and lost again: {losses[-1]}. "
            "`operant resume` continues from the last checkpoint"
        ) from losses[-1]

    def kill(self) -> None:
        """End the process and the actor. Repeated calls are safe."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                actor.call("kill").result(CLOSING)
            actor.kill()
