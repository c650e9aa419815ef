"""Hyperparameters of MR.Q: of networks that learn on two cores, and of those of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from operant.runtime.bounds import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
    require,
)


@dataclass(frozen=True)
class MRQConfig:
    """Hyperparameters of MR.Q; defaults are those of the paper, except for sizes."""

    num_envs: PositiveInt = 1
    """Environments of each seed, N."""
    learning_starts: NonNegativeInt = 1000
    """Steps per seed with random actions, before the first update. The paper: 10 000."""
    train_freq: PositiveInt = 1
    """Steps per environment between updates."""
    gradient_steps: PositiveInt = 1
    """Gradient steps of policy and critics after each collection."""
    rounds_per_iteration: PositiveInt = 50
    """Rounds of collection and training per iteration. It affects only how often metrics are reported."""
    batch_size: PositiveInt = 256
    """Transitions, or windows, per gradient step."""
    buffer_size: PositiveInt = 100_000
    """Transitions per seed in the replay buffer. The paper: 1 000 000."""
    gamma: UnitFloat = 0.99
    """Discount factor."""
    n_step: PositiveInt = 3
    """Steps of a return before the critics' target bootstraps."""
    encoder_horizon: PositiveInt = 5
    """Steps over which the model is unrolled in training. More look further ahead, in more time."""
    target_update_interval: PositiveInt = 250
    """Updates between two renewals of all target networks, each followed by as many gradient steps of the encoders."""
    learning_rate: PositiveFloat = 3e-4
    """Step size of AdamW, for policy and critics."""
    encoder_learning_rate: PositiveFloat = 1e-4
    """Step size of AdamW, for encoders and model."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay of AdamW, for all parameters."""
    max_grad_norm: PositiveFloat | None = 20.0
    """Largest norm of the gradient of the critics of one seed; None: no clipping."""
    per_alpha: UnitFloat = 0.4
    """α of prioritized replay: 0 draws uniformly, 1 in proportion to errors. Errors below 1 count as 1."""
    exploration_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on actions while collecting, in half action ranges, or of one-hot vectors."""
    target_policy_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on target actions."""
    target_noise_clip: NonNegativeFloat = 0.3
    """Largest noise on target actions."""
    gumbel_temperature: PositiveFloat = 10.0
    """Temperature of the relaxed choice that the policy gradient goes through where actions are discrete."""
    dynamics_coef: NonNegativeFloat = 1.0
    """Weight of the loss of next latent states."""
    reward_coef: NonNegativeFloat = 0.1
    """Weight of the loss of rewards."""
    terminal_coef: NonNegativeFloat = 0.1
    """Weight of the loss of terminal states."""
    pre_activation_coef: NonNegativeFloat = 1e-5
    """Weight of the squared outputs of the policy before tanh or softmax, which keeps these from saturating."""
    latent_size: PositiveInt = 64
    """Size of a latent state z_s. The paper: 512."""
    joint_size: PositiveInt = 128
    """Size of the representation z_sa of a state and an action. The paper: 512."""
    action_embedding_size: PositiveInt = 32
    """Size of an encoded action. The paper: 256."""
    encoder_hidden_sizes: tuple[PositiveInt, ...] = (128,)
    """Widths of the hidden layers of the encoders. The paper: (512, 512)."""
    hidden_sizes: tuple[PositiveInt, ...] = (128,)
    """Widths of the hidden layers of the policy. The paper: (512, 512)."""
    critic_hidden_sizes: tuple[PositiveInt, ...] = (128, 128)
    """Widths of the hidden layers of the critics. The paper: (512, 512, 512)."""
    depth: PositiveInt = 8
    """Half of the channels after the first stage of the encoder of images."""
    bins: Annotated[int, Interval("[3, inf)")] = 65
    """Atoms of rewards, an odd number, symexp of numbers from -10 to 10."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.bins % 2 == 0:
            raise ValueError(f"bins must be odd, so that one atom is 0, got {self.bins}")
        window = self.window * self.num_envs
        if self.learning_starts < window:
            raise ValueError(
                f"learning_starts must be at least max(encoder_horizon, n_step) * num_envs = {window}, so that there "
                f"is a window to learn from, got {self.learning_starts}"
            )
        if self.buffer_size < window:
            raise ValueError(
                f"buffer_size must hold max(encoder_horizon, n_step) * num_envs = {window} steps, got "
                f"{self.buffer_size}"
            )

    @property
    def window(self) -> int:
        """Consecutive steps that must be stored after the beginning of a sample, itself included."""
        return max(self.encoder_horizon, self.n_step)


PAPER: Mapping[str, Any] = {
    "learning_starts": 10_000,
    "buffer_size": 1_000_000,
    "latent_size": 512,
    "joint_size": 512,
    "action_embedding_size": 256,
    "encoder_hidden_sizes": (512, 512),
    "hidden_sizes": (512, 512),
    "critic_hidden_sizes": (512, 512, 512),
    "depth": 16,
}
"""The sizes of the paper, for a GPU."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "paper": PAPER,
    "Pendulum-v1": {
        "learning_starts": 300,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "encoder_learning_rate": 1e-3,
        "latent_size": 32,
        "joint_size": 64,
        "action_embedding_size": 16,
        "encoder_hidden_sizes": (64,),
        "hidden_sizes": (64,),
        "critic_hidden_sizes": (64, 64),
    },
}
"""Configuration by task, which selects its own, or by name; other fields keep their defaults."""
