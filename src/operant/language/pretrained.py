"""Networks and adapters in Hugging Face's format: `pretrained`, `with_adapter`, `fingerprint`.

A model is a folder or Hub name with config.json and safetensors, or an adapter of peft with adapter_config.json, which
contains the name of its base model. All weights must be in the files; missing ones would be random.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from operant import streams
from operant.language.configs import ModelOptions
from operant.language.huggingface import (
    adapter_state,
    at_home,
    base_of,
    cached_file,
    is_path,
    load_adapter_config,
    load_tensors,
    merged,
    set_adapter_state,
    wrapped_network,
)
from operant.language.model_files import Source, kinds_of, listed
from operant.tensors import fork_rng

PROVENANCE = "operant.json"
"""File in the folder of a saved model with its provenance and chat format."""

_SAMPLED = 64
"""Number of values per tensor in a fingerprint."""
_ALL = "all-linear"
"""All linear layers except the output layer, in peft and in `lora_target_modules`."""
_DEPTH = 4
"""Maximum depth of stacked adapters."""


def pretrained(
    options: ModelOptions, *, device: torch.device | str, dtype: torch.dtype, others: Sequence[str] = ()
) -> tuple[Any, Any]:
    """Load the network and tokenizer of `options.model`.

    An adapter is loaded onto its base model and stays trainable. If the options define a new adapter (`lora_r > 0`),
    the existing one is merged into the weights.

    Args:
        options: options, of which `model` is a folder or Hub name, and `remote_code` allows its Python code.
        device: device of the network.
        dtype: precision; adapters are in float32.
        others: other valid names, for the error message.

    Raises:
        ValueError: there is no such model, its files lack a weight, or it is an adapter of another model.
    """
    options = replace(options, model=at_home(options.model))
    name, source = options.model, Source(options, kinds=kinds_of(others))
    source.require_folder()
    found = _adapter_config(name)
    if found is None:
        return source.network().to(device=device, dtype=dtype), source.tokenizer()
    network, base = _with_trained_adapter(options, found, device=device, dtype=dtype)
    own = _file(name, "tokenizer_config.json") is not None
    tokenizer = (source if own else Source(replace(options, model=base), kinds=source.kinds)).tokenizer()
    return (merged(network) if options.lora_r else network), tokenizer


def with_adapter(network: Any, options: ModelOptions, *, seed: int) -> Any:
    """Add a new LoRA adapter, initialized to zero, to a network.

    Args:
        network: network of transformers.
        options: rank, scale and layers of the adapter.
        seed: random seed of its initialization.

    Raises:
        ValueError: there is no layer of a name, or the layers include the output layer, or embeddings that are also the
            output layer.
    """
    from peft import LoraConfig

    targets = [] if options.lora_target_modules == (_ALL,) else list(options.lora_target_modules)
    if _ALL in targets:
        raise ValueError(f"lora_target_modules must be {_ALL} alone, or names of layers, got {', '.join(targets)}")
    _require_separate(network, targets)
    _require_layers(network, targets)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora_r,
        lora_alpha=options.lora_alpha or 2 * options.lora_r,
        target_modules=targets or _ALL,
    )
    network = _wrapped(network, config)
    generator = streams.torch_generator(seed, "adapter")
    for name, parameter in network.named_parameters():
        start = torch.empty(parameter.shape)
        if "lora_A" in name:
            parameter.data.copy_(nn.init.kaiming_uniform_(start, a=5**0.5, generator=generator))
        elif "lora_embedding_B" in name:
            parameter.data.copy_(nn.init.normal_(start, generator=generator))
    return network


def _is_named(module: str, target: str) -> bool:
    """Return whether a module has the name of a layer, with or without its parents' names."""
    return module == target or module.endswith(f".{target}")


