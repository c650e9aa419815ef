"""Models from files as environments, so that methods that learn from samples can be trained on them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant.envs.finite import FiniteEnv, Transitions
from operant.envs.registry import MODEL_TASK
from operant.mdp import files, maps
from operant.mdp.model import MDP

__all__ = ["ModelEnv", "task_of"]


class ModelEnv(FiniteEnv):
    """An environment that samples from a model in a file. Its step limit is that of `task_of`."""

    def __init__(self, file: str, *, render_mode: str | None = None) -> None:
        """Make the environment of a model.

        Args:
            file: a model as `operant.mdp.save` writes it, or a table `s,a,s',p,r` (`.csv`, `.tsv`).
            render_mode: "ansi" or None.

        Raises:
            ValueError: if it is not a model.
            OSError: if it cannot be read.
        """
        model = maps.read(file=file).mdp
        super().__init__(
            Transitions(
                states=model.states,
                actions=model.actions,
                indptr=model.indptr,
                successors=model.successors,
                probabilities=model.probabilities,
                rewards=model.rewards,
                terminates=model.terminates,
                start=model.start,
            ),
            render_mode=render_mode,
        )


def task_of(model: str | MDP, env_kwargs: Mapping[str, Any], folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the task of a model, as name and keyword arguments of its environment.

    Args:
        model: a file as for `ModelEnv`, or an MDP, which is written to a file.
        env_kwargs: other keyword arguments; `max_episode_steps` replaces the step limit of the model.
        folder: folder for the file of an MDP; created if missing.

    Raises:
        ValueError: if the file is not a model.
        OSError: if it cannot be read, or the folder cannot be written.
    """
    path = _written(model, folder) if isinstance(model, MDP) else Path(model).expanduser().resolve()
    limit = maps.read(file=path).mdp.max_steps
    return MODEL_TASK, {**({} if limit is None else {"max_episode_steps": limit}), **env_kwargs, "file": str(path)}


def _written(model: MDP, folder: Path) -> Path:
    """Write a model to a file that is named by its contents."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.npz"
    files.save(model, part)
    return part.replace(folder.resolve() / f"model-{hashlib.sha256(part.read_bytes()).hexdigest()[:12]}.npz")
