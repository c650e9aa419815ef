"""Claim: from TD to Monte Carlo, bias falls with n and λ and variance grows; the error is lowest in between.

Targets of the 19-state random walk (Sutton and Barto 2018, example 7.1) with the value estimate 0, which learning
starts from: n-step returns and λ-returns, computed by `operant.ops` from sampled walks. Bias and variance are averaged
over the 19 states, compared with the exact ones, which linear equations give, and added up as the squared error of the
mean of ten targets.
"""

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from checks import COLORS, Check, conclude, panels, save
from numpy.typing import NDArray
from torch import Tensor

import operant.envs  # noqa: F401 - registers the walk
from operant import ops, streams

STATES, WALKS, STEPS, BATCHES = 19, 500, 1500, 8
STEP_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
LAMBDAS = (0.0, 0.4, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0)
AVERAGED = 10

Moments = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Mean and mean square of a target in every state."""


def walk(batch: int) -> tuple[Tensor, Tensor]:
    """Return rewards and terminations, `[STEPS, STATES * WALKS]`, of walks that start in each state equally often."""
    random = np.random.default_rng(streams.seed_sequence(0, "walk", batch))
    starts = np.repeat(np.arange(1, STATES + 1), WALKS)
    places = starts + random.choice(np.array([-1, 1], np.int16), (STEPS, starts.size)).cumsum(axis=0, dtype=np.int16)
    ended = (places <= 0) | (places >= STATES + 1)
    terminated = ended & ~np.vstack([np.zeros_like(ended[:1]), np.maximum.accumulate(ended)[:-1]])
    if not terminated.any(axis=0).all():
        raise RuntimeError(f"a walk has not ended after {STEPS} steps")
    rewards = np.where(terminated, np.where(places <= 0, -1.0, 1.0), 0.0)
    return torch.from_numpy(rewards), torch.from_numpy(terminated)


def targets(rewards: Tensor, terminated: Tensor) -> dict[str, NDArray[np.float64]]:
    """Return each kind of target of the first state of every walk, `[STATES, WALKS]`."""
    values, truncated = torch.zeros_like(rewards), torch.zeros_like(terminated)
    found = {}
    for n in STEP_COUNTS:
        ends = {"terminated": terminated[:n], "truncated": truncated[:n]}
        found[f"n={n}"] = ops.n_step_returns(rewards[:n], values[:n], **ends, gamma=1.0, n=n)[0]
    ends = {"terminated": terminated, "truncated": truncated}
    for lam in LAMBDAS:
        found[f"λ={lam:g}"] = ops.lambda_returns(rewards, values, **ends, gamma=1.0, lam=lam)[0]
    found["Monte Carlo"] = ops.discounted_returns(rewards, **ends, gamma=1.0)[0]
    return {kind: target.view(STATES, WALKS).numpy() for kind, target in found.items()}


def exact() -> tuple[NDArray[np.float64], dict[str, Moments]]:
    """Return the true values and the moments of all targets, from the model of the walk."""
    model = gymnasium.make("operant/RandomWalk19-v0").unwrapped.transitions  # pyright: ignore[reportAttributeAccessIssue]
    origins = np.repeat(np.arange(model.states), np.diff(model.indptr))
    going_on = np.zeros((model.states, model.states))
    np.add.at(going_on, (origins, model.successors), model.probabilities * ~model.terminates)
    # A reward is paid at the end alone, so that the square of a target is that of the reward or of what follows.
    first = np.bincount(origins, model.probabilities * model.rewards, minlength=model.states)
    second = np.bincount(origins, model.probabilities * model.rewards**2, minlength=model.states)
    moments, mean, square = {}, np.zeros(model.states), np.zeros(model.states)
    for n in range(1, max(STEP_COUNTS) + 1):
        mean, square = first + going_on @ mean, second + going_on @ square
        if n in STEP_COUNTS:
            moments[f"n={n}"] = mean[1:-1], square[1:-1]
    unit = np.eye(model.states)
    for lam in LAMBDAS:
        solved = (np.linalg.solve(unit - decay * going_on, part) for decay, part in ((lam, first), (lam**2, second)))
        moments[f"λ={lam:g}"] = tuple(part[1:-1] for part in solved)
    moments["Monte Carlo"] = moments["λ=1"]
    return moments["Monte Carlo"][0], moments


def spectrum(mean: NDArray[np.float64], square: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    """Return squared bias, variance and the error of the mean of ten targets, averaged over the states."""
    bias, variance = float(np.mean((mean - truth) ** 2)), float(np.mean(square - mean**2))
    return {"bias": bias, "variance": variance, "error": bias + variance / AVERAGED}


def draw(points: dict[str, dict[str, float]]) -> None:
    """Draw the spectrum over n and over λ."""
    figure, axes = panels(2, sharey=True)
    for axis, label, title, kinds in (
        (axes[0], "n", "n-step returns", [*(f"n={n}" for n in STEP_COUNTS), "Monte Carlo"]),
        (axes[1], "λ", "λ-returns", [f"λ={lam:g}" for lam in LAMBDAS]),
    ):
        names = [kind.rpartition("=")[2].replace("Monte Carlo", "∞") for kind in kinds]
        for color, (field, text) in zip(
            COLORS,
            {"bias": "bias²", "variance": "variance", "error": f"error of the mean of {AVERAGED} targets"}.items(),
            strict=False,
        ):
            axis.plot(names, [points[kind][field] for kind in kinds], "o-", color=color, label=text, markersize=4)
        axis.set(xlabel=label, title=title)
    axes[0].set_ylabel("mean over 19 states")
    save(figure, __file__, axes[:1])


def main() -> None:
    """Sample, solve, compare and plot; fail if the samples contradict the equations or a claim does not hold."""
    batches = [targets(*walk(batch)) for batch in range(BATCHES)]
    truth, moments = exact()
    checks, points = [], {}
    for kind, (mean, square) in moments.items():
        expected = points[kind] = spectrum(mean, square, truth)
        samples = np.concatenate([batch[kind] for batch in batches], axis=1)
        bias_error = np.abs(samples.mean(axis=1) - mean)
        deviations = np.sqrt((square - mean**2) / samples.shape[1])
        points[kind]["worst mean, in standard errors"] = float(np.max(bias_error / np.maximum(deviations, 1e-12)))
        each = ((samples - samples.mean(axis=1, keepdims=True)) ** 2).mean(axis=0)
        checks.append(
            Check(
                f"variance of {kind}", each.mean(), each.std() / each.size**0.5, expected["variance"], 0.0, exact=True
            )
        )
    ns = [points[f"n={n}"] for n in STEP_COUNTS] + [points["Monte Carlo"]]
    lams = [points[f"λ={lam:g}"] for lam in LAMBDAS]
    claims: dict[str, bool] = {
        "every mean is within four standard errors of the exact one": all(
            point["worst mean, in standard errors"] < 4.0 for point in points.values()
        ),
        "n = 1 is λ = 0, and λ = 1 is Monte Carlo": bool(
            np.allclose(moments["n=1"], moments["λ=0"]) and np.allclose(batches[0]["λ=1"], batches[0]["Monte Carlo"])
        ),
    }
    for name, line in (("n", ns), ("λ", lams)):
        errors = [point["error"] for point in line]
        claims[f"bias falls with {name}"] = falls([point["bias"] for point in line])
        claims[f"variance grows with {name}"] = falls([-point["variance"] for point in line])
        claims[f"the least error is between the ends of {name}"] = 0 < int(np.argmin(errors)) < len(errors) - 1
    draw(points)
    results: dict[str, Any] = {"walks_of_each_state": WALKS * BATCHES, "targets": points}
    conclude(__file__, results, checks, claims)


def falls(numbers: list[float]) -> bool:
    """Return whether every number is less than the one before."""
    return all(later < earlier for earlier, later in pairwise(numbers))


if __name__ == "__main__":
    main()
