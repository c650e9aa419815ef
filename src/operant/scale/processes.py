"""Processes that train together, over `torch.distributed`: `joined`, `follow`.

The process of rank 0 leads: it runs the complete `operant train` command, and only it writes files. Before its learner
takes a step, saves or loads, it broadcasts the method's name to the followers, whose learners make the same call
(`Processes.lead`). All processes exchange the results of shards, as tensors or encoded as in checkpoints.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from operant.build import reassemble
from operant.runtime.encoding import flatten, unflatten
from operant.runtime.learner import Learner
from operant.runtime.run import Run
from operant.runtime.shards import share, started, within
from operant.runtime.signals import Interruption
from operant.scale.heartbeats import Heartbeats
from operant.state import State, clone

LONGEST = timedelta(days=7)
"""Timeout of a call to a process that is alive but busy, for example evaluating. Dead processes are detected
immediately, unresponsive ones by `Heartbeats`."""

LAUNCHED = "operant"
"""First part of torchrun's run id for processes started by `launch`; the second part is the id of its process."""

PAUSE = 0.5
"""Seconds between two checks of the launcher."""

END = "end"
_LOST = "gloo", "NCCL"
"""Words in error messages of a sharded model that identify errors of communication."""
_NO_MEMORY = "out of memory", "allocate memory"
"""Words in error messages of processes that ran out of memory, also within NCCL, while the others are alive."""

# PyTorch has no types for these.
_all_gather = cast(Callable[[list[Tensor], Tensor], None], dist.all_gather)  # pyright: ignore[reportUnknownMemberType]
_all_reduce = cast(Callable[..., None], dist.all_reduce)  # pyright: ignore[reportUnknownMemberType]
_barrier = cast(Callable[[], None], dist.barrier)  # pyright: ignore[reportUnknownMemberType]


class LostError(ConnectionError):
    """Another process of the group has ended."""


