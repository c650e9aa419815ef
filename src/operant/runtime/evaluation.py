"""Evaluations: `Evaluation`, and `evaluate_policy` for policies in environments."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from operant.envs.base import BatchEnv, EndlessError, Tree
from operant.envs.infos import metric
from operant.envs.workers import WorkerError
from operant.runtime.acting import draw_noise, require_actions, split
from operant.runtime.learner import Policy
from operant.runtime.metrics_window import INFO, SUCCESS_RATE
from operant.runtime.statistics import iqm, stratified_bootstrap

LONGEST_EPISODE = 100_000
"""Default maximum length of an episode in an evaluation, in steps."""
LONG = 10_000
"""Number of steps after which a warning reports a long episode."""

_SYNC_EVERY = 32
_LOOK_EVERY = 1024
_TOTAL, _LENGTH, _CUT = "/total", "/length", "/cut"
_ATTEMPTS = 3

logger = logging.getLogger(__name__)


class _LostEpisodesError(Exception):
    """Raised if episodes of an evaluation were lost with a worker process."""


class StoppedError(Exception):
    """Raised if an evaluation is interrupted."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of `S` seeds, each over the same number of episodes, prompts or held-out examples.

    Attributes:
        scores: mean score of each seed, `S` numbers. If there are `missing` scores, NaN is ignored.
        mean: mean over the seeds.
        iqm: interquartile mean over the seeds (`operant.runtime.statistics.iqm`).
        interval: 95 % bootstrap interval of `iqm` over the seeds; for a single seed both ends equal the score.
        episodes: number of episodes per seed.
        lengths: mean episode length of each seed, in steps; empty if not applicable.
        episode_scores: scores of all episodes, `S` tuples of `episodes` numbers.
        success_rate: fraction of successful episodes of each seed, if environments report success in their last `info`
            (`is_success` or `success`); otherwise empty.
        infos: means per seed of the other numbers in the last `info`, by name.
        cut: fraction of truncated episodes of each seed; empty if not applicable.
        exact: whether scores are exact expectations instead of samples; then all episodes have the score of their seed.
        metrics: other metrics by name, `S` numbers each, NaN where missing.
        missing: number of examples per seed without a score, which are excluded from its mean; empty if not applicable.
    """

    scores: tuple[float, ...]
    mean: float
    iqm: float
    interval: tuple[float, float]
    episodes: int
    lengths: tuple[float, ...]
    episode_scores: tuple[tuple[float, ...], ...]
    success_rate: tuple[float, ...] = ()
    infos: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    cut: tuple[float, ...] = ()
    exact: bool = False
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    missing: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """Return a summary in one line."""
        (low, high), count = self.interval, len(self.scores)
        return (
            f"Evaluation(mean={self.mean:.5g}, iqm={self.iqm:.5g}, interval=({low:.5g}, {high:.5g}), "
            f"{count} seed{'s' * (count > 1)}, {self.episodes} episodes each)"
        )

    @classmethod
    def of(
        cls,
        episode_scores: ArrayLike,
        lengths: ArrayLike = (),
        infos: Mapping[str, ArrayLike] | None = None,
        *,
        cut: ArrayLike = (),
        exact: bool = False,
        metrics: Sequence[Mapping[str, float]] = (),
        optional: bool = False,
    ) -> Self:
        """Summarize the scores `[S, episodes]` of single episodes.

        Args:
            episode_scores: scores of all seeds; NaN for examples without a score, if `optional`.
            lengths: mean episode length of each seed, `[S]`.
            infos: numbers reported by environments, as means per seed `[S]`, by name.
            cut: fraction of truncated episodes of each seed, `[S]`.
            exact: whether the scores are exact expectations.
            metrics: other metrics per seed.
            optional: whether examples without a score are excluded; otherwise they make the mean NaN.

        Raises:
            ValueError: the scores are not two-dimensional, or empty.
        """
        table = np.asarray(episode_scores, dtype=np.float64)
        if table.ndim != 2 or table.size == 0:
            raise ValueError(f"scores must be [seeds, episodes] with at least one of each, got shape {table.shape}")
        present = ~np.isnan(table) | (not optional)
        counts = present.sum(axis=1)
        if optional:
            scores = np.where(counts > 0, np.where(present, table, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
        else:
            scores = table[:, 0] if exact else table.mean(axis=1)
        told = {name: _floats(values) for name, values in (infos or {}).items()}
        return cls(
            scores=_floats(scores),
            mean=float(scores.mean()),
            iqm=float(iqm(scores)),
            interval=stratified_bootstrap(scores),
            episodes=table.shape[1],
            lengths=_floats(lengths),
            episode_scores=tuple(_floats(row) for row in table),
            success_rate=told.pop(SUCCESS_RATE, ()),
            infos={name.removeprefix(INFO): values for name, values in told.items()},
            cut=_floats(cut),
            exact=exact,
            metrics={name: tuple(own.get(name, math.nan) for own in metrics) for own in metrics for name in own},
            missing=tuple(int(table.shape[1] - count) for count in counts) if optional else (),
        )

    def fault(self) -> str:
        """Return a description of the seeds whose score is NaN; empty if there are none."""
        wrong = [str(place) for place, score in enumerate(self.scores) if np.isnan(score)]
        return f"the score of seed {', '.join(wrong)} (counted from 0) is NaN" if wrong else ""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Create an evaluation from a record of `eval/evaluations.jsonl`; other fields are ignored.

        Raises:
            KeyError: a required field is missing.
        """
        newer = {"success_rate", "infos", "cut", "exact", "metrics", "missing"} - record.keys()
        return cls(**{one.name: _tuples(record[one.name]) for one in fields(cls) if one.name not in newer})

    def record(self) -> dict[str, Any]:
        """Return the fields by name, for `eval/evaluations.jsonl`."""
        found = asdict(self)
        return found if self.metrics else {name: value for name, value in found.items() if name != "metrics"}


