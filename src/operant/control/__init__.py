"""Deep reinforcement learning: networks that learn from environments."""

from operant.control.assembly import Experiment, assemble, configuration
from operant.control.ppo import PPO, PPOConfig

__all__ = ["PPO", "Experiment", "PPOConfig", "assemble", "configuration"]
