"""Time to solve a known model to the same accuracy, beside QuantEcon, MDPSolver and a loop over a SciPy matrix.

Every solver gets the same model in a process of its own and is asked for a tenth of the accuracy. What it delivers is
measured against a certified solution that is a thousand times as accurate; where it falls short it is asked for ten
times more, until it delivers. Times are medians of warm runs, each from the solver's own first
values. Construction (the peer's own object from our arrays) and compilation (the first solution, of a small model)
stand apart. Peers see a terminal state as one that stays and earns nothing.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from operant.mdp import MDP, random_model, slippery_grid, solve, value_iteration

GAMMA = 0.99
Solve = Callable[[float], np.ndarray]
"""Solves a prepared model to an accuracy, and returns the values of its states."""
Prepared = Callable[[], Solve]
"""Returns what has not solved the model yet."""


class Task(NamedTuple):
    """A model, a small one of its kind, and how accurately it is to be solved."""

    build: Callable[[], MDP]
    small: Callable[[], MDP]
    accuracy: float


TASKS = {
    "grid 100x100": Task(lambda: slippery_grid(100), lambda: slippery_grid(10), 1e-3),
    "grid 316x316": Task(lambda: slippery_grid(316), lambda: slippery_grid(10), 1e-3),
    "grid 1000x1000": Task(lambda: slippery_grid(1000), lambda: slippery_grid(10), 1e-3),
    "random 10 000": Task(lambda: random_model(10_000, 4, 10, seed=0), lambda: random_model(600, 4, 10, seed=0), 1e-3),
    "random 200 000": Task(lambda: random_model(200_000, 4, 5, seed=0), lambda: random_model(600, 4, 5, seed=0), 1e-6),
}


def absorbing(mdp: MDP) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """Return the rows of all feasible actions, their expected rewards and their states; terminal states stay."""
    assert mdp.terminal[mdp.successors[mdp.terminates]].all()
    lengths = np.diff(mdp.indptr)
    feasible, ends = np.flatnonzero(lengths), np.flatnonzero(mdp.terminal)
    owners = np.concatenate([feasible // mdp.actions, ends])
    rewards = np.concatenate([mdp.expected_rewards.ravel()[feasible], np.zeros(ends.size)])
    columns, numbers = np.concatenate([mdp.successors, ends]), np.concatenate([mdp.probabilities, np.ones(ends.size)])
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([lengths[feasible], np.ones(ends.size, int)]))])
    matrix = sparse.csr_array((numbers, columns, indptr), shape=(owners.size, mdp.states))
    order = np.argsort(owners, kind="stable")
    return matrix[order], rewards[order], owners[order]


def operant(mdp: MDP, threads: int) -> Prepared:
    """Return our choice of method; a model keeps what does not depend on the discount."""
    mdp.facts  # noqa: B018
    return lambda: lambda accuracy: solve(mdp, gamma=GAMMA, tolerance=accuracy, threads=threads).values


def operant_sweeps(mdp: MDP, threads: int) -> Prepared:
    """Return our value iteration."""
    mdp.facts  # noqa: B018
    return lambda: lambda accuracy: value_iteration(mdp, gamma=GAMMA, tolerance=accuracy, threads=threads).values


def quantecon(mdp: MDP, method: str) -> Prepared:
    """Return QuantEcon's solver over state-action pairs."""
    from quantecon.markov import DiscreteDP

    matrix, rewards, owners = absorbing(mdp)
    actions = np.arange(owners.size) - np.searchsorted(owners, owners)
    problem = DiscreteDP(rewards, sparse.csr_matrix(matrix), GAMMA, owners, actions)
    return lambda: lambda accuracy: problem.solve(method=method, epsilon=accuracy, max_iter=1_000_000).v


def mdpsolver(mdp: MDP, method: str, update: str, threads: int) -> Prepared:
    """Return MDPSolver's, which takes nested lists, and whose second solution begins where the first one ended."""
    import mdpsolver as package

    matrix, rewards, owners = absorbing(mdp)
    begins, firsts = matrix.indptr.tolist(), np.searchsorted(owners, np.arange(mdp.states + 1)).tolist()
    columns, numbers, earned = matrix.indices.tolist(), matrix.data.tolist(), rewards.tolist()
    rows = [range(*ends) for ends in pairwise(firsts)]
    nested = {
        "rewards": [[earned[k] for k in ks] for ks in rows],
        "tranMatProbs": [[numbers[begins[k] : begins[k + 1]] for k in ks] for ks in rows],
        "tranMatColumns": [[columns[begins[k] : begins[k + 1]] for k in ks] for ks in rows],
    }
    parallel = threads > 1 and update == "standard"

    def afresh() -> Solve:
        problem = package.model()
        problem.mdp(discount=GAMMA, **nested)

        def run(accuracy: float) -> np.ndarray:
            problem.solve(algorithm=method, update=update, tolerance=accuracy, parallel=parallel)
            return np.array(problem.getValueVector())

        return run

    return afresh


def scipy_sweeps(mdp: MDP) -> Prepared:
    """Return the loop that one would write: it stops on the span of the change, and takes the middle."""
    matrix, rewards, owners = absorbing(mdp)
    begins = np.searchsorted(owners, np.arange(mdp.states))

    def run(accuracy: float) -> np.ndarray:
        values = np.zeros(mdp.states)
        while True:
            before, values = values, np.maximum.reduceat(rewards + GAMMA * (matrix @ values), begins)
            change = values - before
            low, high = change.min(), change.max()
            if (high - low) * GAMMA / (1 - GAMMA) <= 2 * accuracy:
                return values + (low + high) / 2 * GAMMA / (1 - GAMMA)

    return lambda: run


