"""The contract between what acts and what it acts in: `BatchEnv`."""

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
    """An episode has not ended after as many steps as it may have."""

    @classmethod
    def of(cls, task: str, row: int, steps: int, *, remedy: str = "") -> Self:
        """Say so of the episode that a row of a task plays, and what else can be done than to set a time limit."""
        return cls(
            f"row {row} of {task} has not ended its episode after {steps} steps; give the environment a time limit "
            f"(max_episode_steps of gymnasium.register){remedy}"
        )


class Step(NamedTuple):
    """What one action of every row led to; every field has leading shape `[B]`.

    Fields may share memory with each other, so read them and do not write to them; later steps leave them alone.

    Attributes:
        obs: what the policy sees next; after the end of an episode, the first observation of the next one
            (in an environment with NEXT_STEP autoreset, one step later).
        reward: the reward to learn from, float32.
        terminated: the successor is a terminal state, whose value is 0.
        truncated: the episode was cut for a reason outside the problem, such as a time limit; the successor keeps its
            value.
        final_obs: the true successor of the action; equal to `obs` where the episode goes on.
        valid: false for the dummy transition that NEXT_STEP autoreset inserts, and for one whose worker process was
            lost, which is truncated, too; such rows take part in no loss and no average.
        score: the environment's own reward, which wrappers leave as it is; what is reported to people.
        infos: numbers that environments say of the episodes that ended, by name, float64; NaN where one says nothing.
            None where none does.
        extras: further tensors `[B, ...]` of this step by name, such as an intrinsic reward; rollouts collect them.
            None where there are none. The names are the same at every step.
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
    """`B` independent copies (rows) of one task, stepped together. With several seeds the rows are `[S, N]`, flat.

    Attributes:
        task: the Gymnasium id.
        rows: B.
        observation_space: the space of one row's observation.
        action_space: the space of one row's action. Discrete actions are int64 `[B]`, continuous ones float
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
            seeds: one non-negative integer a row; the rows' streams of random numbers start from them.
                Default: the seeds that the environment was made with.
        """
        ...

    def step(self, actions: Tensor) -> Step:
        """Apply one action a row. Rows whose episode ends start the next one by themselves."""
        ...

    def state_dict(self) -> State:
        """Return everything that the rows need to go on exactly as they would have."""
        ...

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state and return the observations that the policy sees next."""
        ...

    def close(self) -> None:
        """Release processes, windows and files. Calling it twice does no harm."""
        ...


@runtime_checkable
class BeginsAnew(Protocol):
    """An environment that may begin new episodes when it loads a state."""

    @property
    def begins_anew(self) -> bool:
        """Whether it does."""
        ...


def begins_anew(env: BatchEnv) -> bool:
    """Whether an environment that loads a state begins new episodes, where all others go on with the saved ones.

    Those that do are `BeginsAnew`, and say so. Whoever keeps something of an unfinished episode, such as its
    return so far, has to forget it then.
    """
    return isinstance(env, BeginsAnew) and env.begins_anew
