"""Formulas of the compiled search, each against its operation on tensors."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from operant import ops
from operant.worlds import tree_kernels as kernels


def drawn(seed, actions=5):
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=actions).astype(np.float32)
    q, visits = draw.normal(size=actions).astype(np.float32), draw.integers(0, 4, actions).astype(np.float32)
    prior = np.empty_like(logits)
    kernels.softmax(logits, prior)
    return logits, prior, q, visits


def tensors(*arrays):
    return tuple(torch.from_numpy(part).double() for part in arrays)


@pytest.mark.parametrize("seed", range(20))
def test_formulas_are_those_of_tensors(seed):
    logits, prior, q, visits = drawn(seed)
    value = float(np.float32(0.3 * seed - 2))
    p, values, n = tensors(prior, q, visits)
    assert_close(p, torch.from_numpy(logits).double().softmax(0), rtol=1e-6, atol=0)
    expected = ops.mixed_value(torch.tensor(value, dtype=torch.float64), values, p, n)
    assert kernels.mixed_value(value, q, prior, visits) == pytest.approx(expected.item(), rel=1e-12)
    bounds = ops.puct(values, p, n, n.sum() + 1)
    raised = ops.sigma(values, n, visit_offset=50.0, scale=0.1)
    deficits = ops.least_visited_for(p, n)
    for a in range(len(q)):
        assert kernels.puct(q[a], prior[a], visits[a], visits.sum() + 1) == pytest.approx(bounds[a].item(), rel=1e-6)
        assert kernels.sigma(q[a], visits.max(), 50.0, 0.1) == pytest.approx(raised[a].item(), rel=1e-6)
        deficit = kernels.least_visited_for(prior[a], visits[a], visits.sum())
        assert deficit == pytest.approx(deficits[a].item(), abs=1e-6)


def test_a_mixed_value_of_nothing_tried_is_the_network_s():
    _, prior, q, visits = drawn(0)
    assert kernels.mixed_value(0.7, np.full_like(q, np.nan), prior, np.zeros_like(visits)) == 0.7


def test_masked_actions_have_no_probability():
    logits = np.array([1.0, -np.inf, 1.0], np.float32)
    kernels.softmax(logits, logits)
    assert logits.tolist() == [0.5, 0.0, 0.5]


def test_values_are_scaled_to_their_range():
    assert kernels.scaled(0.5, -1.0, 1.0) == 0.75
    assert kernels.scaled(2.0, 2.0, 2.0) == 0.0
