"""Grid worlds and results of the playground, computed by the library.

Worlds are text in the format of `operant.envs.drawing`. Arrays are base64 of little-endian bytes, so that the page
shows the exact float64 values.
"""

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant import mdp as known
from operant.envs.cells import BONUS, Grid
from operant.envs.drawing import parse_grid
from operant.envs.grid import GridWorld
from operant.mdp import MDP, Solution
from operant.web.documentation import page_of
from operant.web.simulating import LEARNERS, Recording, learn, planned
from operant.web.worlds import WORLDS

MOST_STATES = 10_000
"""Maximum number of cells of a world."""
TOLERANCE = 1e-9
"""Tolerance of the exact solution."""
SOLVERS: Mapping[str, str] = {
    "policy-evaluation": "auto",
    "policy-iteration": "policy-iteration",
    "value-iteration": "value-iteration",
    "gauss-seidel": "gauss-seidel",
    "random-order": "asynchronous-value-iteration",
    "real-time": "asynchronous-value-iteration",
    "prioritized-sweeping": "prioritized-sweeping",
    "modified-policy-iteration": "modified-policy-iteration",
}
"""Methods of `operant solve` by planning algorithm."""


def presets(_: Path) -> list[dict[str, Any]]:
    """Return the initial worlds: `name`, `title`, `note`, `gamma`, `algorithm`, and the result of `read`."""
    return [{**vars(world), **described(parse_grid(world.drawing))} for world in WORLDS]


def read(_: Path, drawing: str) -> dict[str, Any]:
    """Return the cells `[R][C]`, rules and jumps of a drawing.

    Raises:
        DrawingError: the drawing is invalid; the message contains line and column.
    """
    return described(parse_grid(drawing))


def exact(_: Path, drawing: str, gamma: float) -> dict[str, Any]:
    """Return the exact solution of a world as of `operant solve`: values, bounds, policy, Q, and the command."""
    solution = _solved(_model(drawing), gamma)
    return {**_packed(solution), "command": _solve_command("auto", gamma)}


def frames(  # noqa: PLR0917 - by name, from JSON
    _: Path,
    drawing: str,
    algorithm: str,
    gamma: float,
    step_size: float = 0.1,
    epsilon: float = 0.1,
    td_lambda: float = 0.9,
    planning_steps: int = 5,
    initial_value: float = 0.0,
    seed: int = 0,
    stride: int = 1,
    count: int = 300,
) -> dict[str, Any]:
    """Return frames of an algorithm in a world with their errors.

    Args:
        drawing: the world.
        algorithm: one of `SOLVERS` or `LEARNERS`.
        gamma: the discount factor.
        step_size: α of learners.
        epsilon: ε of exploring learners.
        td_lambda: λ of learners with traces.
        planning_steps: planning steps of Dyna-Q per environment step.
        initial_value: initial value of a learner's table.
        seed: seed of the random numbers.
        stride: environment steps of a learner, or backups of prioritized sweeping, per frame.
        count: number of frames of a learner.

    Raises:
        ValueError: a name is unknown, a value is out of range, or the drawing is invalid.
    """
    model = _model(drawing)
    chosen = {"step_size": step_size, "epsilon": epsilon, "td_lambda": td_lambda, "planning_steps": planning_steps}
    chosen["initial_value"] = initial_value
    if algorithm in SOLVERS:
        recording = planned(model, algorithm, gamma, seed=seed, backups=stride)
        command = _solve_command(SOLVERS[algorithm], gamma)
    elif algorithm in LEARNERS:
        recording, values = learn(model, algorithm, gamma, chosen, seed=seed, stride=stride, count=count)
        command = _train_command(algorithm, values, seed, recording.ticks[-1])
    else:
        names = ", ".join([*SOLVERS, *LEARNERS])
        raise ValueError(f"algorithm must be one of {names}, got {algorithm!r}")
    policy = recording.followed
    truth = _solved(model, gamma) if policy is None else known.policy_evaluation(model, policy, gamma=gamma)
    return {
        **_recorded(model, recording, truth, gamma),
        "exact": _packed(truth),
        "command": command,
        "page": page_about(algorithm),
    }


def page_about(algorithm: str) -> str:
    """Return the page of the documentation about an algorithm of the playground."""
    return page_of(algorithm) if algorithm in LEARNERS else "mdp"


