"""Numbers that change while learning: exploration rates and step sizes."""

from typing import Literal, NamedTuple

from operant.tabular.numba_config import compiled

Kind = Literal["constant", "linear", "exponential", "visits"]

KINDS: tuple[Kind, ...] = ("constant", "linear", "exponential", "visits")
CONSTANT, LINEAR, EXPONENTIAL, VISITS = range(4)


class Schedule(NamedTuple):
    """A number as a function of the count of episodes, or of steps.

    Attributes:
        kind: index in `KINDS`.
        initial: at count 0, and always if constant.
        final: linear: after `span` units; exponential: the minimum.
        span: linear: its length in units.
        factor: exponential: factor per unit.
        power: visits: `N^-power` for a table entry in its N-th update, whatever the count.
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
        """Return the schedule of a kind."""
        return cls(KINDS.index(kind), float(initial), float(final), float(span), float(factor), float(power))


@compiled
def scheduled(schedule: Schedule, count: int) -> float:
    """Return the number at a count of units; that of a schedule by visits is its initial one."""
    if schedule.kind == LINEAR:
        share = min(count / schedule.span, 1.0)
        return schedule.initial + share * (schedule.final - schedule.initial)
    if schedule.kind == EXPONENTIAL:
        return max(schedule.final, schedule.initial * schedule.factor**count)
    return schedule.initial


@compiled
def step_size_of(schedule: Schedule, current: float, visits: int) -> float:
    """Return the step size of an entry in its update number `visits`, from 1; `current` is the scheduled one."""
    if schedule.kind != VISITS:
        return current
    return 1.0 / visits if schedule.power == 1.0 else visits**-schedule.power
