"""Collection of fixed-length rollouts from a `operant.envs.BatchEnv`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.envs import BatchEnv, Features, Step, Tree, begins_anew, deferring, reporting
from operant.envs.infos import metric
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import EPISODES, LENGTH, LOST, RETURN, told_by_environments
from operant.state import State, copy_into, load_part

Decision = tuple[tuple[Tensor, ...], Tensor]
"""Tensors to keep, and actions for the environment, each `[S, N, ...]`."""
Act = Callable[[Tensor, int], Decision]
"""`act(obs [S, N, ...], t)` decides at step t."""


@dataclass(frozen=True)
class Rollout:
    """`T` steps of `S` seeds with `N` environments each.

    Attributes:
        obs: observations of the policy, `[T, S, N, D]`, or images of bytes `[T, S, N, C, H, W]`.
        last_obs: `[S, N, ...]` the next observations.
        kept: tensors that `act` keeps, each `[T, S, N, ...]`.
        rewards: `[T, S, N]`.
        terminated: `[T, S, N]` bool.
        truncated: `[T, S, N]` bool.
        final_obs: `[T, S, N, ...]` the true successor of every step.
        valid: `[T, S, N]` bool, or None when every step is real.
        metrics: mean return and length `[S]` of the episodes that ended here, and their number `[S]`.
        extras: further tensors of the steps by name, `[T, S, N, ...]` (`Step.extras`).
    """

    obs: Tensor
    last_obs: Tensor
    kept: tuple[Tensor, ...]
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor
    valid: Tensor | None
    metrics: dict[str, Tensor]
    extras: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def successor_values(self, value: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the values of every state and of its true successor, both `[T, S, N]`.

        The successor of a step is the next observation, but at a truncation it is the final one; only there is `value`
        called a second time. At a termination the entry has no meaning.

        Args:
            value: maps observations `[S, M, ...]` to values `[S, M]`; or to K each, `[S, M, K]`; the result then has a
                last axis of K.
        """
        values = self.values(value)
        return values[:-1], self.true_successors(values, value)

    def values(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the values of all observations and the next ones, `[T + 1, S, N]`."""
        steps, seeds, rows = self.rewards.shape
        values = value(by_seed(torch.cat((self.obs, self.last_obs.unsqueeze(0)))))
        return values.view(seeds, steps + 1, rows, *values.shape[2:]).movedim(1, 0)

    def true_successors(self, values: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the values of the true successor of every step, as `successor_values` does, from those of `values`."""
        cut = self.truncated & ~self.terminated
        if not cut.any():
            return values[1:]
        # The cut steps of each seed, padded with other steps to the largest count of any seed.
        steps, seeds, rows = cut.shape
        flagged = by_seed(cut).to(torch.uint8)
        flagged, index = flagged.topk(int(flagged.sum(1).max()), dim=1)
        place = torch.arange(seeds, device=index.device).unsqueeze(1), index
        patched = by_seed(values[1:]).clone()
        flagged = flagged.bool().view(*flagged.shape, *[1] * (patched.dim() - 2))
        patched[place] = torch.where(flagged, value(by_seed(self.final_obs)[place]), patched[place])
        return patched.view(seeds, steps, rows, *patched.shape[2:]).movedim(1, 0)


def by_seed(tensor: Tensor) -> Tensor:
    """Reshape `[T, S, N, ...]` to `[S, T * N, ...]`: all samples of each seed."""
    steps, seeds, rows, *rest = tensor.shape
    return tensor.movedim(1, 0).reshape(seeds, steps * rows, *rest)


def all_episodes(reports: Sequence[Metrics]) -> Metrics:
    """Return the combined metrics of several rollouts: means over episodes, and the latest metrics of wrappers."""

    def every(name: str) -> Tensor:
        return torch.stack([torch.as_tensor(report[name]) for report in reports])

    counts = every(EPISODES)
    total = counts.sum(0)

    def mean(name: str) -> Tensor:
        return (every(name) * counts).masked_fill(counts == 0, 0.0).sum(0) / total

    means = {RETURN: mean(RETURN), LENGTH: mean(LENGTH), EPISODES: total}
    others = dict.fromkeys(name for report in reports for name in report if told_by_environments(name))
    told = {name: _mean_where_told(name, reports) for name in others}
    return {**reports[-1], **means, **told, **_losses(reports)}


def _mean_where_told(name: str, reports: Sequence[Metrics]) -> Tensor:
    """Return the mean over episodes of metrics that not every rollout reports."""
    told = [report for report in reports if name in report]
    values, counts = (torch.stack([torch.as_tensor(report[key]) for report in told]) for key in (name, EPISODES))
    counts = counts.masked_fill(values.isnan(), 0)
    return (values.nan_to_num() * counts).sum(0) / counts.sum(0)


def _losses(reports: Sequence[Metrics]) -> dict[str, Tensor]:
    found = [torch.as_tensor(report[LOST]) for report in reports if LOST in report]
    return {LOST: torch.stack(found).sum(0)} if found else {}


def info_metrics(told: Sequence[Mapping[str, Tensor]], seeds: int) -> dict[str, Tensor]:
    """Return the means `[S]` of the infos of episodes, NaN for a seed without.

    Args:
        told: `Step.infos` of several steps.
        seeds: S.
    """
    metrics: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for infos in told for name in infos):
        values = torch.cat([infos[name].view(seeds, -1) for infos in told if name in infos], dim=1)
        metrics[metric(name)] = values.nanmean(dim=1)
    return metrics


