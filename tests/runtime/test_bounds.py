from types import SimpleNamespace

import pytest

from operant.runtime.bounds import require


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (0, "[0, 1]"),
        (1, "[0, 1]"),
        (0.5, "(0, 1)"),
        (1e300, "(0, inf)"),
        (None, "(0, inf) or None"),
        (2, "[2, inf) or None"),
    ],
)
def test_values_within_their_bounds_pass(value, bound):
    require(SimpleNamespace(field=value), field=bound)


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (-1e-9, "[0, 1]"),
        (1.1, "[0, 1]"),
        (0, "(0, 1)"),
        (1, "(0, 1)"),
        (float("inf"), "(0, inf)"),
        (float("nan"), "(-inf, inf)"),
        (None, "(0, inf)"),
        (0, "(0, inf) or None"),
    ],
)
def test_values_outside_are_refused_by_name(value, bound):
    with pytest.raises(ValueError, match=r"^field must be in ") as error:
        require(SimpleNamespace(field=value), field=bound)
    assert bound in str(error.value)
    assert repr(value) in str(error.value)


def test_words():
    require(SimpleNamespace(mode="none"), mode=("none", "batch", "both"))
    with pytest.raises(ValueError, match=r"^mode must be none, batch or both, got 'all'$"):
        require(SimpleNamespace(mode="all"), mode=("none", "batch", "both"))


def test_a_misspelt_interval_is_a_mistake_of_the_programmer():
    with pytest.raises(ValueError, match="an interval is written like"):
        require(SimpleNamespace(field=1), field="[0,1]")
