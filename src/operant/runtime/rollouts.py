"""Collection of fixed-length rollouts from an `operant.envs.BatchEnv`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.envs import BatchEnv, Features, Step, Tree, begins_anew, deferring, reporting
from operant.envs.infos import metric
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import DROPPED, EPISODES, LENGTH, LOST, RETURN, told_by_environments
from operant.state import State, copy_into, load_part

Decision = tuple[tuple[Tensor, ...], Tensor]
"""Tensors to store in the rollout, and actions for the environment, `[S, N, ...]` each."""
Act = Callable[[Tensor, int], Decision]
"""Function `(obs [S, N, ...], t)` that selects the actions of step t."""


@dataclass(frozen=True)
class Rollout:
    """A rollout: `T` steps of `S` seeds with `N` environments each.

    Attributes:
        obs: observations, `[T, S, N, D]`, or uint8 images `[T, S, N, C, H, W]`.
        last_obs: observations after the last step, `[S, N, ...]`.
        kept: tensors stored by `act`, `[T, S, N, ...]` each.
        rewards: rewards, `[T, S, N]`.
        terminated: terminations, bool `[T, S, N]`.
        truncated: truncations, bool `[T, S, N]`.
        final_obs: true successor of every step, `[T, S, N, ...]`.
        valid: mask of valid steps, bool `[T, S, N]`; None if all are valid.
        metrics: mean return and length of the episodes that ended, and their number, `[S]` each.
        extras: extra tensors of the steps by name, `[T, S, N, ...]` (`Step.extras`).
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

    @property
    def weights(self) -> Tensor | None:
        """Weights of the samples by seed, `[S, T * N]`: 1 for valid ones, else 0; None: all are valid."""
        return None if self.valid is None else by_seed(self.valid).to(self.rewards.dtype)

    def successor_values(self, value: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the values of every state and of its true successor, `[T, S, N]` each.

        The successor of a step is the next observation, or at a truncation the final one, for which `value` is called a
        second time. Values of successors after a termination are undefined.

        Args:
            value: function from observations `[S, M, ...]` to values `[S, M]`, or `[S, M, K]` for K values, in which
                case the results have a last axis of size K.
        """
        values = self.values(value)
        return values[:-1], self.true_successors(values, value)

    def values(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute the values of all observations, including the last ones, `[T + 1, S, N]`."""
        steps, seeds, rows = self.rewards.shape
        values = value(by_seed(torch.cat((self.obs, self.last_obs.unsqueeze(0)))))
        return values.view(seeds, steps + 1, rows, *values.shape[2:]).movedim(1, 0)

    def true_successors(self, values: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute the values of the true successors, as in `successor_values`, from the result of `values`."""
        bootstrapped = self.truncated & ~self.terminated
        if not bootstrapped.any():
            return values[1:]
        # The truncated steps of each seed, padded with other steps to the largest count of any seed.
        steps, seeds, rows = bootstrapped.shape
        flagged = by_seed(bootstrapped).to(torch.uint8)
        flagged, index = flagged.topk(int(flagged.sum(1).max()), dim=1)
        place = torch.arange(seeds, device=index.device).unsqueeze(1), index
        patched = by_seed(values[1:]).clone()
        flagged = flagged.bool().view(*flagged.shape, *[1] * (patched.dim() - 2))
        patched[place] = torch.where(flagged, value(by_seed(self.final_obs)[place]), patched[place])
        return patched.view(seeds, steps, rows, *patched.shape[2:]).movedim(1, 0)


def without_broken(rollout: Rollout, channels: Collection[str] = ()) -> Rollout:
    """Return a rollout whose transitions with NaN or Inf in rewards or observations are invalid, and counted.

    Their numbers are replaced by 0. Returns of earlier steps end before them, and bootstrap from the value of the
    observation there. A rollout without any is returned unchanged.

    Args:
        rollout: the rollout.
        channels: names of the extra tensors that are rewards, too.
    """
    extras = {name: part for name, part in rollout.extras.items() if name in channels and part.is_floating_point()}
    observed = [obs for obs in (rollout.obs, rollout.final_obs) if obs.is_floating_point()]
    read = [rollout.rewards, *observed, *extras.values()]
    # A sum with NaN or Inf is one of them: a single number, without masks.
    if isfinite(reduce(torch.add, (part.sum() for part in read))):
        return rollout
    broken = torch.stack([~part.isfinite().flatten(2).view(*part.shape[:3], -1).all(3) for part in read]).any(0)
    kept = rollout.valid if rollout.valid is not None else torch.ones_like(broken)
    cut = torch.cat((rollout.truncated[:-1] | broken[1:], rollout.truncated[-1:]))

    def finite(part: Tensor) -> Tensor:
        return part.nan_to_num(0.0, 0.0, 0.0) if part.is_floating_point() else part

    def acted(part: Tensor) -> Tensor:
        return torch.where(broken.view(*broken.shape, *[1] * (part.dim() - 3)), finite(part), part)

    return replace(
        rollout,
        obs=finite(rollout.obs),
        last_obs=finite(rollout.last_obs),
        final_obs=finite(rollout.final_obs),
        rewards=finite(rollout.rewards),
        extras={**rollout.extras, **{name: finite(part) for name, part in extras.items()}},
        kept=tuple(map(acted, rollout.kept)),
        truncated=cut,
        valid=kept & ~broken,
        metrics={**rollout.metrics, DROPPED: (kept & broken).sum((0, 2))},
    )


def by_seed(tensor: Tensor) -> Tensor:
    """Reshape `[T, S, N, ...]` to `[S, T * N, ...]`, with all samples of a seed along one axis."""
    steps, seeds, rows, *rest = tensor.shape
    return tensor.movedim(1, 0).reshape(seeds, steps * rows, *rest)


def all_episodes(reports: Sequence[Metrics]) -> Metrics:
    """Combine the metrics of several rollouts: means over all episodes, and the latest metrics of wrappers."""

    def every(name: str) -> Tensor:
        return torch.stack([torch.as_tensor(report[name]) for report in reports])

    counts = every(EPISODES)
    total = counts.sum(0)

    def mean(name: str) -> Tensor:
        return (every(name) * counts).masked_fill(counts == 0, 0.0).sum(0) / total

    means = {RETURN: mean(RETURN), LENGTH: mean(LENGTH), EPISODES: total}
    others = dict.fromkeys(name for report in reports for name in report if told_by_environments(name))
    means_of_others = {name: _mean_where_reported(name, reports) for name in others}
    return {**reports[-1], **means, **means_of_others, **_losses(reports)}


def _mean_where_reported(name: str, reports: Sequence[Metrics]) -> Tensor:
    """Return the mean over episodes of a metric that not all rollouts report."""
    reports = [report for report in reports if name in report]
    values, counts = (torch.stack([torch.as_tensor(report[key]) for report in reports]) for key in (name, EPISODES))
    counts = counts.masked_fill(values.isnan(), 0)
    return (values.nan_to_num() * counts).sum(0) / counts.sum(0)


def _losses(reports: Sequence[Metrics]) -> dict[str, Tensor]:
    found = [torch.as_tensor(report[LOST]) for report in reports if LOST in report]
    return {LOST: torch.stack(found).sum(0)} if found else {}


def info_metrics(infos: Sequence[Mapping[str, Tensor]], seeds: int) -> dict[str, Tensor]:
    """Compute the means over episodes of numbers in `info`, `[S]` by name; NaN for seeds without one.

    Args:
        infos: `Step.infos` of several steps.
        seeds: number of seeds, S.
    """
    metrics: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for each in infos for name in each):
        values = torch.cat([each[name].view(seeds, -1) for each in infos if name in each], dim=1)
        metrics[metric(name)] = values.nanmean(dim=1)
    return metrics


def _stack(tensors: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Stack along a new first axis and reshape to `shape`; a single tensor is not copied."""
    return (tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))).reshape(shape)


