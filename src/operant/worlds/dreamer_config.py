"""Hyperparameters of DreamerV3: of a model that learns on a processor, and of the smallest one of the paper."""

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
class DreamerConfig:
    """Hyperparameters of DreamerV3; the defaults are those of a model that learns on a processor."""

    num_envs: PositiveInt = 8
    """Environments of each seed, N."""
    num_steps: PositiveInt = 16
    """Steps of each between two phases of learning."""
    train_ratio: PositiveFloat = 64.0
    """Frames of replay that are learned from for each environment step. More learn from fewer steps, in more time."""
    learning_starts: NonNegativeInt = 1000
    """Environment steps per seed before learning begins."""
    buffer_size: PositiveInt = 500_000
    """Steps of each seed that are kept."""
    batch_size: PositiveInt = 16
    """Sequences of one gradient step."""
    sequence_length: Annotated[int, Interval("[2, inf)")] = 16
    """Frames of a sequence. Longer ones teach to remember longer."""
    imagination_horizon: PositiveInt = 15
    """Steps of an imagined trajectory."""
    imagined_frames: PositiveInt | None = 6
    """Frames at the end of each sequence that imagination begins from; None: all of them."""
    gamma: UnitFloat = 0.997
    """Discount factor."""
    td_lambda: UnitFloat = 0.95
    """λ of the returns."""
    learning_rate: PositiveFloat = 1e-3
    """Step size of LaProp, for all networks."""
    lr_warmup: NonNegativeInt = 100
    """Gradient steps over which the step size rises linearly from 0."""
    gradient_clip: PositiveFloat | None = 0.3
    """Largest norm of a gradient in shares of its tensor's norm; None: no clipping."""
    free_nats: NonNegativeFloat = 1.0
    """Divergence between posterior and prior that costs nothing."""
    dynamics_coef: NonNegativeFloat = 1.0
    """Weight of the loss that draws the prior towards the posterior."""
    representation_coef: NonNegativeFloat = 0.1
    """Weight of the loss that draws the posterior towards the prior."""
    replay_vf_coef: NonNegativeFloat = 0.3
    """Weight of the critic's loss on replay, relative to that on imagined data."""
    ent_coef: NonNegativeFloat = 3e-4
    """Weight of the entropy bonus. Returns are normalized, so that one weight suits all tasks."""
    return_rate: UnitFloat = 0.01
    """How fast the scale that returns are divided by follows the distance of their percentiles."""
    slow_vf_coef: NonNegativeFloat = 1.0
    """Weight of the loss that holds the critic near its own moving average."""
    tau: UnitFloat = 0.02
    """How fast that average follows the critic."""
    unimix: UnitFloat = 0.01
    """Share of the uniform distribution in categorical variables and choices."""
    deter: PositiveInt = 256
    """Numbers of the recurrent state."""
    stoch: PositiveInt = 8
    """Categorical variables of a state."""
    classes: Annotated[int, Interval("[2, inf)")] = 8
    """Classes of each."""
    units: PositiveInt = 64
    """Width of the hidden layers."""
    blocks: PositiveInt = 1
    """Blocks of the recurrent weights. More are faster where the state is wide."""
    layers: PositiveInt = 1
    """Hidden layers of the encoder and decoder of vectors."""
    prior_layers: PositiveInt = 1
    """Hidden layers of the prior."""
    head_layers: PositiveInt = 2
    """Hidden layers of actor and critic."""
    depth: PositiveInt = 8
    """Half of the channels after the first stage of the encoder of images; later stages have more."""
    bins: Annotated[int, Interval("[3, inf)")] = 63
    """Atoms of rewards and values, an odd number, symexp of numbers from -20 to 20."""

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
    "operant/CartPoleSwingUp-v0": {"ent_coef": 1e-3},
}
"""Configuration by task, which selects its own, or by name; what is not named keeps its default."""
