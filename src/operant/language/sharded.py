"""Language models that are sharded among processes (FSDP2): `ShardedModel`.

Each process holds a shard of every parameter, gradient and optimizer state (Zhao et al. 2023, arXiv:2304.11277). A
block of the network is gathered when a pass needs it and then freed; its gradient is reduced and scattered. Every pass
therefore needs all processes, which are synchronized:

* items of a batch are distributed; a process without items repeats one, with gradient 0
  (`operant.language.in_step`);
* sampling takes a different number of passes in each process: they synchronize before every pass, and processes that
  have finished run one token (`ShardedModel.uneven`);
* a pass of the leading process alone, as in evaluations, is announced to the others, which run one token.

Sums have another order than in one process, so results are equal up to rounding.
"""

import contextlib
import copy
import os
from collections.abc import Callable, Generator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from operant.language.attention import SUPPORTED, Segment, Segments
from operant.language.huggingface import is_adapted
from operant.language.in_step import ModelGroup
from operant.language.models import LanguageModel
from operant.runtime.shards import Group, group


class ShardedModel(LanguageModel):
    """A language model with sharded parameters; each block of layers is one unit, the other parameters another.

    Args:
        network: causal model of transformers, complete or without data (on device `meta`).
        tokenizer: tokenizer of the model.
        stop: token ids that end a sequence.
        group: process group.
        device: device of this process.

    Raises:
        ValueError: the network has no list of blocks.
    """

    def __init__(
        self, network: Any, tokenizer: Any, *, stop: frozenset[int], group: ModelGroup, device: torch.device | str
    ):
        super().__init__(network, tokenizer, stop=stop)
        blocks, self._group, self._place = blocks_of(network), group, torch.device(device)
        empty = {id(value): nn.Parameter(value.detach().to("meta"), False) for value in network.parameters()}
        self._skeleton = copy.deepcopy(network, empty)
        self._root: Any = _Root(network, super().hidden)
        narrow = self.dtype.itemsize < torch.float32.itemsize
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32) if narrow else MixedPrecisionPolicy()
        for module in (*blocks, self._root):
            fully_shard(module, mesh=group.mesh(self._place.type), mp_policy=policy)
            cast(FSDPModule, module).set_gradient_divide_factor(1.0)  # loss weights already refer to the whole step
            cast(FSDPModule, module).set_force_sum_reduction_for_comms(True)  # gloo does not support averages
        self._uneven = self._silent = False
        self._number = len(group.models)
        group.models.append(self)

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self._place

    def named(self) -> dict[str, nn.Parameter]:
        """Return this process's shards of all parameters, by name."""
        self._root.reshard()
        return super().named()

    def whole(self) -> dict[str, Tensor]:
        """Return the trained parameters by name, gathered on rank 0; all processes must make the same call.

        Outside a common call, the other processes are requested to join.
        """
        self._group.announce(self._number, "whole")
        return {name: gathered(value.detach(), self._group) for name, value in self.trained().items()}

    def hidden(self, ids: Tensor, positions: Tensor, layout: Any) -> Tensor:
        """Compute the last hidden state of each token, `[n, H]`, in a pass of all processes."""
        if self._uneven:
            self._group.busy(self._number)
        else:
            self._group.announce(self._number, "attend")
        if not torch.is_grad_enabled():
            self._root.reshard()
        self._has_graph = torch.is_grad_enabled()
        return self._quiet(self._root(ids, positions, layout))

    def logits(self, hidden: Tensor) -> Tensor:
        """See `LanguageModel`."""
        found = super().logits(hidden)
        self._free()
        return found

    def token_log_probs(self, hidden: Tensor, targets: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """See `LanguageModel`."""
        log_probs, entropies = super().token_log_probs(hidden, targets, temperature=temperature)
        self._free()
        return self._quiet(log_probs), self._quiet(entropies)

    @torch.no_grad()
    def attend(self) -> None:
        """Join a pass of other processes with one token."""
        one = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._root(one, one, Segments([Segment(0, 1)], self.device))
        self._root.reshard()

    @contextlib.contextmanager
    def uneven(self) -> Generator[None]:
        """Allow the processes different numbers of passes without gradients."""
        if not self._group.together():
            yield
            return
        with self.announced():
            yield
        while self._group.busy() >= 0:
            self.attend()

    @contextlib.contextmanager
    def announced(self) -> Generator[None]:
        """Announce every pass to the processes that have finished theirs, and free the embeddings at the end."""
        self._uneven = True
        try:
            yield
        finally:
            self._uneven = False
            self._root.reshard()

    @contextlib.contextmanager
    def silent(self) -> Generator[None]:
        """Set the gradients of all passes to 0."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def frozen(self) -> "ShardedModel":
        """Return a frozen copy."""
        network = copy.deepcopy(self._skeleton)
        made = ShardedModel(network, self.tokenizer, stop=self.stop, group=self._group, device=self.device)
        buffers = dict(self.network.named_buffers())
        made._root.to_empty(device=self.device)
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(buffers[name])
            own = self.named()
            for name, value in made.named().items():
                value.copy_(own[name])
        return made

    def save(self, folder: Any) -> None:
        """Raise an error, since sharded models are exported from their runs by one process.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"a sharded model cannot be saved in {folder}: export its run by `operant export RUN`")

    def _free(self) -> None:
        """Free the gathered embeddings, unless a backward pass needs them."""
        if not self._has_graph:
            self._root.reshard()

    def _quiet(self, tensor: Tensor) -> Tensor:
        if not (self._silent and tensor.requires_grad):
            return tensor
        return cast(Tensor, _Zero.apply(tensor))  # pyright: ignore[reportUnknownMemberType]