def _require_layers(network: Any, targets: Sequence[str]) -> None:
    """Check that every name is that of a layer that can have an adapter."""
    layers = [
        name for name, module in network.named_modules() if getattr(getattr(module, "weight", None), "ndim", 0) > 1
    ]
    wrong = [target for target in targets if not any(_is_named(layer, target) for layer in layers)]
    if wrong:
        ends = {id(network.get_input_embeddings()), id(network.get_output_embeddings())}
        linear = {name.rpartition(".")[2] for name in layers if id(network.get_submodule(name)) not in ends}
        raise ValueError(
            f"lora_target_modules has {', '.join(wrong)}, but the model has no such layer: expected names of its "
            f"linear layers, {', '.join(sorted(linear))}, or {_ALL}"
        )


def _require_separate(network: Any, targets: Sequence[str]) -> None:
    """Check that the layers of an adapter do not include those whose weights compute the logits directly."""
    first, last = network.get_input_embeddings(), network.get_output_embeddings()
    reasons = {id(last): "whose weights are read directly"}
    if first.weight is last.weight:
        reasons[id(first)] = "whose weights are also those of the output layer in this model"
    for name, module in network.named_modules():
        target = next((target for target in targets if _is_named(name, target)), None)
        if target is not None and id(module) in reasons:
            raise ValueError(f"lora_target_modules must not contain {target}, {reasons[id(module)]}: leave it out")


def is_adapter(name: str) -> bool:
    """Return whether a folder or Hub name contains an adapter instead of a full model."""
    return _adapter_config(name) is not None


