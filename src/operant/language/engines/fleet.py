"""Sampling from several vLLM servers in parallel: `Fleet`.

All servers have the same weights, and each takes the next prompt when it has capacity. Every prompt has a seed, so the
samples depend on the server only through its floating-point arithmetic. Prompts of failed servers go to the others.
"""

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from operant.language.engines import handover
from operant.language.engines.connection import ServerError
from operant.language.engines.protocol import Completion, Sampling
from operant.language.engines.vllm import Request, VLLMEngine, requests_of
from operant.language.models import LanguageModel


class Fleet:
    """Engine that samples from several servers with the weights of a model.

    Servers that cannot be reached or return invalid responses are skipped with a warning until the next update, when
    they are tried again. A server with other weights than the model's stops training, as with a single server.

    Args:
        addresses: URLs of the servers, as in `VLLMEngine`.
        model: model to sample from.
        options: options of each `VLLMEngine`. All servers must see `folder` under the same path.

    Attributes:
        engines: one engine per server.
        version: version of the weights; see `Engine`.

    Raises:
        ValueError: an address is invalid or duplicate.
    """

    def __init__(self, addresses: Sequence[str], model: LanguageModel, **options: Any):
        self.engines = [VLLMEngine(address, model, **options) for address in addresses]
        distinct = {engine.address for engine in self.engines}
        if not addresses or len(distinct) < len(addresses):
            raise ValueError(f"addresses must be one or more different URLs, got {', '.join(addresses) or 'none'}")
        self.model, self.version, self._parent = model, 0, options.get("folder")
        self._connected = False
        self._lost: set[VLLMEngine] = set()

    @property
    def running(self) -> list[VLLMEngine]:
        """Engines of servers that have not failed since the last update."""
        return [engine for engine in self.engines if engine not in self._lost]

    def reach(self) -> None:
        """Check that all servers are running, without sending weights.

        Raises:
            ServerError: a server is unreachable, or not a vLLM server; the message explains how to start one.
        """
        for engine in self.engines:
            engine.reach()

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Sample completions; see `Engine`.

        Raises:
            ValueError: see `VLLMEngine.generate`.
            ServerError: all servers have failed.
        """
        requests = requests_of(prompts, count, generator)
        if not requests:
            return []
        self._connect()
        longest = max(map(len, prompts))
        self._each(lambda engine: engine.prepare(sampling, longest))
        found: dict[int, list[Completion]] = {}
        while len(found) < len(requests):
            waiting = deque((i, request) for i, request in enumerate(requests) if i not in found)
            self._divide(waiting, found, count, sampling)
        return [found[i] for i in range(len(requests))]

    def send_weights(self) -> None:
        """Send the current weights to all servers that do not have them; see `AheadEngine`.

        Raises:
            ValueError: a server does not return the model's log-probabilities.
            ServerError: all servers have failed.
        """
        self._connect()
        self._each(lambda engine: engine.send_weights())

    def update(self, model: LanguageModel) -> None:
        """Send the current weights of `model` to all servers, including failed ones.

        Raises:
            ValueError: a server does not return the model's log-probabilities after the update.
            ServerError: no server accepts the weights.
        """
        self.model, self.version = model, self.version + 1
        failed, self._lost = self._lost, set()
        if self._connected:
            self._send(lambda engine, folder: self._refresh(engine, folder, again=engine in failed))

    def close(self) -> None:
        """Remove the folders of weights. The servers keep running."""
        for engine in self.engines:
            engine.close()

    def _connect(self) -> None:
        """Connect all servers at the start, and again if all have failed."""
        if not self._connected or not self.running:
            self._lost.clear()
            self._send(lambda engine, folder: engine.connect(folder))
            self._connected = True

    def _refresh(self, engine: VLLMEngine, folder: Path, *, again: bool) -> None:
        """Send the weights of a folder to a server, which may have been restarted after a failure."""
        if again:
            engine.close()
        engine.update(self.model, folder)
        if again:
            engine.connect(folder)

    def _send(self, call: Callable[[VLLMEngine, Path], None]) -> None:
        """Write the weights once, and make every server load them."""
        with (
            handover.folder_of_weights(self._parent) as parent,
            handover.written(self.model, Path(parent) / f"version-{self.version}") as folder,
        ):
            self._each(lambda engine: call(engine, folder))

    def _each(self, call: Callable[[VLLMEngine], None]) -> None:
        """Call a function for all running servers in parallel."""
        running = self.running
        with ThreadPoolExecutor(len(running)) as pool:
            list(pool.map(partial(self._try, call=call), running))

    def _try(self, engine: VLLMEngine, call: Callable[[VLLMEngine], None]) -> None:
        """Call a function for a server, and skip the server from then on if it fails."""
        try:
            call(engine)
        except ServerError as error:
            known = engine in self._lost
            self._lost.add(engine)
            if not self.running:
                raise
            if known:  # by another of its requests
                return
            warnings.warn(
                f"the server {engine.address} is skipped until the next update, its prompts go to "
                f"{len(self.running)} others: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _divide(
        self, waiting: deque[tuple[int, Request]], found: dict[int, list[Completion]], count: int, sampling: Sampling
    ) -> None:
        """Distribute waiting prompts to the running servers, as many at a time as each has connections."""

        def complete(engine: VLLMEngine, index: int, request: Request) -> None:
            answers = engine.complete(request, count, sampling)
            found[index] = [answer._replace(version=self.version) for answer in answers]

        def work(engine: VLLMEngine) -> None:
            while engine not in self._lost:
                try:
                    index, request = waiting.popleft()
                except IndexError:
                    return
                self._try(engine, partial(complete, index=index, request=request))

        share = -(-len(waiting) // len(self.running))
        workers = [engine for engine in self.running for _ in range(min(engine.connections, share))]
        with ThreadPoolExecutor(len(workers)) as pool:
            try:
                list(pool.map(work, workers))
            finally:
                waiting.clear()
