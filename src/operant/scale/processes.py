"""Processes that train together, over `torch.distributed`: `joined`, `follow`.

The first process leads: it runs the whole `operant train`, and alone writes. Before its learner steps, saves or loads,
it sends the method's name to the others, whose learners do the same (`Processes.lead`). All processes exchange the
results of shards; as tensors, or encoded as in checkpoints.
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
from operant.runtime.shards import share, within
from operant.runtime.signals import Interruption
from operant.state import State, clone

LONGEST = timedelta(days=7)
"""Timeout for a living process, such as one that evaluates. A dead one is detected immediately."""

LAUNCHED = "operant"
"""First part of torchrun's name for processes that `launch` has started; the second one is its own process."""

PAUSE = 0.5
"""Seconds between two looks at the launcher."""

END = "end"
_LOST = "gloo", "NCCL"
"""Words in errors of a sharded model that are about other processes."""

# PyTorch has no types for these.
_all_gather = cast(Callable[[list[Tensor], Tensor], None], dist.all_gather)  # pyright: ignore[reportUnknownMemberType]
_all_reduce = cast(Callable[[Tensor], None], dist.all_reduce)  # pyright: ignore[reportUnknownMemberType]
_barrier = cast(Callable[[], None], dist.barrier)  # pyright: ignore[reportUnknownMemberType]


class LostError(ConnectionError):
    """Another process of the group has ended."""


class Processes:
    """The group of this process, from torchrun's environment variables.

    Args:
        sharded: whether language models are sharded among the processes.

    Attributes:
        rank: index of this process; 0 leads.
        size: number of processes.
        sharded: as given.
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
        _talk(_all_gather, sizes, torch.tensor([len(own)]))
        longest = int(torch.cat(sizes).max())
        padded = torch.cat((own, own.new_zeros(longest - len(own))))
        every = [torch.empty_like(padded) for _ in sizes]
        _talk(_all_gather, every, padded)
        pairs = zip(every, sizes, strict=True)
        return [state for blob, size in pairs for state in decoded(blob[: int(size)])["states"]]

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors `[K, ...]` of all `count` shards in order, given those of this process."""
        counts = [len(share(count, rank, self.size)) for rank in range(self.size)]
        most = max(counts)
        if len(tensors) < most:
            tensors = torch.cat((tensors, tensors.new_zeros(most - len(tensors), *tensors.shape[1:])))
        every = [torch.empty_like(tensors) for _ in counts]
        _talk(_all_gather, every, tensors)
        return torch.cat([each[:number] for each, number in zip(every, counts, strict=True)])

    def mesh(self, kind: str) -> DeviceMesh:
        """Return the devices of the processes, of a kind such as `cuda`."""
        return self._meshes[kind]

    def together(self) -> bool:
        """Whether all processes make the same call."""
        return self._calling or not self._leads

    def announce(self, model: int, method: str) -> None:
        """Let the others call a method of a model, unless all processes make the same call already."""
        if not self.together():
            self.tell({"call": method, "model": model})

    def some(self, busy: bool) -> bool:
        """Return whether any process is busy."""
        count = torch.tensor([int(busy)])
        self.add_up(count)
        return bool(count)

    def add_up(self, tensor: Tensor) -> None:
        """Add a tensor of all processes, in place."""
        _talk(_all_reduce, tensor)

    def tell(self, state: State) -> None:
        """Send a message to the followers."""
        message = encoded(state)
        _talk(dist.broadcast, torch.tensor([len(message)]), 0)
        _talk(dist.broadcast, message, 0)

    def hear(self) -> State:
        """Return the next message of the leading process."""
        size = torch.zeros(1, dtype=torch.int64)
        _talk(dist.broadcast, size, 0)
        message = torch.empty(int(size), dtype=torch.uint8)
        _talk(dist.broadcast, message, 0)
        return decoded(message)

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Let the others follow (see `operant.runtime.shards.Group`)."""
        self.tell({"run": run, "budget": budget})
        self._leads = True
        for name in ("iterate", "state_dict", "load_state_dict"):
            setattr(learner, name, self._announced(name, getattr(learner, name)))
        if not self.sharded:
            learner.load_state_dict(learner.state_dict())  # weights may be initialized from another run

    def _announced(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            if self._calling:  # some methods call another, which the others then do as well
                return method(*args)
            marked, tensors = self._divided(list(args))
            self.tell({"call": name, "args": marked})
            self._calling = True
            try:
                return self._together(method, marked if self.sharded else args, tensors)
            finally:
                self._calling = False

        return call

    def _divided(self, args: list[Any]) -> tuple[list[Any], list[Tensor]]:
        """Return the arguments of a call as the others get them, and the tensors that are divided among all."""
        if not self.sharded:
            return args, []
        from operant.scale.sharded_states import divide  # noqa: PLC0415 - it needs the language extra

        return divide(args, self.models)

    def _together(self, method: Callable[..., Any], args: Sequence[Any], tensors: Sequence[Tensor] = ()) -> Any:
        """Make a call that all processes make."""
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
        """Run the methods that the leading process names, until it ends."""
        while (name := (told := self.hear())["call"]) != END:
            if "model" in told:
                _call(getattr(self.models[told["model"]], name))
            else:
                self._together(getattr(learner, name), told["args"])

    def close(self) -> None:
        """Leave the group; the leading process tells the others that it is finished."""
        if self.rank == 0:
            self.tell({"call": END, "args": []})
        _talk(_barrier)  # no connection closes while another process reads from it
        dist.destroy_process_group()

    def break_off(self) -> None:
        """Leave the group after an error, without the others, which notice that their connections have closed."""
        if dist.is_initialized():
            cast(Any, dist.group.WORLD).abort()  # what is in flight waits for nobody
            dist.destroy_process_group()


def started() -> bool:
    """Whether torchrun, or a compatible launcher, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and {"RANK", "MASTER_ADDR"} <= os.environ.keys()


