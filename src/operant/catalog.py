"""Every algorithm, named once.

Imports nothing, so that `operant list` and `operant --help` answer at once; the command line, the documentation
and the web app read it.
"""

from dataclasses import dataclass, field
from typing import Literal

ActionKind = Literal["discrete", "continuous"]


@dataclass(frozen=True)
class Algorithm:
    """What there is to say about an algorithm before running it.

    Attributes:
        name: what it is called on the command line.
        title: its name in full.
        chapter: the package that holds it, under `operant`.
        family: what it learns: `value`, `policy`, `actor-critic`, ...
        model: whether it has a model of the world: `none`, `known` or `learned`.
        on_policy: whether it learns only from what its current policy did.
        actions: the kinds of action it can choose.
        idea: its key idea, in a sentence.
        paper: where it was published.
        module: the module that implements it.
        config: the name of its configuration in that module.
        learner: the name of its learner in that module.
        unit: what a budget counts.
        presets: named configurations, beside those that a task selects by itself.
    """

    name: str
    title: str
    chapter: str
    family: str
    model: Literal["none", "known", "learned"]
    on_policy: bool
    actions: tuple[ActionKind, ...]
    idea: str
    paper: str
    module: str
    config: str
    learner: str
    unit: str = "environment steps"
    presets: tuple[str, ...] = field(default=())


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        name="ppo",
        title="Proximal policy optimisation",
        chapter="control",
        family="actor-critic",
        model="none",
        on_policy=True,
        actions=("discrete", "continuous"),
        idea="Several epochs on each rollout; the clipped objective stops rewarding a ratio that has moved far enough.",
        paper="Schulman et al. 2017, arXiv:1707.06347",
        module="operant.control.ppo",
        config="PPOConfig",
        learner="PPO",
        presets=("paper", "zoo"),
    ),
)
"""In the order of the chapters."""


def find(name: str) -> Algorithm:
    """Return the algorithm called `name`.

    Raises:
        ValueError: there is none; the message names the nearest ones.
    """
    for algorithm in ALGORITHMS:
        if algorithm.name == name:
            return algorithm
    from difflib import get_close_matches  # noqa: PLC0415 - only for the message

    names = [algorithm.name for algorithm in ALGORITHMS]
    near = get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are: {', '.join(names)}"
    raise ValueError(f"no algorithm is called {name!r}; {hint}")


def supporting(kind: ActionKind) -> list[str]:
    """Return the names of the algorithms that can choose actions of a kind."""
    return [algorithm.name for algorithm in ALGORITHMS if kind in algorithm.actions]
