"""Custom training loops on four verbs: `connect`, `Trainer`, `LocalTrainer`.

`forward_backward`, `optim_step`, `sample` and `save_state` are the verbs of the Tinker API. The user's loop chooses the
data, the rewards and the order of steps; the trainer holds the model and the optimizer. `connect` returns a trainer in
this process, or a client of a service (`operant.scale.remote`), such as `operant serve --train`
(`operant.scale.tinker_server`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from operant import streams
from operant.language.configs import ModelOptions
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Completion, Sampling
from operant.language.models import LanguageModel, load
from operant.language.packing import Sample, micro_batches, pack, take
from operant.language.runs import built_in
from operant.runtime.machine import chosen_device
from operant.runtime.run import Run, RunError
from operant.scale.batches import Datum, Loss, check, check_prompt, check_tokens, losses, thresholds_of
from operant.scale.saved_states import checked_name, read_state, write_state
from operant.state import State, clone, copy_named
from operant.tensors import backpropagate

MICRO_BATCH_TOKENS = 16_384
"""Maximum number of tokens per forward pass."""


@dataclass(frozen=True)
class Adam:
    """Hyperparameters of a step of AdamW (Loshchilov and Hutter 2019), with the defaults of the Tinker API.

    Raises:
        ValueError: a value is out of range.
    """

    learning_rate: float = 1e-4
    """Learning rate."""
    beta1: float = 0.9
    """Decay rate of the mean of gradients."""
    beta2: float = 0.95
    """Decay rate of the mean of squared gradients."""
    eps: float = 1e-12
    """Constant added to the square root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay, multiplied by the learning rate."""
    grad_clip_norm: float = 0.0
    """Maximum norm of the gradient; 0: no clipping."""

    def __post_init__(self) -> None:
        """Validate."""
        for name, value in vars(self).items():
            if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {value!r}")
        if self.beta1 >= 1 or self.beta2 >= 1 or not self.eps:
            raise ValueError(
                f"beta1 and beta2 must be below 1 and eps above 0, got {self.beta1}, {self.beta2} and {self.eps}"
            )


class Forward(NamedTuple):
    """Loss and log-probabilities of a batch.

    Attributes:
        loss: sum of the losses of all tokens.
        logprobs: log-probabilities `[n]` of the targets of each datum.
    """

    loss: float
    logprobs: list[Tensor]


class Trainer(Protocol):
    """Protocol of trainers.

    Attributes:
        tokenizer: tokenizer of the model, of transformers.
    """

    tokenizer: Any

    def forward(self, data: Sequence[Datum], loss: Loss, config: Mapping[str, float] | None = None) -> Forward:
        """Compute the loss of a batch without its gradient; see `forward_backward`."""
        ...

    def forward_backward(self, data: Sequence[Datum], loss: Loss, config: Mapping[str, float] | None = None) -> Forward:
        """Compute the loss of a batch, and accumulate its gradient for `optim_step`.

        Args:
            data: batch.
            loss: name of the loss.
            config: bounds of the probability ratio of `ppo` and `cispo`, `clip_low_threshold` and
                `clip_high_threshold`.

        Raises:
            ValueError: the loss or a setting is unknown, a datum lacks a field or has one that the loss does not use,
                or a token is not in the vocabulary. The gradient of earlier calls is then unchanged.
        """
        ...

    def optim_step(self, adam: Adam) -> Mapping[str, float]:
        """Take an optimizer step with the accumulated gradient, and clear it. A gradient with NaN or Inf is skipped.

        Args:
            adam: hyperparameters of the step.

        Returns:
            Metrics: `gradient_norm` before clipping, and `skipped`, 1 or 0.

        Raises:
            ValueError: there is no gradient.
        """
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], num_samples: int, sampling: Sampling, *, seed: int | None = None
    ) -> list[list[Completion]]:
        """Sample completions of each prompt from the current weights.

        Args:
            prompts: token ids of each prompt.
            num_samples: number of completions per prompt.
            sampling: sampling options.
            seed: random seed; None: a different one in each call.

        Raises:
            ValueError: a prompt is empty, has a token that is not in the vocabulary, or exceeds the model's context
                together with `sampling.max_tokens`; or `num_samples` is below 1.
        """
        ...

    def save_state(self, name: str, *, overwrite: bool = False) -> str:
        """Save weights and optimizer state under a name; return the path for `load_state`.

        Args:
            name: name of the state.
            overwrite: whether to replace an earlier state of this name.
        """
        ...

    def load_state(self, path: str, *, optimizer: bool = True) -> None:
        """Restore a saved state exactly, or only its weights if `optimizer` is false."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class LocalTrainer:
    """Trainer in this process.

    Args:
        model: model, which is trained in place.
        folder: folder of saved states, created when needed.
        seed: random seed of samples without a seed.

    Attributes:
        steps: number of optimizer steps so far.
    """

    def __init__(self, model: LanguageModel, folder: str | Path = "states", *, seed: int = 0) -> None:
        narrow = next((value.dtype for value in model.trained().values() if value.dtype != torch.float32), None)
        if narrow is not None:
            raise ValueError(f"the trained weights are {narrow}; load them with dtype='float32', or train an adapter")
        self.model, self.folder, self.seed = model, Path(folder), seed
        self.tokenizer = model.tokenizer
        self.steps = self._samples = 0
        self._parameters = model.trained()
        self._optimizer = torch.optim.AdamW(self._parameters.values(), fused=True)
        self._engine = NativeEngine(model)

    @torch.no_grad()
    def forward(self, data: Sequence[Datum], loss: Loss, config: Mapping[str, float] | None = None) -> Forward:
        """See `Trainer`."""
        return self._pass(data, loss, config, lambda _: None)

    def forward_backward(self, data: Sequence[Datum], loss: Loss, config: Mapping[str, float] | None = None) -> Forward:
        """See `Trainer`."""
        earlier = {name: value.grad for name, value in self._parameters.items()}
        self._optimizer.zero_grad()
        try:
            found = self._pass(data, loss, config, backpropagate)
        except BaseException:
            for name, value in self._parameters.items():
                value.grad = earlier[name]
            raise
        for name, value in self._parameters.items():
            before = earlier[name]
            if before is not None:
                value.grad = before if value.grad is None else value.grad.add_(before)
        return found

    def _pass(
        self,
        data: Sequence[Datum],
        loss: Loss,
        config: Mapping[str, float] | None,
        differentiate: Callable[[Tensor], object],
    ) -> Forward:
        """Compute the loss of a batch; `differentiate` is called with that of each micro-batch."""
        data = list(data)
        check(data, loss)
        check_tokens(data, self.model.vocabulary, self.model.context)
        thresholds = thresholds_of(loss, config or {})
        # The last target is not an input. It is packed as the completion, so that a datum may have one token.
        samples = [Sample(list(datum.tokens), [datum.target_tokens[-1]]) for datum in data]
        found = Forward(0.0, [])
        for part in micro_batches(samples, tokens=MICRO_BATCH_TOKENS):
            batch = take(data, part)
            log_probs = self._log_probs(take(samples, part), batch)
            total = losses(log_probs, batch, loss, thresholds).sum()
            differentiate(total)
            lengths = [len(datum.tokens) for datum in batch]
            found = Forward(found.loss + total.item(), [*found.logprobs, *log_probs.detach().split_with_sizes(lengths)])
        return found

    def _log_probs(self, samples: Sequence[Sample], batch: Sequence[Datum]) -> Tensor:
        """Return the log-probabilities of all targets of a batch, `[m]`."""
        packed = pack(samples, share=False, device=self.model.device)
        is_input = torch.ones(len(packed.ids), dtype=torch.bool, device=self.model.device)
        is_input[packed.last] = False
        targets = torch.tensor([token for datum in batch for token in datum.target_tokens], device=self.model.device)
        return self.model.token_log_probs(self.model.read(packed)[is_input], targets)[0]

    def optim_step(self, adam: Adam) -> Mapping[str, float]:
        """See `Trainer`."""
        gradients = [value.grad for value in self._parameters.values() if value.grad is not None]
        if not gradients:
            raise ValueError("there is no gradient: call forward_backward before optim_step")
        norm = nn.utils.get_total_norm(gradients)
        finite = bool(norm.isfinite())
        if finite:
            if adam.grad_clip_norm > 0:
                nn.utils.clip_grads_with_norm_(self._parameters.values(), adam.grad_clip_norm, norm)
            self._optimizer.param_groups[0].update(
                lr=adam.learning_rate,
                betas=(adam.beta1, adam.beta2),
                eps=adam.eps,
                weight_decay=adam.weight_decay,
            )
            self._optimizer.step()  # pyright: ignore[reportUnknownMemberType] - type of the closure
            self.steps += 1
        self._optimizer.zero_grad()
        return {"gradient_norm": norm.item(), "skipped": 0.0 if finite else 1.0}

    def sample(
        self, prompts: Sequence[Sequence[int]], num_samples: int, sampling: Sampling, *, seed: int | None = None
    ) -> list[list[Completion]]:
        """See `Trainer`."""
        given: list[object] = list(prompts)
        for prompt in given:
            if isinstance(prompt, str | Integral):
                raise ValueError(
                    f"prompts must be lists of token ids, got {prompt!r:.80}: encode texts, and pass a list"
                )
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        prompts = [list(prompt) for prompt in cast(list[Sequence[int]], given)]
        for index, prompt in enumerate(prompts):
            check_prompt(prompt, sampling.max_tokens, self.model.vocabulary, self.model.context, of=f"prompt {index}")
        if seed is None:
            generator = streams.torch_generator(self.seed, "samples", self._samples)
            self._samples += 1
        else:
            generator = streams.torch_generator(seed, "samples")
        return self._engine.generate(prompts, num_samples, sampling, generator=generator)

    def save_state(self, name: str, *, overwrite: bool = False) -> str:
        """See `Trainer`.

        Raises:
            ValueError: the name is not a valid folder name, or already exists and `overwrite` is false.
        """
        target = self.folder / checked_name(name)
        write_state(target, self.state_dict(), self.steps, overwrite=overwrite)
        return str(target)

    def load_state(self, path: str, *, optimizer: bool = True) -> None:
        """See `Trainer`.

        Raises:
            ValueError: there is no such state, or it belongs to another model.
        """
        self.load_state_dict(read_state(Path(path)), optimizer=optimizer)

    def state_dict(self) -> State:
        """Return the state: weights, moments of the optimizer, and counters."""
        state = self._optimizer.state
        return {
            "steps": self.steps,
            "samples": self._samples,
            "model": self.model.state_dict(),
            "moments": {name: dict(state[value]) for name, value in self._parameters.items() if value in state},
        }

    def load_state_dict(self, state: State, *, optimizer: bool = True) -> None:
        """Restore a state of `state_dict`, or only its weights if `optimizer` is false."""
        self.model.load_state_dict(state["model"])
        self._optimizer.state.clear()
        self._optimizer.zero_grad()
        if optimizer:
            self.steps, self._samples = state["steps"], state["samples"]
            for name, moments in state["moments"].items():
                parameter = self._parameters[name]
                # fused steps need all moments, and the number of steps, on the device of the parameter
                self._optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in clone(moments).items()}

    def weights(self) -> State:
        """Return a copy of the trained weights, for `Sampler`."""
        return clone(self.model.state_dict())

    def close(self) -> None:
        """See `Trainer`."""
        self._engine.close()


