"""Exploration bonuses by name, without heavy imports."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ENTRY_POINTS = "operant.bonuses"
"""Group of entry points of bonuses in installed packages."""
WEIGHT = 0.5
"""Default weight of a bonus relative to the environment's reward: half, as in Burda et al. 2018."""
LASTING_WEIGHT = 0.05
"""Default weight of bonuses that do not decay with the number of episodes, and would always compete with the reward."""


@dataclass(frozen=True)
class Bonus:
    """Metadata of a bonus.

    Attributes:
        place: module and class.
        module: module whose file defines the class.
        idea: description of the rewarded behavior.
        paper: publication.
        is_episodic: whether its return ends with the episode.
        weight: default weight relative to the environment's reward.
    """

    place: str
    module: str
    idea: str
    paper: str
    is_episodic: bool = False
    weight: float = WEIGHT

    @property
    def name_of_class(self) -> str:
        """Name of the class."""
        return self.place.partition(":")[2]


BONUSES: Mapping[str, Bonus] = MappingProxyType(
    {
        "counts": Bonus(
            "operant.explore:Counts",
            "operant.explore.bonuses",
            "1/sqrt(n) for the n-th visit of one of finitely many states",
            "Strehl and Littman 2008, JCSS 74",
        ),
        "hashed": Bonus(
            "operant.explore:HashedCounts",
            "operant.explore.bonuses",
            "1/sqrt(n) for the n-th visit of a hash of the observation, by random projections",
            "Tang et al. 2017, arXiv:1611.04717",
        ),
        "episodic": Bonus(
            "operant.explore:Episodic",
            "operant.explore.bonuses",
            "1 for the first visit of an observation in an episode",
            "Henaff et al. 2023, arXiv:2306.03236",
            is_episodic=True,
            weight=LASTING_WEIGHT,
        ),
        "rnd": Bonus(
            "operant.explore:RandomDistillation",
            "operant.explore.prediction",
            "the error of a network that learns to predict a random one",
            "Burda et al. 2018, arXiv:1810.12894",
        ),
        "forward": Bonus(
            "operant.explore:ForwardError",
            "operant.explore.prediction",
            "the error of a network that predicts random features of the next observation",
            "Burda et al. 2018, arXiv:1808.04355",
        ),
        "icm": Bonus(
            "operant.explore:InverseCuriosity",
            "operant.explore.prediction",
            "the prediction error for features that are learned by predicting the action",
            "Pathak et al. 2017, arXiv:1705.05363",
        ),
    }
)
"""Bonuses by name, in order of complexity. All are normalized by the standard deviation of their return."""
