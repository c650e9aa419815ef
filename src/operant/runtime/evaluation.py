"""How good is what was learned: `Evaluation`, and `evaluate_policy` for policies in environments."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from operant.envs.base import BatchEnv, EndlessError, Tree
from operant.runtime.learner import Policy
from operant.runtime.statistics import iqm, stratified_bootstrap

_SYNC_EVERY = 32
_LOOK_EVERY = 1024


class StoppedError(Exception):
    """An evaluation was given up because training was asked to stop."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of `S` seeds, each over the same number of episodes (or prompts, or held-out examples).

    Attributes:
        scores: the mean of each seed; `S` numbers.
        mean: over the seeds.
        iqm: interquartile mean over the seeds (`operant.runtime.statistics.iqm`).
        interval: 95 % bootstrap interval of `iqm` over the seeds; for one seed the point itself, as nothing is known.
        episodes: how many of them each seed was scored on.
        lengths: mean length of an episode of each seed, in steps; empty where there is no such thing.
        episode_scores: every score; `S` tuples of `episodes` numbers.
    """

    scores: tuple[float, ...]
    mean: float
    iqm: float
    interval: tuple[float, float]
    episodes: int
    lengths: tuple[float, ...]
    episode_scores: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, episode_scores: ArrayLike, lengths: ArrayLike = ()) -> Self:
        """Summarise the scores `[S, episodes]` of single episodes, and the mean lengths `[S]` of each seed's.

        Raises:
            ValueError: the scores are no table, or an empty one.
        """
        table = np.asarray(episode_scores, dtype=np.float64)
        if table.ndim != 2 or table.size == 0:
            raise ValueError(f"scores must be [seeds, episodes] with at least one of each, got shape {table.shape}")
        scores = table.mean(axis=1)
        return cls(
            scores=_floats(scores),
            mean=float(scores.mean()),
            iqm=float(iqm(scores)),
            interval=stratified_bootstrap(scores),
            episodes=table.shape[1],
            lengths=_floats(lengths),
            episode_scores=tuple(_floats(row) for row in table),
        )

    def fault(self) -> str:
        """Describe scores that are not numbers; empty if all are."""
        wrong = [str(place) for place, score in enumerate(self.scores) if np.isnan(score)]
        return f"the score of seed {', '.join(wrong)} (counted from 0) is not a number" if wrong else ""

    def record(self) -> dict[str, Any]:
        """Return the fields by name, for a line of `eval/evaluations.jsonl`."""
        return asdict(self)


def evaluate_policy(
    policy: Policy,
    env: BatchEnv,
    *,
    seeds: int,
    episodes: int,
    max_steps: int = 100_000,
    interrupted: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Score the greedy actions of a policy by the undiscounted sum of `Step.score` over whole episodes.

    Every row plays the same number of episodes, so that short episodes do not count more often than long ones. The
    environment starts anew from the seeds it was made with; equal policies get equal scores.

    Args:
        policy: acts for `S = seeds` seeds and `N` rows each.
        env: has `B = S * N` rows, and is used for nothing else.
        seeds: S.
        episodes: of each seed; a multiple of N.
        max_steps: how long an episode may be; looked at every 1024 steps.
        interrupted: asked before every step; after true, the evaluation is given up.

    Raises:
        StoppedError: it was given up.
        ValueError: the rows cannot be divided among the seeds, or the episodes among the rows.
        EndlessError: an episode has not ended after `max_steps` steps.
    """
    if seeds < 1 or env.rows % seeds:
        raise ValueError(f"{env.rows} rows cannot be divided among {seeds} seeds; make an env with seeds * N rows")
    rows = env.rows // seeds
    if episodes < 1 or episodes % rows:
        raise ValueError(
            f"episodes must be a positive multiple of the {rows} rows that each seed has, got {episodes}; "
            f"take {max(1, round(episodes / rows)) * rows} episodes or an env with fewer rows"
        )
    with torch.no_grad():
        totals, lengths = _play(
            policy, env, seeds=seeds, quota=episodes // rows, max_steps=max_steps, interrupted=interrupted
        )
    table, means = totals.reshape(seeds, episodes), lengths.reshape(seeds, episodes).mean(dim=1)
    return Evaluation.of(table.cpu().numpy(), means.cpu().numpy())


def _play(
    policy: Policy, env: BatchEnv, *, seeds: int, quota: int, max_steps: int, interrupted: Callable[[], bool]
) -> tuple[Tensor, Tensor]:
    """Play `quota` episodes in every row; return their totals and lengths, both `[B, quota]`."""
    sums = torch.zeros(2, env.rows, dtype=torch.float64, device=env.device)
    results = torch.zeros(2, env.rows, quota + 1, dtype=torch.float64, device=env.device)
    finished = torch.zeros(env.rows, dtype=torch.int64, device=env.device)
    every_row = torch.arange(env.rows, device=env.device)
    obs, memory = _split(env.reset(), seeds), None
    stride = 1 if env.device.type == "cpu" else _SYNC_EVERY
    t = 0
    while True:
        t += 1
        if interrupted():
            raise StoppedError("training was asked to stop in the middle of an evaluation")
        actions, memory = policy.act(obs, memory, None)
        step = env.step(actions.flatten(0, 1))
        ended = (step.terminated | step.truncated) & step.valid
        sums += torch.stack((step.score.double(), torch.ones_like(sums[1]))).masked_fill(~step.valid, 0.0)
        slot = finished.clamp(max=quota)
        results[:, every_row, slot] = torch.where(ended, sums, results[:, every_row, slot])
        sums = sums.masked_fill(ended, 0.0)
        if t % _LOOK_EVERY == 0 and int(sums[1].max()) >= max_steps:
            raise EndlessError.of(env.task, int(sums[1].argmax()), int(sums[1].max()))
        finished += ended
        if t % stride == 0 and int(finished.min()) >= quota:
            return results[0, :, :quota], results[1, :, :quota]
        memory = _forget(memory, (ended | ~step.valid).view(seeds, -1))
        obs = _split(step.obs, seeds)


def _floats(numbers: ArrayLike) -> tuple[float, ...]:
    return tuple(float(number) for number in np.asarray(numbers, dtype=np.float64))


def _split(tree: Tree, seeds: int) -> Tree:
    """View a tree of `[B, ...]` as `[S, N, ...]`."""
    if isinstance(tree, Mapping):
        return {key: _split(value, seeds) for key, value in tree.items()}
    return tree.view(seeds, -1, *tree.shape[1:])


def _forget(memory: Tree | None, starts: Tensor) -> Tree | None:
    """Zero the memory `[S, N, ...]` of rows that start an episode."""
    if memory is None:
        return None
    if isinstance(memory, Mapping):
        return {key: _forget(value, starts) for key, value in memory.items()}  # pyright: ignore[reportReturnType]
    return memory.masked_fill(starts.view(*starts.shape, *[1] * (memory.dim() - 2)), 0)