@dataclass(frozen=True)
class SamplingPolicy:
    """A policy whose actions are sampled as in training, for `evaluate_policy`.

    Attributes:
        policy: the policy.
        rows: number of environments per seed, N.
        generators: random streams of the actions, one per seed.
    """

    policy: Policy
    rows: int
    generators: Sequence[torch.Generator]

    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Sample one action per environment; `noise` is not used."""
        return self.policy.act(obs, hidden_state, draw_noise(self.policy, self.rows, self.generators))

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draw the noise for one action of each of `rows` environments of one seed, `[N, ...]`."""
        return self.policy.noise(rows, generator)


def evaluate_policy(
    policy: Policy,
    env: BatchEnv,
    *,
    seeds: int,
    episodes: int,
    max_steps: int = LONGEST_EPISODE,
    cut: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Evaluate a policy by the undiscounted return of `Step.score` over whole episodes.

    Every environment runs the same number of episodes, so that short episodes are not overrepresented. Environments are
    reset with their seeds, so equal policies get equal scores.

    Args:
        policy: policy of `S = seeds` seeds with `N` environments each; its actions are greedy, or those of a
            `SamplingPolicy`.
        env: `B = S * N` environments, used only for evaluation.
        seeds: number of seeds, S.
        episodes: number of episodes per seed, a multiple of N.
        max_steps: maximum number of steps per episode, checked every 1024 steps.
        cut: whether the environments truncate episodes after `max_steps`, or have their own limit; truncated episodes
            count, with a warning.
        interrupted: function called before every step; if it returns True, the evaluation stops.

    Raises:
        StoppedError: `interrupted` returned True.
        ValueError: the environments cannot be divided among the seeds, or the episodes among the environments; an
            action, checked every 1024 steps, has a wrong shape or is outside the action space.
        EndlessError: an episode exceeds `max_steps` steps.
    """
    if seeds < 1 or env.rows % seeds:
        raise ValueError(f"{env.rows} environments cannot be divided among {seeds} seeds; use seeds * N environments")
    rows = env.rows // seeds
    if episodes < 1 or episodes % rows:
        raise ValueError(
            f"episodes must be a positive multiple of the {rows} environments per seed, got {episodes}; "
            f"use {max(1, round(episodes / rows)) * rows} episodes or fewer environments"
        )
    results = _results(policy, env, seeds, episodes // rows, _Limits(max_steps, cut, interrupted))
    totals, lengths, ended = (results.pop(name).reshape(seeds, episodes) for name in (_TOTAL, _LENGTH, _CUT))
    if cut:
        _warn_of_cut_episodes(env.task, lengths, max_steps)
    infos = {metric(name): values.reshape(seeds, episodes).nanmean(dim=1).cpu() for name, values in results.items()}
    shares = ended.mean(dim=1).cpu().numpy()
    return Evaluation.of(totals.cpu().numpy(), lengths.mean(dim=1).cpu().numpy(), infos, cut=shares)


class _Limits(NamedTuple):
    """Limits of an evaluation, from the arguments of `evaluate_policy`."""

    max_steps: int
    cut: bool
    interrupted: Callable[[], bool]


def _results(policy: Policy, env: BatchEnv, seeds: int, quota: int, limits: _Limits) -> dict[str, Tensor]:
    """Run the evaluation, again if a worker process is lost; the episodes are the same each time."""
    generators = policy.generators if isinstance(policy, SamplingPolicy) else ()
    starts = [generator.get_state() for generator in generators]
    for _ in range(_ATTEMPTS):
        for generator, start in zip(generators, starts, strict=True):
            generator.set_state(start)
        with torch.no_grad(), suppress(_LostEpisodesError):
            return _play(policy, env, seeds=seeds, quota=quota, limits=limits)
    raise WorkerError(f"{env.task} lost a worker process in each of {_ATTEMPTS} attempts of an evaluation")


def _warn_of_cut_episodes(task: str, lengths: Tensor, longest: int) -> None:
    counts = (lengths >= longest).sum(1)
    if counts.any():
        seed = int(counts.argmax())
        logger.warning(
            "evaluations in %s truncate episodes after %d steps (evaluate_max_steps), which count with their return so "
            "far: %d of %d of seed %d (counted from 0) in this one (reported once per run)",
            *(task, longest, int(counts[seed]), lengths.shape[1], seed),
        )


def _play(policy: Policy, env: BatchEnv, *, seeds: int, quota: int, limits: _Limits) -> dict[str, Tensor]:
    """Run `quota` episodes in every environment, and return their returns, lengths and infos, `[B, quota]` each."""
    sums = torch.zeros(2, env.rows, dtype=torch.float64, device=env.device)
    results = torch.zeros(3, env.rows, quota + 1, dtype=torch.float64, device=env.device)
    finished = torch.zeros(env.rows, dtype=torch.int64, device=env.device)
    every_row = torch.arange(env.rows, device=env.device)
    obs, hidden_state = split(env.reset(), seeds), None
    stride = 1 if env.device.type == "cpu" else _SYNC_EVERY
    told: dict[str, Tensor] = {}
    name = type(policy.policy if isinstance(policy, SamplingPolicy) else policy).__name__
    t, longest = 0, 0
    while True:
        t += 1
        if limits.interrupted():
            raise StoppedError("training was interrupted during an evaluation")
        acted = policy.act(obs, hidden_state, None)
        if t % _LOOK_EVERY == 1:
            require_actions(acted, env, seeds, name)
        actions, hidden_state = acted
        step = env.step(actions.flatten(0, 1))
        if not env.always_valid and (step.truncated & ~step.valid).any():
            raise _LostEpisodesError
        ended = (step.terminated | step.truncated) & step.valid
        sums += torch.stack((step.score.double(), torch.ones_like(sums[1]))).masked_fill(~step.valid, 0.0)
        slot = finished.clamp(max=quota)
        cut = (step.truncated & ~step.terminated).double()
        results[:, every_row, slot] = torch.where(ended, torch.cat((sums, cut[None])), results[:, every_row, slot])
        if step.infos is not None:
            _keep(told, step.infos, slot, results[0])
        sums = sums.masked_fill(ended, 0.0)
        if t % _LOOK_EVERY == 0:
            longest = _look(env, sums[1].masked_fill(finished >= quota, 0.0), limits, longest)
        finished += ended
        if t % stride == 0 and int(finished.min()) >= quota:
            told |= {_TOTAL: results[0], _LENGTH: results[1], _CUT: results[2]}
            return {name: values[:, :quota] for name, values in told.items()}
        hidden_state = _forget(hidden_state, (ended | ~step.valid).view(seeds, -1))
        obs = split(step.obs, seeds)


def _keep(told: dict[str, Tensor], infos: Mapping[str, Tensor], slot: Tensor, results: Tensor) -> None:
    """Store the infos of ended episodes in tensors `[B, quota + 1]`."""
    every_row = torch.arange(len(slot), device=slot.device)
    for name, values in infos.items():
        kept = told.setdefault(name, torch.full_like(results, torch.nan))
        kept[every_row, slot] = values.where(~values.isnan(), kept[every_row, slot])


def _look(env: BatchEnv, ages: Tensor, limits: _Limits, before: int) -> int:
    """Warn once about a long episode, and return the length of the longest one.

    Raises:
        EndlessError: an episode exceeds the limit.
    """
    longest = int(ages.max())
    if not limits.cut and longest >= limits.max_steps:
        raise EndlessError.of(env.task, int(ages.argmax()), longest)
    if before < LONG <= longest:
        end = (
            f"it is truncated after {limits.max_steps} (evaluate_max_steps)" if limits.cut else "evaluations take long"
        )
        logger.warning(
            "evaluations in %s have long episodes: one has not ended after %d steps (environment %d); %s (reported "
            "once per run)",
            *(env.task, longest, int(ages.argmax()), end),
        )
    return max(before, longest)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return tuple(map(_tuples, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def _floats(numbers: ArrayLike) -> tuple[float, ...]:
    return tuple(float(number) for number in np.asarray(numbers, dtype=np.float64))


def _forget(hidden_state: Tree | None, starts: Tensor) -> Tree | None:
    """Reset the hidden state `[S, N, ...]` of environments that start an episode to 0."""
    if hidden_state is None:
        return None
    if isinstance(hidden_state, Mapping):
        return {key: _forget(value, starts) for key, value in hidden_state.items()}  # pyright: ignore[reportReturnType]
    return hidden_state.masked_fill(starts.view(*starts.shape, *[1] * (hidden_state.dim() - 2)), 0)
