"""How much there is to read to follow one iteration: the lines of all functions of operant that it runs.

    python benchmarks/reading.py [--files]

An algorithm is made as `operant train --compile off` makes it, since a compiled update hides the functions that it was
traced from; after the first iterations, in which things are set up, the functions that run in the next ones are
collected. A line counts once. Docstrings, comments and empty lines are among "all lines", and not among those of code.
Functions of other packages do not count.

Compare like with like: the first counts of this project, 1075 lines for PPO, 799 for DQN, 989 for SAC and 1509 for GRPO
are of all lines of updates that are not compiled. The same measure at the first version of this file gives 1147, 787,
961 and 1664; its numbers of code for DQN and SAC, 487 and 490, were of compiled updates, which are not counted here.
"""

import argparse
import ast
import inspect
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import operant
from operant.build import assemble, find, package, resolve
from operant.runtime.settings import Settings

ROOT = Path(operant.__file__).parent
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "ppo": ("CartPole-v1", {}, 1),
    "dqn": ("CartPole-v1", {"learning_starts": 32}, 40),
    "sac": ("Pendulum-v1", {"learning_starts": 32}, 40),
    "grpo": ("arithmetic", {"rewards": ("exact",)}, 1),
}
"""Algorithm -> task, hyperparameters, and iterations before those that are looked at."""


def functions_of(call: Callable[[], object]) -> set[CodeType]:
    """Return the functions of operant that a call runs."""
    found: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            found.add(frame.f_code)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def lines_of(codes: set[CodeType]) -> dict[str, tuple[int, int]]:
    """Return lines of code, and all lines with docstrings and comments, of some functions, by file."""
    places: defaultdict[str, set[int]] = defaultdict(set)
    for code in codes:
        if code.co_name == "<module>":
            continue
        source, first = inspect.getsourcelines(code)
        places[code.co_filename].update(range(first, first + len(source)))
    return {
        str(Path(file).relative_to(ROOT)): (len(numbers & _code_lines(Path(file))), len(numbers))
        for file, numbers in places.items()
    }


def _code_lines(file: Path) -> set[int]:
    """Return the numbers of the lines that hold code: no docstring, no comment, not empty."""
    text = file.read_text(encoding="utf-8")
    kept = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", []) if isinstance(node, kinds) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                kept -= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return kept


def read(name: str) -> dict[str, tuple[int, int]]:
    """Return what one iteration of an algorithm runs, by file."""
    task, values, before = CASES[name]
    entry = find(name)
    settings = Settings(algorithm=name, task=task, budget=100_000, seeds=(0,), compile="off")
    config = package(entry).configuration(entry, task, None, **values)
    experiment = assemble(entry, settings, config, resolve(entry, settings, config))
    try:
        for _ in range(before):
            experiment.learner.iterate()
        return lines_of(functions_of(lambda: [experiment.learner.iterate() for _ in range(2)]))
    finally:
        experiment.close()


def main() -> None:
    """Print a table, by algorithm, and with --files by file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="say in which files the lines are")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory():
        for name in CASES:
            found = read(name)
            code, whole = (sum(pair[i] for pair in found.values()) for i in (0, 1))
            nets, ops = (
                sum(pair[1] for file, pair in found.items() if file.startswith(place)) for place in ("nets/", "ops/")
            )
            print(f"{name:5} {whole:5} lines ({code} of code) in {len(found)} files; {nets} of nets, {ops} of ops")
            if given.files:
                for file, pair in sorted(found.items(), key=lambda item: -item[1][1]):
                    print(f"      {pair[1]:5} {file} ({pair[0]} of code)")


if __name__ == "__main__":
    main()
