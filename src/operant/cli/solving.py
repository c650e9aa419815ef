"""`operant solve`: exact solution of a known MDP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from operant.cli.arguments import Answering, parse
from operant.cli.output import print_json, require_writable, say, table
from operant.cli.solutions import (
    SUFFIXES,
    Answer,
    action_name,
    average_answer,
    discounted_answer,
    horizon_answer,
    state_name,
    write,
)
from operant.runtime.run_paths import location

if TYPE_CHECKING:
    from operant.mdp.maps import Mapped

Method = Literal[
    "auto",
    "value-iteration",
    "gauss-seidel",
    "q-value-iteration",
    "asynchronous-value-iteration",
    "prioritized-sweeping",
    "policy-iteration",
    "modified-policy-iteration",
    "inexact-policy-iteration",
    "linear-programming",
]

MOST_STATES = 64
"""Maximum states in the list of a table without a map."""


@dataclass(frozen=True)
class SolveOptions(Answering):
    """Solve a known model exactly: optimal values, a policy, and certified bounds."""

    task: Annotated[str | None, tyro.conf.Positional] = None
    """Environment id with a transition table, such as FrozenLake-v1."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment, such as is_slippery=false."""
    map: Path | None = None
    """Text file with a drawing of a grid, instead of a task."""
    mdp: Path | None = None
    """File of a model (.json, .npz, or a table .csv or .tsv, with optional state names), instead of a task."""
    separator: str | None = None
    """Separator of a table's columns. Default: the comma, semicolon or tab in its header."""
    criterion: Literal["discounted", "average"] = "discounted"
    """Optimality criterion: discounted return, or average reward per step."""
    horizon: int | None = None
    """Number of steps of an episode (finite horizon); the policy then depends on the step. Default: infinite."""
    method: Method = "auto"
    """Solver for the discounted return. auto: policy iteration up to 500 states, inexact policy iteration above."""
    gamma: float | None = None
    """Discount factor per step; it may be 1 if from every state some policy ends the episode. Default: 0.99, or 1 with
    --horizon."""
    tolerance: float = 1e-6
    """Accuracy of the values."""
    out: Path | None = None
    """File for values, policy and Q: .csv, .json or .npz."""

    def __post_init__(self) -> None:
        if (kind := Path(self.task or "").suffix) in (*SUFFIXES, ".tsv", ".txt"):
            flag = "--map" if kind == ".txt" else "--mdp"
            raise ValueError(f"expected the id of an environment, got a file: use {flag} {self.task}")
        if self.out is not None and self.out.suffix not in SUFFIXES:
            raise ValueError(f"out must end in {', '.join(SUFFIXES)}, got {self.out}")
        if self.criterion == "average" and (self.horizon is not None or self.gamma is not None):
            raise ValueError("the average-reward criterion takes neither --horizon nor --gamma: leave them out")
        if self.method != "auto" and (self.criterion == "average" or self.horizon is not None):
            raise ValueError(f"--method {self.method} is for the discounted return: leave it out")


def solve(arguments: list[str]) -> int:
    """Solve a model and print its values, a policy and the bounds."""
    options = parse(SolveOptions, arguments, "solve")
    if options.out is not None:
        require_writable(options.out)
    from operant import mdp
    from operant.mdp import maps

    model = maps.read(
        options.task,
        drawing=options.map,
        file=options.mdp,
        env_kwargs=options.env_kwargs,
        separator=options.separator,
    )
    if options.criterion == "average":
        answer = average_answer(model, mdp.relative_value_iteration(model.mdp, tolerance=options.tolerance))
    elif options.horizon is not None:
        gamma = 1.0 if options.gamma is None else options.gamma
        answer = horizon_answer(model, mdp.backward_induction(model.mdp, horizon=options.horizon, gamma=gamma))
    else:
        gamma = 0.99 if options.gamma is None else options.gamma
        solution = _solver(mdp, options.method)(model.mdp, gamma=gamma, tolerance=options.tolerance)
        answer = discounted_answer(model, solution)
    if options.json:
        print_json(answer.record)
    else:
        lines = [f"{model.name}: {model.mdp.states} states, {model.mdp.actions} actions, {answer.heading}"]
        print("\n".join([*lines, "", _map(model, answer) if model.shape is not None else _list(model, answer)]))
    if options.out is not None:
        write(answer, options.out)
        say(f"written: {location(options.out)}")
    return 0 if answer.record["converged"] else 1


def _solver(mdp: Any, method: Method) -> Any:
    if method == "auto":
        return mdp.solve
    if method == "gauss-seidel":
        return partial(mdp.value_iteration, method="gauss-seidel")
    return getattr(mdp, method.replace("-", "_"))


def _map(model: "Mapped", answer: Answer) -> str:
    rows, columns = model.shape or (0, 0)
    policy = answer.policy.reshape(-1, rows, columns)[0]
    values = answer.values.reshape(-1, rows, columns)[0]
    symbols = model.symbols
    cells = [[f"{value:.4g}" for value in row] for row in values]
    width = max(len(cell) for row in cells for cell in row) + 1
    lines: list[str] = []
    for r in range(rows):
        under = [""] * columns if symbols is None else symbols[r]
        drawn = "".join(_arrow(model, int(action), symbol) for action, symbol in zip(policy[r], under, strict=True))
        lines.append(f"{drawn}   {''.join(cell.rjust(width) for cell in cells[r])}")
    return "\n".join(lines)


def _arrow(model: "Mapped", action: int, symbol: str) -> str:
    if action < 0:
        return symbol or "★"
    return model.arrows[action] if action < len(model.arrows) else str(action % 10)


def _list(model: "Mapped", answer: Answer) -> str:
    shown = min(model.mdp.states, MOST_STATES)
    values, policy = answer.values.reshape(-1, model.mdp.states)[0], answer.policy.reshape(-1, model.mdp.states)[0]
    lower, upper = answer.lower, answer.upper
    rows = [
        [
            state_name(model, s),
            f"{values[s]:.8g}",
            "-" if lower is None else f"{lower[s]:.8g}",
            "-" if upper is None else f"{upper[s]:.8g}",
            "end" if policy[s] < 0 else action_name(model, int(policy[s])),
        ]
        for s in range(shown)
    ]
    rest = model.mdp.states - shown
    more = f"\n... and {rest} more states; --json or --out FILE gives them all" if rest else ""
    return table([["state", "value", "lower", "upper", "action"], *rows], ">>>>>") + more
