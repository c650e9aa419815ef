"""Games of the Arcade Learning Environment with standard preprocessing, stepped in C++ threads by `ale_py`."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import Step
from operant.envs.spaces import spaces_of
from operant.state import State
from operant.tensors import from_numpy

PIXELS = 84
"""Height and width of an image in pixels."""
FRAMES = 4
"""Number of stacked frames, and number of game frames per action."""
FRAME_LIMIT = "max_num_frames_per_episode"
OPTIONS = ("game", "repeat_action_probability", "full_action_space", FRAME_LIMIT)
"""Keyword arguments of the games that are supported."""


class Games(VectorEnv):
    """The vector environment of `ale_py` without autoreset: the caller resets environments whose episodes ended.

    Automatic resets would use random numbers that cannot be saved. Every episode starts with up to 30 no-op frames
    (Mnih et al. 2015), whose number depends on the seed, and with FIRE if the game needs it.

    Attributes:
        lives: remaining lives, `[B]`; 0 in games without lives.
        lost: whether a life was lost in the last step without ending the game, `[B]`.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, spec: EnvSpec, rows: int) -> None:
        """Create `rows` copies of a registered game, with its sticky actions, action set and frame limit."""
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - an extra

        options = {name: spec.kwargs[name] for name in OPTIONS}
        self._env = AtariVectorEnv(
            num_envs=rows,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            img_height=PIXELS,
            img_width=PIXELS,
            grayscale=True,
            stack_num=FRAMES,
            frameskip=FRAMES,
            maxpool=True,
            noop_max=30,
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=True,
            **options,
        )
        self.num_envs, self.spec = rows, spec
        own = spaces_of(self._env)
        self.single_observation_space, self.single_action_space = own.single_observation_space, own.single_action_space
        self.observation_space, self.action_space = own.observation_space, own.action_space
        self.lives, self.lost = np.zeros(rows, np.int32), np.zeros(rows, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start episodes of the environments in `options["reset_mask"]`, or of all, with one seed each."""
        seeds = np.array([number for number in seed if number is not None], np.int32)
        obs, info = self._env.reset(seed=seeds, options=options)
        self.lives = info["lives"].copy()
        return obs, info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action per environment."""
        obs, rewards, terminations, truncations, info = self._env.step(actions)
        self.lost = (info["lives"] < self.lives) & ~terminations & ~truncations
        self.lives = info["lives"].copy()
        return obs, rewards, terminations, truncations, {}

    def close_extras(self, **kwargs: Any) -> None:
        """Release the emulators."""
        self._env.close()
        del self._env.ale  # deletion ends its threads and frees its memory


class Atari:
    """Batch of `B` copies of one game; observations are the last four gray frames, uint8 `[B, 4, 84, 84]`.

    A step is four frames of the game (Mnih et al. 2015), and an image is the maximum of the last two frames. The
    previous action is repeated with the registered probability, 0.25 for `ALE/*-v5` (sticky actions; Machado et al.
    2018, "Revisiting the Arcade Learning Environment", section 5). `Step.score` is the score of the game, without
    clipping. States are restored by replaying the episodes, each of which has its own seed.

    Attributes:
        task: Gymnasium id.
        rows: number of environments, B.
        observation_space: uint8 box `[4, 84, 84]`.
        action_space: space of the game's actions.
        device: device of observations and actions.
        always_valid: true.
        clip_rewards: whether rewards are clipped.
        episodic_life: whether losing a life is terminal.
        env_kwargs: keyword arguments passed to `operant.envs.make`.
    """

    always_valid = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Sequence[int],
        *,
        device: str | torch.device = "cpu",
        clip_rewards: bool = True,
        episodic_life: bool = False,
    ) -> None:
        """Create one environment per seed.

        Args:
            spec: spec of the game, registered by `ale_py`.
            seeds: one non-negative integer per environment.
            device: device of observations.
            clip_rewards: whether rewards are clipped to [-1, 1].
            episodic_life: whether losing a life is terminal for the learner; the game continues and is reset only at
                its end. Metrics then count lives as episodes.

        Raises:
            ModuleNotFoundError: `ale_py` is not installed.
        """
        self._games = Games(spec, len(seeds))
        self._env = GymnasiumEnv(self._games, seeds, task=spec.id, device=device, check=False)
        self.clip_rewards, self.episodic_life = clip_rewards, episodic_life
        self.env_kwargs: dict[str, Any] = {}
        self.task, self.rows, self.device = spec.id, len(seeds), self._env.device
        self.observation_space: gymnasium.Space[Any] = self._env.observation_space
        self.action_space: gymnasium.Space[Any] = self._env.action_space

    def reset(self, seeds: Sequence[int] | None = None) -> Tensor:
        """Start episode 0 of every environment and return the observations `[B, 4, 84, 84]`."""
        return self._images(self._env.reset(seeds))

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment, int64 `[B]`."""
        step = self._env.step(actions)
        if self.clip_rewards:
            step = step._replace(reward=step.reward.clamp(-1.0, 1.0))
        if self.episodic_life and self._games.lost.any():
            step = step._replace(terminated=step.terminated | from_numpy(self._games.lost).to(self.device))
        return step

    def state_dict(self) -> State:
        """Return the seeds, the numbers of the current episodes and their actions."""
        return self._env.state_dict()

    @property
    def begins_anew(self) -> bool:
        """Whether the last loaded state was one `without_episodes`."""
        return self._env.begins_anew

    def load_state_dict(self, state: State) -> Tensor:
        """Replay the saved episodes up to the saved step, and return the observations."""
        return self._images(self._env.load_state_dict(state))

    def close(self) -> None:
        """Release the emulators. Can be called twice."""
        self._env.close()

    @staticmethod
    def _images(obs: object) -> Tensor:
        if not isinstance(obs, Tensor):
            raise TypeError(f"images must be one tensor, got a {type(obs).__name__}")
        return obs


def is_atari(spec: EnvSpec) -> bool:
    """Return whether a registered environment is a game of `ale_py`, such as `ALE/Pong-v5`."""
    return spec.namespace == "ALE" and spec.entry_point == "ale_py.env:AtariEnv"


def limited_game(spec: EnvSpec, steps: int) -> EnvSpec:
    """Return the spec of a game whose episodes are truncated after a number of steps, unless its own limit is shorter.

    Raises:
        ValueError: the number is not positive.
    """
    if steps < 1:
        raise ValueError(f"episodes of {spec.id} must have at least 1 step, got {steps}")
    limited = copy(spec)
    limited.kwargs = {**spec.kwargs, FRAME_LIMIT: min(spec.kwargs[FRAME_LIMIT], FRAMES * steps)}
    return limited


def require_options(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> None:
    """Check that the keyword arguments that change a game are supported by the emulator in threads.

    Args:
        spec: the registered game.
        env_kwargs: its keyword arguments.

    Raises:
        ValueError: one is not supported.
    """
    known = (*OPTIONS[1:], "max_episode_steps")
    for name, value in env_kwargs.items():
        if name not in known and (name not in spec.kwargs or spec.kwargs[name] != value):
            raise ValueError(
                f"{name}={value!r} of {spec.id} is not supported: a step is {FRAMES} frames of the game in its usual "
                f"mode, observed as {FRAMES} gray images; the keyword arguments are {', '.join(known)}"
            )
