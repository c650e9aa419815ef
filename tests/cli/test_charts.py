import math

import pytest

from operant.cli.charts import WIDTH, bar_chart, budget_axis, scale


def test_bars_have_the_height_of_their_values():
    assert bar_chart([0.0, 8.0, 15.0], low=0.0, high=15.0, height=2).splitlines() == ["15 ┤ ▁█", " 0 ┤▁██"]


def test_gaps_and_values_outside_the_scale():
    assert bar_chart([math.nan, -1.0, 9.0], low=0.0, high=1.0, height=1) == "0 ┤ ▁█"


def test_a_constant_is_drawn():
    assert bar_chart([2.0, 2.0], low=2.0, high=2.0, height=1) == "2 ┤▁▁"


def test_a_scale_covers_the_finite_values():
    assert scale([math.nan, 3.0, -2.0, math.inf]) == (-2.0, 3.0)
    assert scale([math.nan, -math.inf]) == (0.0, 1.0)


@pytest.mark.parametrize("high", [7.0, 1234.0])
def test_the_axis_ends_below_the_last_bar(high):
    chart = bar_chart([high] * WIDTH, low=0.0, high=high, height=3)
    axis = budget_axis(5000, "environment steps", low=0.0, high=high)
    assert len(axis) == len(chart.splitlines()[0])
    assert axis.endswith("5000 environment steps")
