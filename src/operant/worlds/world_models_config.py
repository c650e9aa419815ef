"""Hyperparameters of World Models, and its presets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, require


@dataclass(frozen=True)
class WorldModelsConfig:
    """Hyperparameters of World Models."""

    num_envs: PositiveInt = 16
    """Number of environments per seed, N."""
    num_steps: PositiveInt = 64
    """Steps per environment and iteration of collection."""
    collect_steps: PositiveInt = 20_000
    """Steps per seed that are collected before V, M and C are trained, in whole rollouts; a larger budget allows more
    such rounds, of which the last collects what is left."""
    buffer_size: PositiveInt = 100_000
    """Steps per seed that are kept."""
    vae_encoder: Literal["auto", "nature", "small"] = "auto"
    """Convolutions of V, which its decoder mirrors: `nature` or `small`; `auto` selects them by the image size."""
    latent_size: PositiveInt = 8
    """Size of a latent vector, Z."""
    vae_hidden_sizes: tuple[PositiveInt, ...] = (64,)
    """Sizes of the dense layers between V's convolutions and the latent vector."""
    vae_gradient_steps: PositiveInt = 1500
    """Gradient steps of V per round."""
    vae_batch_size: PositiveInt = 64
    """Minibatch size of V in images."""
    vae_learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam for V."""
    free_nats: NonNegativeFloat = 1.5
    """Free nats of the KL divergence per entry of a latent vector; with 0, V may learn to ignore the image."""
    rnn_hidden_size: PositiveInt = 32
    """Size of M's hidden state, H."""
    mixture_components: PositiveInt = 5
    """Number of Gaussians in M's mixture, K."""
    rnn_gradient_steps: PositiveInt = 6000
    """Gradient steps of M per round."""
    rnn_batch_size: PositiveInt = 32
    """Minibatch size of M in sequences."""
    sequence_length: PositiveInt = 16
    """Length of a sequence in steps, through which gradients flow."""
    rnn_learning_rate: PositiveFloat = 3e-3
    """Learning rate of Adam for M."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Schedule of the learning rates: constant, or linear to a tenth during the training of V and of M."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Maximum gradient norm of M per seed; None: no clipping."""
    train_in: Literal["dream", "environment"] = "dream"
    """Training of C: in episodes imagined by M, or in the environment, whose steps count for the budget."""
    dream_temperature: PositiveFloat = 1.0
    """Temperature τ of imagined episodes: above 1 they are more random than M; as τ approaches 0, deterministic."""
    generations: PositiveInt = 300
    """Generations of CMA-ES per round; in the environment, as many as the budget allows."""
    population_size: Annotated[int, Interval("[2, inf)")] = 32
    """Number of controllers per generation."""
    rollouts: PositiveInt = 32
    """Number of episodes per evaluation of a controller."""
    max_dream_steps: PositiveInt = 1000
    """Maximum length of an imagined episode; in the environment each controller acts for `rollouts` times as many
    steps."""
    initial_sigma: PositiveFloat = 0.5
    """Initial standard deviation of the controller's weights in the search."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        if self.buffer_size < self.num_envs * (self.sequence_length + 1):
            raise ValueError(
                f"buffer_size must hold num_envs * (sequence_length + 1) = {self.num_envs * (self.sequence_length + 1)}"
                f" steps, got {self.buffer_size}"
            )
        if self.collect_steps < self.num_envs * (self.sequence_length + 1):
            raise ValueError(
                "collect_steps must be at least num_envs * (sequence_length + 1) = "
                f"{self.num_envs * (self.sequence_length + 1)}, for complete sequences, got "
                f"{self.collect_steps}"
            )
        if self.train_in == "environment" and self.num_envs % self.population_size:
            raise ValueError(
                f"num_envs must be a multiple of population_size, which is {self.population_size}, to train the "
                f"controller in the environment, got {self.num_envs}"
            )
        if self.train_in == "environment" and self.rollouts % (self.num_envs // self.population_size):
            raise ValueError(
                f"rollouts must be a multiple of num_envs / population_size = {self.num_envs // self.population_size} "
                f"to train the controller in the environment, got {self.rollouts}"
            )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "operant/PixelCatch-v0": {"max_dream_steps": 20},
    "paper": {
        "latent_size": 64,
        "rnn_hidden_size": 512,
        "generations": 1800,
        "population_size": 64,
        "rollouts": 16,
        "dream_temperature": 1.15,
        "max_dream_steps": 2100,
    },
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""
