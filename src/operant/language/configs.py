"""Shared options of language algorithms: `ModelOptions`, `LanguageConfig`, `SamplingConfig`, `ClipRange`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from operant import doors
from operant.language.importance import Correction
from operant.runtime.bounds import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
    require,
)

ENGINES = "operant.engines"
"""Entry points of packages that offer engines."""


def is_outside(engine: str) -> bool:
    """Whether the name of an engine is that of one from outside, with parameters or without."""
    name = engine.partition("(")[0].strip()
    return doors.is_name(name) or name in doors.entry_points(ENGINES)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model, and its trained parameters."""

    model: str = "tiny"
    """Causal language model: a folder or Hugging Face Hub name (safetensors), or a built-in one: tiny, tiny-qwen3,
    small."""
    init: str = ""
    """Folder of a run whose trained model is the initial model, instead of --model; RUN/best for its weights with the
    highest evaluation score. Empty: none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the model. With bfloat16 the optimizer has float32 copies of the trained parameters, since small
    updates would be lost to rounding."""
    lora_r: NonNegativeInt = 0
    """Rank of LoRA adapters, which are trained instead of the weights; 0: train all weights."""
    lora_alpha: NonNegativeInt = 0
    """LoRA alpha: adapters are scaled by alpha / rank; 0: twice the rank."""
    lora_target_modules: tuple[str, ...] = ()
    """Names of the layers with adapters; none, or all-linear: all linear layers except the output layer. The output
    layer has none, nor have embeddings with the same weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which saves memory and takes about a third more time."""
    remote_code: bool = False
    """Allow Python code that comes with --model. The code is not restricted: only for authors you trust."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if not self.model.strip():
            raise ValueError("model must be a folder, a Hub name or a built-in model, got ''")
        needs = "lora_r above 0", "lora_r=0 trains all weights, without adapters"
        require_used(
            self,
            "lora_r=0",
            *((name, self.lora_r > 0, *needs) for name in ("lora_alpha", "lora_target_modules")),
        )


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(ModelOptions):
    """Options of data, optimizer and memory."""

    dataset: str = ""
    """Training data in TRL's formats: a .jsonl, .json, .parquet or .csv file, a folder saved by `datasets`, or a Hub
    name. Empty: the task generates it."""
    eval_dataset: str = ""
    """Evaluation data, of which the first `held_out` examples are used; for a data set with several splits, its test
    split. Empty: a held-out part of the data set."""
    train_examples: PositiveInt = 4096
    """Number of training examples that a built-in task generates."""
    held_out: PositiveInt = 200
    """Number of held-out examples, at most a fifth of a data set; maximum number for an `eval_dataset`."""
    max_prompt_length: PositiveInt = 512
    """Maximum number of tokens of a prompt; longer prompts are truncated at the beginning."""
    max_completion_length: NonNegativeInt = 0
    """Maximum number of tokens of a completion, including EOS; 0: the task's default, or 256 for a data set."""
    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after warm-up: constant, or linear or cosine decay to 0 over the budget."""
    warmup_ratio: UnitFloat = 0.0
    """Fraction of the budget over which the learning rate rises linearly from 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Coefficients of Adam's running averages of the gradient and its square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (Loshchilov and Hutter 2019) of matrices, multiplied by the learning rate."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""
    micro_batch_tokens: PositiveInt = 16_384
    """Maximum number of tokens per forward pass; smaller values save memory and give the same updates."""

    def __post_init__(self) -> None:
        """Validate."""
        if self.held_out == 0:
            raise ValueError(
                "held_out is 0, expected at least 1, since runs are evaluated on held-out examples: to train on "
                "all rows of a data set, evaluate on other rows with --eval-dataset"
            )
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(LanguageConfig):
    """Options of sampling and rewards."""

    temperature: PositiveFloat = 1.0
    """Temperature of sampling, and of the log-probabilities in training."""
    rewards: tuple[str, ...] = ()
    """Reward functions: names of `operant.language.verifiers`, such as exact, numeric, boxed or soft-overlong, or
    path/to/file.py:function of custom ones. Empty: the task's reward."""
    reward_weights: tuple[float, ...] = ()
    """Weight of each reward function, that of the reward model last; none: 1 each. The last one has no effect if the
    score is not added to other rewards: in iterative-grpo, or with process supervision on a built-in task."""
    reward_timeout: PositiveFloat = 60.0
    """Time limit in seconds per call of a custom reward function; after it, answers get no reward."""
    reward_workers: PositiveInt = 1
    """Number of processes per custom reward function, and of accuracy; a batch is split into one call per process."""
    reward_memory: NonNegativeFloat = 4.0
    """Memory limit in GiB of each process of a custom reward function (Linux); 0: no limit."""
    pass_reward: str = ""
    """Name of the reward function that determines whether an answer is correct in pass@k (reward at least 1). Empty:
    the first one, or for a built-in task the task's."""
    reward_model: str = ""
    """Folder of a reward-model run whose score is a reward function, besides those in `rewards`; RUN/best for its
    weights with the highest evaluation score; empty: none. Each seed uses the reward model of the same seed, or of the
    run's first seed if the run lacks it. Or a folder or Hub name of a sequence classifier of transformers with one
    label, such as a reward model of TRL. Without `rewards` it replaces the reward of a built-in task, which remains
    the score of evaluations."""
    engine: str = "native"
    """Sampling engine: the model in this process (native), or the URL of a vLLM server, such as http://127.0.0.1:8000.
    With several URLs, separated by commas, prompts are distributed among the servers. Or a custom engine,
    path/to/file.py:Name, with or without parameters, such as my.py:MyEngine(port=8000)."""
    engine_batch_size: PositiveInt = 256
    """Number of sequences that the native engine generates in parallel. More are faster and need more memory."""
    max_staleness: Annotated[int, Interval("[0, 1]")] = 0
    """1: a server samples the next batch during the update, with weights that are one update old;
    importance_sampling_correction corrects the difference. 0: sampling and updates alternate."""
    importance_sampling_correction: Correction = "truncate"
    """Correction of differences between the log-probabilities of engine and trainer: none; importance weights of
    tokens, capped (truncate) or set to 0 if the ratio is outside [0.5, cap] (mask); or one weight per answer, the
    product of its tokens' ratios, capped (sequence-truncate) or set to 0 above the cap (sequence-mask, as in TRL)."""
    importance_sampling_cap: Annotated[float, Interval("[1, inf)")] | None = None
    """Maximum importance weight; None: 2 for tokens, 3 for sequences (as in TRL)."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.reward_weights and len(self.reward_weights) != len(self.rewards) + bool(self.reward_model):
            raise ValueError(
                f"reward_weights has {len(self.reward_weights)} numbers for {len(self.rewards)} rewards"
                f"{' and a reward model' if self.reward_model else ''}: give one weight each, the model's last"
            )
        addresses = self.engine.split(",")
        served = all(a.startswith(("http://", "https://")) for a in addresses)
        if self.engine != "native" and not served and not is_outside(self.engine):
            raise ValueError(
                "engine must be native, or URLs such as http://127.0.0.1:8000,http://127.0.0.1:8001, "
                f"or a custom engine, path/to/file.py:Name, got {self.engine!r}"
            )
        if served and len(set(addresses)) < len(addresses):
            raise ValueError(f"each URL of an engine must be given once, got {self.engine!r}")
        if self.max_staleness and self.engine == "native":
            raise ValueError(
                "max_staleness=1 needs a server that samples during updates, got engine='native', which samples from "
                "the trained model: set engine to the URL of a server, or use max_staleness=0"
            )


class ClipRange:
    """Clip range of the probability ratio, for configurations with the fields `epsilon` and `epsilon_high`."""

    epsilon: float
    epsilon_high: float | None

    @property
    def clip_range(self) -> tuple[float, float]:
        """Lower and upper clip range of the ratio; without `epsilon_high` they are equal."""
        return self.epsilon, self.epsilon if self.epsilon_high is None else self.epsilon_high

    def require_range(self, objective: str) -> None:
        """Check that an objective whose ratios are not those of tokens has another clip range than theirs.

        Args:
            objective: `sequence` or `cispo`; others have no condition.

        Raises:
            ValueError: the range is the default.
        """
        default = objective == "cispo" or (objective == "sequence" and self.epsilon == type(self).epsilon)
        if default and self.epsilon_high is None:
            raise ValueError(
                f"objective={objective} needs another clip range than the default, which is for ratios of "
                "tokens: set epsilon_high, or use --preset cispo (epsilon_high 4) or gspo (3e-4 and 4e-4)"
            )


def require_used(config: ModelOptions, given: str, *options: tuple[str, bool, str, str]) -> None:
    """Check that options without an effect have their defaults.

    Args:
        config: hyperparameters.
        given: values that decide whether options have an effect, for the error.
        *options: options: name, whether it has an effect, values with which it has one, and a hint for the error.

    Raises:
        ValueError: an option has no effect and another value than its default.
    """
    for name, used, needs, hint in options:
        if not used and (value := getattr(config, name)) != getattr(type(config), name):
            raise ValueError(
                f"{name}={value} has an effect only with {needs}, got {given}: set them, or leave out "
                f"{name}{hint and f'; {hint}'}"
            )
