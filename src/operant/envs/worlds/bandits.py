"""Bandits: environments with one state, whose arms differ in their mean reward."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from operant.envs.finite import Outcome

Floats = NDArray[np.float64]


class Bandit(gymnasium.Env[Any, Any], ABC):
    """One state, in which every action pulls an arm. Episodes do not end.

    `reset` draws new arms, so each episode is a separate problem, determined by its seed. Agents may learn only from
    the reward; `info["regret"]`, the gap between the means of the best arm and the pulled arm, is for evaluation.

    Attributes:
        means: mean reward of each arm, float64 `[A]`; zeros before the first reset.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, arms: int, *, render_mode: str | None = None) -> None:
        """Make a bandit with `arms` arms, at least one.

        Raises:
            ValueError: if there is no arm, or the render mode is unknown.
        """
        if arms < 1:
            raise ValueError(f"arms must be at least 1, got {arms}")
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(1)
        self.action_space = spaces.Discrete(arms)
        self.means: Floats = np.zeros(arms)

    @abstractmethod
    def _draw_means(self, random: np.random.Generator) -> Floats:
        """Return the means of a new problem, `[A]`."""

    @abstractmethod
    def _draw_reward(self, mean: float, random: np.random.Generator) -> float:
        """Return one reward of an arm."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Draw the arms."""
        super().reset(seed=seed)
        self.means = self._draw_means(self.np_random)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Pull an arm.

        Raises:
            ValueError: if the arm does not exist.
        """
        if not 0 <= action < len(self.means):
            raise ValueError(f"arm {action} does not exist: the arms are 0 to {len(self.means) - 1}")
        mean = float(self.means[action])
        return 0, self._draw_reward(mean, self.np_random), False, False, {"regret": float(self.means.max()) - mean}

    def render(self) -> Any:
        """Return the means of the arms as text, for the render mode "ansi"."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() shows nothing: make the environment with render_mode="ansi"')
            return None
        return " ".join(f"{mean:.3f}" for mean in self.means) + "\n"


class Testbed(Bandit):
    """The k-armed testbed: means and rewards are normal (Sutton and Barto 2018, section 2.3)."""

    __test__ = False  # its name looks like a test to pytest

    def __init__(
        self,
        arms: int = 10,
        *,
        center: float = 0.0,
        spread: float = 1.0,
        noise: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        """Make the testbed.

        Args:
            arms: number of arms, k.
            center: mean of the arms' means.
            spread: standard deviation of the arms' means, not negative.
            noise: standard deviation of the rewards of an arm, not negative.
            render_mode: "ansi" or None.

        Raises:
            ValueError: if there is no arm, or a standard deviation is negative.
        """
        if spread < 0.0 or noise < 0.0:
            raise ValueError(f"standard deviations must not be negative, got spread={spread} and noise={noise}")
        super().__init__(arms, render_mode=render_mode)
        self.center, self.spread, self.noise = center, spread, noise

    def _draw_means(self, random: np.random.Generator) -> Floats:
        return random.normal(self.center, self.spread, len(self.means))

    def _draw_reward(self, mean: float, random: np.random.Generator) -> float:
        return float(random.normal(mean, self.noise))


class BernoulliBandit(Bandit):
    """Bernoulli arms, with given or uniformly drawn probabilities of reward 1."""

    def __init__(
        self, probabilities: Sequence[float] | None = None, *, arms: int = 10, render_mode: str | None = None
    ) -> None:
        """Make the bandit.

        Args:
            probabilities: probability of reward 1 of each arm; None draws them at every reset, uniformly from [0, 1].
            arms: number of arms, if drawn.
            render_mode: "ansi" or None.

        Raises:
            ValueError: if there is no arm, or a probability is outside [0, 1].
        """
        fixed = None if probabilities is None else np.array(probabilities, np.float64)
        if fixed is not None and (fixed.ndim != 1 or not ((fixed >= 0.0) & (fixed <= 1.0)).all()):
            raise ValueError(f"probabilities must be a list of numbers between 0 and 1, got {probabilities}")
        super().__init__(arms if fixed is None else len(fixed), render_mode=render_mode)
        self._fixed = fixed
        if fixed is not None:
            self.means = fixed.copy()

    def _draw_means(self, random: np.random.Generator) -> Floats:
        return random.random(len(self.means)) if self._fixed is None else self._fixed.copy()

    def _draw_reward(self, mean: float, random: np.random.Generator) -> float:
        return float(random.random() < mean)

    @property
    def P(self) -> dict[int, dict[int, list[Outcome]]]:  # noqa: N802 - the name of Gymnasium's toy-text environments
        """The model of the current arms, as in Gymnasium's toy-text environments."""
        arms = enumerate(self.means.tolist())
        return {0: {arm: [(mean, 0, 1.0, False), (1.0 - mean, 0, 0.0, False)] for arm, mean in arms}}
