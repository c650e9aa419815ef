"""Installed packages with environments: their ids, extras and observations, `PACKAGES`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from operant.envs.spaces import is_box, is_dict


@dataclass(frozen=True)
class Package:
    """Metadata of a package.

    Attributes:
        extra: of operant, which installs it.
        prefixes: of ids that importing the package registers; it is imported for these ids.
        symbols: parts of observations whose last axis holds numbers of things, such as object and color, in a Box; and
            how many things there are along that axis.
        keeps_old: whether ids with an old version are tasks of their own, such as mazes with more rooms.
        needs: modules to import before it, which registers nothing without them.
    """

    extra: str
    prefixes: tuple[str, ...] = ()
    symbols: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    keeps_old: bool = False
    needs: tuple[str, ...] = ()


PACKAGES: Mapping[str, Package] = {
    "box2d": Package("box2d"),
    "mujoco": Package("mujoco"),
    "ale_py": Package("atari", ("ALE/",)),
    "gymnasium_robotics": Package("goals"),
    "dm_control": Package("dm-control"),
    "shimmy": Package("dm-control", ("dm_control/",), needs=("dm_control.suite",)),
    "minigrid": Package("minigrid", ("MiniGrid-", "BabyAI-"), {"image": (11, 6, 4)}, keeps_old=True),
}
"""By module. A cell of MiniGrid's images holds its object, its color and its state: that of a door, or the direction of
the agent."""


def module_of(name: str) -> str:
    """Return the module that registers an id; empty if it is unknown, or the id is Gymnasium's own."""
    return next((module for module, package in PACKAGES.items() if name.startswith(package.prefixes)), "")


def packages_of(spec: EnvSpec) -> list[Package]:
    """Return the packages that an environment needs, by its entry point."""
    return [package for module, package in PACKAGES.items() if module in str(spec.entry_point)]


def with_symbols(space: gymnasium.Space[Any], spec: EnvSpec) -> gymnasium.Space[Any]:
    """Return the observation space of an environment with MultiDiscrete instead of Box for its package's symbols.

    The distance of two numbers of things means nothing, so that networks need one input for each thing.
    """
    if not is_dict(space):
        return space
    parts: dict[str, gymnasium.Space[Any]] = dict(space.spaces)
    for package in packages_of(spec):
        for key, sizes in package.symbols.items():
            part = parts.get(key)
            if part is not None and is_box(part) and part.shape[-1:] == (len(sizes),):
                parts[key] = spaces.MultiDiscrete(np.broadcast_to(sizes, part.shape))
    return space if parts == space.spaces else spaces.Dict(parts)
