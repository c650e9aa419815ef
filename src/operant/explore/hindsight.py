"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): achieved goals as goals.

An episode that missed its goal still shows how to reach the states that it visited. Of each k + 1 sampled transitions,
k on average are relabeled: their goal becomes one achieved in the same episode, and reward and termination are
recomputed. So every episode gives a training signal, even if success is rare.

A strategy chooses the goal (section 3.3): `future` uses one achieved in or after the transition, `episode` one of the
whole episode, `final` the last one. For unfinished or partly overwritten episodes, only the stored steps are used.

What differs from the paper: goals are sampled whenever a transition is sampled, as in the authors' code, instead of k
copies in the buffer; if the environment terminates at the goal (`compute_terminated`), so do relabeled transitions.
Without that method a relabeled transition keeps its flag, as in Stable-Baselines3. Truncated transitions bootstrap.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from types import MappingProxyType

import torch
from torch import Tensor

from operant import doors
from operant.envs import BatchEnv, Features, goal_end, goal_reward
from operant.envs.goals import ACHIEVED, DESIRED
from operant.envs.wrapper import wrappers
from operant.runtime.episode_index import EpisodeSteps
from operant.runtime.rollouts import Rollout
from operant.runtime.transitions import Transitions

MISMATCHES = 0.1
"""Maximum share of rewards that differ from `compute_reward`, for rounding at thresholds."""

Strategy = Callable[[EpisodeSteps, Sequence[torch.Generator]], Tensor]
"""`strategy(episodes, streams) -> steps [S, M]`: the steps, from `episodes.first` to `episodes.last`, whose achieved
goals become the goals. `streams` are one generator per seed."""


def future(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
    """Sample steps from the transition to the end of its episode."""
    return episodes.draw(episodes.steps, episodes.last, streams)


def episode(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
    """Sample steps from the whole episode."""
    return episodes.draw(episodes.first, episodes.last, streams)


def final(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
    """Return the last step of the episode."""
    return episodes.last


STRATEGIES: Mapping[str, Strategy] = MappingProxyType({"future": future, "final": final, "episode": episode})
"""The strategies by name."""


def strategy_of(name: str) -> Strategy:
    """Return a strategy by name: one of `STRATEGIES`, or a custom function, whose result is validated.

    Raises:
        operant.doors.DoorError: if there is none, or it does not take these arguments.
    """
    expected = "a function (episodes, streams) -> steps [S, M]"
    strategy = doors.chosen(STRATEGIES, name, arguments=2, expected=expected, group="operant.hindsight")
    if name in STRATEGIES:
        return strategy

    @wraps(strategy)
    def checked(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
        steps, known = strategy(episodes, streams), episodes.steps
        if getattr(steps, "dtype", None) != known.dtype or steps.shape != known.shape:
            found = f"{steps.dtype} {[*steps.shape]}" if isinstance(steps, Tensor) else f"{steps!r:.80}"  # pyright: ignore[reportUnnecessaryIsInstance] - from anywhere
            raise ValueError(f"hindsight {name} must return steps, {known.dtype} {[*known.shape]}, got {found}")
        if bool(((steps < episodes.first) | (steps > episodes.last)).any()):
            raise ValueError(
                f"hindsight {name} must return steps from episodes.first to episodes.last, got others: clamp them "
                "between the two"
            )
        return steps

    return checked


class Hindsight:
    """Relabeling of sampled transitions (`operant.runtime.episode_index.Relabel`).

    Relabeled transitions get the environment's goal reward, without additions by wrappers. A wrapper that changes goals
    or their rewards needs its own `compute_reward` (`operant.envs.GoalEnv`).

    Args:
        env: an environment with goals (`operant.envs.GoalEnv`, or a Gymnasium environment with `compute_reward`).
        features: features of its observations.
        strategy: one of `STRATEGIES`, or a custom `Strategy`, path/to/file.py:name.
        ratio: k, relabeled transitions per unchanged one, on average.

    Raises:
        ValueError: if the environment has no goals, achieved and desired ones differ in size, or it cannot compute
            rewards for other goals.
    """

    def __init__(self, env: BatchEnv, features: Features, *, strategy: str, ratio: float) -> None:
        absent = [part for part in (ACHIEVED, DESIRED) if part not in features.slices]
        if absent:
            raise ValueError(
                f"hindsight={strategy!r} needs observations with the entries {ACHIEVED} and {DESIRED}, but those of "
                f"{env.task} have no {' and no '.join(absent)}: remove hindsight, or use an environment with "
                "goals, such as operant/Reach-v0"
            )
        self.achieved, self.desired = features.slices[ACHIEVED], features.slices[DESIRED]
        sizes = [part.stop - part.start for part in (self.achieved, self.desired)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{ACHIEVED} of {env.task} has {sizes[0]} numbers and {DESIRED} {sizes[1]}: achieved goals can only "
                "become desired ones if both have the same size"
            )
        self.reward, self.end = goal_reward(env), goal_end(env)
        rewards = self.reward(*torch.zeros(2, 2, sizes[0], device=env.device))  # fail before training
        if rewards.shape != (2,):
            raise ValueError(
                f"compute_reward of {env.task} returned shape {[*rewards.shape]} for 2 goals, expected [2]"
            )
        self.task, self._is_plain = env.task, not wrappers(env)
        self.strategy = strategy_of(strategy)
        self.share = ratio / (1.0 + ratio)

    def check(self, rollout: Rollout) -> None:
        """Compare `compute_reward` with the rewards of the environment, unless wrappers may change these.

        Args:
            rollout: experience.

        Raises:
            ValueError: if more than `MISMATCHES` of the rewards differ by more than rounding.
        """
        if not self._is_plain:
            return
        pair = rollout.final_obs[..., self.achieved], rollout.obs[..., self.desired]
        computed = self.reward(*(goals.flatten(0, 2) for goals in pair)).view(rollout.rewards.shape)
        differs = (computed - rollout.rewards).abs() > 1e-3 * (1 + computed.abs())
        valid = torch.ones_like(differs) if rollout.valid is None else rollout.valid
        share = float((differs & valid).sum() / valid.sum().clamp(min=1))
        if share > MISMATCHES:
            first = (differs & valid).flatten().nonzero()[0]
            raise ValueError(
                f"{share:.0%} of the rewards of {self.task} differ from those of its compute_reward, such as "
                f"{rollout.rewards.flatten()[first].item():g} and {computed.flatten()[first].item():g}, so relabeled "
                "transitions would have other rewards than the task: let step return compute_reward of its goals"
            )

    def __call__(self, batch: Transitions, episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Transitions:
        """Return a batch of transitions with some goals replaced, in place."""
        shape, device = batch.rewards.shape, batch.rewards.device
        drawn = torch.stack([torch.rand(shape[1], generator=stream, device=device) for stream in streams])
        relabeled = drawn < self.share
        found = episodes.at("next_obs", self.strategy(episodes, streams))[..., self.achieved]
        goals = torch.where(relabeled.unsqueeze(-1), found, batch.obs[..., self.desired])
        batch.obs[..., self.desired] = batch.next_obs[..., self.desired] = goals
        pair = batch.next_obs[..., self.achieved].flatten(0, 1), goals.flatten(0, 1)
        rewards = torch.where(relabeled, self.reward(*pair).view(shape), batch.rewards)
        if self.end is None:
            return replace(batch, rewards=rewards)
        ends = torch.where(relabeled, self.end(*pair).view(shape), batch.terminated)
        return replace(batch, rewards=rewards, terminated=ends)
