"""Processes that train together, over `torch.distributed`: `joined`, `follow`.

The first process leads: it runs the whole `operant train`, and alone writes. Before its learner steps, saves or loads,
it sends the method's name to the others, whose learners do the same (`Processes.lead`). All processes exchange the
results of shards; as tensors, or encoded as in checkpoints.
"""

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from operant.build import reassemble
from operant.runtime.encoding import flatten, unflatten
from operant.runtime.learner import Learner
from operant.runtime.run import Run
from operant.runtime.shards import share, within
from operant.runtime.signals import Interruption
from operant.state import State, clone

LONGEST = timedelta(days=7)
"""Timeout for a living process, such as one that evaluates. A dead one is detected immediately."""

END = "end"

# PyTorch has no types for these.
_all_gather = cast(Callable[[list[Tensor], Tensor], None], dist.all_gather)  # pyright: ignore[reportUnknownMemberType]
_barrier = cast(Callable[[], None], dist.barrier)  # pyright: ignore[reportUnknownMemberType]


class LostError(ConnectionError):
    """Another process of the group has ended."""


class Processes:
    """The group of this process, from torchrun's environment variables.

    Attributes:
        rank: index of this process; 0 leads.
        size: number of processes.
    """

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=LONGEST)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._calling = False

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
        for name in ("iterate", "state_dict", "load_state_dict"):
            setattr(learner, name, self._announced(name, getattr(learner, name)))
        learner.load_state_dict(learner.state_dict())  # weights may be initialized from another run

    def _announced(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            if self._calling:  # some methods call another, which the others then do as well
                return method(*args)
            self.tell({"call": name, "args": list(args)})
            self._calling = True
            try:
                return method(*args)
            finally:
                self._calling = False

        return call

    def follow(self, learner: Learner) -> None:
        """Run the methods that the leading process names, until it ends."""
        while (name := (told := self.hear())["call"]) != END:
            getattr(learner, name)(*told["args"])

    def close(self) -> None:
        """Leave the group; the leading process tells the others that it is finished."""
        if self.rank == 0:
            self.tell({"call": END, "args": []})
        _talk(_barrier)  # no connection closes while another process reads from it
        dist.destroy_process_group()


def started() -> bool:
    """Whether torchrun, or a compatible launcher, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and {"RANK", "MASTER_ADDR"} <= os.environ.keys()


@contextmanager
def joined() -> Generator[Processes | None]:
    """Join the processes that torchrun has started; None without several.

    Raises:
        LostError: another process has ended, and this one leads.
    """
    if not started():
        yield None
        return
    processes = Processes()
    with within(processes):
        try:
            yield processes
            processes.close()  # after an error the followers detect it themselves
        except LostError:
            if processes.rank == 0:  # the status of the ended process explains the others
                raise


def follow(processes: Processes) -> None:
    """Follow the leading process from the folder of its run. That one handles signals.

    Raises:
        LostError: it has ended unexpectedly.
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


def _talk(operation: Callable[..., Any], *args: Any) -> None:
    try:
        operation(*args)
    except RuntimeError as error:
        raise LostError(
            f"another process of the run has ended ({str(error).splitlines()[0]:.120}); `operant resume RUN` continues "
            "from its latest checkpoint, on any number of processes"
        ) from error
