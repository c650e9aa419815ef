"""Protocols of experiments, which `operant.build.assemble` creates: `Experiment`, and optional ones.

Optional protocols are checked with `isinstance`. `InEnvironments` is a base class of experiments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import torch

from operant.envs import BatchEnv
from operant.envs.registry import frozen
from operant.envs.spaces import GymnasiumActions
from operant.runtime.evaluation import Evaluation
from operant.runtime.learner import Learner, RenewableWeights
from operant.runtime.ledger import Ledger
from operant.runtime.settings import Settings


class Experiment(Protocol):
    """A learner and its evaluation."""

    @property
    def learner(self) -> Any:
        """Learner of all seeds, an `operant.runtime.learner.Learner`."""
        ...

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        ...

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Evaluate all seeds.

        Args:
            episodes: number of episodes per seed. Default: from the settings, or all held-out examples.
            backend: backend of the environments. Default: from the settings.
            interrupted: function called repeatedly; if it returns True, the evaluation stops.
        """
        ...

    def close(self) -> None:
        """Release the learner's resources. Can be called twice."""
        ...


@runtime_checkable
class Reachable(Protocol):
    """An experiment that depends on servers."""

    def reach(self) -> None:
        """Raise OSError if a server does not respond."""
        ...


@runtime_checkable
class HasEnv(Protocol):
    """An experiment whose learner collects experience in environments."""

    @property
    def env(self) -> BatchEnv | None:
        """Training environments, whose wrappers are also used in evaluations."""
        ...


@runtime_checkable
class Collecting(HasEnv, Protocol):
    """An experiment in environments, which may compile its updates."""

    @property
    def device(self) -> torch.device:
        """Device of networks and tensor environments."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        ...

    @property
    def rollout_steps(self) -> int:
        """Number of environment steps per seed in a rollout, which is never shortened; 0 if not applicable."""
        ...

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        wrappers: Sequence[str] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        purpose: str = "evaluation",
        sample: bool = False,
    ) -> Evaluation:
        """Evaluate all seeds, in environments with additional wrappers (see `operant.envs.wrapped`).

        `env_kwargs` replace keyword arguments of the run, or are added to them. With `sample`, actions are sampled as
        in training; otherwise they are greedy.
        """
        ...


@runtime_checkable
class Answering(Protocol):
    """An experiment with models that are evaluated on held-out examples.

    Attributes:
        held_out: number of held-out examples.
        samples: some answers of the last evaluation.
        notes: messages to print before training.
    """

    held_out: int
    samples: list[dict[str, Any]]
    notes: tuple[str, ...]

    @property
    def can_sample(self) -> bool:
        """Whether sampled answers have rewards."""
        ...

    def sample(self, count: int, episodes: int) -> list[Any]:
        """Sample `count` answers to each of at most `episodes` held-out prompts, for every seed."""
        ...

    def ledgers(self) -> Sequence[Ledger]:
        """Return the ledgers of the seeds' last batches that were not returned before."""
        ...


@runtime_checkable
class SeparateWeights(Protocol):
    """An experiment that trains seeds separately, and saves the best weights of each separately."""

    @property
    def weights(self) -> Sequence[RenewableWeights]:
        """Weights of each seed."""
        ...


@runtime_checkable
class Numbering(Protocol):
    """An experiment whose learner uses state indices as observations, and action indices."""

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.ObservationWrapper[Any, Any, Any]:
        """Wrap an environment of the task such that observations and actions are these indices."""
        ...

    def actions(self, space: gymnasium.Space[Any]) -> GymnasiumActions:
        """Return the conversion of action indices to the action space of the task."""
        ...


def env_of(experiment: Experiment) -> BatchEnv | None:
    """Return the training environments of an experiment; None if it has none."""
    return experiment.env if isinstance(experiment, HasEnv) else None


@dataclass(frozen=True)
class InEnvironments:
    """Base class of experiments in environments; a task that changes over time stays as it is in evaluations.

    Attributes:
        learner: the learner.
        settings: settings of the run.
    """

    learner: Learner
    settings: Settings

    @property
    def environments(self) -> int:
        """Number of training environments per seed."""
        return 1

    @property
    def evaluation_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of evaluation environments; a changing task stays as it is at this point of training."""
        return self.evaluation_kwargs_at(self.learner.consumed)

    def evaluation_kwargs_at(self, consumed: int) -> dict[str, Any]:
        """Return the keyword arguments of evaluation environments at another point of training.

        Args:
            consumed: environment steps per seed at this point.
        """
        return frozen(self.settings.task, self.settings.env_kwargs, consumed // self.environments)


@runtime_checkable
class Certifiable(Protocol):
    """A learner of a game that can be solved exactly."""

    seeds: list[int]

    def certificates(self, *, faced_only: bool = False) -> Sequence[tuple[int, int, int, int]]:
        """Return numbers per seed: positions, mistakes, reachable positions, and mistakes in reachable ones.

        Args:
            faced_only: whether to count only the positions that each policy can reach.
        """
        ...