SOLVERS: dict[str, Callable[[MDP, int], Prepared]] = {
    "operant auto": operant,
    "operant vi": operant_sweeps,
    "quantecon mpi": lambda mdp, _: quantecon(mdp, "mpi"),
    "quantecon vi": lambda mdp, _: quantecon(mdp, "vi"),
    "mdpsolver mpi": lambda mdp, threads: mdpsolver(mdp, "mpi", "standard", threads),
    "mdpsolver mpi gs": lambda mdp, threads: mdpsolver(mdp, "mpi", "gs", threads),
    "mdpsolver vi": lambda mdp, threads: mdpsolver(mdp, "vi", "standard", threads),
    "mdpsolver vi gs": lambda mdp, threads: mdpsolver(mdp, "vi", "gs", threads),
    "scipy vi": lambda mdp, _: scipy_sweeps(mdp),
}
PEERS = tuple(name for name in SOLVERS if not name.startswith("operant"))


class Cost(NamedTuple):
    """Seconds on the clock, and those that all threads together spent on a processor."""

    clock: float
    processor: float


def timed(call: Callable[[], Any]) -> tuple[Cost, Any]:
    """Return what a call cost, and what it returned."""
    clock, processor = time.perf_counter(), time.process_time()
    result = call()
    return Cost(time.perf_counter() - clock, time.process_time() - processor), result


def measure(task: Task, solver: str, threads: int, repeats: int) -> dict[str, float]:
    """Build, compile and solve in this process."""
    prepare = SOLVERS[solver]
    compiling, _ = timed(lambda: prepare(task.small(), threads)()(task.accuracy))
    mdp = task.build()
    if solver in PEERS:
        mdp.expected_rewards, mdp.continuation  # noqa: B018 - what peers are given
    preparing, afresh = timed(lambda: prepare(mdp, threads))
    making, run = timed(afresh)
    truth = solve(mdp, gamma=GAMMA, tolerance=task.accuracy / 1000)
    assert truth.converged
    asked = 10 * task.accuracy
    while True:
        first, values = timed(partial(run, asked))
        error = float(np.abs(values - truth.values).max())
        if error <= task.accuracy:
            break
        asked, run = asked / 10, afresh()
    costs = [first] if first.clock > 20 else [timed(partial(afresh(), asked))[0] for _ in range(repeats)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "states": mdp.states,
        "nonzeros": mdp.successors.size,
        "compile": compiling.clock,
        "build": preparing.clock + making.clock,
        "solve": statistics.median(cost.clock for cost in costs),
        "processor": statistics.median(cost.processor for cost in costs),
        "error": error,
        "asked": asked,
        "memory": memory,
    }


def in_a_process(task: str, solver: str, threads: int, arguments: argparse.Namespace) -> dict[str, float] | None:
    """Measure in a process of its own, with a limit on time; None where it ran out or broke down."""
    command = [sys.executable, __file__, "--measure", task, solver, str(threads), "--repeats", str(arguments.repeats)]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads))
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=arguments.limit, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return json.loads(result.stdout.splitlines()[-1])


def report(task: str, threads: int, arguments: argparse.Namespace) -> None:
    """Measure all solvers on a task, and print their rows."""
    rows = {name: in_a_process(task, name, threads, arguments) for name in arguments.solvers}
    ours, peers = rows.get("operant auto"), [row for name in PEERS if (row := rows.get(name))]
    shape = next(row for row in rows.values() if row)
    print(f"\n{task}: {shape['states']:,.0f} states, {shape['nonzeros']:,.0f} transitions, threads: {threads}")
    names = ("compile s", "build s", "solve s", "cpu s", "error", "asked", "MiB", "to ours")
    print(f"{'':17}" + "".join(f"{name:>10}" for name in names))
    for name, row in rows.items():
        if row is None:
            print(f"{name:17}  no result within {arguments.limit} s")
            continue
        ratio = f"{row['solve'] / ours['solve']:9.1f}x" if ours else ""
        print(
            f"{name:17}{row['compile']:10.2f}{row['build']:10.3f}{row['solve']:10.4f}{row['processor']:10.4f}"
            f"{row['error']:10.1e}{row['asked']:10.0e}{row['memory']:10.0f}{ratio}"
        )
    if ours and peers:
        clock, processor = (ours[key] / min(row[key] for row in peers) for key in ("solve", "processor"))
        print(f"ours takes {clock:.2f} of the best peer's time on the clock, {processor:.2f} of that on processors")


def main() -> None:
    """Measure all tasks, or one solver on one task for the process above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="warm runs of which the median is taken")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one solver on one task")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="models")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS), help="solvers")
    parser.add_argument("--measure", nargs=3, metavar=("TASK", "SOLVER", "THREADS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        task, solver, threads = arguments.measure
        print(json.dumps(measure(TASKS[task], solver, int(threads), arguments.repeats)))
        return
    for task in arguments.tasks:
        for threads in arguments.threads:
            report(task, threads, arguments)


if __name__ == "__main__":
    main()
