"""Indices of the members of finite spaces, for tables in any discrete Gymnasium environment."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from operant import doors, streams
from operant.envs import GymnasiumEnv
from operant.envs.checks import needs_check
from operant.envs.registry import changes, from_object, make_single, specified
from operant.envs.spaces import GymnasiumActions, is_dict, is_multi_discrete, members
from operant.runtime.available_memory import require_memory

MOST_CELLS = 10**10
"""Maximum number of values per seed of a table, 80 GB."""
CELL = 16
"""Least size of a cell in bytes: a value and a number of updates."""


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


def member(space: gymnasium.Space[Any], index: int) -> Any:
    """Return the member of a Discrete, MultiDiscrete or MultiBinary space with an index, the inverse of `number`.

    Raises:
        ValueError: if there is no such member.
    """
    if not 0 <= index < size(space):
        raise ValueError(f"{index} is not the number of a member of {space}, expected 0 to {size(space) - 1}")
    if isinstance(space, spaces.Discrete):
        return int(space.start) + index
    if is_multi_discrete(space):
        parts = np.stack(np.unravel_index(index, tuple(space.nvec.ravel()))).reshape(space.shape)
        return (parts + space.start).astype(space.dtype)
    bits = np.array([int(bit) for bit in f"{index:0{math.prod(space.shape or ())}b}"])
    return bits.reshape(space.shape or ()).astype(space.dtype)


def actions_of(space: gymnasium.Space[Any]) -> GymnasiumActions:
    """Return the conversion of the actions of a table to a Gymnasium space.

    Members of MultiDiscrete and MultiBinary spaces are numbered; others are as for networks.

    """
    if not (is_multi_discrete(space) or isinstance(space, spaces.MultiBinary)):
        return GymnasiumActions.of(space)

    def write(actions: np.ndarray) -> np.ndarray:
        return np.stack([member(space, int(action)) for action in actions])

    return GymnasiumActions(spaces.Discrete(size(space)), write)


def require_possible(states: int, actions: int, task: str, *, seeds: int = 0) -> None:
    """Check that a table is not absurdly large, and that those of some seeds fit into memory.

    Args:
        states: number of states.
        actions: number of actions.
        task: name of the task for the message.
        seeds: number of tables. Default: memory is not checked.

    Raises:
        ValueError: if a table would have more than `MOST_CELLS` values, or there is not enough memory for the tables.
    """
    instead = "use an algorithm with networks, such as dqn, or a coarser observation"
    if states * actions > MOST_CELLS:
        count, each = (f"{n:,}" if n < 10**6 else f"about 10^{math.log10(n):.0f}" for n in (states, actions))
        raise ValueError(
            f"the table of {task} would have {count} states with {each} actions each, too many to store: {instead}"
        )
    require_memory(
        states * actions * seeds * CELL,
        torch.device("cpu"),
        what=f"a table of {task}, {states:,} states with {actions:,} actions each, for each of {seeds} seeds needs",
        remedy=lambda _: f"train fewer seeds, or {instead}" if seeds > 1 else instead,
    )


def _parts(space: Any) -> Sequence[gymnasium.Space[Any]]:
    return list(space.spaces.values()) if is_dict(space) else list(space.spaces)


class Enumerated(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment with the indices of its finite observation space as observations.

    Actions are the indices of a MultiDiscrete or MultiBinary action space; other action spaces are unchanged.

    Raises:
        ValueError: if the observation space is infinite, or a table would be too large.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._space, self._acts = env.observation_space, env.action_space
        states, actions = size(self._space), members(self._acts) or 1
        require_possible(states, actions, str(env) if env.spec is None else env.spec.id)
        self.observation_space: spaces.Discrete = spaces.Discrete(states)
        self._numbered = isinstance(self._acts, spaces.MultiDiscrete | spaces.MultiBinary)
        if self._numbered:
            self.action_space = spaces.Discrete(actions)

    def step(self, action: Any) -> Any:
        """Take the action, or the one with this index."""
        return super().step(member(self._acts, int(action)) if self._numbered else action)

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
    task: Any,
    seeds: Sequence[int],
    *,
    rows: int = 1,
    purpose: str = "environment",
    longest: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> GymnasiumEnv:
    """Return `len(seeds) * rows` copies of a Gymnasium environment with numbered observations and actions.

    Args:
        task: a task as for `operant.train`, such as a Gymnasium id, `"path/to/file.py:MyEnv"`, a class or a function.
        seeds: one non-negative integer per run.
        rows: N, environments per seed.
        purpose: purpose of the random numbers.
        longest: steps after which an episode is truncated, unless the limit of the task is lower. Default: no limit.
        env_kwargs: parameters for the constructor of the environment.

    Raises:
        ValueError: if the observation space is infinite, a table would be too large, or the task is none.
    """
    name, own = doors.named(task), dict(env_kwargs or {})
    if not isinstance(name, str):
        name, own = from_object(name, own)
    spec = specified(name, own)

    def make() -> gymnasium.Env[Any, Any]:
        env = Enumerated(make_single(spec))
        limit = None if env.spec is None else env.spec.max_episode_steps
        return env if longest is None or (limit is not None and limit <= longest) else TimeLimit(env, longest)

    row_seeds = streams.row_seeds(seeds, rows, purpose)
    vector = SyncVectorEnv([partial(make)] * len(row_seeds), copy=False, autoreset_mode=AutoresetMode.DISABLED)
    return GymnasiumEnv(vector, row_seeds, task=name, check=needs_check(spec), changes=changes(name, spec.kwargs))
