"""Folders and Hub names of networks in Hugging Face's format, with all their weights: `Source`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from operant.language.configs import ModelOptions
from operant.language.huggingface import Tokenizer, hub_problem, is_path, load_config, load_network, load_tokenizer
from operant.runtime import run_paths

_ATTENTION = "eager"
"""Attention implementation; that of config.json is ignored, since it can name a kernel from the Hub."""
_CLASSIFIER = "ForSequenceClassification"
"""End of the names of classifiers in transformers."""
_SHOWN = 3
"""Maximum number of tensors in a message."""
_FOLDER = "a folder or a Hub model with config.json, safetensors weights and a tokenizer"


@dataclass(frozen=True)
class Source:
    """A folder or Hub name of a network and its tokenizer.

    Attributes:
        options: options, of which `model` is the name, and `remote_code` allows its Python code.
        option: name of the option with the name, for errors.
        kinds: what else the option takes, for errors.
        load: function that loads the network from a name, and returns it with a report.
    """

    options: ModelOptions
    option: str = "--model"
    kinds: str = _FOLDER
    load: Callable[..., tuple[Any, Mapping[str, Any]]] = load_network

    @property
    def named(self) -> str:
        """The option with its value."""
        return f"{self.option} {self.options.model}"

    def require_folder(self) -> None:
        """Check that a path is a folder.

        Raises:
            ValueError: it is not.
        """
        path = Path(self.options.model)
        if is_path(self.options.model) and not path.is_dir():
            what = "it is a file, not the folder of a model" if path.is_file() else "there is no such folder"
            raise self.error(FileNotFoundError(what))

    def config(self) -> Any:
        """Load the configuration, with the attention implementation of this package."""
        config = load_config(self.options.model, trust_remote_code=self.options.remote_code)
        config._attn_implementation = _ATTENTION  # set in all sub-configurations, since some override the argument
        return config

    @property
    def classifies(self) -> bool:
        """Whether the option takes classifiers, and not causal language models."""
        return self.load is not load_network

    def network(self) -> Any:
        """Load the network with all its weights.

        Raises:
            ValueError: there is no such model, or its files lack a weight.
        """
        from safetensors import SafetensorError

        try:
            config = self.config()
            self._check_kind(config)
            network, report = self.load(
                self.options.model,
                config=config,
                trust_remote_code=self.options.remote_code,
                use_safetensors=True,
                attn_implementation=_ATTENTION,
                ignore_mismatched_sizes=True,  # the report names them
            )
        except SafetensorError as error:
            raise ValueError(
                f"{self.named} cannot be loaded: its safetensors are damaged ({error}); download them again"
            ) from error
        except (OSError, ValueError, RuntimeError) as error:
            raise self.error(error) from error
        self._check(report)
        return network

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer.

        Raises:
            ValueError: there is none.
        """
        options = self.options
        try:
            found = load_tokenizer(options.model, trust_remote_code=options.remote_code)
        except (OSError, ValueError) as error:
            raise self.error(error) from error
        if not found.get_vocab().keys() - set(
            found.all_special_tokens
        ):  # transformers creates an empty tokenizer if there are no files
            raise self.error(ValueError("the files of its tokenizer are missing"))
        return found

    def error(self, error: Exception) -> ValueError:
        """Return the error for a model that cannot be loaded."""
        first, name = str(error).strip().splitlines()[0], self.options.model
        if "trust_remote_code" in str(error):
            first = "it needs its own Python code, which --remote-code allows: only for authors you trust"
        elif is_run(name):
            first = f"it is the folder of a run, whose trained model is that of --init {name}"
        elif not Path(name).is_dir() and not is_path(name) and (problem := hub_problem()):
            first = (
                f"there is no such folder, the Hugging Face Hub cannot be reached ({problem}), and its cache on this "
                "machine lacks the model"
            )
        return ValueError(f"{self.named} cannot be loaded: {first}; use {self.kinds}")

    def _check_kind(self, config: Any) -> None:
        """Check that the weights are those of a classifier, or of a language model."""
        kind = (getattr(config, "architectures", None) or [type(config).__name__])[0]
        if kind.endswith(_CLASSIFIER) and not self.classifies:
            raise ValueError(f"it is a {kind}, which generates no text; a reward model is that of --reward-model")
        if not kind.endswith(_CLASSIFIER) and self.classifies:
            raise ValueError(f"it is a {kind}, not a sequence classifier")

    def _check(self, report: Mapping[str, Any]) -> None:
        """Check that the files of a model contain all weights; warn about unused tensors."""
        missing, unexpected = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
        other = sorted(f"{key} {list(found)} for {list(wanted)}" for key, found, wanted in report["mismatched_keys"])
        if other:
            raise ValueError(
                f"{self.named} cannot be loaded: its config.json and its safetensors differ in the shape of "
                f"{listed(other)}; use both from the same source"
            )
        if missing:
            raise ValueError(
                f"{self.named} cannot be loaded: its safetensors lack {listed(missing)}, which would be random; "
                "download the file again, or save the model with its output layer"
            )
        if unexpected:
            warnings.warn(
                f"the safetensors of {self.options.model} contain {listed(unexpected)}, which its architecture does "
                "not use; ignored",
                RuntimeWarning,
                stacklevel=3,
            )


def kinds_of(built_in: Sequence[str]) -> str:
    """Return the alternatives of `--model`, for errors."""
    return _FOLDER + (f", or a built-in one: {', '.join(built_in)}" if built_in else "")


def is_run(name: str) -> bool:
    """Return whether a name is the folder of a run, or `RUN/best`."""
    path = Path(name).expanduser()
    return any(run_paths.is_run(folder) for folder in ([path, path.parent] if path.name == "best" else [path]))


def listed(names: Sequence[str]) -> str:
    """Return the number of tensors and their first names as text."""
    more = "" if len(names) <= _SHOWN else ", ..."
    return f"{len(names)} {'tensor' if len(names) == 1 else 'tensors'} ({', '.join(names[:_SHOWN])}{more})"
