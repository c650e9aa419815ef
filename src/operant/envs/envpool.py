"""Environments of EnvPool, which steps copies of a task in C++ threads (Weng et al. 2022, arXiv:2206.10558)."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from operant import streams
from operant.cores import allowed_cores
from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import Tree
from operant.envs.spaces import is_box
from operant.state import State


class Pool(VectorEnv):
    """Vector environment of one pool; every reset restarts all environments, each with its own seed.

    An environment whose episode has ended resets itself in the next step (NEXT_STEP), ignoring the action.

    Args:
        spec: spec of the task, with the maximum number of steps per episode.
        rows: number of environments.

    Raises:
        ModuleNotFoundError: EnvPool is not installed.
        ValueError: EnvPool does not have the task.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium declares it
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]

    def __init__(self, spec: EnvSpec, rows: int) -> None:
        try:
            envpool: Any = import_module("envpool")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "env_backend='envpool' needs the package 'envpool', which is not installed: "
                'pip install "operant[envpool]"'
            ) from error
        if spec.id not in envpool.list_all_envs():
            raise ValueError(f"EnvPool has no {spec.id!r}; use env_backend='gymnasium'")
        limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
        self._make = partial(
            envpool.make,
            spec.id,
            env_type="gymnasium",
            num_envs=rows,
            num_threads=min(rows, allowed_cores()),
            **limit,
        )
        self._pool: Any = None
        with _quiet():
            known = envpool.make_spec(spec.id, **limit)
            self.single_observation_space = _unbounded(known.gymnasium_observation_space)
        self.single_action_space = known.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, rows)
        self.action_space = batch_space(self.single_action_space, rows)
        self.spec, self.num_envs = spec, rows

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start episodes of all environments, with one seed below 2³¹ each."""
        self.close_extras()
        with _quiet():
            self._pool = self._make(env_seed=seed)
            obs, _ = self._pool.reset()
        return obs, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action per environment."""
        obs, rewards, terminations, truncations, _ = self._pool.step(actions)
        return obs, rewards, terminations, truncations, {}

    def close_extras(self, **kwargs: Any) -> None:
        """Release the environments and their threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class EnvPool(GymnasiumEnv):
    """Batch of `B` environments of EnvPool.

    Each environment depends only on its seed and actions. EnvPool can neither save the state of an environment nor seed
    single episodes, so loading a state starts new episodes, with new seeds (see `operant.envs.base.begins_anew`).

    EnvPool reimplements the tasks, with small differences: its Pendulum-v1 moves the angle by the speed before
    clipping, Gymnasium's by the speed after it. Evaluate policies in Gymnasium's environments.

    EnvPool uses threads, not processes, so time limits for replies do not apply.

    Attributes:
        begins_anew: true.
    """

    def __init__(self, spec: EnvSpec, seeds: Sequence[int], *, device: str | torch.device = "cpu") -> None:
        """Create one environment per seed.

        Args:
            spec: spec of the task in Gymnasium's registry.
            seeds: one non-negative integer per environment.
            device: device of observations.

        Raises:
            ModuleNotFoundError: EnvPool is not installed.
            ValueError: EnvPool does not have the task.
        """
        self._resumptions = 0
        super().__init__(Pool(spec, len(seeds)), seeds, task=spec.id, device=device, check=False)
        self.begins_anew = True

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment and return the observations `[B, ...]`."""
        self._resumptions = 0
        return super().reset(seeds)

    def _reset_seeds(self) -> list[int]:
        return [streams.integer(seed, "EnvPool", self._resumptions) for seed in self._seeds]

    def state_dict(self) -> State:
        """Return the seeds, and the number of loads so far."""
        return {"task": self.task, "seeds": list(self._seeds), "resumptions": self._resumptions}

    def load_state_dict(self, state: State) -> Tree:
        """Start new episodes, and return the observations `[B, ...]`.

        Raises:
            ValueError: the state belongs to another task or number of environments.
        """
        if state["task"] != self.task or "resumptions" not in state:
            raise ValueError(f"the state belongs to {state['task']!r}, but this is {self.task!r} of EnvPool")
        self._seeds, self._resumptions = self._checked_seeds(state["seeds"]), state["resumptions"] + 1
        return super().reset()


@contextmanager
def _quiet() -> Generator[None]:
    """Return a context that suppresses Gymnasium's warnings about the precision of bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _unbounded(space: Any) -> Any:
    """Return a space with infinite bounds in place of EnvPool's extreme numbers."""
    if not is_box(space) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where((space.low == limits.tiny) | (space.low == limits.min), -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return spaces.Box(low, high, dtype=space.dtype.type)