class Sampler:
    """Sampler from a snapshot of the weights, which training does not change.

    Args:
        model: model to copy.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model.frozen()
        self._parameters = dict(self.model.network.named_parameters())
        self._engine = NativeEngine(self.model)
        self._weights: State | None = None

    def use(self, weights: State) -> None:
        """Load the weights of `LocalTrainer.weights`, for all later samples."""
        if self._weights is not weights:
            copy_named({name: self._parameters[name] for name in weights}, weights, of="sampler")
            self._weights = weights

    def sample(
        self, prompt: Sequence[int], num_samples: int, sampling: Sampling, generator: torch.Generator
    ) -> list[Completion]:
        """Sample completions of one prompt."""
        return self._engine.generate([prompt], num_samples, sampling, generator=generator)[0]

    @torch.no_grad()
    def log_probs(self, tokens: Sequence[int]) -> Tensor:
        """Compute the log-probabilities of all tokens except the first, `[n - 1]`."""
        if len(tokens) < 2:
            return torch.zeros(0)
        return self.model.completion_log_probs([Sample(tokens[:1], tokens[1:])], tokens=MICRO_BATCH_TOKENS)[0]


def connect(
    address: str | None = None,
    *,
    model: str | None = None,
    lora_r: int = 0,
    seed: int = 0,
    key: str | None = None,
    states: str | Path = "states",
    device: str = "auto",
) -> AbstractContextManager[Trainer]:
    """Return a trainer as a context manager: in this process, or a client of a service with the Tinker API.

    Args:
        address: address of the service, such as `http://127.0.0.1:8421`; None: train in this process.
        model: folder of a run, folder or hub name of a model, or built-in model; for a service one of its models.
            None: the built-in model `tiny`; for a service the only model that it serves.
        lora_r: rank of a new adapter. 0: train all weights in this process; a service uses rank 32.
        seed: random seed of initial weights and of samples without a seed.
        key: API key of the service; None: the value of the environment variable `TINKER_API_KEY`.
        states: folder of states saved in this process.
        device: device in this process, such as cuda:1; auto: a GPU if available, and the CPU for built-in models.

    Raises:
        ValueError: there is no such model or device, or `model` is None and the service has several.
        ModuleNotFoundError: the address is of a service, and the extra `tinker` is missing.
    """
    if not isinstance(cast(object, model), str | None):
        raise ValueError(
            f"model is of type {type(model).__name__}, expected a folder or a name: save it with its tokenizer by "
            "save_pretrained(folder)"
        )
    if address is None:
        options = named(model or "tiny", lora_r)
        return closing(LocalTrainer(load(options, seed=seed, device=placed(options, device)), states, seed=seed))
    if device != "auto":
        raise ValueError(f"device is {device!r}, but the service has its own: leave it out, or start it with --device")
    from operant.scale.remote import RemoteTrainer  # noqa: PLC0415 - needs an extra

    return closing(RemoteTrainer(address, model, lora_r=lora_r, seed=seed, key=key))


def placed(options: ModelOptions, device: str) -> str:
    """Return the device of a model; for `auto` a GPU if available, and the CPU for built-in models.

    Raises:
        ValueError: there is no such device on this machine.
    """
    return chosen_device(device, large=not built_in(options))


def named(model: str, lora_r: int = 0) -> ModelOptions:
    """Return the options of a model, given as the folder of a run, another folder, or a name."""
    try:
        Run.open(model.removesuffix("/best"))
    except RunError:
        return ModelOptions(model=model, lora_r=lora_r)
    return ModelOptions(init=model, lora_r=lora_r)
