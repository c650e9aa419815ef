"""Models by name or from a file, with their maps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from operant.envs import GridWorld
from operant.envs.registry import MODEL_SUFFIXES, make_single, specified
from operant.mdp.files import load
from operant.mdp.model import MDP

TABLE_SUFFIXES = (".csv", ".tsv")
"""Suffixes of files with a model as a table."""

ARROWS = {"FrozenLakeEnv": "←↓→↑", "CliffWalkingEnv": "↑→↓←", "GridWorld": "↑→↓←↖↗↘↙·"}
"""Symbols of actions on maps, by class of environment; subclasses have the same ones."""


@dataclass(frozen=True)
class Mapped:
    """A model and its layout.

    Attributes:
        name: name of the model.
        mdp: the model.
        shape: rows and columns of its map, whose cells are the states in order, or None.
        symbols: `[R, C]`, one character per cell, or None.
        arrows: one character per action; empty if actions are not directions.
    """

    name: str
    mdp: MDP
    shape: tuple[int, int] | None = None
    symbols: NDArray[np.str_] | None = None
    arrows: str = ""


def read(
    task: str | None = None,
    *,
    drawing: str | Path | None = None,
    file: str | Path | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    separator: str | None = None,
) -> Mapped:
    """Return the model of a task, of a grid drawn in a text file, or of a file.

    Args:
        task: the id of a Gymnasium environment with a transition table.
        drawing: a text file in the format of `operant.envs.drawing`.
        env_kwargs: parameters for the constructor of the environment, with a task.
        file: a model as `operant.mdp.save` writes it, or a table `s,a,s',p,r` that ends in `.csv` or `.tsv`.
        separator: column separator of a table. Default: the comma, semicolon or tab of the header.

    Raises:
        ValueError: unless exactly one of them is given, and is a model; or the file has another suffix; or a parameter
            has no effect.
        OSError: if a file cannot be read.
    """
    if sum(source is not None for source in (task, drawing, file)) != 1:
        raise ValueError("give exactly one model: a task, a drawing (--map FILE) or a file (--mdp FILE)")
    if env_kwargs and task is None:
        raise ValueError(f"env_kwargs are for the environment of a task, but no task is given: {dict(env_kwargs)}")
    if separator is not None and (file is None or Path(file).suffix not in TABLE_SUFFIXES):
        given = "no file is given" if file is None else f"{file} is not a table ({', '.join(TABLE_SUFFIXES)})"
        raise ValueError(f"separator is {separator!r}, but {given}: leave it out")
    if file is not None:
        path = Path(file)
        if path.suffix not in MODEL_SUFFIXES:
            raise ValueError(f"{path} has the suffix {path.suffix!r}, expected one of {', '.join(MODEL_SUFFIXES)}")
        if path.suffix not in TABLE_SUFFIXES:
            return Mapped(path.name, load(path))
        return Mapped(path.name, MDP.from_table(path, separator=separator))
    if drawing is not None:
        return _drawn(Path(drawing))
    env = make_single(specified(str(task), env_kwargs))
    try:
        return _of_env(env, str(task))
    finally:
        env.close()


def _drawn(path: Path) -> Mapped:
    """Return the model of a drawing in a file."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        return _of_env(GridWorld(text), path.name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _of_env(env: gymnasium.Env[Any, Any], name: str) -> Mapped:
    mdp, inner = MDP.from_gymnasium(env), env.unwrapped
    symbols, kinds = _symbols(inner), [kind.__name__ for kind in type(inner).mro()]
    shape = getattr(inner, "shape", None) if symbols is None else symbols.shape
    drawn = shape is not None and len(shape) == 2 and shape[0] * shape[1] == mdp.states
    return Mapped(
        name,
        mdp,
        shape=(int(shape[0]), int(shape[1])) if drawn and shape is not None else None,
        symbols=symbols if drawn else None,
        arrows=next((ARROWS[kind] for kind in kinds if kind in ARROWS), "")[: mdp.actions],
    )


def _symbols(inner: Any) -> NDArray[np.str_] | None:
    """Return the characters of the map of operant's grids and of Gymnasium's FrozenLake."""
    if isinstance(inner, GridWorld):
        return inner.grid.symbols
    described = getattr(inner, "desc", None)
    return None if described is None else np.asarray(described).astype(str)
