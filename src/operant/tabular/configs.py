"""What the configurations of this package have in common, field by field."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import require
from operant.tabular.acting import Choices, Rule
from operant.tabular.schedules import Schedule

Decay = Literal["constant", "linear", "exponential"]
StepDecay = Literal["constant", "linear", "exponential", "visits"]


@dataclass(frozen=True)
class BaseConfig:
    """What every learner of this package is told."""

    gamma: float = 0.99
    """Discount a step, in [0, 1]. Higher looks further ahead; 1 is for tasks whose episodes end."""
    steps_per_iteration: int = 1000
    """Environment steps of a seed in one iteration, so how often metrics are reported; learning does not depend on it.
    """

    def __post_init__(self) -> None:
        """Validate."""
        require(self)
        at_least(self, 1, "steps_per_iteration")
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma!r}")

    def step_sizes(self) -> Schedule:
        """Return the schedule of α: 1, as nothing is averaged."""
        return Schedule.of("constant", 1.0, final=0.0, span=1.0, factor=1.0, name="step_size")

    def exploration(self) -> Schedule:
        """Return the schedule of ε: 0, as nothing is explored by chance."""
        return Schedule.of("constant", 0.0, final=0.0, span=1.0, factor=1.0, name="exploration")

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

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.schedule_unit not in ("episodes", "steps"):
            raise ValueError(f"schedule_unit must be episodes or steps, got {self.schedule_unit!r}")
        if not isfinite(self.initial_value):
            raise ValueError(f"initial_value must be finite, got {self.initial_value}")

    def counts_steps(self) -> bool:
        """Return whether schedules count steps."""
        return self.schedule_unit == "steps"


@dataclass(frozen=True)
class TableConfig(ScheduledConfig):
    """What every learner is told that moves its values by a step size."""

    step_size: float = 0.1
    """α, the share of the error that an update removes. Higher learns faster and forgets faster."""
    step_size_schedule: StepDecay = "constant"
    """How α falls: not at all, linearly, by a factor every unit, or with the number N of updates of a cell, `N^-power`.
    """
    step_size_final: float = 0.0
    """Where α ends if it falls linearly or exponentially."""
    step_size_span: float = 1000.0
    """Units until a linear schedule of α ends."""
    step_size_factor: float = 0.999
    """What an exponential schedule multiplies α by every unit."""
    step_size_power: float = 1.0
    """Power of N in `visits`: 1 averages all targets; above 1/2 still converges and forgets the first ones sooner."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        self.step_sizes()

    def step_sizes(self) -> Schedule:
        """Return the schedule of α."""
        return Schedule.of(
            self.step_size_schedule,
            self.step_size,
            final=self.step_size_final,
            span=self.step_size_span,
            factor=self.step_size_factor,
            power=self.step_size_power,
            name="step_size",
        )


@dataclass(frozen=True)
class ExploringConfig(ScheduledConfig):
    """What every learner is told that explores by chance."""

    exploration_initial_eps: float = 0.1
    """ε, the probability of a random action (any feasible one, the greedy one too)."""
    exploration_schedule: Decay = "constant"
    """How ε falls: not at all, linearly, or by a factor every unit."""
    exploration_final_eps: float = 0.0
    """Where ε ends if it falls."""
    exploration_span: float = 1000.0
    """Units until a linear schedule of ε ends."""
    exploration_factor: float = 0.9995
    """What an exponential schedule multiplies ε by every unit."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.exploration_schedule not in ("constant", "linear", "exponential"):
            raise ValueError(
                f"exploration_schedule must be constant, linear or exponential, got {self.exploration_schedule!r}"
            )
        self.exploration()

    def exploration(self) -> Schedule:
        """Return the schedule of ε."""
        return Schedule.of(
            self.exploration_schedule,
            self.exploration_initial_eps,
            final=self.exploration_final_eps,
            span=self.exploration_span,
            factor=self.exploration_factor,
            name="exploration",
        )


@dataclass(frozen=True)
class ControlConfig(ExploringConfig, TableConfig):
    """What every learner is told that explores by chance and moves its values by a step size."""


def at_least(config: object, least: float, *names: str) -> None:
    """Refuse numbers of a configuration that are below `least`, or not finite.

    Raises:
        ValueError: one is; the message names the field.
    """
    for name in names:
        value = getattr(config, name)
        if not (isfinite(value) and value >= least):
            raise ValueError(f"{name} must be finite and at least {least:g}, got {value!r}")
