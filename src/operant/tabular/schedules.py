"""Schedules of exploration rates and step sizes."""

from typing import Literal, NamedTuple

from operant.tabular.numba_config import compiled

Kind = Literal["constant", "linear", "exponential", "visits"]

KINDS: tuple[Kind, ...] = ("constant", "linear", "exponential", "visits")
CONSTANT, LINEAR, EXPONENTIAL, VISITS = range(4)


class Schedule(NamedTuple):
    """A value as a function of the number of episodes, or of steps.

    Attributes:
        kind: index in `KINDS`.
        initial: initial value; the only one if constant.
        final: for linear, the value after `span` units; for exponential, the minimum.
        span: for linear, its length in units.
        factor: for exponential, the factor per unit.
        power: for visits, the exponent in `N^-power` for the N-th update of a cell.
    """

    kind: int
    initial: float
    final: float
    span: float
    factor: float
    power: float

    @classmethod
    def of(
        cls, kind: Kind, initial: float, *, final: float, span: float, factor: float, power: float = 1.0
    ) -> "Schedule":
        """Return the schedule of the given kind."""
        return cls(KINDS.index(kind), float(initial), float(final), float(span), float(factor), float(power))


@compiled
def scheduled(schedule: Schedule, count: int) -> float:
    """Return the value at a count of units; for a schedule by visits, the initial one."""
    if schedule.kind == LINEAR:
        share = min(count / schedule.span, 1.0)
        return schedule.initial + share * (schedule.final - schedule.initial)
    if schedule.kind == EXPONENTIAL:
        return max(schedule.final, schedule.initial * schedule.factor**count)
    return schedule.initial


@compiled
def step_size_of(schedule: Schedule, current: float, visits: int) -> float:
    """Return the step size of update number `visits` of a cell, starting at 1; `current` is the scheduled step size."""
    if schedule.kind != VISITS:
        return current
    return 1.0 / visits if schedule.power == 1.0 else visits**-schedule.power
