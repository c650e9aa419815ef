"""What algorithms of this package are told in common: `ModelOptions`, `LanguageConfig`, `SamplingConfig`."""

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
    """Which model is trained, and which part of it."""

    model: str = "tiny"
    """A folder or hub name of a causal language model (safetensors), or one built here: tiny, tiny-qwen3, small."""
    init: str = ""
    """Folder of a run whose trained model to go on from, instead of --model, or RUN/best for the weights that scored
    highest in its evaluations; empty: none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers that the model computes in. Under bfloat16 the optimizer keeps 32-bit copies of what it trains, since
    small steps would be rounded away."""
    lora_r: NonNegativeInt = 0
    """Rank of LoRA adapters, which are trained instead of the weights; 0 trains all weights."""
    lora_alpha: NonNegativeInt = 0
    """Scale of the adapters: they count alpha / rank; 0 is twice the rank."""
    lora_target_modules: tuple[str, ...] = ()
    """Names of the layers that get adapters; none: every linear layer but the last."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass: less memory for a third more time."""
    remote_code: bool = False
    """Whether Python code that comes with --model may run. It can do anything; only for authors you trust."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if not self.model.strip():
            raise ValueError("model must name a folder, a hub model or one built here, got ''")


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(ModelOptions):
    """Data, optimizer and memory, which all algorithms share."""

    dataset: str = ""
    """Rows to train on, in TRL's formats: a .jsonl, .json, .parquet or .csv file, a folder saved by `datasets`, or a
    hub name. Empty: the task makes them."""
    eval_dataset: str = ""
    """Rows to be scored on, the first `held_out` of them; of a data set with several splits, its test. Empty: a part of
    the data set is kept apart."""
    train_examples: PositiveInt = 4096
    """Rows that a built-in task makes to train on."""
    held_out: PositiveInt = 200
    """Rows kept for evaluation, at most a fifth of a data set; of an `eval_dataset` the most that are looked at."""
    max_prompt_length: PositiveInt = 512
    """Tokens of a prompt that are kept, its last ones."""
    max_completion_length: NonNegativeInt = 0
    """Most tokens of a completion, its end of sequence included; 0: what the task names, 256 for a data set."""
    learning_rate: PositiveFloat = 1e-5
    """Largest step size of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the step size goes on after the warm-up: not at all, or to 0 in a line or half a cosine over the budget."""
    warmup_ratio: UnitFloat = 0.0
    """Share of the budget over which the step size rises from 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two moving averages a step."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (Loshchilov and Hutter 2019) of matrices, a step, in units of the step size."""
    max_grad_norm: PositiveFloat = 1.0
    """Largest norm of the gradient; a longer one is scaled down."""
    micro_batch_tokens: PositiveInt = 16_384
    """Most tokens that go through the model at once; less needs less memory and gives the same step."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(LanguageConfig):
    """How a policy is asked, and who rewards its answers."""

    temperature: PositiveFloat = 1.0
    """Of the sampler, and of the probabilities that are learned from."""
    rewards: tuple[str, ...] = ()
    """Reward functions: names of `operant.language.verifiers`, such as exact, numeric, boxed or soft-overlong, or a
    function of yours, path/to/file.py:function. None: what the task rewards."""
    reward_weights: tuple[float, ...] = ()
    """One for each reward function; none: 1 each."""
    reward_timeout: PositiveFloat = 60.0
    """Seconds that one call of a reward function of yours may take; beyond it the answers of the call get no reward."""
    reward_workers: PositiveInt = 1
    """Processes of each reward function of yours, and of accuracy. With several, a batch is divided among as many
    calls."""
    reward_memory: NonNegativeFloat = 4.0
    """GiB of memory of its own that a process of a reward function of yours may take (Linux); 0: no limit."""
    pass_reward: str = ""
    """Name of the reward function that decides in pass@k whether an answer is right (1 or more). Empty: the first one,
    or on a built-in task the task's."""
    reward_model: str = ""
    """Folder of a reward-model run, whose score is one more reward function; empty: none."""
    engine: str = "native"
    """What samples: the model in this process (native), or the address of a vLLM server, such as
    http://127.0.0.1:8000."""
    engine_batch_size: PositiveInt = 256
    """Sequences that the native engine completes at once. More are faster and need more memory."""
    importance_sampling_correction: Correction = "truncate"
    """What is done where the engine's log-probabilities differ from the trainer's: nothing; importance weights of the
    tokens, up to the cap (truncate), or 0 where the ratio is outside [0.5, cap] (mask); or one weight for all tokens of
    an answer, the product of their ratios, up to the cap (sequence-truncate) or 0 above it (sequence-mask, as TRL)."""
    importance_sampling_cap: Annotated[float, Interval("[1, inf)")] | None = None
    """Largest such weight; None: 2 for tokens, and 3 for sequences as in TRL."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.reward_weights and len(self.reward_weights) != len(self.rewards) + bool(self.reward_model):
            raise ValueError(
                f"reward_weights has {len(self.reward_weights)} numbers for {len(self.rewards)} rewards"
                f"{' and a reward model' if self.reward_model else ''}: give one for each, the model's last"
            )
        if self.engine != "native" and not self.engine.startswith(("http://", "https://")):
            raise ValueError(f"engine must be native or an address such as http://127.0.0.1:8000, got {self.engine!r}")
