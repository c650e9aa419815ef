"""The result of `operant.build.assemble`: `Experiment`, and optional protocols of some experiments.

The library checks the optional protocols below with `isinstance`: an experiment implements all of one, or does not use
it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium

from operant.envs import BatchEnv
from operant.runtime.evaluation import Evaluation
from operant.runtime.learner import RenewableWeights
from operant.runtime.ledger import Ledger
from operant.runtime.settings import Settings


class Experiment(Protocol):
    """A learner and its evaluation."""

    @property
    def learner(self) -> Any:
        """The learner of all seeds: a `operant.runtime.learner.Learner`."""
        ...

    @property
    def settings(self) -> Settings:
        """Its settings."""
        ...

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        """Score all seeds.

        Args:
            episodes: of each seed. Default: from the settings, or all held-out examples.
            backend: of the environments. Default: that of the settings.
            interrupted: called repeatedly; True stops the evaluation.
        """
        ...

    def close(self) -> None:
        """Release the learner's resources. Can be called twice."""
        ...


@runtime_checkable
class Reachable(Protocol):
    """An experiment that depends on something outside this process."""

    def reach(self) -> None:
        """Raise if it is missing, before anything is written."""
        ...


@runtime_checkable
class Collecting(Protocol):
    """An experiment whose learner collects experience in environments, by updates that may be compiled."""

    @property
    def env(self) -> BatchEnv | None:
        """The environments, whose wrappers also apply in evaluation."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        ...

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed in one rollout, which is never shortened; 0 if not applicable."""
        ...

    def evaluate(
        self, episodes: int | None = None, *, backend: str | None = None, wrappers: Sequence[str] = ()
    ) -> Evaluation:
        """Score all seeds, in environments with more wrappers around them (see `operant.envs.wrapped`)."""
        ...


@runtime_checkable
class Answering(Protocol):
    """An experiment with models that are evaluated on held-out examples.

    Attributes:
        held_out: number of held-out examples.
        samples: some answers of the last evaluation.
        notes: messages before training, a line each.
    """

    held_out: int
    samples: list[dict[str, Any]]
    notes: tuple[str, ...]

    def sample(self, count: int, episodes: int) -> list[Any]:
        """Sample `count` answers to each of at most `episodes` held-out prompts, for every seed."""
        ...

    def ledgers(self) -> Sequence[Ledger]:
        """Return the ledger of each token of the last batch of each seed; a batch is returned once."""
        ...


@runtime_checkable
class SeparateWeights(Protocol):
    """An experiment that trains each seed separately, and saves the best of each separately."""

    @property
    def weights(self) -> Sequence[RenewableWeights]:
        """The weights of each seed."""
        ...


@runtime_checkable
class Numbering(Protocol):
    """An experiment whose learner uses indices as observations."""

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.ObservationWrapper[Any, Any, Any]:
        """Return an environment of the task whose observations are these indices."""
        ...


@runtime_checkable
class Certifiable(Protocol):
    """A learner of a game that is small enough to be solved exactly."""

    seeds: list[int]

    def certificates(self) -> Sequence[tuple[int, int, int, int]]:
        """Return per seed the positions, the mistakes in them, the reachable positions, and the mistakes there."""
        ...
