"""Recordings of algorithms in a world, frame by frame."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from operant import mdp as known
from operant.mdp import MDP, Step
from operant.mdp.stepwise import StepMethod

Floats = NDArray[np.float64]

MOST_STEPS = 10_000
"""Maximum number of steps of a solver."""
MOST_NUMBERS = 300_000
"""Maximum number of values in the tables of all frames; beyond it, frames are dropped evenly."""
MOST_FRAMES = 1_500
"""Maximum number of frames of a recording; beyond it, frames are dropped evenly."""
FIRST_FRAMES = 40
"""Number of first frames that are never dropped."""
MOST_PLANNING = 50
"""Maximum number of planning steps per environment step."""
MOST_BUDGET = 5_000_000
"""Maximum number of environment steps of a learner."""

LEARNERS: Mapping[str, tuple[str, ...]] = {
    "monte-carlo-prediction": (),
    "td-lambda": ("step_size", "td_lambda"),
    "monte-carlo": ("step_size", "epsilon"),
    "sarsa": ("step_size", "epsilon"),
    "expected-sarsa": ("step_size", "epsilon"),
    "q-learning": ("step_size", "epsilon"),
    "double-q-learning": ("step_size", "epsilon"),
    "sarsa-lambda": ("step_size", "epsilon", "td_lambda"),
    "dyna-q": ("step_size", "epsilon", "planning_steps"),
}
"""Parameters of learners by name in the catalog."""
FIELDS = {"epsilon": "exploration_initial_eps"}
"""Fields of configurations by the name of the parameter, if different."""


@dataclass
class Recording:
    """Recording of an algorithm.

    Attributes:
        unit: unit of `ticks`.
        followed: policy `[S, A]` whose values are predicted; None for control.
        ticks: sweeps, backups or environment steps so far, per frame.
        phases: phase of the algorithm per frame.
        values: values `[S]` per frame.
        policy: actions of the policy as bits `[S]` per frame.
        q: action values `[S, A]` per frame; None without action values.
        visits: number of updates `[S]` per frame; None without counts.
        places: state of the agent per frame; None without an agent.
        residuals: residual per frame; None for learners.
        returns: mean undiscounted return of the episodes that ended in the frame, NaN without one; None for solvers.
        complete: whether the algorithm has converged.
    """

    unit: str
    followed: Floats | None = None
    ticks: list[int] = field(default_factory=list[int])
    phases: list[str] = field(default_factory=list[str])
    values: list[Floats] = field(default_factory=list[Floats])
    policy: list[NDArray[np.int64]] = field(default_factory=list[NDArray[np.int64]])
    q: list[Floats] | None = None
    visits: list[NDArray[np.int64]] | None = None
    places: list[int] | None = None
    residuals: list[float] | None = None
    returns: list[float] | None = None
    complete: bool = False


def planned(model: MDP, algorithm: str, gamma: float, *, seed: int, backups: int) -> Recording:
    """Record a solver until it converges, for at most `MOST_STEPS` steps.

    Args:
        model: model of the world.
        algorithm: `"policy-evaluation"` of the uniform policy, or a `StepMethod`.
        gamma: the discount factor.
        seed: seed of random orders.
        backups: backups per frame of prioritized sweeping.
    """
    if algorithm == "policy-evaluation":
        followed: Floats | None = uniform(model)
        found = known.evaluation_sweeps(model, followed, gamma=gamma)
    else:
        followed = None
        method = cast(StepMethod, algorithm)
        found = known.steps(model, gamma=gamma, method=method, backups=backups, seed=seed)
    unit = "backups" if algorithm == "prioritized-sweeping" else "sweeps"
    recording = Recording(unit, followed, q=[], residuals=[])
    blank = Step(np.zeros(model.states), np.full(model.states, -1), np.nan, "start", 0)
    kept, complete = _thinned(found, model.states * model.actions)
    for count, step in [(0, blank), *kept]:
        recording.ticks.append(step.backups if unit == "backups" else count)
        recording.phases.append(step.phase)
        recording.values.append(step.values)
        policy = followed > 0 if followed is not None else step.policy[:, None] == np.arange(model.actions)
        recording.policy.append(bits(policy))
        cast(list[Floats], recording.q).append(known.action_values(model, step.values, gamma=gamma))
        cast(list[float], recording.residuals).append(step.residual)
    recording.complete = complete
    return recording


def _thinned(found: Iterator[Step], size: int) -> tuple[list[tuple[int, Step]], bool]:
    """Return the first, the last, and some intermediate steps with their indices."""
    room = max(FIRST_FRAMES + 10, min(MOST_FRAMES, MOST_NUMBERS // size))
    kept: list[tuple[int, Step]] = []
    stride, last = 1, None
    for count, step in enumerate(found, 1):
        last = count, step
        if count <= FIRST_FRAMES or count % stride == 0:
            kept.append(last)
        if len(kept) > room:
            stride *= 2
            kept = [item for item in kept if item[0] <= FIRST_FRAMES or item[0] % stride == 0]
        if count >= MOST_STEPS:
            break
    if last is not None and (not kept or kept[-1][0] != last[0]):
        kept.append(last)
    return kept, last is None or last[0] < MOST_STEPS


def learn(
    model: MDP, algorithm: str, gamma: float, chosen: Mapping[str, float], *, seed: int, stride: int, count: int
) -> tuple[Recording, dict[str, Any]]:
    """Record a learner, and return the recording with the configured fields.

    Args:
        model: model of the world.
        algorithm: one of `LEARNERS`.
        gamma: the discount factor.
        chosen: values of parameters; unknown ones are ignored.
        seed: seed of the random numbers.
        stride: environment steps per frame.
        count: number of frames.

    Raises:
        ValueError: a value is out of range.
    """
    from operant.tabular import learner_for  # noqa: PLC0415 - importing torch takes seconds, and solvers do not need it

    if stride < 1 or count < 1 or stride * count > MOST_BUDGET:
        raise ValueError(
            f"stride and count must be at least 1 with at most {MOST_BUDGET} steps in total, got {stride} and {count}"
        )
    if chosen.get("planning_steps", 0) > MOST_PLANNING:
        raise ValueError(f"planning_steps must be at most {MOST_PLANNING}, got {chosen['planning_steps']}")
    names = (*LEARNERS[algorithm], "initial_value")
    values: dict[str, Any] = {"gamma": gamma, **{FIELDS.get(name, name): chosen[name] for name in names}}
    count = min(count, MOST_FRAMES, max(FIRST_FRAMES, MOST_NUMBERS // (model.states * model.actions)))
    learner = learner_for(algorithm, model, seeds=[seed], budget=stride * count, **values, steps_per_iteration=stride)
    predicts = not learner.learns_action_values
    recording = Recording("environment steps", uniform(model) if predicts else None, visits=[], places=[], returns=[])
    recording.q = None if predicts else []
    _keep(recording, learner, np.nan, "start")
    for _ in range(count):
        metrics = learner.iterate()
        _keep(recording, learner, float(cast(Any, metrics)["rollout/episode_return"][0]), "learning")
    return recording, values


def _keep(recording: Recording, learner: Any, episode_return: float, phase: str) -> None:
    recording.ticks.append(learner.consumed)
    recording.phases.append(phase)
    recording.values.append(learner.values[0].copy())
    recording.policy.append(bits(learner.policy()[0] > 0))
    if recording.q is not None:
        recording.q.append(np.where(learner.feasible, learner.q[0], -np.inf))
    cast(list[NDArray[np.int64]], recording.visits).append(learner.visits[0].sum(axis=1))
    cast(list[int], recording.places).append(int(learner.world.state[0]))
    cast(list[float], recording.returns).append(episode_return)


def uniform(model: MDP) -> Floats:
    """Return the uniform policy over feasible actions, `[S, A]`."""
    return model.feasible / np.maximum(model.feasible.sum(axis=1, keepdims=True), 1)


def bits(policy: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Encode the actions of a policy `[S, A]` as bits `[S]`."""
    count: int = policy.shape[1]
    return policy @ (1 << np.arange(count))
