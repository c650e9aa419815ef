import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant import ops
from operant.tabular import formulas

numbers = st.floats(-100, 100)
shares = st.floats(0, 1)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@settings(deadline=None, max_examples=50)
@given(numbers, numbers, st.booleans(), shares)
def test_the_target_is_the_op(reward, next_value, terminated, gamma):
    expected = ops.q_target(tensor(reward), tensor(next_value), terminated=torch.tensor([terminated]), gamma=gamma)
    assert formulas.q_target(reward, next_value, terminated, gamma) == pytest.approx(expected.item(), abs=1e-12)


def test_the_value_after_the_end_is_not_read():
    assert formulas.q_target(1.5, np.nan, True, 0.9) == 1.5


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), shares, shares, st.booleans())
def test_the_lambda_return_is_the_op(steps, gamma, lam, terminated):
    rewards, values = (tensor(*column) for column in zip(*steps, strict=True))
    ends = torch.zeros(len(steps), dtype=torch.bool)
    ends[-1] = terminated
    expected = ops.lambda_returns(
        rewards, values, terminated=ends, truncated=torch.zeros_like(ends), gamma=gamma, lam=lam
    )
    last = 0.0 if terminated else float(values[-1])
    following, next_value, found = last, last, []
    for t in reversed(range(len(steps))):
        following = formulas.lambda_return(float(rewards[t]), next_value, following, gamma, lam)
        found.insert(0, following)
        next_value = float(values[t - 1])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-9)


def test_the_others_by_hand():
    assert formulas.moved(1.0, 5.0, 0.25) == 2.0
    assert formulas.expected_value(4.0, 1.0, 0.2) == pytest.approx(0.8 * 4 + 0.2 * 1)
    assert formulas.count_bonus(3.0, 9) == 1.0
    assert formulas.time_bonus(0.5, 16) == 2.0