def _stack(tensors: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Stack along a new first axis and view as `shape`; a single tensor is not copied."""
    return (tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))).reshape(shape)


def has_extras(steps: Sequence[Step]) -> bool:
    """Whether several steps have extra tensors."""
    return steps[0].extras is not None or steps[-1].extras is not None


def stack_extras(steps: Sequence[Step], shape: tuple[int, int, int], task: str) -> dict[str, Tensor]:
    """Return the extra tensors of several steps by name, each `[T, S, N, ...]`.

    Args:
        steps: T of them.
        shape: `(T, S, N)`.
        task: name of the environment in errors.

    Raises:
        ValueError: some steps lack a tensor of others, or it does not have one row per environment.
    """
    rows = shape[1] * shape[2]
    stacked: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for step in steps for name in step.extras or {}):
        found = [step.extras[name] for step in steps if step.extras is not None and name in step.extras]
        if len(found) < len(steps) or any(len(extra) != rows for extra in found):
            raise ValueError(
                f"every Step of {task} must have extras[{name!r}] with {rows} rows, but {len(found)} of {len(steps)} "
                f"steps have one, with {sorted({len(extra) for extra in found})} rows: return it from every step"
            )
        stacked[name] = _stack(found, (*shape, *found[0].shape[1:]))
    return stacked


def joined(parts: Sequence[Mapping[str, Any]]) -> Rollout:
    """Return the rollouts of several groups of environments of the same seeds as one.

    Args:
        parts: the fields of each (`vars`), all of as many steps.
    """

    def together(tensors: Sequence[Any], dim: int = 2) -> Any:
        return None if tensors[0] is None else torch.cat(list(tensors), dim)

    each = {name: [part[name] for part in parts] for name in parts[0]}
    kept, last_obs, metrics, extras = map(each.pop, ("kept", "last_obs", "metrics", "extras"))
    return Rollout(
        kept=tuple(map(together, zip(*kept, strict=True))),
        last_obs=together(last_obs, 1),
        metrics={name: torch.as_tensor(value) for name, value in all_episodes(metrics).items()},
        extras={name: together([part[name] for part in extras]) for name in extras[0]},
        **{name: together(tensors) for name, tensors in each.items()},
    )


class Play:
    """Steps that a collector takes, one by one.

    Args:
        collector: of the environments.
        obs: the observations `[S, N, ...]` to start from.

    Attributes:
        obs: the next observations.
    """

    def __init__(self, collector: "Collector", obs: Tensor) -> None:
        self.collector, self.obs = collector, obs
        self._steps: list[tuple[Tensor, tuple[Tensor, ...], Step, Tensor]] = []
        for wrapper in collector.deferring:
            wrapper.defer()

    def step(self, kept: tuple[Tensor, ...], actions: Tensor) -> None:
        """Take one step: tensors to keep, and actions for the environment, each `[S, N, ...]`."""
        encode = self.collector.encode
        self.collector.result = result = self.collector.env.step(actions.flatten(0, 1))
        obs = encode(result.obs)
        final = obs if result.final_obs is result.obs else encode(result.final_obs)
        self._steps.append((self.obs, kept, result, final))
        self.obs = obs

    def finish(self) -> dict[str, Any]:
        """Return the arguments of `Collector.rollout`."""
        collector, obs = self.collector, self.obs
        for wrapper in collector.deferring:
            wrapper.settle()
        seen, kept, results, final = zip(*self._steps, strict=True)
        steps = len(results)
        shape = (steps, collector.seeds, collector.rows)
        valid = None if collector.env.always_valid else _stack([result.valid for result in results], shape)
        return {
            "obs": _stack(seen, (steps, *obs.shape)),
            "last_obs": obs,
            "kept": tuple(_stack(column, (steps, *column[0].shape)) for column in zip(*kept, strict=True)),
            "rewards": _stack([result.reward for result in results], shape),
            "terminated": _stack([result.terminated for result in results], shape),
            "truncated": _stack([result.truncated for result in results], shape),
            "scores": _stack([result.score for result in results], shape),
            "final_obs": _stack(final, (steps, *obs.shape)),
            "valid": valid,
            "infos": [result.infos for result in results if result.infos is not None],
            "extras": stack_extras(results, shape, collector.env.task) if has_extras(results) else {},
        }


class Collector:
    """Steps environments with a policy and counts their episodes.

    Args:
        env: `[S, N]` environments, flat.
        seeds: S.

    Attributes:
        features: conversion of observations to vectors `[S, N, D]` or images `[S, N, C, H, W]`.
        obs: the next observations.
        result: the last step; None before the first.
        deferring: wrappers that compute together what is needed of all steps of a rollout.
    """

    def __init__(self, env: BatchEnv, *, seeds: int, features: Features | None = None) -> None:
        if seeds < 1 or env.rows % seeds:
            raise ValueError(f"{env.rows} environments cannot be shared equally by {seeds} seeds")
        self.env, self.seeds, self.rows = env, seeds, env.rows // seeds
        self.features = features or Features.of(env.observation_space, env.action_space)
        self.obs = self.encode(env.reset())
        self.result: Step | None = None
        self._reporting, self.deferring = reporting(env), deferring(env)
        # Return and length so far of the current episode of each environment; float64 keeps long sums exact.
        self.carried = torch.zeros(2, seeds, self.rows, dtype=torch.float64, device=env.device)
        nothing = torch.full((seeds,), torch.nan, dtype=torch.float64)
        self._none_ended = self._metrics(nothing, nothing, torch.zeros(seeds, dtype=torch.int64))

    def collect(self, steps: int, act: Act) -> Rollout:
        """Take `steps` steps in every environment."""
        return self.rollout(**self.play(self.obs, steps, act))

    def play(self, obs: Tensor, steps: int, act: Act) -> dict[str, Any]:
        """Take `steps` steps from observations `[S, N, ...]`; return the arguments of `rollout`."""
        play = Play(self, obs)
        for t in range(steps):
            play.step(*act(play.obs, t))
        return play.finish()

    def rollout(self, *, scores: Tensor, infos: Sequence[Mapping[str, Tensor]], **parts: Any) -> Rollout:
        """Make a rollout from played steps, and count its episodes.

        Args:
            scores: `[T, S, N]` rewards to report.
            infos: those of `Step.infos` that are not None.
            **parts: fields of the rollout.
        """
        self.obs, valid = parts["last_obs"], parts["valid"]
        ended = parts["terminated"] | parts["truncated"]
        lost = None if valid is None else parts["truncated"] & ~valid
        if valid is None or lost is None or not lost.any():
            metrics = self._episodes(scores, ended, valid)
        else:
            metrics = self._episodes_step_by_step(scores, ended, valid) | {LOST: lost.sum((0, 2))}
            # A lost episode is truncated at its last known step.
            parts["truncated"] = torch.cat((parts["truncated"][:-1] | lost[1:], parts["truncated"][-1:]))
        if infos:
            metrics = metrics | info_metrics(infos, self.seeds)
        for wrapper in self._reporting:
            metrics = {**wrapper.metrics(), **metrics}
        return Rollout(**parts, metrics=metrics)

    def encode(self, obs: Tree) -> Tensor:
        """Return the network inputs from observations of all environments, `[S, N, ...]`."""
        return self.features.encode(obs).view(self.seeds, self.rows, *self.features.shape)

    def _episodes(self, scores: Tensor, ended: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """Return the means over the ended episodes, NaN for a seed without one."""
        # Most short rollouts have no end, and on the CPU this test costs less than the sums below.
        if valid is None and ended.device.type == "cpu" and not np.count_nonzero(ended.numpy()):
            returns, lengths = self.carried.numpy()
            returns += np.add.reduce(scores.numpy(), 0, np.float64)
            lengths += len(scores)
            return self._none_ended
        counts = torch.ones_like(scores)
        if valid is not None:
            scores, counts, ended = scores.masked_fill(~valid, 0.0), valid.to(scores.dtype), ended & valid
        steps = torch.stack((scores, counts)).double()
        unfinished = ended.flip(0).cumsum(0).flip(0) == 0
        finished = steps.masked_fill(unfinished, 0.0).sum(1) + self.carried.masked_fill(unfinished[0], 0.0)
        self.carried = steps.masked_fill(~unfinished, 0.0).sum(1) + self.carried.masked_fill(~unfinished[0], 0.0)
        count = ended.sum((0, 2))
        returns, lengths = finished.sum(2) / count
        return self._metrics(returns, lengths, count)

    def _episodes_step_by_step(self, scores: Tensor, ended: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return the same after lost episodes, whose partial returns are dropped."""
        finished = torch.zeros_like(self.carried)
        for score, ends, real in zip(scores, ended, valid, strict=True):
            self.carried = self.carried + torch.stack((score, torch.ones_like(score))).masked_fill(~real, 0.0).double()
            finished += self.carried.masked_fill(~(ends & real), 0.0)
            self.carried = self.carried.masked_fill(ends, 0.0)
        count = (ended & valid).sum((0, 2))
        returns, lengths = finished.sum(2) / count
        return self._metrics(returns, lengths, count)

    @staticmethod
    def _metrics(returns: Tensor, lengths: Tensor, count: Tensor) -> dict[str, Tensor]:
        return {RETURN: returns, LENGTH: lengths, EPISODES: count}

    def state_dict(self) -> State:
        """Return the environment's state and the unfinished episodes, whose returns need not be finite."""
        return {"env": self.env.state_dict(), "statistics": self.carried.flatten(1).clone()}

    def load_state_dict(self, state: State) -> None:
        """Continue in the middle of the episodes of a saved state, or with new ones (`operant.envs.begins_anew`)."""
        copy_into(self.carried.flatten(1), state["statistics"], "statistics")
        self.obs = self.encode(load_part(self.env, state, "env"))
        if begins_anew(self.env):
            self.carried.zero_()
