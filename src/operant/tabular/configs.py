"""Common fields of the configurations of this package."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import Interval, PositiveFloat, PositiveInt, UnitFloat, require
from operant.tabular.acting import Choices, Rule
from operant.tabular.schedules import Schedule

Decay = Literal["constant", "linear", "exponential"]
StepDecay = Literal["constant", "linear", "exponential", "visits"]


@dataclass(frozen=True)
class BaseConfig:
    """Hyperparameters of all learners of this package."""

    gamma: UnitFloat = 0.99
    """Discount factor in [0, 1]; 1 is for tasks whose episodes end. A higher one means a longer horizon."""
    steps_per_iteration: PositiveInt = 1000
    """Number of environment steps per seed and iteration. It affects only how often metrics are reported."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)

    def step_sizes(self) -> Schedule:
        """Return the schedule of α: 1, without averaging."""
        return Schedule.of("constant", 1.0, final=0.0, span=1.0, factor=1.0)

    def exploration(self) -> Schedule:
        """Return the schedule of ε: 0, without random exploration."""
        return Schedule.of("constant", 0.0, final=0.0, span=1.0, factor=1.0)

    def counts_steps(self) -> bool:
        """Return whether schedules count steps."""
        return False

    def rule(self, feasible: NDArray[np.bool_]) -> Rule:
        """Return the kernels' constants, given a mask of feasible actions."""
        return Rule(
            choices=Choices.of(feasible),
            gamma=float(self.gamma),
            step_size=self.step_sizes(),
            epsilon=self.exploration(),
            count_steps=self.counts_steps(),
        )


@dataclass(frozen=True)
class ScheduledConfig(BaseConfig):
    """Hyperparameters of learners with initial values and schedules."""

    initial_value: float = 0.0
    """Initial value of every cell. Above the possible returns it encourages exploration (optimistic initial values)."""
    schedule_unit: Literal["episodes", "steps"] = "episodes"
    """Unit of schedules: episodes or environment steps."""

    def counts_steps(self) -> bool:
        """Return whether schedules count steps."""
        return self.schedule_unit == "steps"


@dataclass(frozen=True)
class TableConfig(ScheduledConfig):
    """Hyperparameters of learners with a step size."""

    step_size: UnitFloat = 0.1
    """Step size α, the share of the error that an update removes. A higher one learns and forgets faster."""
    step_size_schedule: StepDecay = "constant"
    """Schedule of α: constant, linear, a factor per unit, or `N^-power` in the number N of updates of a cell.
    """
    step_size_final: UnitFloat = 0.0
    """Final α of a linear or exponential schedule."""
    step_size_span: PositiveFloat = 1000.0
    """Length of a linear schedule of α, in units."""
    step_size_factor: Annotated[float, Interval("(0, 1]")] = 0.999
    """Factor of an exponential schedule of α per unit."""
    step_size_power: UnitFloat = 1.0
    """Power of N in `visits`: 1 averages all targets; lower values above 1/2 converge, too, and forget old targets."""

    def step_sizes(self) -> Schedule:
        """Return the schedule of α."""
        return Schedule.of(
            self.step_size_schedule,
            self.step_size,
            final=self.step_size_final,
            span=self.step_size_span,
            factor=self.step_size_factor,
            power=self.step_size_power,
        )


@dataclass(frozen=True)
class ExploringConfig(ScheduledConfig):
    """Hyperparameters of ε-greedy learners."""

    exploration_initial_eps: UnitFloat = 0.1
    """ε, the probability of a random feasible action (possibly the greedy one)."""
    exploration_schedule: Decay = "constant"
    """Schedule of ε: constant, linear, or a factor per unit."""
    exploration_final_eps: UnitFloat = 0.0
    """Final ε of a decaying schedule."""
    exploration_span: PositiveFloat = 1000.0
    """Length of a linear schedule of ε, in units."""
    exploration_factor: Annotated[float, Interval("(0, 1]")] = 0.9995
    """Factor of an exponential schedule of ε per unit."""

    def exploration(self) -> Schedule:
        """Return the schedule of ε."""
        return Schedule.of(
            self.exploration_schedule,
            self.exploration_initial_eps,
            final=self.exploration_final_eps,
            span=self.exploration_span,
            factor=self.exploration_factor,
        )


@dataclass(frozen=True)
class ControlConfig(ExploringConfig, TableConfig):
    """Hyperparameters of ε-greedy learners with a step size."""
