"""Chapter 4: where reward is rare."""

from operant.explore.bonuses import Bonus, Counts, Episodic, HashedCounts
from operant.explore.prediction import ForwardError, RandomDistillation
from operant.explore.shaping import Shaping, shaped

__all__ = [
    "Bonus",
    "Counts",
    "Episodic",
    "ForwardError",
    "HashedCounts",
    "RandomDistillation",
    "Shaping",
    "shaped",
]
