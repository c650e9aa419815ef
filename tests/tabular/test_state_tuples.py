from typing import NamedTuple

import numpy as np
import pytest
import torch

from operant.tabular.state_tuples import restored, state_of


class Inner(NamedTuple):
    words: np.ndarray
    steps: np.ndarray


class Outer(NamedTuple):
    inner: Inner
    flags: np.ndarray
    nothing: None = None


def record(width=2):
    return Outer(Inner(np.array([2**64 - 1, 3], np.uint64), np.arange(2.0 * width).reshape(2, width)), np.array([True]))


def test_a_record_comes_back():
    made = record()
    state = state_of(made)
    assert set(state) == {"inner", "flags"}
    assert state["inner"]["words"].dtype == torch.int64
    made.inner.words[0] = made.inner.steps[0, 0] = 7
    back = restored(made, state)
    assert back.inner.words.tolist() == [2**64 - 1, 3]
    assert back.inner.words.dtype == np.uint64
    assert back.inner.steps.tolist() == [[0, 1], [2, 3]]
    assert back.flags.tolist() == [True]
    back.inner.steps[:] = -1
    assert state["inner"]["steps"].min() == 0, "the state shares no memory with the record"


def test_another_shape_is_refused_unless_it_may_grow():
    state = state_of(record(width=3))
    with pytest.raises(ValueError, match=r"state entry agent/inner/steps has shape \(2, 3\) but \(2, 2\) is needed"):
        restored(record(), state, path="agent")
    assert restored(record(), state, growing={"steps"}).inner.steps.shape == (2, 3)
    state["inner"]["steps"] = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="different configuration"):
        restored(record(), state, growing={"steps"})
