"""Indices of the members of finite spaces, for tables in any discrete Gymnasium environment."""

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
from operant.envs.checks import needs_check
from operant.envs.registry import changes, make_single, specified
from operant.envs.spaces import is_dict, is_multi_discrete, members


def size(space: gymnasium.Space[Any]) -> int:
    """Return the size of a finite space.

    Raises:
        ValueError: if the space is not a Discrete, MultiDiscrete, MultiBinary, or Tuple or Dict of these.
    """
    elements = members(space)
    if elements is None:
        raise ValueError(f"a table needs finite spaces, but {space} is not; use an algorithm with networks")
    return elements


def number(space: gymnasium.Space[Any], member: Any) -> int:
    """Return the index of a member, starting at 0; in composite spaces the last part varies fastest.

    Raises:
        ValueError: if it is not a member of the space.
    """
    if isinstance(space, spaces.Discrete):
        value = np.asarray(member)
        if value.size != 1 or value.dtype.kind not in "biuf":
            raise ValueError(f"{member!r} is not in {space}, whose members are single whole numbers")
        offset = value.item() - int(space.start)
        if not 0 <= offset < space.n or offset != int(offset):
            raise ValueError(f"{member!r} is not in {space}")
        return int(offset)
    if is_multi_discrete(space):
        parts = (np.asarray(member) - space.start).ravel()
        if not ((parts >= 0) & (parts < space.nvec.ravel()) & (parts == np.floor(parts))).all():
            raise ValueError(f"{np.asarray(member).tolist()} is not in {space}")
        return int(np.ravel_multi_index(tuple(parts.astype(np.int64)), tuple(space.nvec.ravel())))
    if isinstance(space, spaces.MultiBinary):
        bits = np.ravel(member)
        if not np.isin(bits, (0, 1)).all():
            raise ValueError(f"{np.asarray(member).tolist()} is not in {space}")
        return int("".join(str(int(bit)) for bit in bits), 2)
    values = [member[key] for key in space.spaces] if is_dict(space) else member
    total = 0
    for part, value in zip(_parts(space), values, strict=True):
        total = total * size(part) + number(part, value)
    return total


def _parts(space: Any) -> Sequence[gymnasium.Space[Any]]:
    return list(space.spaces.values()) if is_dict(space) else list(space.spaces)


class Enumerated(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment with the indices of its finite observation space as observations."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._space = env.observation_space
        self.observation_space: spaces.Discrete = spaces.Discrete(size(env.observation_space))

    def observation(self, observation: Any) -> int:
        """Return the index of an observation.

        Raises:
            ValueError: if the observation is not in the observation space.
        """
        try:
            return number(self._space, observation)
        except ValueError as error:
            raise ValueError(
                f"observation {observation!r}: {error}, so it is none of the {self.observation_space.n} states of the "
                "table; correct the environment's observation_space, or the results of reset() and step()"
            ) from None


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
        seeds: one non-negative integer per run.
        rows: N, environments per seed.
        purpose: purpose of the random numbers.
        longest: steps after which an episode is truncated, unless the limit of the task is lower. Default: no limit.
        env_kwargs: parameters for the constructor of the environment.

    Raises:
        ValueError: if the observation space is infinite.
    """
    spec = specified(task, env_kwargs)

    def make() -> gymnasium.Env[Any, Any]:
        env = Enumerated(make_single(spec))
        own = None if env.spec is None else env.spec.max_episode_steps
        return env if longest is None or (own is not None and own <= longest) else TimeLimit(env, longest)

    row_seeds = streams.row_seeds(seeds, rows, purpose)
    vector = SyncVectorEnv([partial(make)] * len(row_seeds), copy=False, autoreset_mode=AutoresetMode.DISABLED)
    return GymnasiumEnv(vector, row_seeds, task=task, check=needs_check(spec), changes=changes(task, spec.kwargs))
