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
    """Return whether a value is a mapping with string keys, narrowing its type."""
    return isinstance(value, Mapping)


def is_array(value: Any) -> "TypeIs[NDArray[Any]]":
    """Return whether a value is an array, narrowing its type."""
    return isinstance(value, np.ndarray)


class EndlessError(RuntimeError):
    """Raised if an episode exceeds the maximum length."""

    @classmethod
    def of(cls, task: str, row: int, steps: int, *, remedy: str = "") -> Self:
        """Create the error for an episode of an environment, with a remedy in addition to a time limit."""
        return cls(
            f"environment {row} of {task} has not ended its episode after {steps} steps; give it a time limit "
            f"(max_episode_steps of gymnasium.register){remedy}"
        )


class Step(NamedTuple):
    """Result of one action in every environment; every field has leading shape `[B]`.

    Fields may share memory with each other and must not be modified. Later steps do not change them.

    Attributes:
        obs: next observation; after the end of an episode, the first observation of the next episode (with NEXT_STEP
            autoreset, one step later).
        reward: reward for learning, float32.
        terminated: whether the successor is a terminal state, whose value is 0.
        truncated: whether the episode was truncated for a reason outside the MDP, such as a time limit; the successor
            has a value, from which returns are bootstrapped.
        final_obs: true successor of the action; equal to `obs` if the episode continues.
        valid: false for the dummy transition of NEXT_STEP autoreset, and if the worker process was lost, which also
            truncates the episode; exclude such transitions from losses and averages.
        score: original reward of the environment, unchanged by wrappers, for reports.
        infos: numbers about ended episodes, by name, float64; NaN where missing. None if there are none.
        extras: additional tensors of the step, `[B, ...]` by name, such as an intrinsic reward; rollouts collect them.
            The names must be the same at every step. None if there are none.
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
    """A batch of `B` independent environments (rows) of one task. For S seeds they are `[S, N]`, flattened.

    Attributes:
        task: Gymnasium id.
        rows: number of environments, B.
        observation_space: space of one observation.
        action_space: space of one action. Discrete actions are int64 `[B]`, continuous ones float `[B, A]`.
        device: device of observations and actions.
        always_valid: whether `Step.valid` is always true, so that masks are not needed.
    """

    task: str
    rows: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    device: torch.device
    always_valid: bool

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment, and return the observations `[B, ...]`.

        Args:
            seeds: one non-negative integer per environment, for its random streams. Default: the seeds it was created
                with.
        """
        ...

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment. A new episode starts automatically after the end of an episode."""
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
    """An environment that may start new episodes when it loads a state."""

    @property
    def begins_anew(self) -> bool:
        """Whether it starts new episodes when it loads a state."""
        ...


def begins_anew(env: BatchEnv) -> bool:
    """Return whether an environment starts new episodes when it loads a state, instead of continuing the saved ones.

    Such environments are `BeginsAnew`. Data of unfinished episodes, such as their returns, must then be reset.
    """
    return isinstance(env, BeginsAnew) and env.begins_anew
