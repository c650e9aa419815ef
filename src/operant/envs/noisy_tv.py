"""A television that shows noise: what cannot be predicted, and is never the same twice (`NoisyTV`)."""

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
"""Keys of the observations: what the television shows, and what the environment does."""


class NoisyTV(Wrapper):
    """Adds a screen to the observations of any environment, whose noise an action changes, or every step.

    The control of every bonus for novelty (Burda et al. 2018, arXiv:1808.04355, section 5): a screen is never seen
    before and cannot be predicted, and tells nothing about the task. Who is paid for surprise learns to watch it.

    Observations become a dictionary with the `screen`, numbers that are uniform in [0, 1), next to the parts of a
    dictionary, or to the `observation` that there was before. Rewards, actions and ends of episodes stay the same. What
    a row shows depends on its seed and on how often its screen has changed alone. Without steps of its own to count,
    `observation` shows a screen that is off: zeros.

    Args:
        env: what is wrapped.
        action: of a finite set, which changes the screen in addition to its effect in the environment, like a remote
            control; None: the screen changes at every step.
        pixels: numbers on the screen, at least 1.

    Attributes:
        changes: `[B]`, how often the screen of each row has changed.

    Raises:
        ValueError: there is no such action, no pixel, or a part of the observation has the name `screen`.
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
            raise ValueError(f"observations of {env.task} have a part {SCREEN!r} already: leave out one of the two")
        self.action, self.pixels = action, pixels
        self.observation_space = spaces.Dict({**parts, SCREEN: spaces.Box(0.0, 1.0, (pixels,), np.float32)})

    def start(self, seeds: Sequence[int]) -> None:
        """Switch every television on."""
        rows = torch.tensor(streams.row_seeds(seeds, self.rows // len(seeds), "television"), device=self.device)
        self.keys = stream_keys(rows, torch.arange(1, self.pixels + 1, device=self.device).unsqueeze(1))
        self.changes = torch.zeros(self.rows, dtype=torch.int64, device=self.device)

    @property
    def screens(self) -> Tensor:
        """What the televisions show now, `[B, pixels]`."""
        return (random_bits(self.keys, self.changes).double() * 2.0**-BITS).float().T

    def _beside(self, obs: Tree, screens: Tensor) -> Tree:
        return {**({OBSERVATION: obs} if isinstance(obs, Tensor) else obs), SCREEN: screens}

    def observation(self, obs: Tree) -> Tree:
        """Return observations with screens that are off."""
        first = obs
        while not isinstance(first, Tensor):
            first = next(iter(first.values()))
        return self._beside(obs, torch.zeros(len(first), self.pixels, device=first.device))

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every row; the screens stay as they are."""
        return self._beside(self.env.reset(seeds), self.screens)

    def step(self, actions: Tensor) -> Step:
        """Apply one action a row, and change the screens of those whose action does that."""
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
