"""What `operant.build.assemble` returns, whatever the package: `Experiment`, and what only some experiments have.

The library asks for what is optional by `isinstance`, with the protocols below: an experiment has all of one, or is not
asked for it.
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
    """A learner, and how good it is."""

    @property
    def learner(self) -> Any:
        """What learns, all seeds as one: a `operant.runtime.learner.Learner`, of the package's own kind."""
        ...

    @property
    def settings(self) -> Settings:
        """What it was made from."""
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
            episodes: of each seed. Default: as many as the settings say, or all held-out examples.
            backend: of the environments. Default: that of the settings.
            interrupted: asked in the course of it; after true, the evaluation is given up.
        """
        ...

    def close(self) -> None:
        """Give back what the learner holds. Twice does no harm."""
        ...


@runtime_checkable
class Reachable(Protocol):
    """An experiment that needs something from outside this process."""

    def reach(self) -> None:
        """Fail now if it is not there, before anything is written."""
        ...


@runtime_checkable
class Collecting(Protocol):
    """An experiment whose learner collects experience in environments, by updates that may be compiled."""

    @property
    def env(self) -> BatchEnv | None:
        """The environments, whose wrappers hold where policies are asked, too."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        ...

    @property
    def rollout_steps(self) -> int:
        """Environment steps of a seed in one rollout, which is never cut short; 0 where there is no such thing."""
        ...

    def evaluate(
        self, episodes: int | None = None, *, backend: str | None = None, wrappers: Sequence[str] = ()
    ) -> Evaluation:
        """Score all seeds, in environments with more wrappers around them (see `operant.envs.wrapped`)."""
        ...


@runtime_checkable
class Answering(Protocol):
    """An experiment with models that are asked held-out examples.

    Attributes:
        held_out: how many there are.
        samples: what some answers of the last evaluation were.
        notes: what is to be said before training, a line each.
    """

    held_out: int
    samples: list[dict[str, Any]]
    notes: tuple[str, ...]

    def sample(self, count: int, episodes: int) -> list[Any]:
        """Sample `count` answers to each of at most `episodes` held-out prompts, for every seed."""
        ...

    def ledgers(self) -> Sequence[Ledger]:
        """Return what was learned from each token of the last batch of each seed; a batch is returned once."""
        ...


@runtime_checkable
class SeparateWeights(Protocol):
    """An experiment that trains each seed by itself, so that the best of each is kept by itself."""

    @property
    def weights(self) -> Sequence[RenewableWeights]:
        """What each seed has learned."""
        ...


@runtime_checkable
class Numbering(Protocol):
    """An experiment whose learner knows the observations of its environments by numbers."""

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.ObservationWrapper[Any, Any, Any]:
        """Return an environment of the task whose observations are these numbers."""
        ...


@runtime_checkable
class Certifiable(Protocol):
    """A learner of a game that is small enough to be solved exactly."""

    seeds: list[int]

    def certificates(self) -> Sequence[tuple[int, int, int, int]]:
        """Return for each seed the positions, the mistakes in them, those that can be faced, and the mistakes there."""
        ...
