"""Typed interface to the used parts of transformers, peft and safetensors, whose annotations are incomplete.

The packages are imported at the first call of a function, since importing transformers takes seconds.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:  # labels are read without torch
    from torch import Tensor

__all__ = [
    "AdapterConfig",
    "Tokenizer",
    "adapter_state",
    "base_of",
    "cached_file",
    "causal_network",
    "classifier_of",
    "hub_problem",
    "is_adapted",
    "is_path",
    "load_adapter_config",
    "load_classifier_network",
    "load_config",
    "load_network",
    "load_tensors",
    "load_tokenizer",
    "merged",
    "network_of",
    "new_tokenizer",
    "register_attention",
    "sdpa_attention",
    "set_adapter_state",
    "wrapped_network",
]


class Tokenizer(Protocol):
    """A tokenizer of transformers.

    Attributes:
        name_or_path: name or path of its model.
        chat_template: Jinja template, several by name, or None.
        split_special_tokens: whether special tokens in a text are treated as plain characters.
        bos_token_id: id of BOS, or None.
        eos_token_id: id of EOS, or None.
    """

    name_or_path: str
    chat_template: Any
    split_special_tokens: bool
    bos_token_id: Any
    eos_token_id: Any

    @property
    def all_special_tokens(self) -> list[str]:
        """The texts of special tokens."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of some ids."""
        ...

    def apply_chat_template(self, conversation: list[Any], **options: Any) -> Any:
        """Return a conversation as text or as ids."""
        ...

    def convert_tokens_to_ids(self, tokens: str) -> Any:
        """Return the id of a token."""
        ...

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the tokens that were added to the vocabulary."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens."""
        ...

    def save_pretrained(self, save_directory: Path | str) -> Any:
        """Write its files to a folder."""
        ...


class AdapterConfig(Protocol):
    """The configuration of an adapter of peft."""

    base_model_name_or_path: str | None
    inference_mode: bool


def is_path(name: str) -> bool:
    """Return whether the name of a model can only be that of a folder, not one of the hub."""
    if name[:1] in ("", ".", "/", "~") or "\\" in name or name.count("/") > 1:
        return True
    owner = Path(name).parent
    return owner != Path() and owner.is_dir()


def at_home(name: str) -> str:
    """Return the name of a model or dataset with the path of the home folder instead of `~`."""
    return os.path.expanduser(name)  # noqa: PTH111 - a Path would change names on the hub, such as those with a dot


