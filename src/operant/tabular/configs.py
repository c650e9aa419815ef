"""What the configurations of this package have in common, field by field."""

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
    """What every learner of this package is told."""

    gamma: UnitFloat = 0.99
    """Discount a step, in [0, 1]. Higher looks further ahead; 1 is for tasks whose episodes end."""
    steps_per_iteration: PositiveInt = 1000
    """Environment steps of a seed in one iteration, so how often metrics are reported; learning does not depend on it.
    """

    def __post_init__(self) -> None:
        """Validate."""
        require(self)

    def step_sizes(self) -> Schedule:
        """Return the schedule of α: 1, as nothing is averaged."""
        return Schedule.of("constant", 1.0, final=0.0, span=1.0, factor=1.0)

    def exploration(self) -> Schedule:
        """Return the schedule of ε: 0, as nothing is explored by chance."""
        return Schedule.of("constant", 0.0, final=0.0, span=1.0, factor=1.0)

    def counts_steps(self) -> bool:
        """Return whether schedules count steps."""
        return False

    def rule(self, feasible: NDArray[np.bool_]) -> Rule:
        """Return what kernels read of the configuration, for actions that are feasible where the mask says so."""
        return Rule(
            choices=Choices.of(feasible),
            gamma=float(self.gamma),
            step_size=self.step_sizes(),
            epsilon=self.exploration(),
            count_steps=self.counts_steps(),
        )


@dataclass(frozen=True)
class ScheduledConfig(BaseConfig):
    """What every learner is told whose values start somewhere and whose numbers change by schedule."""

    initial_value: float = 0.0
    """Value of every cell before learning. Above what can be earned, it makes every action worth a try (optimism)."""
    schedule_unit: Literal["episodes", "steps"] = "episodes"
    """What schedules count: episodes or environment steps."""

    def counts_steps(self) -> bool:
        """Return whether schedules count steps."""
        return self.schedule_unit == "steps"


@dataclass(frozen=True)
class TableConfig(ScheduledConfig):
    """What every learner is told that moves its values by a step size."""

    step_size: UnitFloat = 0.1
    """α, the share of the error that an update removes. Higher learns faster and forgets faster."""
    step_size_schedule: StepDecay = "constant"
    """How α falls: not at all, linearly, by a factor every unit, or with the number N of updates of a cell, `N^-power`.
    """
    step_size_final: UnitFloat = 0.0
    """Where α ends if it falls linearly or exponentially."""
    step_size_span: PositiveFloat = 1000.0
    """Units until a linear schedule of α ends."""
    step_size_factor: Annotated[float, Interval("(0, 1]")] = 0.999
    """What an exponential schedule multiplies α by every unit."""
    step_size_power: UnitFloat = 1.0
    """Power of N in `visits`: 1 averages all targets; above 1/2 still converges and forgets the first ones sooner."""

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
    """What every learner is told that explores by chance."""

    exploration_initial_eps: UnitFloat = 0.1
    """ε, the probability of a random action (any feasible one, the greedy one too)."""
    exploration_schedule: Decay = "constant"
    """How ε falls: not at all, linearly, or by a factor every unit."""
    exploration_final_eps: UnitFloat = 0.0
    """Where ε ends if it falls."""
    exploration_span: PositiveFloat = 1000.0
    """Units until a linear schedule of ε ends."""
    exploration_factor: Annotated[float, Interval("(0, 1]")] = 0.9995
    """What an exponential schedule multiplies ε by every unit."""

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
    """What every learner is told that explores by chance and moves its values by a step size."""
