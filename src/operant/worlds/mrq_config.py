"""Hyperparameters of MR.Q: for networks that are small enough for two cores, and those of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from operant.control.off_policy import planned_steps
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
    """Number of environments per seed, N."""
    learning_starts: NonNegativeInt = 1000
    """Environment steps per seed with random actions before training starts. In the paper 10 000."""
    train_freq: PositiveInt = 1
    """Steps per environment between two training phases."""
    gradient_steps: PositiveInt = 1
    """Gradient steps of policy and critics per training phase."""
    rounds_per_iteration: PositiveInt = 50
    """Rounds of collection and training per iteration. Metrics, evaluations and checkpoints are between iterations, and
    the end of the budget is, too: more rounds exceed it by more."""
    batch_size: PositiveInt = 256
    """Minibatch size in transitions, or windows."""
    buffer_size: PositiveInt = 100_000
    """Capacity of the replay buffer in transitions per seed. In the paper 1 000 000."""
    gamma: UnitFloat = 0.99
    """Discount factor."""
    n_step: PositiveInt = 3
    """Number of rewards before the critics' targets bootstrap."""
    encoder_horizon: PositiveInt = 5
    """Number of steps over which the model is unrolled in training."""
    target_update_interval: PositiveInt = 250
    """Updates between two target updates, each of which includes the same number of gradient steps of the encoders."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of AdamW, for policy and critics."""
    encoder_learning_rate: PositiveFloat = 1e-4
    """Learning rate of AdamW, for encoders and model."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay of AdamW, for all parameters."""
    max_grad_norm: PositiveFloat | None = 20.0
    """Maximum gradient norm of the critics per seed; None: no clipping."""
    per_alpha: UnitFloat = 0.4
    """Exponent α of prioritized replay: 0 samples uniformly, 1 in proportion to TD errors (at least 1)."""
    exploration_noise: NonNegativeFloat = 0.2
    """Standard deviation of the exploration noise, in half action ranges (those of one-hot vectors: 0.5)."""
    target_policy_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on target actions, in half action ranges."""
    target_noise_clip: NonNegativeFloat = 0.3
    """Clip range of the noise on target actions, in half action ranges."""
    gumbel_temperature: PositiveFloat = 10.0
    """Temperature of the relaxed choice in the policy gradient of discrete actions."""
    dynamics_coef: NonNegativeFloat = 1.0
    """Weight of the loss of next latent states."""
    reward_coef: NonNegativeFloat = 0.1
    """Weight of the loss of rewards."""
    terminal_coef: NonNegativeFloat = 0.1
    """Weight of the loss of terminal states."""
    pre_activation_coef: NonNegativeFloat = 1e-5
    """Weight of the squared outputs of the policy before tanh or softmax, against saturation."""
    latent_size: PositiveInt = 64
    """Size of a latent state z_s. In the paper 512."""
    joint_size: PositiveInt = 128
    """Size of the representation z_sa of a state and an action. In the paper 512."""
    action_embedding_size: PositiveInt = 32
    """Size of an encoded action. In the paper 256."""
    encoder_hidden_sizes: tuple[PositiveInt, ...] = (128,)
    """Sizes of the hidden layers of the encoders. In the paper (512, 512)."""
    hidden_sizes: tuple[PositiveInt, ...] = (128,)
    """Sizes of the hidden layers of the policy. In the paper (512, 512)."""
    critic_hidden_sizes: tuple[PositiveInt, ...] = (128, 128)
    """Sizes of the hidden layers of the critics. In the paper (512, 512, 512)."""
    depth: PositiveInt = 8
    """Half the number of channels after the first stage of the image encoder."""
    bins: Annotated[int, Interval("[3, inf)")] = 65
    """Number of atoms of rewards, odd: symexp of numbers from -10 to 10."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.bins % 2 == 0:
            raise ValueError(f"bins must be odd, so that one atom is 0, got {self.bins}")
        window = self.window * self.num_envs
        if self.learning_starts < window:
            raise ValueError(
                f"learning_starts must be at least max(encoder_horizon, n_step) * num_envs = {window}, for a "
                f"complete window, got {self.learning_starts}"
            )
        if self.buffer_size < window:
            raise ValueError(
                f"buffer_size must hold max(encoder_horizon, n_step) * num_envs = {window} steps, got "
                f"{self.buffer_size}"
            )

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed between two training phases."""
        return self.train_freq * self.num_envs

    def planned_steps(self, budget: int) -> int:
        """Return the number of steps per seed that training with a budget uses."""
        return planned_steps(self, budget)

    @property
    def window(self) -> int:
        """Number of consecutive stored steps that a sample needs, including its first step."""
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
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""
