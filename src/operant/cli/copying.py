"""`operant copy`; without heavy imports."""

import ast
from pathlib import Path

import operant
from operant import catalog
from operant.catalog.bonuses import BONUSES
from operant.cli.flags import Parser
from operant.runtime.files import named_in_errors
from operant.runtime.run_paths import location


def copy(arguments: list[str]) -> int:
    """Copy the source file of an algorithm or exploration bonus, to modify and run it."""
    about = "Copy the source file of an algorithm or exploration bonus, to modify and run it."
    parser = Parser("operant copy", description=about)
    parser.add_argument("algorithm", metavar="NAME", help="the algorithm or bonus (see operant list)")
    parser.add_argument("file", metavar="FILE.py", type=Path, help="new file, such as my_ppo.py")
    options = parser.parse_args(arguments)
    bonus = BONUSES.get(options.algorithm)
    if bonus is None:
        entry = catalog.find(options.algorithm)
        name, path = entry.name, write(entry, options.file)
        command = f"operant train {location(path)}:{entry.learner} {_task(entry)}"
    else:
        name, path = options.algorithm, _save(_source_file(bonus.module).read_text(encoding="utf-8"), options.file)
        command = f"operant train ppo {BONUS_TASK} --bonus {location(path)}:{bonus.name_of_class}"
    print(f"written: {location(path)}\n\nIt is the same as {name} until you change it:\n  {command}")
    return 0


BONUS_TASK = "operant/DeepSea-v0"
"""Example task of bonuses: its observations are finitely many states, which `counts` needs."""


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
    return _save(source(entry), path)


def _save(text: str, path: Path) -> Path:
    """Write the text of a Python file to a new path, and return it with the home folder in place of `~`."""
    path = path.expanduser()
    if path.suffix != ".py" or "." in path.stem:
        raise ValueError(f"the name of a Python file must end in .py and have no other dot, got {path}")
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} already exists: choose another file")
    with named_in_errors(path), path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()  # part of a file would be in the way of the next attempt
            raise
    return path


def _source_file(module: str) -> Path:
    """Return the file of a module of operant."""
    return Path(operant.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


def source(entry: catalog.Algorithm) -> str:
    """Return the source of a built-in algorithm, with a `CATALOG` attribute in the class of each learner."""
    text = _source_file(entry.module).read_text(encoding="utf-8")
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