def hub_problem() -> str:
    """Return why no connection to the Hugging Face hub can be made, such as an unknown host; empty if one can.

    It is asked once in a minute, without the retries of other requests.
    """
    return _hub_problem(int(time.monotonic() // 60))


@lru_cache(maxsize=1)
def _hub_problem(minute: int) -> str:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    del minute
    session = cast(Any, get_session())
    try:
        session.head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of httpx, or of its successor in later versions
        return str(error) or "no connection" if type(error).__name__ == "ConnectError" else ""
    return ""


def _only_here(name: str) -> bool:
    """Return whether a model must be taken from the cache of the hub, which does not answer."""
    return not Path(name).is_dir() and bool(hub_problem())


def load_config(name: str, *, trust_remote_code: bool) -> Any:
    """Return the configuration of a folder or hub model, whose fields depend on the architecture."""
    from transformers import AutoConfig

    load = cast(Callable[..., Any], AutoConfig.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    return load(name, trust_remote_code=trust_remote_code, local_files_only=_only_here(name))


def load_network(name: str, **options: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the causal language model of a folder or the hub, and the report of its weights."""
    from transformers import AutoModelForCausalLM

    load = cast(Callable[..., Any], AutoModelForCausalLM.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    network, report = load(name, output_loading_info=True, local_files_only=_only_here(name), **options)
    return network, report


def network_of(config: object) -> Any:
    """Return a causal language model with random weights."""
    from transformers import AutoModelForCausalLM

    return cast(Any, AutoModelForCausalLM).from_config(config)


def load_classifier_network(name: str, **options: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the sequence classifier of a folder or the hub, and the report of its weights."""
    from transformers import AutoModelForSequenceClassification

    load = cast(Callable[..., Any], AutoModelForSequenceClassification.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    network, report = load(name, output_loading_info=True, local_files_only=_only_here(name), **options)
    return network, report


def classifier_of(config: object) -> Any:
    """Return a sequence classifier without weights (on the device `meta`)."""
    import torch
    from transformers import AutoModelForSequenceClassification

    with torch.device("meta"):
        return cast(Any, AutoModelForSequenceClassification).from_config(config)


def causal_network(config: object, *, trust_remote_code: bool) -> Any:
    """Return a causal language model without weights (on the device `meta`)."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return cast(Any, AutoModelForCausalLM).from_config(config, trust_remote_code=trust_remote_code)


def load_tokenizer(name: str, *, trust_remote_code: bool) -> Tokenizer:
    """Return the tokenizer of a folder or hub model."""
    from transformers import AutoTokenizer

    load = cast(Callable[..., Tokenizer], AutoTokenizer.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    return load(name, trust_remote_code=trust_remote_code, local_files_only=_only_here(name))


def new_tokenizer(**options: Any) -> Tokenizer:
    """Return a tokenizer built from its parts."""
    import transformers

    return cast(Any, transformers).PreTrainedTokenizerFast(**options)


def cached_file(name: str, file: str, **options: bool) -> str | None:
    """Return the path of a file of a hub model."""
    from transformers.utils import hub

    found = cast(Callable[..., str | None], hub.cached_file)  # pyright: ignore[reportUnknownMemberType]
    return found(name, file, local_files_only=_only_here(name), **options)


def load_tensors(file: Path) -> "dict[str, Tensor]":
    """Return the tensors of a safetensors file."""
    from safetensors import torch as safetensors

    load = cast("Callable[[Path], dict[str, Tensor]]", safetensors.load_file)  # pyright: ignore[reportUnknownMemberType]
    return load(file)


def load_adapter_config(folder: Path) -> AdapterConfig:
    """Return the configuration of an adapter in a folder."""
    from peft import PeftConfig

    load = cast(Callable[[str], AdapterConfig], PeftConfig.from_pretrained)  # pyright: ignore[reportUnknownMemberType]
    return load(str(folder))


def wrapped_network(network: Any, config: Any) -> Any:
    """Return a network with a new adapter."""
    import peft

    return cast(Any, peft).get_peft_model(network, config)


def is_adapted(network: Any) -> bool:
    """Return whether a network has an adapter of peft."""
    return hasattr(network, "get_base_model")


def base_of(network: Any) -> Any:
    """Return the network of transformers below the adapter, if any, with the layers that the adapter has modified."""
    return network.get_base_model() if is_adapted(network) else network


def merged(network: Any) -> Any:
    """Merge the adapter of a network, if any, into its weights in place, and return the network without it."""
    return network.merge_and_unload() if is_adapted(network) else network


def adapter_state(network: Any) -> "dict[str, Tensor]":
    """Return the tensors of the adapter of a network, without embedding layers."""
    import peft

    return cast(Any, peft).get_peft_model_state_dict(network, save_embedding_layers=False)


def set_adapter_state(network: Any, tensors: "dict[str, Tensor]") -> None:
    """Set the tensors of the adapter of a network."""
    import peft

    cast(Any, peft).set_peft_model_state_dict(network, tensors)


def register_attention(name: str, attention: Callable[..., Any]) -> None:
    """Register an attention function in transformers, with the masks of scaled dot-product attention."""
    import transformers
    from transformers import masking_utils

    given, masks = cast(Any, transformers), cast(Any, masking_utils)
    given.AttentionInterface.register(name, attention)
    given.AttentionMaskInterface.register(name, masks.sdpa_mask)


def sdpa_attention(module: Any, *rows: "Tensor | None", **options: Any) -> "tuple[Tensor, None]":
    """Compute transformers' scaled dot-product attention."""
    from transformers.integrations import sdpa_attention as integration

    return cast(Any, integration).sdpa_attention_forward(module, *rows, **options)
