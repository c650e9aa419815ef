"""Shared options of language algorithms: `ModelOptions`, `LanguageConfig`, `SamplingConfig`."""

from dataclasses import dataclass
from typing import Annotated, Literal

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


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model, and the part of it to train."""

    model: str = "tiny"
    """Folder or hub name of a causal language model (safetensors), or a built-in one: tiny, tiny-qwen3, small."""
    init: str = ""
    """Folder of a run whose trained model to start from, instead of --model, or RUN/best for the weights with the
    highest evaluation score; empty: none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the model. Under bfloat16 the optimizer keeps 32-bit copies of trained parameters, since small steps
    would be rounded away."""
    lora_r: NonNegativeInt = 0
    """Rank of LoRA adapters, trained instead of the weights; 0 trains all weights."""
    lora_alpha: NonNegativeInt = 0
    """Scale of the adapters, as alpha / rank; 0: twice the rank."""
    lora_target_modules: tuple[str, ...] = ()
    """Names of the layers with adapters; none: every linear layer but the last."""
    gradient_checkpointing: bool = False
    """Whether to recompute activations in the backward pass: less memory for a third more time."""
    remote_code: bool = False
    """Whether Python code of --model may run. It can do anything; only for authors you trust."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if not self.model.strip():
            raise ValueError("model must name a folder, a hub model or a built-in one, got ''")


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(ModelOptions):
    """Shared options of data, optimizer and memory."""

    dataset: str = ""
    """Training examples, in TRL's formats: a .jsonl, .json, .parquet or .csv file, a folder saved by `datasets`, or a
    hub name. Empty: the task generates them."""
    eval_dataset: str = ""
    """Evaluation examples, of which the first `held_out` are used; of a data set with several splits, its test. Empty:
    a held-out part of the data set."""
    train_examples: PositiveInt = 4096
    """Training examples that a built-in task generates."""
    held_out: PositiveInt = 200
    """Held-out examples, at most a fifth of a data set; of an `eval_dataset` the maximum used."""
    max_prompt_length: PositiveInt = 512
    """Maximum tokens of a prompt; longer ones keep their last tokens."""
    max_completion_length: NonNegativeInt = 0
    """Maximum tokens of a completion, end of sequence included; 0: the task's default, 256 for a data set."""
    learning_rate: PositiveFloat = 1e-5
    """Largest step size of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the step size after warm-up: constant, or to 0 linearly or by half a cosine over the budget."""
    warmup_ratio: UnitFloat = 0.0
    """Share of the budget over which the step size rises from 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay per step of Adam's two moving averages."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (Loshchilov and Hutter 2019) of matrices per step, in units of the step size."""
    max_grad_norm: PositiveFloat = 1.0
    """Largest norm of the gradient; larger ones are scaled down."""
    micro_batch_tokens: PositiveInt = 16_384
    """Maximum tokens per forward pass; fewer need less memory and give the same step."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(LanguageConfig):
    """Sampling from a policy, and the rewards of its answers."""

    temperature: PositiveFloat = 1.0
    """Temperature of the sampler, and of the log-probabilities in training."""
    rewards: tuple[str, ...] = ()
    """Reward functions: names of `operant.language.verifiers`, such as exact, numeric, boxed or soft-overlong, or your
    own, path/to/file.py:function. None: the task's reward."""
    reward_weights: tuple[float, ...] = ()
    """One per reward function; none: 1 each."""
    reward_timeout: PositiveFloat = 60.0
    """Time limit in seconds per call of your own reward function; late answers get no reward."""
    reward_workers: PositiveInt = 1
    """Processes of each of your own reward functions, and of accuracy. Several divide a batch among as many calls."""
    reward_memory: NonNegativeFloat = 4.0
    """Memory limit in GiB of each process of your own reward functions (Linux); 0: no limit."""
    pass_reward: str = ""
    """Name of the reward function that decides whether an answer is correct in pass@k (1 or more). Empty: the first
    one, or on a built-in task the task's."""
    reward_model: str = ""
    """Folder of a reward-model run, whose score is another reward function; empty: none."""
    engine: str = "native"
    """Sampling engine: the model in this process (native), or the address of a vLLM server, such as
    http://127.0.0.1:8000; several addresses, separated by commas, divide the prompts among them."""
    engine_batch_size: PositiveInt = 256
    """Sequences that the native engine completes in parallel. More are faster and need more memory."""
    max_staleness: Annotated[int, Interval("[0, 1]")] = 0
    """1: a server samples the next batch while this one is learned from, with weights that are one update older then;
    importance_sampling_correction weighs the difference. 0: sampling and learning take turns."""
    importance_sampling_correction: Correction = "truncate"
    """Correction where the log-probabilities of engine and trainer differ: none; importance weights of tokens, capped
    (truncate), or 0 where the ratio is outside [0.5, cap] (mask); or one weight for all tokens of an answer, the
    product of their ratios, capped (sequence-truncate) or 0 above the cap (sequence-mask, as TRL)."""
    importance_sampling_cap: Annotated[float, Interval("[1, inf)")] | None = None
    """Largest weight; None: 2 for tokens, and 3 for sequences as in TRL."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.reward_weights and len(self.reward_weights) != len(self.rewards) + bool(self.reward_model):
            raise ValueError(
                f"reward_weights has {len(self.reward_weights)} numbers for {len(self.rewards)} rewards"
                f"{' and a reward model' if self.reward_model else ''}: give one for each, the model's last"
            )
        addresses = self.engine.split(",")
        if self.engine != "native" and not all(a.startswith(("http://", "https://")) for a in addresses):
            raise ValueError(
                "engine must be native, or addresses such as http://127.0.0.1:8000,http://127.0.0.1:8001, "
                f"got {self.engine!r}"
            )
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"each engine's address is needed once, got {self.engine!r}")
        if self.max_staleness and self.engine == "native":
            raise ValueError(
                "max_staleness=1 needs a server that samples next to this process (engine), got engine='native', which "
                "samples from the model that is trained: start a server, or use max_staleness=0"
            )
