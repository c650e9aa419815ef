"""Aggregation of a learner's metrics between two records, and checks on them."""

import logging
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.learner import Metrics

logger = logging.getLogger(__name__)

LOSSES = "losses/"
HEALTH = "health/"
SKIPPED = "health/skipped_updates"
"""Metric with the number of updates skipped because of NaN or Inf."""
UPDATES = "health/updates"
"""Metric with the number of attempted updates, including skipped ones."""
EPISODES = "rollout/episodes"
RETURN, LENGTH = "rollout/episode_return", "rollout/episode_length"
SUCCESS_RATE, INFO = "rollout/success_rate", "rollout/info/"
"""Metrics of ended episodes, which are not reported in every iteration."""
LOST = "health/lost_episodes"
"""Metric with the number of episodes whose worker process was lost."""
DROPPED = "health/dropped_transitions"
"""Metric with the number of transitions with NaN or Inf."""
CLIPPED = "health/clipped_targets"
"""Name of the number of training targets outside the range that the networks can represent."""
REJECTED = "health/rejected_steps"
"""Metric with the number of policy steps rejected by the line search."""

_ENOUGH, _TOO_MANY = 100, 1000
MANY_SKIPPED = 0.1
"""Fraction of skipped updates per seed above which a warning is logged."""
_NEARLY_ALL = 0.9
"""Fraction of dropped transitions that counts as all; the others may be dummy transitions of autoreset."""


