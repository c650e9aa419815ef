"""Noisy-TV wrapper, which adds unpredictable noise to observations: `NoisyTV`."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from operant import streams
from operant.envs.base import BatchEnv, Step, Tree
from operant.envs.spaces import is_dict
from operant.envs.tensor.starts import BITS, random_bits, stream_keys
from operant.envs.wrapper import Wrapper
from operant.state import DeclaredState, State, load_part

SCREEN, OBSERVATION = "screen", "observation"
"""Keys of the noise and of the original observation."""


class NoisyTV(Wrapper):
    """Adds a screen of noise to observations, which changes with an action or at every step.

    It is a control for novelty bonuses (Burda et al. 2018, arXiv:1808.04355, section 5): the screen is always new,
    unpredictable and independent of the task, so agents that are rewarded for surprise learn to watch it.

    Observations are dictionaries with the `screen`, uniform numbers in [0, 1), and the parts of the original
    dictionary, or the original `observation`. Rewards, actions and terminations are unchanged. The screen of an
    environment depends only on its seed and on the number of changes. The method `observation`, which does not count
    steps, returns a screen of zeros.

    Args:
        env: environment to wrap.
        action: discrete action that changes the screen, in addition to its effect in the environment; None: the screen
            changes at every step.
        pixels: number of pixels of the screen, at least 1.

    Attributes:
        changes: number of changes of each screen, `[B]`.

    Raises:
        ValueError: there is no such action, no pixel, or the observation already has a part named `screen`.
    """

    STATE = ("changes",)

    def __init__(self, env: BatchEnv, *, action: int | None = None, pixels: int = 8) -> None:
        super().__init__(env)
        if pixels < 1:
            raise ValueError(f"pixels must be at least 1, got {pixels}")
        if action is not None and not (isinstance(env.action_space, spaces.Discrete) and action in env.action_space):
            raise ValueError(f"action must be one of {env.action_space}, or None to change at every step, got {action}")
        inner = env.observation_space
        parts: dict[str, gymnasium.Space[Any]] = dict(inner.spaces) if is_dict(inner) else {OBSERVATION: inner}
        if SCREEN in parts:
            raise ValueError(f"observations of {env.task} already have a part {SCREEN!r}: leave out one of the two")
        self.action, self.pixels = action, pixels
        self.observation_space = spaces.Dict({**parts, SCREEN: spaces.Box(0.0, 1.0, (pixels,), np.float32)})

    def start(self, seeds: Sequence[int]) -> None:
        """Initialize all screens."""
        rows = torch.tensor(streams.row_seeds(seeds, self.rows // len(seeds), "television"), device=self.device)
        self.keys = stream_keys(rows, torch.arange(1, self.pixels + 1, device=self.device).unsqueeze(1))
        self.changes = torch.zeros(self.rows, dtype=torch.int64, device=self.device)

    @property
    def screens(self) -> Tensor:
        """Current screens, `[B, pixels]`."""
        return (random_bits(self.keys, self.changes).double() * 2.0**-BITS).float().T

    def _beside(self, obs: Tree, screens: Tensor) -> Tree:
        return {**({OBSERVATION: obs} if isinstance(obs, Tensor) else obs), SCREEN: screens}

    def observation(self, obs: Tree) -> Tree:
        """Return observations with screens of zeros."""
        first = obs
        while not isinstance(first, Tensor):
            first = next(iter(first.values()))
        return self._beside(obs, torch.zeros(len(first), self.pixels, device=first.device))

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment; the screens do not change."""
        return self._beside(self.env.reset(seeds), self.screens)

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment, and change the screens."""
        step = self.env.step(actions)
        self.changes += 1 if self.action is None else (actions == self.action)
        screens = self.screens
        final_obs = self._beside(step.final_obs, screens)
        obs = final_obs if step.obs is step.final_obs else self._beside(step.obs, screens)
        return step._replace(obs=obs, final_obs=final_obs)

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state, and return the next observations."""
        DeclaredState.load_state_dict(self, {name: part for name, part in state.items() if name != "env"})
        return self._beside(load_part(self.env, state, "env"), self.screens)
