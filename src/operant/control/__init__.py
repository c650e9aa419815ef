"""Deep reinforcement learning: networks that learn from environments."""

from operant.control.assembly import Experiment, assemble
from operant.control.ppo import PPO, PPOConfig
from operant.runtime.experiments import configuration

__all__ = ["PPO", "Experiment", "PPOConfig", "assemble", "configuration"]
