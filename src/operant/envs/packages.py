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
        extra: extra of operant that installs the package.
        prefixes: prefixes of the ids that the package registers when it is imported.
        symbols: parts of observations whose last axis has categorical numbers, such as object and color, in a Box; and
            the numbers of categories along that axis.
        keeps_old: whether ids with an old version are separate tasks, such as mazes with more rooms.
        needs: modules that must be imported before the package registers environments.
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
"""Packages by module. A cell of MiniGrid's images has an object, a color and a state (of a door, or the direction of
the agent)."""


def module_of(name: str) -> str:
    """Return the module that registers an id; empty if it is unknown or Gymnasium's."""
    return next((module for module, package in PACKAGES.items() if name.startswith(package.prefixes)), "")


def packages_of(spec: EnvSpec) -> list[Package]:
    """Return the packages that an environment needs, by its entry point."""
    return [package for module, package in PACKAGES.items() if module in str(spec.entry_point)]


def with_symbols(space: gymnasium.Space[Any], spec: EnvSpec) -> gymnasium.Space[Any]:
    """Return the observation space of an environment with MultiDiscrete instead of Box for categorical numbers.

    Networks then get one-hot inputs, since distances between categorical numbers are meaningless.
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
