import numba
import numpy as np
import pytest

from operant.tabular.numba_config import compiled


def test_kernels_allocate_nothing():
    @compiled
    def allocating(n):
        return np.zeros(n)

    with pytest.raises(numba.core.errors.NumbaError):
        allocating(3)


def test_division_by_zero_is_no_error():
    @compiled
    def divide(a, b):
        return a / b

    assert divide(1.0, 0.0) == np.inf
