"""`operant solve`: a known model solved exactly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from operant.cli.arguments import Answering, parse
from operant.cli.output import print_json, table

if TYPE_CHECKING:
    from operant.mdp import Solution
    from operant.mdp.maps import Mapped

Method = Literal[
    "auto",
    "value-iteration",
    "gauss-seidel",
    "q-value-iteration",
    "policy-iteration",
    "modified-policy-iteration",
    "prioritised-sweeping",
    "linear-programming",
]

MOST_STATES = 64
"""States that a table without a map lists."""


@dataclass(frozen=True)
class SolveOptions(Answering):
    """Solve a known model exactly: optimal values, a policy, and certified bounds."""

    task: Annotated[str | None, tyro.conf.Positional] = None
    """Id of an environment that shows its transition table, such as FrozenLake-v1."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters for the constructor of the task's environment, such as is_slippery=false."""
    map: Path | None = None
    """A text file with a drawing of a grid, instead of a task."""
    mdp: Path | None = None
    """A file with a model (.json, .npz or a table .csv), instead of a task."""
    method: Method = "auto"
    """Which solver."""
    gamma: float = 0.99
    """Discount a step; 1 where every policy worth having ends."""
    tolerance: float = 1e-6
    """Accuracy of the values."""


def solve(arguments: list[str]) -> int:
    """Solve a model and show its values, a policy and the bounds."""
    options = parse(SolveOptions, arguments, "solve")
    from operant import mdp
    from operant.mdp import maps

    model = maps.read(options.task, drawing=options.map, file=options.mdp, env_kwargs=options.env_kwargs)
    solution = _solver(mdp, options.method)(model.mdp, gamma=options.gamma, tolerance=options.tolerance)
    if options.json:
        print_json(_record(model, solution))
    else:
        print(_text(model, solution))
    return 0 if solution.converged else 1


def _solver(mdp: Any, method: Method) -> Any:
    if method == "auto":
        return mdp.solve
    if method == "gauss-seidel":
        return lambda model, **options: mdp.value_iteration(model, method="gauss-seidel", **options)
    return getattr(mdp, method.replace("-", "_"))


def _record(model: "Mapped", solution: "Solution") -> dict[str, Any]:
    return {
        "task": model.name,
        "method": solution.method,
        "gamma": solution.gamma,
        "states": model.mdp.states,
        "actions": model.mdp.actions,
        "iterations": solution.iterations,
        "residual": solution.residual,
        "converged": solution.converged,
        "seconds": solution.seconds,
        "values": solution.values.tolist(),
        "policy": solution.policy.tolist(),
        "lower": None if solution.lower is None else solution.lower.tolist(),
        "upper": None if solution.upper is None else solution.upper.tolist(),
    }


def _text(model: "Mapped", solution: "Solution") -> str:
    mdp = model.mdp
    reached = "converged" if solution.converged else "NOT converged"
    certified = "no certified bounds"
    if solution.lower is not None and solution.upper is not None:
        certified = f"certified to ±{(solution.upper - solution.lower).max() / 2:.2g}"
    start = float(mdp.start @ solution.values)
    parts = [
        f"{model.name}: {mdp.states} states, {mdp.actions} actions, gamma {solution.gamma:g}",
        f"{solution.method}: {solution.iterations} iterations in {solution.seconds:.3g} s, {reached}, {certified}",
        f"value of the first state: {start:.8g}",
        "",
        _map(model, solution) if model.shape is not None else _list(model, solution),
    ]
    return "\n".join(parts)


def _map(model: "Mapped", solution: "Solution") -> str:
    rows, columns = model.shape or (0, 0)
    policy = solution.policy.reshape(rows, columns)
    values = solution.values.reshape(rows, columns)
    symbols = model.symbols
    cells = [[f"{value:.4g}" for value in row] for row in values]
    width = max(len(cell) for row in cells for cell in row) + 1
    lines = []
    for r in range(rows):
        under = [""] * columns if symbols is None else symbols[r]
        drawn = "".join(_arrow(model, int(action), symbol) for action, symbol in zip(policy[r], under, strict=True))
        lines.append(f"{drawn}   {''.join(cell.rjust(width) for cell in cells[r])}")
    return "\n".join(lines)


def _arrow(model: "Mapped", action: int, symbol: str) -> str:
    if action < 0:
        return symbol or "★"
    return model.arrows[action] if action < len(model.arrows) else str(action % 10)


def _list(model: "Mapped", solution: "Solution") -> str:
    shown = min(model.mdp.states, MOST_STATES)
    lower, upper = solution.lower, solution.upper
    rows = [
        [
            str(s),
            f"{solution.values[s]:.8g}",
            "-" if lower is None else f"{lower[s]:.8g}",
            "-" if upper is None else f"{upper[s]:.8g}",
            "end" if solution.policy[s] < 0 else str(solution.policy[s]),
        ]
        for s in range(shown)
    ]
    rest = model.mdp.states - shown
    more = f"\n... and {rest} more states; --json gives them all" if rest else ""
    return table([["state", "value", "lower", "upper", "action"], *rows], ">>>>>") + more
