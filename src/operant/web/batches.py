"""Batches of runs for the explorables: samples of one update, with log-probabilities before and after.

Updates of PPO are recomputed as in time travel; batches of language models are read from the ledger.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from operant.runtime.ledger import Ledger, ledgers_of, read_ledger
from operant.web.folders import folder_of, names_of
from operant.web.runs import settings_of

if TYPE_CHECKING:  # the list of runs is read in a process without torch
    from operant.control.ppo import PPO

LEARNERS = ("ppo", "ppo-penalty")
"""Algorithms whose updates are recomputed."""
MOST_SAMPLES = 400
"""Maximum number of samples of a batch; larger ones are subsampled evenly."""


def index(runs: Path) -> dict[str, Any]:
    """Return the runs with batches."""
    return {"runs": [name for name in names_of(runs) if _has_batches(runs / name)]}


def _has_batches(path: Path) -> bool:
    try:
        return settings_of(path).get("algorithm") in LEARNERS or bool(ledgers_of(path))
    except (OSError, ValueError):
        return False


def batch(runs: Path, run: str, at: int | None = None, seed: int | None = None, environment: int = 0) -> dict[str, Any]:
    """Return the batch of an update of a run for one seed; each call computes for a short time.

    Args:
        runs: folder of runs.
        run: name of the run.
        at: budget used at the start of the update. Default: the last update.
        seed: seed of the run. Default: the first one.
        environment: index of the environment whose rollout is returned, at most the last.

    Returns:
        `done`, `at`, and the budget used at the start of the last update, `end`, and per update, `every`. Once done,
        also `seeds` of the run, and `seed`; the number of `environments`, 0 for language models, and `environment`;
        the number of `samples`; `log_probs` after the update, `old_log_probs` and `advantages` of all or some samples;
        and the `rollout` of the environment, with the arguments of `operant.ops.gae` as keys, None for language
        models.

    Raises:
        ValueError: the run does not have the update or seed.
        RunError: the update cannot be recomputed.
    """
    path = folder_of(runs, run)
    if ledgers := ledgers_of(path):
        seeds = sorted({own for _, own in ledgers})
        seed = _chosen(seed, seeds)
        pairs = [pair for pair in ledgers if pair[1] == seed]
        found = max((pair for pair in pairs if at is None or pair[0] <= at), default=pairs[0])
        place = {"done": True, "at": found[0], "end": pairs[-1][0], "every": 1, "seeds": seeds, "seed": seed}
        return place | _of_ledger(read_ledger(path, *found))
    if settings_of(path).get("algorithm") not in LEARNERS:
        raise ValueError(f"{run} has no batches: only {', '.join(LEARNERS)}, and GRPO and its variants have batches")
    return _of_learner(path, at, seed, environment)


def _chosen(seed: int | None, seeds: Sequence[int]) -> int:
    if seed is not None and seed not in seeds:
        raise ValueError(f"seed must be one of {', '.join(map(str, seeds))}, got {seed}")
    return seeds[0] if seed is None else seed


def _of_learner(path: Path, at: int | None, seed: int | None, environment: int) -> dict[str, Any]:
    from operant.web.travel import opened  # noqa: PLC0415 - importing torch takes seconds, and lists of runs do not need it

    place = opened(path)
    seeds = list(place.trained.run.settings.seeds)
    seed = _chosen(seed, seeds)
    learner = cast("PPO", place.trained.experiment.learner)
    every = learner.rollout_steps
    end = max(0, place.travel.end - every)
    at = end if at is None else min(at, end)
    if not place.walk("to", at):
        return {"done": False, "at": at, "end": end, "every": every}
    there = {"done": True, "at": learner.consumed, "end": end, "every": every, "seeds": seeds, "seed": seed}
    return there | _updated(learner, seeds.index(seed), environment)


def _updated(learner: "PPO", index: int, environment: int) -> dict[str, Any]:
    """Compute an update, return the batch of a seed, and undo the update."""
    from operant.runtime.budget import remaining  # noqa: PLC0415 - as above
    from operant.state import clone  # noqa: PLC0415 - as above
    from operant.tensors import floats, nested  # noqa: PLC0415 - as above

    agent, before = learner.agent, clone(learner.state_dict())
    try:
        rollout = agent.collect(learner.config.num_steps)
        seen = learner.channels.read(rollout, agent.networks.value)
        samples = learner.estimate_advantages(rollout)
        learner.update(samples, remaining(learner.consumed, learner.budget))
        log_probs = agent.head.log_prob(agent.networks.policy(samples.obs), agent.networks.free, samples.actions)
    finally:
        learner.load_state_dict(before)
    if learner.config.normalize_advantage == "minibatch":  # as in the loss, except for the choice of minibatches
        samples = samples.standardized()
    chosen = _even(samples.advantages.shape[1])
    columns = {"log_probs": log_probs, "old_log_probs": samples.old_log_probs, "advantages": samples.advantages}
    one = {"rewards": seen.rewards, "values": seen.values, "next_values": seen.next_values}
    ends = {"terminated": rollout.terminated, "truncated": rollout.truncated}
    count = rollout.terminated.shape[2]
    environment = min(max(environment, 0), count - 1)
    return {
        "environments": count,
        "environment": environment,
        "samples": samples.advantages.shape[1],
        **{name: floats(column[index][chosen]) for name, column in columns.items()},
        "rollout": {
            name: nested(column[:, index, environment].reshape(len(column), -1)[:, 0])
            for name, column in (one | ends).items()
        },
    }


def _of_ledger(ledger: Ledger) -> dict[str, Any]:
    ratios, advantages = ledger.columns["ratio"], ledger.columns["advantage"]
    chosen = _even(len(ratios))
    return {
        "environments": 0,
        "environment": 0,
        "samples": len(ratios) + int(ledger.rest.get("tokens", 0)),
        "log_probs": np.log(ratios[chosen].astype(np.float64)).tolist(),
        "old_log_probs": np.zeros(len(chosen)).tolist(),
        "advantages": advantages[chosen].tolist(),
        "rollout": None,
    }


def _even(count: int) -> list[int]:
    """Return the indices of an even subsample."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_SAMPLES)).round().astype(int)).tolist()
