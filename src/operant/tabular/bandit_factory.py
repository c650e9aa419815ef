"""Bandit tasks by name, and their evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from operant import streams
from operant.envs.registry import make_single, specified
from operant.envs.worlds.bandits import Bandit, BernoulliBandit, Testbed
from operant.runtime.evaluation import Evaluation
from operant.runtime.settings import Settings
from operant.tabular.bandits import Arms, BanditLearner, Floats
from operant.tabular.player import Player
from operant.tensors import integers


@dataclass(frozen=True)
class BanditExperiment:
    """A bandit learner and its evaluation.

    Attributes:
        learner: the learner, an `operant.runtime.learner.Learner` and `Policy`.
        settings: settings of the run.
    """

    learner: BanditLearner
    settings: Settings

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Evaluate the greedy arm of each seed, with the seed's own arms.

        Args:
            episodes: number of pulls per seed. Default: from the settings.
            backend: "tensor" and "auto" compute the exact expectation; "gymnasium" samples pulls in Gymnasium's
                environment, the same ones at every call. Default: that of the settings.
            interrupted: not used.

        Raises:
            ValueError: if `episodes` is not positive, or the backend is unknown.
        """
        episodes = self.settings.evaluate_episodes if episodes is None else episodes
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        backend = backend or self.settings.env_backend
        if backend not in ("auto", "tensor", "gymnasium"):
            raise ValueError(f"backend must be 'auto', 'tensor' or 'gymnasium', got {backend!r}")
        if backend == "gymnasium":
            paid = self._pulled(episodes)
        else:
            expected = (self.learner.policy()[:, 0] * self.learner.arms.means).sum(axis=1)
            paid = np.repeat(expected[:, None], episodes, axis=1)
        return Evaluation.of(paid, np.ones(len(paid)), exact=backend != "gymnasium")

    def _pulled(self, episodes: int) -> Floats:
        """Return the rewards of greedy arms in Gymnasium's environment, `[S, episodes]`."""
        obs = torch.zeros(len(self.settings.seeds), episodes, dtype=torch.int64)
        actions, _ = Player(self.learner).act(obs, None, None)
        env = _bandit(self.settings.task, self.settings.env_kwargs)
        paid = np.zeros(actions.shape)
        for i, seed in enumerate(_reset_seeds(self.settings.seeds)):
            env.reset(seed=seed)
            paid[i] = [env.step(arm)[1] for arm in integers(actions[i])]
        env.close()
        return paid

    def close(self) -> None:
        """Close the learner."""
        self.learner.close()


def arms_of(task: str, seeds: Sequence[int], env_kwargs: Mapping[str, Any] | None = None) -> Arms:
    """Return the arms of a bandit: for each seed those that Gymnasium's environment samples in its first episode.

    Args:
        task: the id of a registered bandit of `operant.envs.worlds.bandits`.
        seeds: one non-negative integer per run.
        env_kwargs: parameters for the constructor of the bandit.

    Raises:
        ValueError: if the task has more than one state, or is not a bandit with known arms.
    """
    env = _bandit(task, env_kwargs)
    means: list[Floats] = []
    for seed in _reset_seeds(seeds):
        env.reset(seed=seed)
        means.append(env.means.copy())
    env.close()
    return Arms.normal(np.stack(means), noise=env.noise) if isinstance(env, Testbed) else Arms.paying_one(means)


def _reset_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds of the first episode in `operant.envs.make`."""
    return [streams.episode_seed(row, 0) for row in streams.row_seeds(seeds, 1, "environment")]


def _bandit(task: str, env_kwargs: Mapping[str, Any] | None) -> Bandit:
    env = make_single(specified(task, env_kwargs))
    unwrapped = env.unwrapped
    if isinstance(unwrapped, Testbed | BernoulliBandit):
        return unwrapped
    space = env.observation_space
    env.close()
    if isinstance(unwrapped, Bandit) or (isinstance(space, gymnasium.spaces.Discrete) and space.n == 1):
        problem = "is not one of them, so its arms are unknown"
    else:
        problem = f"has observations {space}, so more than one state: use an algorithm such as q-learning"
    raise ValueError(
        "a strategy for bandits needs a Testbed or a BernoulliBandit of operant.envs.worlds, such as "
        f"operant/Testbed-v0, but {task} {problem}"
    )
