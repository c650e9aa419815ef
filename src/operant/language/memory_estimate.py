"""Memory estimate of a run before its first step: `estimate`, `describe`, `report`.

With T trained parameters, n tokens in a micro-batch, L layers, hidden width H and vocabulary V, in bytes:

* weights: those of all models of a learner (policy, reference, critic, reward models), at their own size;
* gradients: 4 T; moments of Adam: 8 T; 32-bit copies of parameters of 16 bits: 4 T;
* activations: n a (1 + 1/L), where a is the graph's memory per token, measured on a probe. The last part is the
  gradients that flow back through one layer. With gradient checkpointing only the inputs of the layers stay, and one
  layer at a time is recomputed, with its gradients: n (L H b + 3 a/L), b bytes per number;
* head: the logits 4 n V if they are few enough to keep (`operant.ops.token_log_probs`), its tiles, and the gradient of
  the hidden states 4 n H;
* cache: keys and values of the sequences that the native engine completes in parallel. Cache and activations alternate,
  so only the larger one counts.

It omits Python, PyTorch, the data and allocator overhead. Measured on a CPU, the growth of the process was between 1
and 1.5 times the estimate.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from operant.language.configs import LanguageConfig
from operant.language.engines.native import Prefill
from operant.language.in_step import is_sharded
from operant.language.models import LanguageModel
from operant.language.optimizer import OptimizerStep
from operant.language.packing import Sample, pack
from operant.ops.vocabulary import CPU_TILE, DEVICE_TILE, KEPT
from operant.runtime.available_memory import available, require_memory
from operant.runtime.settings import too_many_seeds
from operant.runtime.sizes import readable

logger = logging.getLogger(__name__)

PROBE = 64
"""Number of tokens of the probe that measures activations."""
_TILES = 3
"""Number of tiles of logits that exist at the same time."""


class Memory(NamedTuple):
    """Memory in bytes, by purpose."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    head: int
    cache: int

    @property
    def peak(self) -> int:
        """Peak: total of the parts that exist at the same time."""
        return self.weights + self.gradients + self.optimizer + max(self.activations + self.head, self.cache)


def estimate(learners: Sequence[Any], *, tokens: int, cached: int = 0) -> Memory:
    """Estimate the memory of learners that are trained one after another.

    Args:
        learners: one learner per seed; `learner.model` is the trained model.
        tokens: maximum number of tokens of a micro-batch.
        cached: maximum number of tokens in the native engine, including prompts; 0: no sampling.
    """
    parts = list(_parts(learners, set()))
    steppers = [part for part in parts if isinstance(part, OptimizerStep)]
    trained = _unique(value for stepper in steppers for value in stepper.parameters.values())
    count = sum(_own(value).numel() for value in trained)
    narrow = sum(_own(value).numel() for value in trained if value.itemsize < 4)
    model: LanguageModel = learners[0].model
    kept, stored = model.probed or probe(model)
    layers = max(1, int(getattr(model.config, "num_hidden_layers", 1)))
    each = kept * (1 + 1 / layers)
    if _checkpointed(model):
        each = layers * model.width * model.dtype.itemsize + 3 * kept / layers
    return Memory(
        weights=_size(value for part in parts if isinstance(part, nn.Module) for value in part.parameters()),
        gradients=4 * count,
        optimizer=8 * count + 4 * narrow,
        activations=round(tokens * each),
        head=_head(model, tokens),
        cache=cached * stored,
    )