class Processes:
    """Process group of this process, initialized from torchrun's environment variables.

    Args:
        sharded: whether language models are sharded among the processes.

    Attributes:
        rank: index of this process; 0 is the leading process.
        size: number of processes.
        sharded: whether language models are sharded among the processes.
        models: sharded models of this process.
    """

    def __init__(self, *, sharded: bool = False) -> None:
        cuda = sharded and torch.cuda.is_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=LONGEST)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.sharded, self.models = sharded, list[Any]()
        self._meshes = {kind: init_device_mesh(kind, (self.size,)) for kind in ("cpu", "cuda")[: sharded + cuda]}
        self._calling = self._leads = False

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states of all `count` shards in order, given those of this process."""
        own = encoded({"states": list(states)})
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        _communicate(_all_gather, sizes, torch.tensor([len(own)]))
        longest = int(torch.cat(sizes).max())
        padded = torch.cat((own, own.new_zeros(longest - len(own))))
        every = [torch.empty_like(padded) for _ in sizes]
        _communicate(_all_gather, every, padded)
        pairs = zip(every, sizes, strict=True)
        return [state for blob, size in pairs for state in decoded(blob[: int(size)])["states"]]

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors `[K, ...]` of all `count` shards in order, given those of this process."""
        counts = [len(share(count, rank, self.size)) for rank in range(self.size)]
        most = max(counts)
        if len(tensors) < most:
            tensors = torch.cat((tensors, tensors.new_zeros(most - len(tensors), *tensors.shape[1:])))
        every = [torch.empty_like(tensors) for _ in counts]
        _communicate(_all_gather, every, tensors)
        return torch.cat([each[:number] for each, number in zip(every, counts, strict=True)])

    def mesh(self, kind: str) -> DeviceMesh:
        """Return the device mesh of the processes, for a device type such as `cuda`."""
        return self._meshes[kind]

    def together(self) -> bool:
        """Whether all processes currently make the same call."""
        return self._calling or not self._leads

    def announce(self, model: int, method: str) -> None:
        """Make the followers call a method of a model, unless all processes make the same call anyway."""
        if not self.together():
            self.send({"call": method, "model": model})

    def busy(self, model: int = -1) -> int:
        """Return the largest number of a model that a process currently passes tokens through; -1: none."""
        number = torch.tensor([model])
        _communicate(_all_reduce, number, dist.ReduceOp.MAX)
        return int(number)

    def add_up(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        _communicate(_all_reduce, tensor)

    def send(self, state: State) -> None:
        """Broadcast a message to the followers."""
        message = encoded(state)
        _communicate(dist.broadcast, torch.tensor([len(message)]), 0)
        _communicate(dist.broadcast, message, 0)

    def receive(self) -> State:
        """Return the next message of the leading process."""
        size = torch.zeros(1, dtype=torch.int64)
        _communicate(dist.broadcast, size, 0)
        message = torch.empty(int(size), dtype=torch.uint8)
        _communicate(dist.broadcast, message, 0)
        return decoded(message)

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Make the followers repeat the calls of a learner (see `operant.runtime.shards.Group`)."""
        self.send({"run": run, "budget": budget})
        self._leads = True
        for name in ("iterate", "state_dict", "load_state_dict"):
            setattr(learner, name, self._announced(name, getattr(learner, name)))
        if not self.sharded:
            learner.load_state_dict(learner.state_dict())  # weights may be initialized from another run

    def _announced(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            if self._calling:  # by another method, which the followers run as well
                return method(*args)
            marked, tensors = self._divided(list(args))
            self.send({"call": name, "args": marked})
            self._calling = True
            try:
                return self._together(method, marked if self.sharded else args, tensors)
            finally:
                self._calling = False

        return call

    def _divided(self, args: list[Any]) -> tuple[list[Any], list[Tensor]]:
        """Return the arguments of a call in the form sent to followers, and the tensors that are divided among all."""
        if not self.sharded:
            return args, []
        from operant.scale.sharded_states import divide  # noqa: PLC0415 - it needs the language extra

        return divide(args, self.models)

    def _together(self, method: Callable[..., Any], args: Sequence[Any], tensors: Sequence[Tensor] = ()) -> Any:
        """Call a method at the same time as all other processes."""
        if not self.sharded:
            return method(*args)
        from operant.scale.sharded_states import collect, receive  # noqa: PLC0415 - it needs the language extra

        if not self.models:
            return method(*args)

        def work() -> Any:
            mesh = self.mesh(self.models[0].device.type)
            return collect(method(*receive(args, tensors, mesh)), self)

        return _call(work)

    def follow(self, learner: Learner) -> None:
        """Call the methods named by the leading process, until it ends."""
        while (name := (message := self.receive())["call"]) != END:
            if "model" in message:
                _call(getattr(self.models[message["model"]], name))
            else:
                self._together(getattr(learner, name), message["args"])

    def close(self) -> None:
        """Leave the group. The leading process first ends the loops of its followers."""
        if self.rank == 0:
            self.send({"call": END, "args": []})
        _communicate(_barrier)  # so that no connection closes while another process reads from it
        dist.destroy_process_group()

    def break_off(self) -> None:
        """Leave the group after an error. The other processes detect that the connections have closed."""
        if dist.is_initialized():
            cast(Any, dist.group.WORLD).abort()  # cancels operations in progress
            dist.destroy_process_group()


@contextmanager
def joined(*, sharded: bool = False) -> Generator[Processes | None]:
    """Join the process group that torchrun has started, for a `with` block; None if this process runs alone.

    Args:
        sharded: whether language models are sharded among the processes.

    Raises:
        LostError: another process has ended, and this one leads.
    """
    if not started():
        yield None
        return
    with _watched() as complete:
        processes = Processes(sharded=sharded)
        complete(processes)
        with within(processes):
            try:
                with _explained():  # also errors in calls of the leading process alone, with sharded models
                    yield processes
                processes.close()
            except LostError:
                if processes.rank == 0:  # one message suffices
                    raise
            finally:
                processes.break_off()


@contextmanager
def _watched() -> Generator[Callable[[Processes], None]]:
    """Watch the launcher and the other processes in a thread, and end this process when they are lost.

    If the launcher has ended, even if it was killed, before the yielded function is called with the complete group,
    this process exits: it would wait for the others for days and ignore signals. Afterwards it sends itself SIGTERM:
    the leading process saves, and ends its followers. If another process gives no sign of life (`Heartbeats`), this one
    exits, since it would wait for it for days.
    """
    words = os.environ.get("TORCHELASTIC_RUN_ID", "").split("-")
    launcher = int(words[1]) if words[0] == LAUNCHED else os.getppid()
    others, ended = list[Heartbeats](), threading.Event()

    def watch() -> None:
        while not ended.wait(PAUSE):
            if os.name == "posix" and os.getppid() != launcher:
                if not others:
                    os._exit(1)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            for heartbeats in others:
                heartbeats.require(PAUSE)

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield lambda processes: others.append(Heartbeats(processes.rank, processes.size))
    finally:
        ended.set()
        thread.join()
        for heartbeats in others:
            heartbeats.close()


def leave(status: int) -> NoReturn:
    """End this process with an exit status, after it has left its group.

    The interpreter is not finalized: threads of torch.distributed that need it then, which is rare and only after
    FSDP2, abort the process ("terminate called without an active exception") after all its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def follow(processes: Processes) -> None:
    """Build the learner of the leading process from its run folder, and repeat its calls. The leader handles signals.

    Raises:
        LostError: the leading process has ended unexpectedly.
    """
    with Interruption():
        message = processes.receive()
        if message.get("call") == END:
            return
        folder = Run.open(message["run"], {})
        folder.set_budget(message["budget"])
        experiment = reassemble(folder, remote_code=True, accept_changes=True)  # as the leading process has
        with closing(experiment):
            processes.follow(experiment.learner)


def encoded(state: State) -> Tensor:
    """Return the bytes of a state; inverse of `decoded`."""
    structure, tensors = flatten(clone(state))
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"structure": json.dumps(structure)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def decoded(message: Tensor) -> State:
    """Return the state of the bytes of `encoded`."""
    data = message.numpy().tobytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return unflatten(json.loads(header["__metadata__"]["structure"]), load(data))


def _call(method: Callable[..., Any], *args: Any) -> Any:
    """Call a method in which sharded models communicate."""
    with _explained():
        return method(*args)


@contextmanager
def _explained() -> Generator[None]:
    """Raise LostError if the communication of sharded models fails."""
    try:
        yield
    except RuntimeError as error:
        communicating = isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST)
        if communicating and not _no_memory(error):
            raise LostError(_lost(error)) from error
        raise


def _communicate(operation: Callable[..., Any], *args: Any) -> None:
    """Call an operation of torch.distributed; raise LostError if it fails for another reason than memory."""
    try:
        operation(*args)
    except RuntimeError as error:
        if _no_memory(error):
            raise
        raise LostError(_lost(error)) from error


def _no_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def _lost(error: Exception) -> str:
    return (
        f"another process of the run has ended ({str(error).splitlines()[0]:.120}): first fix the error that it "
        "reported, if any; `operant resume RUN` continues from its latest checkpoint, on any number of processes"
    )
