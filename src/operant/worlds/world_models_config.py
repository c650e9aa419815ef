"""Hyperparameters of World Models."""

from dataclasses import dataclass
from typing import Literal

from operant.nets import TorsoName
from operant.runtime.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, require


@dataclass(frozen=True)
class WorldModelsConfig:
    """Hyperparameters of World Models."""

    num_envs: PositiveInt = 16
    """Environments of each seed, N."""
    num_steps: PositiveInt = 64
    """Steps of each in one iteration of collecting."""
    collect_steps: PositiveInt = 20_000
    """Steps per seed that are collected before V, M and C are trained; a larger budget is for more such rounds."""
    buffer_size: PositiveInt = 100_000
    """Steps per seed that are kept."""
    vae_encoder: TorsoName = "auto"
    """Convolutions of V, which its decoder mirrors: `nature` or `small`; `auto` chooses by the size of the images."""
    latent_size: PositiveInt = 8
    """Numbers of a latent vector, Z."""
    vae_hidden_sizes: tuple[PositiveInt, ...] = (64,)
    """Widths of the dense layers between V's convolutions and the latent vector."""
    vae_gradient_steps: PositiveInt = 1500
    """Gradient steps of V in a round."""
    vae_batch_size: PositiveInt = 64
    """Images of one of them."""
    vae_learning_rate: PositiveFloat = 1e-3
    """Step size of Adam for V."""
    free_nats: NonNegativeFloat = 1.5
    """KL divergence of each number of a latent vector that costs nothing; with 0, V may learn to ignore the image."""
    rnn_hidden_size: PositiveInt = 32
    """Numbers that M remembers, H."""
    mixture_components: PositiveInt = 5
    """Gaussians of M's mixture, K."""
    rnn_gradient_steps: PositiveInt = 6000
    """Gradient steps of M in a round."""
    rnn_batch_size: PositiveInt = 32
    """Sequences of one of them."""
    sequence_length: PositiveInt = 16
    """Steps of a sequence, over which gradients flow back."""
    rnn_learning_rate: PositiveFloat = 3e-3
    """Step size of Adam for M."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Whether the step sizes stay as they are or fall linearly to a tenth while V, and while M, is trained."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Largest gradient norm of M of one seed; None: no clipping."""
    train_in: Literal["dream", "environment"] = "dream"
    """Where C is trained: in episodes that M imagines, or in the environment, whose steps the budget counts."""
    dream_temperature: PositiveFloat = 1.0
    """τ of the dream: above 1 it is less certain than M is, toward 0 the likeliest always happens."""
    generations: PositiveInt = 300
    """Generations of CMA-ES in a round; in the environment as many as the budget pays for."""
    population_size: PositiveInt = 32
    """Controllers of a generation."""
    rollouts: PositiveInt = 32
    """Episodes per evaluation of a controller."""
    max_dream_steps: PositiveInt = 1000
    """Steps after which a dreamed episode is cut; in the environment each controller acts for `rollouts` times as
    many."""
    initial_sigma: PositiveFloat = 0.5
    """First standard deviation of the controller's weights in the search."""

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
                f"{self.num_envs * (self.sequence_length + 1)}, so that M has sequences to learn from, got "
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
