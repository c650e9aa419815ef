import numpy as np
import pytest

from operant.tabular.schedules import Schedule, scheduled, step_size_of

DEFAULTS = {"final": 0.1, "span": 10.0, "factor": 0.5}


def of(kind, initial=1.0, **values):
    return Schedule.of(kind, initial, **DEFAULTS | values)


def test_the_shapes():
    assert [scheduled(of("constant", 0.3), n) for n in (0, 5)] == [0.3, 0.3]
    np.testing.assert_allclose([scheduled(of("linear"), n) for n in (0, 5, 10, 99)], [1.0, 0.55, 0.1, 0.1])
    np.testing.assert_allclose([scheduled(of("exponential"), n) for n in (0, 1, 3, 4, 99)], [1, 0.5, 0.125, 0.1, 0.1])


def test_an_exponential_schedule_reaches_its_end_when_it_should():
    schedule = of("exponential", final=0.01, factor=0.9995)
    assert scheduled(schedule, 9208) > 0.01
    assert scheduled(schedule, 9209) == 0.01


def test_step_sizes_by_visits():
    average, slower = of("visits", power=1.0), of("visits", power=0.6)
    assert [step_size_of(average, 0.3, n) for n in (1, 2, 4)] == [1.0, 0.5, 0.25]
    assert step_size_of(slower, 0.3, 10) == pytest.approx(10**-0.6)
    assert step_size_of(of("constant", 0.3), 0.3, 10) == 0.3
