"""Hyperparameters of DreamerV3: a model that is small enough for a CPU, and the smallest one of the paper."""

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
from operant.runtime.budget import FixedRollouts


@dataclass(frozen=True)
class DreamerConfig(FixedRollouts):
    """Hyperparameters of DreamerV3; defaults are those of a model for a CPU."""

    num_envs: PositiveInt = 8
    """Number of environments per seed, N."""
    num_steps: PositiveInt = 16
    """Steps per environment between two training phases."""
    train_ratio: PositiveFloat = 64.0
    """Replayed frames per environment step. More need fewer steps and more computation."""
    learning_starts: NonNegativeInt = 1000
    """Environment steps per seed before training starts."""
    buffer_size: PositiveInt = 500_000
    """Capacity of the replay buffer in steps per seed."""
    batch_size: PositiveInt = 16
    """Minibatch size in sequences."""
    sequence_length: Annotated[int, Interval("[2, inf)")] = 16
    """Length of a sequence in frames. Longer ones learn longer dependencies."""
    imagination_horizon: PositiveInt = 15
    """Length of an imagined trajectory in steps."""
    imagined_frames: PositiveInt | None = 6
    """Number of frames at the end of each sequence from which imagination starts; None: all."""
    gamma: UnitFloat = 0.997
    """Discount factor."""
    td_lambda: UnitFloat = 0.95
    """λ of the returns."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of LaProp, for all networks."""
    lr_warmup: NonNegativeInt = 100
    """Gradient steps over which the learning rate warms up linearly from 0."""
    gradient_clip: PositiveFloat | None = 0.3
    """Adaptive gradient clipping: maximum norm of a gradient relative to the norm of its tensor; None: no clipping."""
    free_nats: NonNegativeFloat = 1.0
    """Free nats of the KL divergence between posterior and prior."""
    dynamics_coef: NonNegativeFloat = 1.0
    """Weight of the dynamics loss, which moves the prior towards the posterior."""
    representation_coef: NonNegativeFloat = 0.1
    """Weight of the representation loss, which moves the posterior towards the prior."""
    replay_vf_coef: NonNegativeFloat = 0.3
    """Weight of the critic's loss on replayed sequences, relative to that on imagined data."""
    ent_coef: NonNegativeFloat = 3e-4
    """Weight of the entropy bonus. Returns are normalized, so one weight suits all tasks."""
    return_rate: UnitFloat = 0.01
    """Update rate of the moving average of the return scale, the distance between percentiles."""
    slow_vf_coef: NonNegativeFloat = 1.0
    """Weight of the loss that keeps the critic near its moving average."""
    tau: UnitFloat = 0.02
    """Update rate of the moving average of the critic."""
    unimix: UnitFloat = 0.01
    """Share of the uniform distribution in categorical variables and actions (unimix)."""
    deter: PositiveInt = 256
    """Size of the recurrent state."""
    stoch: PositiveInt = 8
    """Number of categorical variables of a state."""
    classes: Annotated[int, Interval("[2, inf)")] = 8
    """Number of classes per variable."""
    units: PositiveInt = 64
    """Size of the hidden layers."""
    blocks: PositiveInt = 1
    """Number of blocks of the recurrent weights. More are faster for large states."""
    layers: PositiveInt = 1
    """Number of hidden layers of the encoder and decoder of vectors."""
    prior_layers: PositiveInt = 1
    """Number of hidden layers of the prior."""
    head_layers: PositiveInt = 2
    """Number of hidden layers of actor and critic."""
    depth: PositiveInt = 8
    """Half the number of channels after the first stage of the image encoder; later stages have more."""
    bins: Annotated[int, Interval("[3, inf)")] = 63
    """Number of atoms of rewards and values, odd: symexp of numbers from -20 to 20."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.bins % 2 == 0:
            raise ValueError(f"bins must be odd, so that one atom is 0, got {self.bins}")
        if self.deter % self.blocks:
            raise ValueError(f"blocks must divide deter, which is {self.deter}, got {self.blocks}")
        if self.imagined_frames is not None and self.imagined_frames > self.sequence_length:
            raise ValueError(
                f"imagined_frames must be at most sequence_length, which is {self.sequence_length}, "
                f"got {self.imagined_frames}"
            )
        if self.buffer_size < self.num_envs * self.sequence_length:
            raise ValueError(
                f"buffer_size must hold num_envs * sequence_length = {self.num_envs * self.sequence_length} steps, "
                f"got {self.buffer_size}"
            )


SIZE_12M: Mapping[str, Any] = {
    "num_steps": 1,
    "train_ratio": 512.0,
    "buffer_size": 1_000_000,
    "sequence_length": 64,
    "imagined_frames": None,
    "learning_rate": 4e-5,
    "lr_warmup": 1000,
    "deter": 2048,
    "stoch": 32,
    "classes": 16,
    "units": 256,
    "blocks": 8,
    "layers": 3,
    "prior_layers": 2,
    "head_layers": 3,
    "depth": 16,
    "bins": 255,
}
"""The smallest model of the paper, for a GPU."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "size12m": SIZE_12M,
    "operant/PixelCatch-v0": {
        "train_ratio": 40.0,
        "learning_starts": 2000,
        "imagination_horizon": 9,
        "learning_rate": 5e-4,
        "ent_coef": 3e-3,
    },
    "operant/CartPoleSwingUp-v0": {
        "batch_size": 8,
        "sequence_length": 32,
        "imagined_frames": 12,
        "gamma": 0.99,
        "deter": 128,
        "ent_coef": 1e-3,
    },
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""
