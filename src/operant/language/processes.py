"""Distribution of a run over processes, by batches or by sharded models: `shards_of`, `loaded`."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

import torch

from operant import catalog
from operant.language import memory_estimate
from operant.language.configs import LanguageConfig, ModelOptions, SamplingConfig, is_outside
from operant.language.huggingface import is_adapted
from operant.language.in_step import InStep
from operant.language.models import LanguageModel, load
from operant.runtime.settings import Settings
from operant.runtime.shards import Shards, group

ONLY_MODELS = ("IterativeGRPO",)
"""Learner classes whose models may be sharded among processes, but not their batches."""


def shards_of(
    kind: Any, algorithm: catalog.Algorithm, settings: Settings, config: LanguageConfig, device: str
) -> Shards:
    """Return the shards of a run's batches: those of its settings, or one per process for sharded models.

    Args:
        kind: class of the learner.
        algorithm: catalog entry of the algorithm.
        settings: settings of the run.
        config: configuration of the algorithm.
        device: device of the models.

    Raises:
        ValueError: the algorithm does not support shards with this configuration.
    """
    if group().sharded:
        return _of_models(kind, algorithm, settings, config)
    return _of_batches(kind, algorithm, settings, config, device)


def _of_batches(kind: Any, algorithm: catalog.Algorithm, settings: Settings, config: Any, device: str) -> Shards:
    """Return the logical shards of batches."""
    shards, leave = Shards(settings.shards), f"leave out --shards {settings.shards}"
    if "shards" not in signature(kind).parameters or catalog.find(algorithm.root).learner in ONLY_MODELS:
        raise ValueError(f"{algorithm.name} does not support shards: {leave}")
    if shards.group.size > 1 and device != "cpu":
        raise ValueError(f"several processes need the CPU, got device {device!r}: leave it out, or --processes")
    if isinstance(config, SamplingConfig) and config.engine != "native" and not is_outside(config.engine):
        raise ValueError(f"the engine {config.engine} samples all prompts in one batch: {leave}, or --engine")
    _require_enough(config, shards.count, "shards")
    return shards


def _of_models(kind: Any, algorithm: catalog.Algorithm, settings: Settings, config: Any) -> InStep:
    """Return one shard per process, for sharded models."""
    shares = InStep(group().size)
    if "shards" not in signature(kind).parameters:
        raise ValueError(
            f"{algorithm.name} does not support --fsdp; sft, dpo, rlhf, grpo, iterative-grpo and reward-model do: "
            "leave it out"
        )
    if settings.shards > 1:
        raise ValueError(f"--fsdp shards the model, --shards {settings.shards} the batches: leave out one of them")
    if config.lora_r:
        raise ValueError(f"--fsdp does not support adapters (--lora-r {config.lora_r}): leave out one of them")
    if getattr(config, "step", "") == "trpo":
        raise ValueError("step=trpo needs the full model: use another step, or leave out --fsdp")
    if isinstance(config, SamplingConfig) and config.engine != "native":
        raise ValueError(f"the engine {config.engine} needs the full model: leave out --fsdp, or --engine")
    _require_enough(config, shares.count, "processes")
    return shares


def _require_enough(config: Any, count: int, what: str) -> None:
    for name in ("prompts_per_batch", "batch_size"):
        if (size := getattr(config, name, count)) < count:
            raise ValueError(f"{name} is {size}, less than the {count} {what}: raise it, or use fewer {what}")


def loaded(config: ModelOptions, *, seed: int, device: torch.device | str, frozen: bool = False) -> LanguageModel:
    """Load a model of a learner, and shard it if processes share it.

    Args:
        config: model options.
        seed: random seed of the weights of built-in models.
        device: device of the model.
        frozen: whether the model is not trained; it is not sharded if it has an adapter.

    Raises:
        ValueError: the model cannot be loaded or sharded.
    """
    return placed(partial(load, config, seed=seed), device=device, frozen=frozen)


def placed(make: Callable[..., LanguageModel], *, device: torch.device | str, frozen: bool = False) -> LanguageModel:
    """Load a model by calling `make` with a device, and shard it if processes share it (see `loaded`)."""
    if not group().sharded:
        return make(device=device)
    sharded: Any = import_module("operant.language.sharded")  # imports torch.distributed
    place = sharded.device_of(str(device))
    model = make(device="cpu")  # it may be larger than a GPU
    if frozen and is_adapted(model.network):
        model.network.to(place)
        return model
    return sharded.divided(model, memory_estimate.probe(model), device=place)
