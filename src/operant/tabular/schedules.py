"""Numbers that change while learning: exploration rates and step sizes."""

from math import isfinite
from typing import Literal, NamedTuple

from operant.tabular.numba_config import compiled

Kind = Literal["constant", "linear", "exponential", "visits"]

KINDS: tuple[Kind, ...] = ("constant", "linear", "exponential", "visits")
CONSTANT, LINEAR, EXPONENTIAL, VISITS = range(4)

Name = Literal["step_size", "exploration"]

_ENDS: dict[Name, tuple[str, str]] = {
    "step_size": ("step_size", "step_size_final"),
    "exploration": ("exploration_initial_eps", "exploration_final_eps"),
}
"""How a configuration calls the first value and the last."""


class Schedule(NamedTuple):
    """A number as a function of the count of episodes, or of steps.

    Attributes:
        kind: index in `KINDS`.
        initial: at count 0, and for ever if it is constant.
        final: linear: after `span` units; exponential: the least it falls to.
        span: linear: how many units it takes.
        factor: exponential: what it is multiplied by every unit.
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
        cls, kind: Kind, initial: float, *, final: float, span: float, factor: float, power: float = 1.0, name: Name
    ) -> "Schedule":
        """Check the numbers of a schedule; `name` is how a configuration calls its parameters.

        Raises:
            ValueError: one is out of its range.
        """
        first, last = _ENDS[name]
        for field, value, fits, expected in (
            (first, initial, 0.0 <= initial <= 1.0, "in [0, 1]"),
            (f"{name}_schedule", kind, kind in KINDS, f"one of {', '.join(KINDS)}"),
            (last, final, 0.0 <= final <= 1.0, "in [0, 1]"),
            (f"{name}_span", span, isfinite(span) and span > 0.0, "positive and finite"),
            (f"{name}_factor", factor, 0.0 < factor <= 1.0, "in (0, 1]"),
            (f"{name}_power", power, 0.0 <= power <= 1.0, "in [0, 1]"),
        ):
            if not fits:
                raise ValueError(f"{field} must be {expected}, got {value!r}")
        return cls(KINDS.index(kind), float(initial), float(final), float(span), float(factor), float(power))


@compiled
def scheduled(schedule, count):
    """Return the number at a count of units; that of a schedule by visits is its initial one."""
    if schedule.kind == LINEAR:
        share = min(count / schedule.span, 1.0)
        return schedule.initial + share * (schedule.final - schedule.initial)
    if schedule.kind == EXPONENTIAL:
        return max(schedule.final, schedule.initial * schedule.factor**count)
    return schedule.initial


@compiled
def step_size_of(schedule, current, visits):
    """Return the step size of an entry in its update number `visits`, from 1; `current` is the scheduled one."""
    if schedule.kind != VISITS:
        return current
    return 1.0 / visits if schedule.power == 1.0 else visits**-schedule.power
