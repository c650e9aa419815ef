"""Causal language models of transformers: `LanguageModel`, `load`.

Weights are loaded only from safetensors files, and Python code that comes with a model runs only if it is allowed.
Dropout is disabled, so that probability ratios compare policies, not dropout masks.
"""

import contextlib
import copy
import math
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from operant import ops, streams
from operant.language.attention import SUPPORTED, install
from operant.language.configs import ModelOptions
from operant.language.huggingface import Tokenizer, base_of, is_adapted, network_of
from operant.language.packing import Packed, Sample, micro_batches, pack, take
from operant.language.pretrained import pretrained, with_adapter
from operant.language.tokenizer import character_tokenizer, stop_ids
from operant.state import State, copy_named
from operant.tensors import fork_rng, integers, split

BUILT_IN: Mapping[str, tuple[str, int, int, int]] = {
    "tiny": ("llama", 128, 3, 4),
    "tiny-qwen3": ("qwen3", 128, 3, 4),
    "small": ("llama", 256, 4, 4),
}
"""Built-in character-level models with random weights: architecture, width, layers, heads."""

MISMATCH = 1e-3
"""Tolerance in nats between log-probabilities of a packed batch and of single sequences, in float32."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PROBES = ((3, 9), (4, 2), (1, 17))
_NO_MASK = (1, 1, 1, 1)
"""Shape of a mask that keeps transformers from creating one."""


class LanguageModel:
    """A causal language model with its tokenizer.

    Args:
        network: causal model of transformers, or a peft model around one.
        tokenizer: tokenizer of the model.
        stop: token ids that end a sequence.

    Attributes:
        network: network with attention by layouts (`operant.language.attention`).
        tokenizer: tokenizer.
        stop: token ids that end a sequence.
        fresh_adapter: whether an adapter was initialized to zero, so that the model without it is the initial model.
        probed: memory per token, if measured before (`operant.language.memory_estimate`).
    """

    probed: tuple[float, int] | None = None

    def __init__(self, network: Any, tokenizer: Tokenizer, *, stop: frozenset[int], fresh_adapter: bool = False):
        self.network, self.tokenizer, self.stop, self.fresh_adapter = network, tokenizer, stop, fresh_adapter
        causal = base_of(network)
        self._trunk, self._output = causal.base_model, causal.get_output_embeddings()
        self._softcap = getattr(causal.config, "final_logit_softcapping", None)
        self._scale = _logit_scale(causal.config)
        install(causal)
        _switch_off_dropout(network)

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return self._output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the network."""
        return self._output.weight.dtype

    @property
    def width(self) -> int:
        """Size of the hidden state of a token."""
        return self._output.weight.shape[1]

    @property
    def vocabulary(self) -> int:
        """Number of token embeddings."""
        return self.network.get_input_embeddings().weight.shape[0]

    @property
    def config(self) -> Any:
        """The configuration of the network in transformers."""
        return self._trunk.config

    @property
    def context(self) -> int | None:
        """Maximum tokens of a sequence (`max_position_embeddings`); None: unlimited."""
        limit = getattr(self.config, "max_position_embeddings", None)
        return int(limit) if limit else None

    def named(self) -> dict[str, nn.Parameter]:
        """Return all parameters, by name."""
        return dict(self.network.named_parameters())

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters, by name."""
        return {name: value for name, value in self.named().items() if value.requires_grad}

    def whole(self) -> Mapping[str, Tensor]:
        """Return the trained parameters by name, unsharded."""
        return self.trained()

    def uneven(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which processes that share a model may run different numbers of inference passes."""
        return contextlib.nullcontext()

    def hidden(self, ids: Tensor, positions: Tensor, layout: Any) -> Tensor:
        """Compute the last hidden state of each token, `[n, H]`, for ids and positions `[n]`."""
        answer = self._trunk(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            attention_mask=torch.zeros(_NO_MASK, device=ids.device),
            use_cache=False,
            layout=layout,
        )
        return answer.last_hidden_state.squeeze(0)

    def read(self, batch: Packed) -> Tensor:
        """Compute the hidden state of every token of a batch, `[n, H]`."""
        return self.hidden(batch.ids, batch.positions, batch.layout)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits `[n, V]` of the next token, in float32."""
        weight, bias = self._output.weight, self._output.bias
        logits = _product(hidden, weight) if bias is None else _product(hidden, weight) + bias.float()
        logits = logits * self._scale
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    def token_log_probs(self, hidden: Tensor, targets: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities of `targets` `[m]` and the entropies of their distributions `[m]`.

        Args:
            hidden: hidden states of the tokens before the targets, `[m, H]`.
            targets: token ids, `[m]`.
            temperature: temperature of the distribution; for sampled tokens the sampler's.
        """
        return ops.token_log_probs(
            hidden,
            self._output.weight,
            targets,
            bias=self._output.bias,
            temperature=temperature,
            softcap=self._softcap,
            scale=self._scale,
            entropy=True,
        )

    def log_probs(self, batch: Packed, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities of the trained tokens of a batch and the entropies there, `[m]` each."""
        return self.token_log_probs(
            self.read(batch).index_select(0, batch.before), batch.targets, temperature=temperature
        )

    @torch.no_grad()
    def completion_log_probs(self, samples: Sequence[Sample], *, tokens: int) -> list[Tensor]:
        """Compute the log-probabilities of the trained tokens of each sample, `[l]` each, without gradients.

        Args:
            samples: sequences.
            tokens: maximum number of tokens per forward pass.
        """
        found: list[Tensor] = []
        for part in micro_batches(samples, tokens=tokens):
            packed = pack(take(samples, part), ends=False, device=self.device)
            found += split(self.log_probs(packed)[0], integers(packed.lengths))
        return found

    def state_dict(self) -> State:
        """Return the trained parameters."""
        return {name: value.detach() for name, value in self.trained().items()}

    def load_state_dict(self, state: State) -> None:
        """Load the parameters of a state.

        Raises:
            ValueError: the state belongs to another model.
        """
        copy_named(self.trained(), state, of="model", options="--model, --init and --lora-r")

    def save(self, folder: str | Path) -> None:
        """Save the model in the format of transformers, or of peft for an adapter, with its tokenizer."""
        own = {"save_embedding_layers": False} if is_adapted(self.network) else {}  # those of the base
        self.network.save_pretrained(folder, safe_serialization=True, **own)
        self.tokenizer.save_pretrained(folder)

    def frozen(self) -> "LanguageModel":
        """Return a frozen copy."""
        network = copy.deepcopy(self.network).requires_grad_(False)
        return LanguageModel(network, self.tokenizer, stop=self.stop)

    def check(self) -> None:
        """Check that packed batches give the same results as single sequences, and that the tokenizer fits.

        Raises:
            ValueError: they differ, so the model cannot be trained on packed batches.
        """
        self._check_tokenizer()
        size = self._output.weight.shape[0]
        words = [[(7 * i + 3 * j) % size for j in range(sum(lengths))] for i, lengths in enumerate(_PROBES)]
        prompt = words[0][: _PROBES[0][0]]
        samples = [Sample(w[:p], w[p:]) for w, (p, _) in zip(words, _PROBES, strict=True)]
        samples.insert(1, Sample(prompt, words[2]))
        with torch.no_grad():
            packed, _ = self.log_probs(pack(samples, device=self.device))
            separate = [self._alone(sample) for sample in samples]
        alone = torch.cat([log_probs for log_probs, _ in separate])
        largest = max(logit for _, logit in separate)
        difference = float((packed - alone).abs().max())
        if math.isnan(difference):
            bad = [name for name, value in self.network.named_parameters() if not value.isfinite().all()]
            what = f"its weights contain NaN or Inf, first in {bad[0]}" if bad else "they overflow: use another dtype"
            raise ValueError(f"{type(self._trunk).__name__} gives log-probabilities that are NaN: {what}")
        bound = MISMATCH
        if self._output.weight.dtype != torch.float32:  # the network rounds its logits, here to 8 bits
            bound = max(0.3, 2**-7 * largest)
        if not difference <= bound:
            raise ValueError(
                f"{type(self._trunk).__name__} gives log-probabilities that differ by {difference:.2g} nats between "
                "packed batches and single sequences: it mixes tokens outside attention, or modifies its "
                f"logits; use a plain transformer ({SUPPORTED})"
            )

    def _check_tokenizer(self) -> None:
        """Check that all tokens have embeddings, except added ones other than BOS and EOS."""
        size = self.vocabulary
        added = self.tokenizer.get_added_vocab()
        ids = [index for token, index in self.tokenizer.get_vocab().items() if token not in added]
        ids += [index for index in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id) if index is not None]
        if ids and max(ids) >= size:
            raise ValueError(
                f"the tokenizer has token ids up to {max(ids)}, but the model has {size} embeddings: use both from "
                "the same source, or resize the embeddings (resize_token_embeddings)"
            )

    def _alone(self, sample: Sample) -> tuple[Tensor, float]:
        """Compute the log-probabilities of a completion by the network itself, and the largest absolute logit."""
        ids = torch.tensor([[*sample.prompt, *sample.completion]], device=self.device)
        logits = self.network(input_ids=ids, use_cache=False).logits[0, :-1].float()
        log_probs = ops.categorical_log_prob(logits, ids[0, 1:])[len(sample.prompt) - 1 :]
        return log_probs, float(logits.abs().max())


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Compute `hidden @ weight.T` in float32, also for factors of 16 bits, to which PyTorch rounds their product.

    Training computes logits in float32; with rounded ones, the tokens that are sampled would have other probabilities.
    The second product is what rounding removed from the first. It takes a quarter of the time of products in float32
    on a CPU, which would convert the weights for every token.
    """
    if hidden.dtype == weight.dtype and weight.dtype.itemsize == 2:
        rounded = (hidden @ weight.T).detach()
        return rounded.float() + torch.addmm(rounded, hidden, weight.T, beta=-1).float()
    return hidden.float() @ weight.float().T


class Reference:
    """Frozen reference policy of a KL penalty or of DPO.

    It is a copy of the model, or the model without its adapter if that was initialized to zero.

    Args:
        model: current policy.
    """

    def __init__(self, model: LanguageModel):
        self._model = model
        self._copy = None if model.fresh_adapter else model.frozen()

    @torch.no_grad()
    def log_probs(self, batch: Packed, *, temperature: float = 1.0) -> Tensor:
        """Compute the log-probabilities of the trained tokens of a batch, `[m]`."""
        with self._in_place() as model:
            return model.log_probs(batch, temperature=temperature)[0]

    @contextlib.contextmanager
    def _in_place(self) -> Generator[LanguageModel]:
        if self._copy is not None:
            yield self._copy
            return
        with self._model.network.disable_adapter():
            yield self._model

    def reset(self) -> None:
        """Reset the reference to the current policy."""
        if self._copy is None:
            self._copy = self._model.frozen()
            return
        copy_named(self._parameters(self._copy), self._model.trained(), of="reference")

    def state_dict(self) -> State:
        """Return the copied parameters; empty if the reference is the model without its adapter."""
        if self._copy is None:
            return {"parameters": None}
        return {"parameters": self._parameters(self._copy)}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict`."""
        if state["parameters"] is None:
            self._copy = None
            return
        self._copy = self._copy or self._model.frozen()
        copy_named(self._parameters(self._copy), state["parameters"], of="reference")

    def _parameters(self, model: LanguageModel) -> dict[str, nn.Parameter]:
        """Return the parameters of a model that are trained in the policy, by name."""
        parameters = model.named()
        return {name: parameters[name] for name in self._model.trained()}


class ScalarHead(nn.Module):
    """Linear head on hidden states: the score of a reward model, or the value of a critic. It is initialized to 0.

    Args:
        width: size of a hidden state, H.
        device: device of the model.
        features: number of additional inputs, F.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu", features: int = 0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))
        self.features = nn.Parameter(torch.zeros(features, device=device)) if features else None

    def forward(self, hidden: Tensor, features: Tensor | None = None) -> Tensor:
        """Compute the outputs `[n]` from hidden states `[n, H]` and features `[n, F]`, in float32."""
        read = hidden.float() @ self.weight + self.bias
        return read if self.features is None or features is None else read + features @ self.features


def load(options: ModelOptions, *, seed: int, device: torch.device | str = "cpu") -> LanguageModel:
    """Load a model, or create a built-in one.

    Args:
        options: model options.
        seed: random seed of the weights of a built-in model and of an adapter.
        device: device of the model.

    Raises:
        ValueError: there is no such model, its safetensors are missing or incomplete, it is an adapter of another
            model, or it cannot be trained on packed sequences.
    """
    if options.init:
        from operant.language.runs import load_trained

        return load_trained(options, seed=seed, device=device)
    if options.model in BUILT_IN:
        network, tokenizer = build(options.model, seed=seed), character_tokenizer()
        network = network.to(device=device, dtype=DTYPES[options.dtype])
    else:
        network, tokenizer = pretrained(options, device=device, dtype=DTYPES[options.dtype], others=tuple(BUILT_IN))
    return finish(network, tokenizer, options, seed=seed)


def finish(network: Any, tokenizer: Tokenizer, options: ModelOptions, *, seed: int) -> LanguageModel:
    """Add the configured adapter and checkpointing to a network, and check that it can be trained."""
    if options.gradient_checkpointing:
        enable = getattr(network, "activation_checkpointing_enable", None)  # name in newer versions of transformers
        (enable or network.gradient_checkpointing_enable)({"use_reentrant": False})
        network.enable_input_require_grads()
    if options.lora_r:
        network = with_adapter(network, options, seed=seed)
    stop = stop_ids(tokenizer, getattr(network, "generation_config", None))
    model = LanguageModel(network, tokenizer, stop=stop, fresh_adapter=options.lora_r > 0)
    model.check()
    return model


def build(name: str, *, seed: int) -> Any:
    """Create a built-in network with random weights."""
    kind, width, layers, heads = BUILT_IN[name]
    return random_network(kind, width, layers, heads, inner=width * 8 // 3 // 8 * 8, seed=seed)


def random_network(kind: str, width: int, layers: int, heads: int, *, inner: int, seed: int) -> Any:
    """Create a character-level llama or qwen3 with random weights, and MLPs of width `inner`.

    Weights are normal with standard deviation 1/sqrt(inputs of the layer), which preserves the scale of activations
    (LeCun et al. 1998, "Efficient BackProp", section 4.6). The constant of transformers, 0.02, is suitable for widths
    of several thousand; at width 128 the initial outputs of layers are close to 0, and many seeds do not learn to add.
    """
    from transformers import LlamaConfig, Qwen3Config

    config = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind](
        vocab_size=len(character_tokenizer()),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width // heads,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with fork_rng(devices=[]):  # transformers samples from the global generator
        network = network_of(config)
    generator = streams.torch_generator(seed, "weights")
    for parameter in network.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
    return network


def _switch_off_dropout(network: nn.Module) -> None:
    """Disable dropout also in training mode, which gradient checkpointing needs."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]:
            setattr(module, name, 0.0)
    network.train()


def _logit_scale(config: Any) -> float:
    """Return the scale of a model's logits (Cohere multiplies by logit_scale; Granite divides by logits_scaling)."""
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
