"""Collecting and improving in turn, as off-policy methods do: `alternate`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from operant.control.experience import DROPPED, Act, Experience
from operant.runtime.learner import Metrics

RETURN, LENGTH, EPISODES = "rollout/episode_return", "rollout/episode_length", "rollout/episodes"


def alternate(
    experience: Experience,
    *,
    rounds: int,
    steps: int,
    updates: int,
    act: Callable[[], Act],
    improve: Callable[[], Metrics],
) -> Metrics:
    """Take `steps` steps in every environment, then improve `updates` times, and all that `rounds` times.

    Args:
        experience: environments and memory.
        rounds: at least 1.
        steps: of every environment in a round.
        updates: in a round.
        act: returns what chooses the actions of a round.
        improve: takes one gradient step, and reports it.

    Returns:
        The episodes that ended, the transitions that were dropped, and the report of the last improvement.
    """
    episodes: list[Metrics] = []
    report: Metrics = {}
    for _ in range(rounds):
        episodes.append(experience.collect(steps, act()))
        for _ in range(updates):
            report = improve()
    return {**merge(episodes), **report}


def merge(reports: Sequence[Metrics]) -> dict[str, Tensor]:
    """Sum up several rollouts: mean return and length `[S]` of all episodes, and how many episodes ended.

    The transitions that were left out are counted too.
    """

    def every(name: str) -> Tensor:
        return torch.stack([torch.as_tensor(report[name]) for report in reports])

    counts = every(EPISODES)
    total = counts.sum(0)

    def mean(name: str) -> Tensor:
        return (every(name) * counts).masked_fill(counts == 0, 0.0).sum(0) / total

    return {RETURN: mean(RETURN), LENGTH: mean(LENGTH), EPISODES: total, DROPPED: every(DROPPED).sum(0)}