def export(_: Path, drawing: str) -> dict[str, Any]:
    """Return the model of a world as JSON for `operant solve --mdp`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.json"
        known.save(_model(drawing), path)
        return {"text": path.read_text(encoding="utf-8"), "command": "operant solve --mdp world.json"}


def _model(drawing: str) -> MDP:
    grid = parse_grid(drawing)
    if grid.symbols.size > MOST_STATES:
        raise ValueError(f"the world must have at most {MOST_STATES} cells, got {grid.symbols.size}")
    return MDP.from_gymnasium(GridWorld(grid))


def _solved(model: MDP, gamma: float) -> Solution:
    return known.solve(model, gamma=gamma, tolerance=TOLERANCE)


def described(grid: Grid) -> dict[str, Any]:
    """Return the cells `[R][C]`, rules and jumps of a grid."""
    jumps = [
        f"{grid.symbols.flat[jump.cell]} {grid.symbols.flat[jump.target]} {_signed(jump.reward)}" for jump in grid.jumps
    ]
    cells = [
        [_token(str(symbol), float(reward)) for symbol, reward in zip(*row, strict=True)]
        for row in zip(grid.symbols, grid.rewards, strict=True)
    ]
    return {"cells": cells, "rules": {**vars(grid.rules), "wind": list(grid.rules.wind)}, "jumps": jumps}


def _token(symbol: str, reward: float) -> str:
    if symbol == BONUS:
        return f"({_signed(reward)})"
    return _signed(reward) if symbol in "+-" else symbol


def _signed(reward: float) -> str:
    shown = repr(reward).removesuffix(".0")
    return shown if shown.startswith("-") else f"+{shown}"


def _recorded(model: MDP, recording: Recording, truth: Any, gamma: float) -> dict[str, Any]:
    """Pack the frames with their errors."""
    errors = [np.abs(values - truth.values) for values in recording.values]
    bounds = [
        known.certified_bounds(model, values, gamma=gamma, policy=recording.followed) for values in recording.values
    ]
    certain = [
        None if found is None else float(np.maximum(found[1] - values, values - found[0]).max(initial=0.0))
        for found, values in zip(bounds, recording.values, strict=True)
    ]
    return {
        "states": model.states,
        "actions": model.actions,
        "frames": len(recording.values),
        "unit": recording.unit,
        "ticks": recording.ticks,
        "phases": recording.phases,
        "values": packed(recording.values),
        "q": None if recording.q is None else packed(recording.q),
        "policy": packed(recording.policy, "<u2"),
        "visits": None if recording.visits is None else packed(recording.visits, "<i4"),
        "places": recording.places,
        "residuals": recording.residuals,
        "returns": recording.returns,
        "errors": [float(error.max(initial=0.0)) for error in errors],
        "bounds": certain,
        "predicts": recording.followed is not None,
        "complete": recording.complete,
        "feasible": packed(model.feasible, "<u1"),
    }


def _packed(solution: Any) -> dict[str, Any]:
    """Pack an exact solution, or the exact values of a policy."""
    policy = getattr(solution, "policy", None)
    found: dict[str, Any] = {"values": packed(solution.values), "q": packed(solution.q)}
    found["policy"] = None if policy is None else packed(np.where(policy >= 0, 1 << np.maximum(policy, 0), 0), "<u2")
    for name in ("lower", "upper"):
        bound = getattr(solution, name)
        found[name] = None if bound is None else packed(bound)
    return found | {"converged": solution.converged}


def packed(array: NDArray[Any] | list[NDArray[Any]], kind: str = "<f8") -> str:
    """Return the bytes of an array as base64."""
    return base64.b64encode(np.ascontiguousarray(array, kind).tobytes()).decode()


def _solve_command(method: str, gamma: float) -> str:
    chosen = "" if method == "auto" else f" --method {method}"
    return f"operant solve --map world.txt --gamma {gamma!r}{chosen} --tolerance {TOLERANCE:g}"


def _train_command(algorithm: str, values: Mapping[str, Any], seed: int, budget: int) -> str:
    flags = " ".join(f"--{name.replace('_', '-')} {json.dumps(value)}" for name, value in values.items())
    return f"operant train {algorithm} world.txt --seeds 1 --seed {seed} --budget {budget} {flags}"