class _Root(nn.Module):
    """The network as one FSDP unit, whose output is the hidden states."""

    def __init__(self, network: nn.Module, read: Callable[[Tensor, Tensor, Any], Tensor]):
        super().__init__()
        self.network, self._read = network, read

    def forward(self, ids: Tensor, positions: Tensor, layout: Any) -> Tensor:
        return self._read(ids, positions, layout)


class _Zero(torch.autograd.Function):
    """Identity function with gradient 0."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.zeros_like(gradient)


def divided(model: LanguageModel, probed: tuple[float, int], *, device: str) -> ShardedModel:
    """Shard a model that every process has loaded.

    Args:
        model: model on the CPU; it cannot be used afterwards.
        probed: memory per token (`operant.language.memory_estimate`).
        device: device of this process.

    Raises:
        ValueError: the model has an adapter, or no list of blocks.
    """
    if is_adapted(model.network):
        raise ValueError("--fsdp does not support adapters: merge the adapter, or leave out --fsdp")
    found = ShardedModel(
        model.network, model.tokenizer, stop=model.stop, group=cast(ModelGroup, group()), device=device
    )
    found.probed = probed
    return found


def blocks_of(network: Any) -> list[nn.Module]:
    """Return the blocks of layers of a causal model of transformers.

    Raises:
        ValueError: the model has no list of `num_hidden_layers` blocks.
    """
    trunk = network.base_model
    layers = getattr(trunk.config, "num_hidden_layers", None)
    found = [part for part in trunk.modules() if isinstance(part, nn.ModuleList) and len(part) == layers]
    if not found:
        raise ValueError(
            f"{type(trunk).__name__} has no list of num_hidden_layers ({layers}) blocks, so --fsdp cannot shard "
            f"it: leave out --fsdp, or use a plain transformer ({SUPPORTED})"
        )
    return list(found[0])


def device_of(kind: str) -> str:
    """Return the device of this process: the CPU, or the GPU with its local rank.

    Raises:
        ValueError: there is no such GPU, or the device type is not supported.
    """
    name, _, number = kind.partition(":")
    if name not in ("cpu", "cuda") or number:
        raise ValueError(f"--fsdp needs the CPU, or one GPU per process, got device {kind!r}: use cpu or cuda")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "cuda" and local >= torch.cuda.device_count():
        raise ValueError(
            f"--fsdp needs one GPU per process; for process {local} of this machine there are only "
            f"{torch.cuda.device_count()} GPUs: use fewer processes, or --device cpu"
        )
    return "cpu" if name == "cpu" else f"cuda:{local}"


def gathered(value: Tensor, group: Group) -> Tensor:
    """Gather a tensor on the CPU of rank 0, an empty one elsewhere; all processes must call this."""
    if not isinstance(value, DTensor):
        return value
    whole = value.full_tensor()
    return whole.cpu() if group.rank == 0 else whole.new_empty(0, device="cpu")
