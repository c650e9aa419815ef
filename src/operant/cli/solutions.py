"""Results of `operant solve` for all optimality criteria, as text, JSON and files."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from operant.mdp import MDP, AverageSolution, FiniteHorizonSolution, Solution
    from operant.mdp.maps import Mapped

SUFFIXES = (".csv", ".json", ".npz")
"""Version of the file format of `write`."""


@dataclass(frozen=True)
class Answer:
    """Solution for any optimality criterion.

    Attributes:
        heading: text for the terminal, after the size of the model.
        record: output of `--json`.
        values: state values, `[S]`, or `[H + 1, S]` with a horizon.
        policy: actions, `[S]`, or `[H, S]` with a horizon; -1 in terminal states.
        q: action values, `[S, A]`, or `[H, S, A]` with a horizon; -Inf for infeasible actions.
        lower: certified lower bounds of the values, `[S]`; None without bounds.
        upper: certified upper bounds, as `lower`.
        model: solved model.
    """

    heading: str
    record: dict[str, Any]
    values: "NDArray[np.float64]"
    policy: "NDArray[np.int64]"
    q: "NDArray[np.float64]"
    lower: "NDArray[np.float64] | None"
    upper: "NDArray[np.float64] | None"
    model: "Mapped"


def discounted_answer(model: "Mapped", solution: "Solution") -> Answer:
    """Return the solution for the discounted return."""
    reached = "converged" if solution.converged else "NOT converged"
    certified = "no certified bounds"
    if solution.lower is not None and solution.upper is not None:
        certified = f"certified to ±{(solution.upper - solution.lower).max() / 2:.2g}"
    heading = (
        f"gamma {solution.gamma:g}\n"
        f"{solution.method}: {solution.iterations} iterations in {solution.seconds:.3g} s, {reached}, {certified}\n"
        f"{_start(model, solution.values)}"
    )
    record = {
        **_facts(model),
        "method": solution.method,
        "gamma": solution.gamma,
        "iterations": solution.iterations,
        "residual": solution.residual,
        "converged": solution.converged,
        "seconds": solution.seconds,
        "start_value": float(model.mdp.start @ solution.values),
        "values": solution.values.tolist(),
        "policy": solution.policy.tolist(),
        "lower": None if solution.lower is None else solution.lower.tolist(),
        "upper": None if solution.upper is None else solution.upper.tolist(),
    }
    rest = (solution.values, solution.policy, solution.q, solution.lower, solution.upper)
    return Answer(heading, record, *rest, model)


def horizon_answer(model: "Mapped", solution: "FiniteHorizonSolution") -> Answer:
    """Return the solution for a finite horizon; the first step is displayed."""
    import numpy as np

    from operant.mdp import action_values

    heading = (
        f"horizon {solution.horizon}, gamma {solution.gamma:g}\n"
        f"backward-induction in {solution.seconds:.3g} s, exact up to rounding; values and policy of the first step\n"
        f"{_start(model, solution.values[0])}"
    )
    record = {
        **_facts(model),
        "method": "backward-induction",
        "gamma": solution.gamma,
        "horizon": solution.horizon,
        "converged": True,
        "seconds": solution.seconds,
        "start_value": float(model.mdp.start @ solution.values[0]),
        "values": solution.values.tolist(),
        "policy": solution.policy.tolist(),
    }
    q = np.stack([action_values(model.mdp, values, gamma=solution.gamma) for values in solution.values[1:]])
    return Answer(heading, record, solution.values, solution.policy, q, None, None, model)


def average_answer(model: "Mapped", solution: "AverageSolution") -> Answer:
    """Return the solution for the average reward; its values are relative."""
    from operant.mdp import action_values

    reached = "converged" if solution.converged else f"NOT converged{solution.reason and ': ' + solution.reason}"
    heading = (
        f"average reward\n"
        f"relative-value-iteration: {solution.iterations} iterations in {solution.seconds:.3g} s, {reached}\n"
        f"average reward per step: {solution.gain:.8g}, certified in [{solution.lower:.8g}, {solution.upper:.8g}]; "
        "values are relative to the first state"
    )
    record = {
        **_facts(model),
        "method": "relative-value-iteration",
        "iterations": solution.iterations,
        "converged": solution.converged,
        "reason": solution.reason,
        "seconds": solution.seconds,
        "gain": solution.gain,
        "gain_lower": solution.lower,
        "gain_upper": solution.upper,
        "values": solution.bias.tolist(),
        "policy": solution.policy.tolist(),
    }
    q = action_values(model.mdp, solution.bias, gamma=1.0) - solution.gain
    return Answer(heading, record, solution.bias, solution.policy, q, None, None, model)


def state_name(model: "Mapped", state: int) -> str:
    """Return the name of a state, or its index if it has none."""
    return model.mdp.state_names[state] if model.mdp.state_names else str(state)


def action_name(model: "Mapped", action: int) -> str:
    """Return the name of an action, or its index if it has none."""
    return model.mdp.action_names[action] if model.mdp.action_names else str(action)


def write(answer: Answer, path: Path) -> None:
    """Write values, policy and action values to a file, replacing an existing one.

    Args:
        answer: solution to write.
        path: output file; its suffix selects the format. `.csv` has one row per state (and step, with a horizon),
            `.json` the output of `--json` and `q`, `.npz` the arrays `values`, `policy`, `q` and the bounds.

    Raises:
        OSError: writing fails.
    """
    from operant.runtime.files import replace_durably

    data = {".csv": _csv, ".json": _json, ".npz": _npz}[path.suffix](answer)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, data)


def _facts(model: "Mapped") -> dict[str, Any]:
    mdp: MDP = model.mdp
    names = {"state_names": list(mdp.state_names)} if mdp.state_names else {}
    names |= {"action_names": list(mdp.action_names)} if mdp.action_names else {}
    return {"task": model.name, "states": mdp.states, "actions": mdp.actions, **names}


def _start(model: "Mapped", values: Any) -> str:
    """Return the expected value under the start distribution, as text."""
    mdp: MDP = model.mdp
    states = mdp.start.nonzero()[0]
    where = f"state {state_name(model, int(states[0]))}" if len(states) == 1 else f"mean over {len(states)} states"
    return f"value at the start ({where}): {float(mdp.start @ values):.8g}"


def _csv(answer: Answer) -> bytes:
    states, actions = answer.q.shape[-2:]
    steps = answer.q.shape[0] if answer.q.ndim == 3 else None
    values, policy = answer.values.reshape(-1, states), answer.policy.reshape(-1, states)
    table = answer.q.reshape(-1, states, actions)
    bounds = [bound for bound in (answer.lower, answer.upper) if bound is not None]
    head = ["state", "value", *(["lower", "upper"] if len(bounds) == 2 else []), "action"]
    head += [f"q_{action_name(answer.model, a)}" for a in range(actions)]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head if steps is None else ["step", *head])
    for step in range(1 if steps is None else steps):
        for s in range(states):
            chosen = int(policy[step, s])
            cells: list[Any] = [state_name(answer.model, s), float(values[step, s])]
            cells += [float(bound[s]) for bound in bounds] if len(bounds) == 2 else []
            cells.append("" if chosen < 0 else action_name(answer.model, chosen))
            cells += table[step, s].tolist()
            writer.writerow(cells if steps is None else [step, *cells])
    return out.getvalue().encode()


def _json(answer: Answer) -> bytes:
    from operant.runtime.json_values import finite

    return json.dumps(finite({**answer.record, "q": answer.q.tolist()}), allow_nan=False).encode() + b"\n"


def _npz(answer: Answer) -> bytes:
    import numpy as np

    arrays = {name: getattr(answer, name) for name in ("values", "policy", "q", "lower", "upper")}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: array for name, array in arrays.items() if array is not None})
    return buffer.getvalue()