def has_extras(steps: Sequence[Step]) -> bool:
    """Return whether any step has extra tensors."""
    return any(step.extras is not None for step in steps)


def stack_extras(steps: Sequence[Step], shape: tuple[int, int, int], task: str) -> dict[str, Tensor]:
    """Stack the extra tensors of several steps, `[T, S, N, ...]` by name.

    Args:
        steps: T steps.
        shape: `(T, S, N)`.
        task: name of the environment in error messages.

    Raises:
        ValueError: a tensor is missing in some steps, or does not have one row per environment.
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
    """Concatenate rollouts of different environments of the same seeds.

    Args:
        parts: fields of each rollout (`vars`), all with the same number of steps.
    """

    def together(tensors: Sequence[Any], dim: int = 2) -> Any:
        return None if tensors[0] is None else torch.cat(list(tensors), dim)

    each = {name: [part[name] for part in parts] for name in parts[0]}
    kept, last_obs, metrics, extras = map(each.pop, ("kept", "last_obs", "metrics", "extras"))
    return Rollout(
        kept=tuple(map(together, zip(*kept, strict=True))),
        last_obs=together(last_obs, 1),
        metrics=_joined_metrics(metrics),
        extras={name: together([part[name] for part in extras]) for name in extras[0]},
        **{name: together(tensors) for name, tensors in each.items()},
    )


def _joined_metrics(reports: Sequence[Metrics]) -> dict[str, Tensor]:
    """Return the combined metrics of rollouts of several groups of environments."""
    plain = all({*report} == {RETURN, LENGTH, EPISODES} for report in reports)
    counts = [torch.as_tensor(report[EPISODES]) for report in reports]
    # Most short rollouts have no end, and on the CPU this test costs less than the means.
    ended = not plain or any(count.device.type != "cpu" or np.count_nonzero(count.numpy()) for count in counts)
    combined = all_episodes(reports) if ended else reports[0]
    return {name: torch.as_tensor(value) for name, value in combined.items()}


class Play:
    """Step-by-step collection of a rollout.

    Args:
        collector: collector of the environments.
        obs: initial observations, `[S, N, ...]`.

    Attributes:
        obs: next observations.
    """

    def __init__(self, collector: "Collector", obs: Tensor) -> None:
        self.collector, self.obs = collector, obs
        self._steps: list[tuple[Tensor, tuple[Tensor, ...], Step, Tensor]] = []
        for wrapper in collector.deferring:
            wrapper.defer()

    def step(self, kept: tuple[Tensor, ...], actions: Tensor) -> None:
        """Take one step with `actions`, and store the tensors `kept`, `[S, N, ...]` each."""
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
    """Collector of rollouts and episode statistics.

    Args:
        env: environments `[S, N]`, flattened.
        seeds: number of seeds, S.

    Attributes:
        features: encoding of observations as vectors `[S, N, D]` or images `[S, N, C, H, W]`.
        obs: next observations.
        result: last step; None before the first one.
        deferring: wrappers that compute extra tensors for all steps of a rollout together.
    """

    def __init__(self, env: BatchEnv, *, seeds: int, features: Features | None = None) -> None:
        if seeds < 1 or env.rows % seeds:
            raise ValueError(f"{env.rows} environments cannot be shared equally by {seeds} seeds")
        self.env, self.seeds, self.rows = env, seeds, env.rows // seeds
        self.features = features or Features.of(env.observation_space, env.action_space)
        self.obs = self.encode(env.reset())
        self.result: Step | None = None
        self._reporting, self.deferring = reporting(env), deferring(env)
        # Return and length so far of the current episode of each environment, in float64 for accurate long sums.
        self.carried = torch.zeros(2, seeds, self.rows, dtype=torch.float64, device=env.device)
        nothing = torch.full((seeds,), torch.nan, dtype=torch.float64)
        self._none_ended = self._metrics(nothing, nothing, torch.zeros(seeds, dtype=torch.int64))

    def collect(self, steps: int, act: Act) -> Rollout:
        """Collect a rollout of `steps` steps per environment."""
        return self.rollout(**self.play(self.obs, steps, act))

    def play(self, obs: Tensor, steps: int, act: Act) -> dict[str, Any]:
        """Take `steps` steps from observations `[S, N, ...]`; return the arguments of `rollout`."""
        play = Play(self, obs)
        for t in range(steps):
            play.step(*act(play.obs, t))
        return play.finish()

    def rollout(self, *, scores: Tensor, infos: Sequence[Mapping[str, Tensor]], **parts: Any) -> Rollout:
        """Create a rollout from collected steps, and count its episodes.

        Args:
            scores: rewards `[T, S, N]` to report.
            infos: `Step.infos` of the steps that have them.
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

    def starts(self) -> Tensor:
        """Return which environments start an episode with their next step, bool `[S, N]`.

        Dummy steps of environments that reset in a step of their own are no steps of an episode.
        """
        last = self.result
        if last is None:
            return torch.ones(self.seeds, self.rows, dtype=torch.bool, device=self.obs.device)
        return (last.terminated | last.truncated | ~last.valid).view(self.seeds, self.rows)

    def encode(self, obs: Tree) -> Tensor:
        """Encode observations of all environments as network inputs, `[S, N, ...]`."""
        return self.features.encode(obs).view(self.seeds, self.rows, *self.features.shape)

    def _episodes(self, scores: Tensor, ended: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """Compute the means over ended episodes; NaN for seeds without one."""
        # In most short rollouts no episode ends, and on the CPU this test is cheaper than the sums below.
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
        """Compute the means step by step if episodes were lost, whose partial returns are dropped."""
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
        """Return the state of the environments and of unfinished episodes."""
        return {"env": self.env.state_dict(), "statistics": self.carried.flatten(1).clone()}

    def load_state_dict(self, state: State) -> None:
        """Continue the saved episodes, or start new ones (`operant.envs.begins_anew`)."""
        copy_into(self.carried.flatten(1), state["statistics"], "statistics")
        self.obs = self.encode(load_part(self.env, state, "env"))
        if begins_anew(self.env):
            self.carried.zero_()