@contextmanager
def joined(*, sharded: bool = False) -> Generator[Processes | None]:
    """Join the processes that torchrun has started; None without several.

    Args:
        sharded: whether language models are sharded among them.

    Raises:
        LostError: if another process has ended, and this one leads.
    """
    if not started():
        yield None
        return
    with _with_launcher() as complete:
        processes = Processes(sharded=sharded)
        complete.set()
        with within(processes):
            try:
                with _explained():  # also what the leading process computes with sharded models by itself
                    yield processes
                processes.close()
            except LostError:
                if processes.rank == 0:  # the status of the ended process explains the others
                    raise
            finally:
                processes.break_off()


@contextmanager
def _with_launcher() -> Generator[threading.Event]:
    """Exit when the parent process has ended, even if it was killed.

    Until the yielded event says that the group is complete, it exits: it would look for the others for days, and not
    look at signals. Later it gets SIGTERM: the leading process saves, and ends the others.
    """
    words = os.environ.get("TORCHELASTIC_RUN_ID", "").split("-")
    launcher = int(words[1]) if words[0] == LAUNCHED else os.getppid()
    complete, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(PAUSE):
            if os.getppid() == launcher:
                continue
            if not complete.is_set():
                os._exit(1)
            os.kill(os.getpid(), signal.SIGTERM)
            return

    thread = threading.Thread(target=watch, name="launcher", daemon=True)
    if os.name == "posix":
        thread.start()
    try:
        yield complete
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


def leave(status: int) -> NoReturn:
    """End this process with an exit status, once it has left its group, also after an error.

    The interpreter is not finalized: threads of torch.distributed that want it then, rarely after FSDP2, abort the
    process ("terminate called without an active exception"), although all its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def follow(processes: Processes) -> None:
    """Follow the leading process from the folder of its run. That one handles signals.

    Raises:
        LostError: if it has ended unexpectedly.
    """
    with Interruption():
        told = processes.hear()
        if told.get("call") == END:
            return
        folder = Run.open(told["run"])
        folder.set_budget(told["budget"])
        experiment = reassemble(folder, remote_code=True, accept_changes=True)  # the leading process allows it
        with closing(experiment):
            processes.follow(experiment.learner)


def encoded(state: State) -> Tensor:
    """Return a state as bytes, which `decoded` reads."""
    structure, tensors = flatten(clone(state))
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"structure": json.dumps(structure)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def decoded(message: Tensor) -> State:
    """Return the state from the bytes of `encoded`."""
    data = message.numpy().tobytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return unflatten(json.loads(header["__metadata__"]["structure"]), load(data))


def _call(method: Callable[..., Any], *args: Any) -> Any:
    """Make a call in which sharded models communicate."""
    with _explained():
        return method(*args)


@contextmanager
def _explained() -> Generator[None]:
    """Raise LostError where the communication of sharded models fails."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST):
            raise LostError(_lost(error)) from error
        raise


def _talk(operation: Callable[..., Any], *args: Any) -> None:
    try:
        operation(*args)
    except RuntimeError as error:
        raise LostError(_lost(error)) from error


def _lost(error: Exception) -> str:
    return (
        f"another process of the run has ended ({str(error).splitlines()[0]:.120}); `operant resume RUN` continues "
        "from its latest checkpoint, on any number of processes"
    )