def require_memory_of_seeds(learner: Any, seeds: Sequence[int]) -> None:
    """Check that the models and optimizer states of all seeds fit into memory, from the learner of the first one.

    Raises:
        ValueError: less memory is available.
    """
    if len(seeds) == 1:
        return
    memory = estimate([learner], tokens=1)
    each = memory.weights + memory.optimizer
    require_memory(
        (len(seeds) - 1) * each + memory.optimizer,  # the first weights are already allocated
        learner.model.device,
        what=f"models and optimizer states of {len(seeds)} seeds need at least",
        remedy=lambda free: too_many_seeds(seeds, (free + memory.weights) // each),
    )


def describe(memory: Memory, *, tokens: int) -> str:
    """Return an estimate as one line, such as `Peak memory about 1.2 GiB, at 4096 tokens per micro-batch: ...`.

    Args:
        memory: memory estimate.
        tokens: maximum number of tokens of a micro-batch.
    """
    parts = ", ".join(f"{name} {readable(size)}" for name, size in memory._asdict().items() if size)
    return f"Peak memory about {readable(memory.peak)}, at {tokens} tokens per micro-batch: {parts}."


def report(learners: Sequence[Any], config: LanguageConfig, *, tokens: int, cached: int = 0) -> Memory:
    """Estimate the memory of a run, and warn if it exceeds the available memory.

    Args:
        learners: as for `estimate`.
        config: configuration of the algorithm.
        tokens: as for `estimate`.
        cached: as for `estimate`.
    """
    memory = estimate(learners, tokens=tokens, cached=cached)
    free = available(learners[0].model.device)
    needed = memory.peak - memory.weights  # the weights are already allocated
    if free is not None and needed > free:
        smaller = "engine_batch_size" if memory.cache > memory.activations + memory.head else "micro_batch_tokens"
        now = getattr(config, smaller, 0)
        logger.warning(
            "The run needs about %s more memory, but only %s are free: lower --%s (now %d)%s, or train "
            "an adapter (--lora-r)",
            readable(needed),
            readable(free),
            smaller.replace("_", "-"),
            now,
            "" if config.gradient_checkpointing else ", add --gradient-checkpointing",
        )
    return memory


def _parts(things: Iterable[Any], seen: set[int]) -> Iterator[Any]:
    """Yield the networks and optimizers inside learners, recursively."""
    for thing in things:
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module | OptimizerStep):
            yield thing
        else:
            yield from _parts(_held(thing), seen)


def _held(thing: Any) -> Iterable[Any]:
    """Return the members of a tuple, or of an object or function of this package, except named tuples."""
    if type(thing) is tuple:
        return cast(tuple[Any, ...], thing)
    function = isinstance(thing, FunctionType)
    if not ((thing if function else type(thing)).__module__ or "").startswith("operant.language"):
        return ()
    if function:
        return [cell.cell_contents for cell in thing.__closure__ or ()]
    return cast(dict[str, Any], vars(thing)).values() if hasattr(thing, "__dict__") else ()


def _unique(values: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({_own(value).untyped_storage().data_ptr(): value for value in values}.values())


def _size(values: Iterable[torch.Tensor]) -> int:
    return sum(_own(value).untyped_storage().nbytes() for value in _unique(values))


def _own(value: Any) -> torch.Tensor:
    """Return this process's shard of a parameter."""
    return value.to_local() if is_sharded(value) else value


def probe(model: LanguageModel) -> tuple[float, int]:
    """Measure the autograd graph's bytes per token without checkpointing, and the bytes of its keys and values."""
    own = {value.untyped_storage().data_ptr() for value in model.network.parameters()}
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # with its graph it would create a reference cycle that is never freed

    prompts = [[0] * (PROBE // 4)] * 4
    batch = pack([Sample(prompt[:1], prompt[1:]) for prompt in prompts], share=False, device=model.device)
    prefill, _ = Prefill.of(prompts, model.device)
    model.network.eval()  # disables checkpointing
    try:
        with torch.no_grad():
            model.hidden(prefill.ids, prefill.positions, prefill)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            hidden = model.read(batch)
    finally:
        model.network.train()
    del hidden
    stored = sum(tensor.numel() * tensor.itemsize for pair in prefill.stored for tensor in pair)
    return sum(found.values()) / PROBE, stored // PROBE


def _checkpointed(model: LanguageModel) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.network.modules())


def _head(model: LanguageModel, tokens: int) -> int:
    size, width = model.network.get_output_embeddings().weight.shape
    tile = CPU_TILE if model.device.type == "cpu" else DEVICE_TILE
    logits = tokens * size if tokens * size <= KEPT else 0
    return 4 * (logits + _TILES * min(tile, tokens * size) + tokens * width)
