"""`operant copy`; without heavy imports."""

import ast
from pathlib import Path

import operant
from operant import catalog
from operant.cli.flags import Parser
from operant.runtime.run_paths import location


def copy(arguments: list[str]) -> int:
    """Copy the source file of an algorithm, to modify and run it."""
    parser = Parser("operant copy", description="Copy the source file of an algorithm, to modify and run it.")
    parser.add_argument("algorithm", metavar="ALGORITHM", help="the algorithm (see operant list)")
    parser.add_argument("file", metavar="FILE.py", type=Path, help="new file, such as my_ppo.py")
    options = parser.parse_args(arguments)
    entry = catalog.find(options.algorithm)
    path = write(entry, options.file)
    place = location(path)
    print(f"written: {place}\n\nIt is the same as {entry.name} until you change it:")
    print(f"  operant train {place}:{entry.learner} {_task(entry)}")
    return 0


def _task(entry: catalog.Algorithm) -> str:
    """Return an example task for an algorithm."""
    if entry.model == "known":
        return "operant/TicTacToe-v0"
    if entry.package == "control" and not entry.vectors:
        return "operant/PixelCatch-v0"
    if entry.package == "control" and "discrete" not in entry.actions:
        return "Pendulum-v1"
    return _TASKS[entry.package]


_TASKS = {"tabular": "FrozenLake-v1", "control": "CartPole-v1", "language": "arithmetic"}
"""Example task by package."""


def write(entry: catalog.Algorithm, path: Path) -> Path:
    """Copy the source file of a built-in algorithm, with the catalog entries of its classes.

    Args:
        entry: catalog entry of the algorithm.
        path: new file, with the suffix `.py`.

    Raises:
        ValueError: the path has another suffix or already exists, or the algorithm is not built in.
        OSError: writing fails.
    """
    if entry not in catalog.ALGORITHMS:
        raise ValueError(f"{entry.name} is not built in: copy its file, {entry.module}")
    if path.suffix != ".py" or "." in path.stem:
        raise ValueError(f"the name of a Python file must end in .py and have no other dot, got {path}")
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} already exists: choose another file")
    text = source(entry)
    with path.expanduser().open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def source(entry: catalog.Algorithm) -> str:
    """Return the source of a built-in algorithm, with a `CATALOG` attribute in the class of each learner."""
    file = Path(operant.__file__).parent.joinpath(*entry.module.split(".")[1:]).with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.ClassDef) and (like := _like(entry, node.name)):
            last = node.body[0].end_lineno  # of the docstring
            assert last is not None  # noqa: S101 - of parsed text
            lines.insert(last, f'\n    CATALOG = {{"like": "{like}"}}  # its entry in the catalog\n')
    return "".join(lines)


def _like(entry: catalog.Algorithm, learner: str) -> str:
    """Return the first algorithm of a learner class in the file of `entry`; empty if there is none."""
    if learner == entry.learner:
        return entry.name
    return next((a.name for a in catalog.ALGORITHMS if (a.module, a.learner) == (entry.module, learner)), "")