def fingerprint(network: Any, *, adapters: bool = False) -> str:
    """Return a hash of a network's weights, from names, shapes and 64 values of each tensor.

    Values are rounded to bfloat16, so that the hash does not depend on the precision.

    Args:
        network: the network.
        adapters: whether to include adapters.
    """
    causal = base_of(network)
    digest = hashlib.sha256()
    named = {
        name.replace(".base_layer", ""): value
        for name, value in causal.named_parameters()
        if adapters or "lora_" not in name
    }
    for name, value in sorted(named.items()):
        flat = value.detach().flatten()
        chosen = flat[:: max(1, flat.numel() // _SAMPLED)].to(dtype=torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {tuple(value.shape)} ".encode() + chosen.cpu().numpy().tobytes())
    return digest.hexdigest()


def _adapter_config(name: str) -> Path | None:
    """Return the path of an adapter's configuration; None if the name is not an adapter."""
    return _file(name, "adapter_config.json")


def _file(name: str, file: str) -> Path | None:
    """Return the path of a file of a folder or Hub model; None if there is none."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    if is_path(name):
        return None
    try:
        found = cached_file(
            name,
            file,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except (OSError, ValueError):  # no such model; loading the weights reports the error
        return None
    return None if found is None else Path(str(found))


def _with_trained_adapter(
    options: ModelOptions, found: Path, *, device: torch.device | str, dtype: torch.dtype, depth: int = 0
) -> tuple[Any, str]:
    """Load an adapter and its base model; return the network and the name of the base."""
    from safetensors import SafetensorError

    name = options.model
    config = _lora_config(name, found)
    base = _base(name, config.base_model_name_or_path)
    config.base_model_name_or_path, plain = base, replace(options, model=base)
    under = _adapter_config(base)
    if under is None:
        network = Source(plain).network().to(device=device, dtype=dtype)
    elif depth < _DEPTH:
        below, _ = _with_trained_adapter(plain, under, device=device, dtype=dtype, depth=depth + 1)
        network = merged(below)
    else:
        raise ValueError(f"--model {name} is a chain of more than {_DEPTH} adapters: merge some of them")
    network.name_or_path = base  # peft records it as the base model
    _check_fingerprint(name, base, network)
    file = _file(name, "adapter_model.safetensors")
    if file is None:
        raise ValueError(f"--model {name} is an adapter without adapter_model.safetensors: save it as safetensors")
    try:
        tensors = load_tensors(file)
    except SafetensorError as error:
        raise ValueError(f"--model {name} cannot be loaded: {file} is damaged ({error}); download it again") from error
    return _filled(name, base, network, config, tensors), base


def _lora_config(name: str, found: Path) -> Any:
    """Return the configuration of a trainable adapter."""
    try:
        kind = json.loads(found.read_text(encoding="utf-8")).get("peft_type")
        config = load_adapter_config(found.parent) if kind == "LORA" else None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"--model {name} cannot be loaded: {found.name} is damaged ({error})") from error
    if config is None:
        raise ValueError(
            f"--model {name} is an adapter of type {kind}, expected LORA: merge it into its model with peft, and "
            "use the merged model"
        )
    config.inference_mode = False
    if not config.base_model_name_or_path:
        raise ValueError(
            f"--model {name} is an adapter without a base model: set base_model_name_or_path in its adapter_config.json"
        )
    return config


def _base(name: str, recorded: str) -> str:
    """Return the path of an adapter's base model, as recorded or relative to the adapter's folder."""
    here = Path(recorded).expanduser()
    beside = Path(name).expanduser() / recorded
    if not here.exists() and beside.is_dir():
        return str(beside)
    if here.is_absolute() and not here.exists():
        raise ValueError(
            f"--model {name} is an adapter of {recorded}, which does not exist: restore the base model, or set its "
            "path in base_model_name_or_path of adapter_config.json"
        )
    return str(here) if here.exists() else recorded


def _check_fingerprint(name: str, base: str, network: Any) -> None:
    """Check that the base model has the weights on which an adapter was trained, if recorded."""
    recorded = provenance(name).get("base_fingerprint")
    if recorded is not None and recorded != fingerprint(network):
        raise ValueError(
            f"--model {name} is an adapter of another model: the weights in {base} differ from those on which it was "
            "trained. Restore them, or set the correct path in base_model_name_or_path of adapter_config.json"
        )


def provenance(name: str | Path) -> Mapping[str, Any]:
    """Return the provenance of a saved model: run, algorithm, task, seed, in_turns, base_fingerprint."""
    try:
        found = json.loads((Path(name).expanduser() / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _filled(name: str, base: str, network: Any, config: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return a network with an adapter whose values are exactly `tensors`."""
    try:
        network = _wrapped(network, config)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"--model {name} is an adapter that does not fit its base model {base}: {str(error).splitlines()[0]}"
        ) from error
    expected, base_weights = adapter_state(network), network.state_dict()
    # peft writes adapted embeddings with their base weights.
    tensors = {key: value for key, value in tensors.items() if not _equal(value, base_weights.get(key))}
    odd = sorted(expected.keys() ^ tensors.keys())
    odd += [key for key in sorted(expected.keys() & tensors.keys()) if expected[key].shape != tensors[key].shape]
    if odd:
        raise ValueError(
            f"--model {name} is an adapter that does not fit its base model {base}: they differ in {listed(odd)}; "
            "set its base model in base_model_name_or_path of adapter_config.json"
        )
    set_adapter_state(network, dict(tensors))
    causal = base_of(network)
    first, last = causal.get_input_embeddings(), causal.get_output_embeddings()
    adapted = "" if type(last) is nn.Linear else "the output layer, whose weights are read directly"
    if not adapted and hasattr(first, "base_layer") and first.base_layer.weight is last.weight:
        adapted = "embeddings whose weights are also those of the output layer"
    if adapted:
        raise ValueError(
            f"--model {name} is an adapter of {adapted}: merge it into its model with peft, and use the merged model"
        )
    return network


def _equal(value: Tensor, base: Tensor | None) -> bool:
    """Return whether a tensor of a file is that of the base model, in its precision."""
    return base is not None and torch.equal(value.to(base.device, base.dtype), base)


def _wrapped(network: Any, config: Any) -> Any:
    """Return a network with a new adapter, without using the global random generator."""
    with fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft looks up old names in transformers
        return wrapped_network(network, config)
