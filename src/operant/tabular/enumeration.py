"""Numbering the members of finite spaces, so that a table can be learned in any discrete Gymnasium environment."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from operant import streams
from operant.envs import GymnasiumEnv
from operant.envs.registry import make_single, specified
from operant.envs.spaces import members


def size(space: gymnasium.Space[Any]) -> int:
    """Return how many members a finite space has.

    Raises:
        ValueError: the space is no Discrete, MultiDiscrete, MultiBinary, or Tuple or Dict of these.
    """
    found = members(space)
    if found is None:
        raise ValueError(f"a table needs finite spaces, but {space} is not; use an algorithm with networks")
    return found


def number(space: gymnasium.Space[Any], member: Any) -> int:
    """Return the number of a member, from 0; members of composite spaces are counted with the last part fastest."""
    if isinstance(space, spaces.Discrete):
        return int(member - space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return int(np.ravel_multi_index(tuple((np.asarray(member) - space.start).ravel()), tuple(space.nvec.ravel())))
    if isinstance(space, spaces.MultiBinary):
        return int("".join(str(int(bit)) for bit in np.ravel(member)), 2)
    members = [member[key] for key in space.spaces] if isinstance(space, spaces.Dict) else member
    total = 0
    for part, value in zip(_parts(space), members, strict=True):
        total = total * size(part) + number(part, value)
    return total


def _parts(space: Any) -> Sequence[gymnasium.Space[Any]]:
    return list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)


class Enumerated(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations are the numbers of the members of its finite observation space."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._space = env.observation_space
        self.observation_space = spaces.Discrete(size(env.observation_space))

    def observation(self, observation: Any) -> int:
        """Return the number of an observation."""
        return number(self._space, observation)


def enumerated(
    task: str,
    seeds: Sequence[int],
    *,
    rows: int = 1,
    purpose: str = "environment",
    longest: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> GymnasiumEnv:
    """Return `len(seeds) * rows` copies of a Gymnasium environment with numbered observations.

    Args:
        task: a Gymnasium id.
        seeds: of the runs.
        rows: N, environments a seed.
        purpose: of the random numbers.
        longest: steps after which an episode is cut if the task has no limit of its own; None for never.
        env_kwargs: parameters of one's own for the constructor of the environment.

    Raises:
        ValueError: the observations are not finite.
    """
    spec = specified(task, env_kwargs)

    def make() -> gymnasium.Env[Any, Any]:
        env = Enumerated(make_single(spec))
        unlimited = env.spec is None or env.spec.max_episode_steps is None
        return TimeLimit(env, longest) if longest is not None and unlimited else env

    row_seeds = streams.row_seeds(seeds, rows, purpose)
    vector = SyncVectorEnv([partial(make)] * len(row_seeds), copy=False, autoreset_mode=AutoresetMode.DISABLED)
    return GymnasiumEnv(vector, row_seeds, task=task)
