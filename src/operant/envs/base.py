"""The interface between agents and environments: `BatchEnv`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant.state import State

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # in `typing` from Python 3.13 on

Tree = Tensor | Mapping[str, "Tree"]
"""An observation: a tensor `[B, ...]` or a (nested) mapping of them."""


def is_mapping(value: Any) -> "TypeIs[Mapping[str, Any]]":
    """Whether a value has parts by name, whose types `isinstance` alone would leave open."""
    return isinstance(value, Mapping)


def is_array(value: Any) -> "TypeIs[NDArray[Any]]":
    """Whether a value is an array, whose shape and dtype then have types."""
    return isinstance(value, np.ndarray)


class EndlessError(RuntimeError):
    """An episode exceeds its maximum length."""

    @classmethod
    def of(cls, task: str, row: int, steps: int, *, remedy: str = "") -> Self:
        """Make the error for the episode of an environment, with a remedy other than a time limit."""
        return cls(
            f"environment {row} of {task} has not ended its episode after {steps} steps; give it a time limit "
            f"(max_episode_steps of gymnasium.register){remedy}"
        )


class Step(NamedTuple):
    """The result of one action in every environment; every field has leading shape `[B]`.

    Fields may share memory with each other: do not write to them. Later steps do not change them.

    Attributes:
        obs: the next observation; after the end of an episode, the first observation of the next one
            (in an environment with NEXT_STEP autoreset, one step later).
        reward: the reward to learn from, float32.
        terminated: the successor is a terminal state, whose value is 0.
        truncated: the episode was cut for a reason outside the MDP, such as a time limit; the successor keeps its
            value.
        final_obs: the true successor of the action; equal to `obs` if the episode continues.
        valid: false for the dummy transition of NEXT_STEP autoreset, and for one whose worker process was lost, which
            is also truncated; exclude these from losses and averages.
        score: the environment's own reward, unchanged by wrappers, for reports.
        infos: numbers about the ended episodes, by name, float64; NaN where missing. None without any.
        extras: further tensors `[B, ...]` of this step by name, such as an intrinsic reward; rollouts collect them.
            None without any. The names are the same at every step.
    """

    obs: Tree
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tree
    valid: Tensor
    score: Tensor
    infos: Mapping[str, Tensor] | None = None
    extras: Mapping[str, Tensor] | None = None


class BatchEnv(Protocol):
    """`B` independent copies (rows) of one task, stepped together. With several seeds they are `[S, N]`, flat.

    Attributes:
        task: the Gymnasium id.
        rows: B.
        observation_space: the space of one observation.
        action_space: the space of one action. Discrete actions are int64 `[B]`, continuous ones float
            `[B, A]`.
        device: where observations live and actions are expected.
        always_valid: whether `Step.valid` is always true, so that callers can leave masks out.
    """

    task: str
    rows: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    device: torch.device
    always_valid: bool

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every row and return the observations `[B, ...]`.

        Args:
            seeds: one non-negative integer per environment, for its random streams. Default: the seeds that it was made
                with.
        """
        ...

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment. An episode that ends is followed by a new one automatically."""
        ...

    def state_dict(self) -> State:
        """Return the complete state of the environments, for an exact resume."""
        ...

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state and return the next observations."""
        ...

    def close(self) -> None:
        """Release processes, windows and files. Can be called twice."""
        ...


@runtime_checkable
class BeginsAnew(Protocol):
    """An environment that may begin new episodes when it loads a state."""

    @property
    def begins_anew(self) -> bool:
        """Whether it does."""
        ...


def begins_anew(env: BatchEnv) -> bool:
    """Return whether an environment begins new episodes when it loads a state, instead of continuing the saved ones.

    Those that do are `BeginsAnew`. Data of an unfinished episode, such as its return so far, must then be reset.
    """
    return isinstance(env, BeginsAnew) and env.begins_anew