class Window:
    """Collects metrics without reading them, to avoid synchronization with an accelerator.

    The tensors are stored until `take`, so learners must report new tensors in every iteration.
    """

    def __init__(self) -> None:
        self._values: defaultdict[str, list[Tensor | float]] = defaultdict(list)
        self._places: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one iteration."""
        place = len(self._values[EPISODES]) if EPISODES in metrics else None
        for name, value in metrics.items():
            self._values[name].append(value)
            if place is not None and _of_episodes(name):
                self._places[name].append(place)

    def take(self) -> dict[str, NDArray[np.float64]]:
        """Return and clear the metrics, `[K]` or `[K, S]` by name, over the K iterations that reported them.

        Raises:
            ValueError: a metric changed its shape.
        """
        stacked = {name: _stack(name, values) for name, values in self._values.items()}
        for name, places in self._places.items():
            values, count = stacked[name], len(self._values[EPISODES])
            if len(places) == len(values) < count:  # next to the episodes that it belongs to
                stacked[name] = np.full((count, *values.shape[1:]), np.nan)
                stacked[name][places] = values
        self._values.clear()
        self._places.clear()
        return stacked


class Guard:
    """Stops training on persistent NaN or Inf.

    Learners skip single updates with NaN or Inf, and count them in `health/skipped_updates`. Training stops after
    `patience` consecutive reports in which a loss (`losses/...`) of a seed is NaN or Inf, or its updates were skipped.
    NaN as the number of skipped updates, from seeds that wait for others, is ignored.
    """

    def __init__(self, patience: int = 10):
        self._patience = patience
        self._streaks: dict[str, NDArray[np.int64]] = {}

    def check(self, reports: Mapping[str, NDArray[np.float64]]) -> None:
        """Check the metrics from `Window.take`.

        Raises:
            NonFiniteError: a metric was invalid too often in a row; the message contains it and the index of the seed.
        """
        for name, values in reports.items():
            if name.startswith(LOSSES):
                self._count(name, ~np.isfinite(values), np.ones_like(values, dtype=np.bool_))
            elif name == SKIPPED:
                self._count(name, values > 0, ~np.isnan(values))

    def close(self) -> None:
        """Warn about metrics that were invalid in several iterations at the end of a short training."""
        names = sorted(self._streaks, key=lambda name: name != SKIPPED)
        for name in [name for name in names if self._streaks[name].max() > 1][:1]:
            streak = self._streaks[name]
            logger.warning(
                "%s in each of the last %d iterations: look for NaN or Inf in rewards and observations",
                _fault(name, streak),
                int(streak.max()),
            )

    def _count(self, name: str, bad: NDArray[np.bool_], known: NDArray[np.bool_]) -> None:
        streak = self._streaks.get(name, np.zeros(bad.shape[1:], dtype=np.int64))
        if not bad.any() and known.any(axis=0).all():
            self._streaks[name] = np.zeros_like(streak)
            return
        for invalid, present in zip(bad, known, strict=True):
            streak = np.where(present, (streak + 1) * invalid, streak)
            if streak.max() >= self._patience:
                raise NonFiniteError(
                    f"{_fault(name, streak)} in {self._patience} iterations in a row; "
                    "lower the learning rate, or look for NaN or Inf in rewards and observations"
                )
        self._streaks[name] = streak


def _fault(name: str, streak: NDArray[np.int64]) -> str:
    """Return the metric, the seed with its longest streak, and its fault, as text."""
    seed = f" of seed {int(streak.argmax())} (counted from 0)" if streak.ndim else ""
    return f"{name}{seed}: {'updates were skipped' if name == SKIPPED else 'was NaN or Inf'}"


class SkipWatch:
    """Warns once about seeds that skip more than a tenth of their updates."""

    def __init__(self) -> None:
        self._counts: NDArray[np.float64] = np.zeros((2, 1))
        self._warned = False

    def check(self, reports: Mapping[str, NDArray[np.float64]], *, least: int = _ENOUGH) -> None:
        """Check the metrics from `Window.take`; seeds with fewer than `least` updates are ignored."""
        if SKIPPED in reports and UPDATES in reports:
            added = [np.atleast_1d(np.nansum(reports[name], axis=0)) for name in (UPDATES, SKIPPED)]
            self._counts = self._counts + np.stack(added)
        if self._warned:
            return
        updates, skipped = self._counts
        shares = np.where(updates >= least, skipped / np.maximum(updates, 1), 0)
        found = np.flatnonzero(shares > MANY_SKIPPED).tolist()
        if found:
            self._warned = True
            logger.warning(
                "%s of the updates of seed %s (counted from 0) were skipped, since gradients had NaN or Inf (%s): "
                "lower the learning rate, or look for NaN or Inf in rewards and observations",
                ", ".join(f"{100 * shares[seed]:.0f} %" for seed in found),
                ", ".join(map(str, found)),
                SKIPPED,
            )

    def close(self) -> None:
        """Check once more at the end of training, also with few updates."""
        self.check({}, least=1)


class DropWatch:
    """Warns once about a seed that drops more than half of its transitions because of NaN or Inf.

    Training stops if almost all of a thousand consecutive transitions are dropped.
    """

    def __init__(self) -> None:
        self._dropped: NDArray[np.float64] = np.zeros(1)
        self._lost: NDArray[np.float64] = np.zeros(1)
        self._steps = 0
        self._warned = False

    def check(self, reports: Mapping[str, NDArray[np.float64]], steps: int) -> None:
        """Check the metrics from `Window.take`, over `steps` environment steps per seed.

        Raises:
            NonFiniteError: a seed has almost no valid transitions.
        """
        if DROPPED not in reports or not steps:
            return
        dropped = np.nansum(reports[DROPPED], axis=0)  # on-policy methods report only some
        self._lost = np.where(dropped > _NEARLY_ALL * steps, self._lost + steps, 0)
        if self._lost.max() >= _TOO_MANY:
            seed = int(self._lost.argmax())
            raise NonFiniteError(
                f"almost all of the last {int(self._lost[seed])} transitions of seed {seed} (counted from 0) have NaN "
                f"or Inf in reward or observation, so nothing is learned ({DROPPED}): fix the environment"
            )
        if self._warned:
            return
        self._dropped = self._dropped + dropped
        self._steps += steps
        if self._steps < _ENOUGH:
            return
        seed = int(self._dropped.argmax())
        share = self._dropped[seed] / self._steps
        if share > 0.5:
            self._warned = True
            logger.warning(
                "%.0f %% of the latest transitions of seed %d (counted from 0) have NaN or Inf in reward or "
                "observation and are dropped (%s): fix the environment",
                100 * share,
                seed,
                DROPPED,
            )
        self._dropped, self._steps = np.zeros(1), 0


class RejectionWatch:
    """Warns once per seed if all policy steps are rejected, so that the policy does not change."""

    def __init__(self, patience: int = 10) -> None:
        self._patience = patience
        self._streak: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._warned: set[int] = set()

    def check(self, reports: Mapping[str, NDArray[np.float64]]) -> None:
        """Check the metrics from `Window.take`."""
        if REJECTED not in reports:
            return
        for row in reports[REJECTED].reshape(len(reports[REJECTED]), -1):
            self._streak = (self._streak + 1) * (row > 0)
            for seed in np.flatnonzero(self._streak >= self._patience).tolist():
                if seed not in self._warned:
                    self._warned.add(seed)
                    logger.warning(
                        "%d steps in a row of seed %d (counted from 0) were rejected, so its policy does not "
                        "change (%s): raise the damping, or use fewer iterations of conjugate gradients",
                        self._patience,
                        seed,
                        REJECTED,
                    )


def update_metrics(counts: Tensor) -> dict[str, Tensor]:
    """Return the metrics of attempted and skipped updates from `counts [2, S]`."""
    return {UPDATES: counts[0], SKIPPED: counts[1]}


def told_by_environments(name: str) -> bool:
    """Return whether a metric is a mean over numbers in the `info` of episodes."""
    return name == SUCCESS_RATE or name.startswith(INFO)


def _of_episodes(name: str) -> bool:
    """Return whether a metric is a mean over ended episodes."""
    return name in (RETURN, LENGTH) or told_by_environments(name)


def summarize(reports: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Aggregate each metric to one number, or one per seed.

    Counts (`health/...`, and the number of episodes) are summed; returns and lengths of episodes are averaged over
    episodes, all others over the iterations that reported them. A loss that is NaN in any iteration is NaN.
    """
    episodes = reports.get(EPISODES)
    return {name: _reduce(name, values, episodes) for name, values in reports.items()}


def _reduce(name: str, values: NDArray[np.float64], episodes: NDArray[np.float64] | None) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        if name.startswith(HEALTH) or name == EPISODES:
            return np.nansum(values, axis=0)
        if name.startswith(LOSSES):
            return np.mean(values, axis=0)
        weights = ~np.isnan(values)
        if _of_episodes(name) and episodes is not None and len(episodes) == len(values):
            weights = weights * _fitted(np.nan_to_num(episodes), values.ndim)
        return np.nansum(values * weights, axis=0) / np.sum(weights, axis=0)


def _fitted(episodes: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    """Return numbers of episodes, `[K]` or `[K, S]`, as weights of a metric with 1 or 2 dimensions."""
    if episodes.ndim < dimensions:
        return episodes[:, None]
    return episodes if episodes.ndim == dimensions else episodes.sum(axis=1)


def _stack(name: str, values: list[Tensor | float]) -> NDArray[np.float64]:
    try:
        if any(isinstance(value, Tensor) for value in values):
            tensors = [torch.as_tensor(value) for value in values]
            return torch.stack(tensors).detach().to("cpu", torch.float64).numpy()
        return np.asarray(values, dtype=np.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"metric {name!r} must be a number, or one per seed, of the same shape each time: {error}"
        ) from error
