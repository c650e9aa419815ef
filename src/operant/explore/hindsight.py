"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): what was achieved was a goal, too.

An episode that missed its goal shows how to reach the places that it did come to. Of each k + 1 transitions that are
drawn from the replay buffer, k on average are relabeled: their goal becomes one that was achieved in the same episode,
and reward and end are computed again for it. Where success is rare, every episode teaches something.

Which goal it is, a strategy says (section 3.3): `future` takes one that was achieved in or after the transition,
`episode` one of the whole episode, `final` the last one. Of episodes that still run, or whose beginning has left the
buffer, what is held counts.

What differs from the paper: goals are drawn anew whenever a transition is drawn, as in the authors' code, in place of
k copies in the buffer; an environment that ends episodes at the goal (`compute_terminated`) ends relabeled ones there,
too. Without that method a relabeled transition keeps its end, as in Stable-Baselines3. A time limit ends nothing: the
successor keeps its value.
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
from operant.runtime.episode_index import EpisodeSteps
from operant.runtime.transitions import Transitions

Strategy = Callable[[EpisodeSteps, Sequence[torch.Generator]], Tensor]
"""`strategy(episodes, streams) -> steps [S, M]`: after which step, from `episodes.first` to `episodes.last`, was
achieved what becomes the goal. `streams` are one of each seed, for what is random."""


def future(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
    """Return steps drawn from the transition itself to the last one of its episode."""
    return episodes.draw(episodes.steps, episodes.last, streams)


def episode(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
    """Return steps drawn from the whole episode."""
    return episodes.draw(episodes.first, episodes.last, streams)


def final(episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Tensor:
    """Return the last step of the episode."""
    return episodes.last


STRATEGIES: Mapping[str, Strategy] = MappingProxyType({"future": future, "final": final, "episode": episode})
"""The strategies by name."""


def strategy_of(name: str) -> Strategy:
    """Return the strategy of a name: one of `STRATEGIES`, or a function of a user's, whose result is checked.

    Raises:
        operant.doors.DoorError: there is none.
    """
    expected = "a function (episodes, streams) -> steps [S, M]"
    strategy = doors.chosen(STRATEGIES, name, expected=expected, group="operant.hindsight")
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
    """Relabels transitions that are drawn from a replay buffer (`operant.runtime.episode_index.Relabel`).

    Relabeled transitions earn what the environment pays for goals, without what wrappers add to its rewards. A wrapper
    that changes goals, or what is paid for them, has a method `compute_reward` of its own (`operant.envs.GoalEnv`).

    Args:
        env: has goals (`operant.envs.GoalEnv`, or one of Gymnasium with `compute_reward`).
        features: of its observations.
        strategy: one of `STRATEGIES`, or a `Strategy` of one's own, path/to/file.py:name.
        ratio: k, how many transitions are relabeled for each that stays as it is, on average.

    Raises:
        ValueError: the environment has no goals, those achieved are not of the size of those desired, or it does not
            compute rewards for others.
    """

    def __init__(self, env: BatchEnv, features: Features, *, strategy: str, ratio: float) -> None:
        absent = [part for part in (ACHIEVED, DESIRED) if part not in features.slices]
        if absent:
            raise ValueError(
                f"hindsight={strategy!r} needs observations with the parts {ACHIEVED} and {DESIRED}, but those of "
                f"{env.task} have no {' and no '.join(absent)}: leave hindsight out, or take an environment with "
                "goals, such as operant/Reach-v0"
            )
        self.achieved, self.desired = features.slices[ACHIEVED], features.slices[DESIRED]
        sizes = [part.stop - part.start for part in (self.achieved, self.desired)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{ACHIEVED} of {env.task} has {sizes[0]} numbers and {DESIRED} {sizes[1]}: what was achieved can only "
                "be desired where both are of one size"
            )
        self.reward, self.end = goal_reward(env), goal_end(env)
        rewards = self.reward(*torch.zeros(2, 2, sizes[0], device=env.device))  # now, before anything is learned
        if rewards.shape != (2,):
            raise ValueError(
                f"compute_reward of {env.task} returned shape {[*rewards.shape]} for 2 goals at once, [2] is needed"
            )
        self.strategy = strategy_of(strategy)
        self.share = ratio / (1.0 + ratio)

    def __call__(self, batch: Transitions, episodes: EpisodeSteps, streams: Sequence[torch.Generator]) -> Transitions:
        """Return a batch of transitions with other goals in the place of some, which it writes to."""
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
