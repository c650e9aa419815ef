"""Learning curves as text charts."""

import math
from collections.abc import Iterable, Sequence

WIDTH = 60
"""Width of a chart in columns."""

_LEVELS = " ▁▂▃▄▅▆▇█"


def scale(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest finite value; 0 and 1 without any."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    return min(finite), max(finite)


def bar_chart(values: Sequence[float], *, low: float, high: float, height: int) -> str:
    """Return a bar chart as text, with a scale on the left.

    Args:
        values: one value per bar; NaN leaves a gap.
        low: value of the lowest visible bar; lower values are drawn the same.
        high: value of a bar of full height.
        height: height in lines.
    """
    steps = len(_LEVELS) - 1
    most = height * steps
    span = high - low if high > low else 1.0
    bars = [0 if math.isnan(v) else round(1 + (most - 1) * min(max((v - low) / span, 0.0), 1.0)) for v in values]
    labels = [""] * height
    labels[0], labels[-1] = _label(high), _label(low)
    margin = max(map(len, labels))
    lines: list[str] = []
    for line, label in enumerate(labels):
        below = steps * (height - 1 - line)
        cells = "".join(_LEVELS[min(max(bar - below, 0), steps)] for bar in bars)
        lines.append(f"{label:>{margin}} ┤{cells}".rstrip())
    return "\n".join(lines)


def budget_axis(budget: int, unit: str, *, low: float, high: float) -> str:
    """Return the axis line below a `bar_chart` whose columns cover the budget."""
    margin = max(len(_label(low)), len(_label(high)))
    return f"{'':{margin}} 0{f'{budget} {unit}':>{WIDTH}}"


def _label(value: float) -> str:
    return f"{value:.3g}"
