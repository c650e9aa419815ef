"""The catalog of all algorithms.

It imports nothing heavy, so `operant list` and `operant --help` are fast; the command line, the documentation and the
web app read it.
"""

from typing import cast

import operant.doors
from operant.catalog.algorithm import ActionKind, Algorithm, ObservationKind
from operant.catalog.control import CONTROL
from operant.catalog.language import LANGUAGE
from operant.catalog.tabular import TABULAR

__all__ = [
    "ALGORITHMS",
    "CONTROL",
    "ENTRY_POINTS",
    "LANGUAGE",
    "TABULAR",
    "ActionKind",
    "Algorithm",
    "ObservationKind",
    "find",
    "supporting",
]

ALGORITHMS: tuple[Algorithm, ...] = TABULAR + CONTROL + LANGUAGE
"""All algorithms, by package."""


ENTRY_POINTS = "operant.algorithms"
"""Group of entry points of algorithms in installed packages."""


def find(name: str | type) -> Algorithm:
    """Return the algorithm called `name`.

    Args:
        name: name of the catalog, or of an entry point; or path of a learner's class, `file.py:Name` or
            `package.module:Name`, which is imported; or the class itself.

    Raises:
        ValueError: if there is none; the message suggests similar names.
    """
    from operant.catalog.old_names import algorithm as current_name  # noqa: PLC0415 - no part of what is offered here
    from operant.catalog.outside import algorithm as outside  # noqa: PLC0415 - it imports this module

    if not isinstance(cast(object, name), str | type):
        raise ValueError(f"an algorithm is given by its name, such as 'ppo', or by its class, got {name!r}")
    if isinstance(name, type) or operant.doors.is_name(name):
        return outside(name)
    name = current_name(name)
    for algorithm in ALGORITHMS:
        if algorithm.name == name:
            return algorithm
    offered = operant.doors.entry_points(ENTRY_POINTS)
    if name in offered:
        return outside(name)
    from difflib import get_close_matches  # noqa: PLC0415 - only for the message

    names = [algorithm.name for algorithm in ALGORITHMS] + list(offered)
    near = get_close_matches(name.lower().replace("_", "-"), names, n=3)
    if near[:1] == [name.lower()]:
        near = near[:1]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are: {', '.join(names)}"
    from operant.catalog.foreign_names import OTHER_ALGORITHMS  # noqa: PLC0415 - only for the message

    hint = OTHER_ALGORITHMS.get(name.lower().replace("-", "_"), hint)
    if name.endswith(("-iteration", "-programming")):
        hint = f"known models are solved by `operant solve TASK --method {name}`, in Python by operant.mdp"
    raise ValueError(f"no algorithm is called {name!r}; {hint}")


def supporting(actions: ActionKind, observations: ObservationKind) -> list[str]:
    """Return the names of the algorithms that support a kind of actions and of observations."""
    return [
        a.name
        for a in ALGORITHMS
        if actions in a.actions
        and a.observations == observations
        and a.model != "known"  # these need the rules of a task
    ]
