"""Exploration with sparse rewards."""

from operant.explore.bonus import Bonus
from operant.explore.bonuses import Counts, Episodic, HashedCounts
from operant.explore.bootstrapped_dqn import BootstrappedDQN, BootstrappedDQNConfig
from operant.explore.hindsight import Hindsight
from operant.explore.identify import Posterior, identify
from operant.explore.prediction import ForwardError, InverseCuriosity, RandomDistillation
from operant.explore.shaping import Shaping, shaped
from operant.explore.shooting import Trajectories

__all__ = [
    "Bonus",
    "BootstrappedDQN",
    "BootstrappedDQNConfig",
    "Counts",
    "Episodic",
    "ForwardError",
    "HashedCounts",
    "Hindsight",
    "InverseCuriosity",
    "Posterior",
    "RandomDistillation",
    "Shaping",
    "Trajectories",
    "identify",
    "shaped",
]
