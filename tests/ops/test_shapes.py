import re

import pytest
import torch

from operant import ops
from operant.ops.shapes import require_shape


def test_tensors_of_the_shape_pass():
    require_shape(torch.Size((2, 3)), "values", targets=torch.zeros(2, 3), old_values=torch.ones(2, 3))


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2, 3), ()])
def test_shapes_that_torch_would_broadcast_are_rejected(shape):
    said = f"targets has shape {shape}, expected (2, 3) as values: reshape it"
    with pytest.raises(ValueError, match=re.escape(said)):
        require_shape(torch.Size((2, 3)), "values", old_values=torch.zeros(2, 3), targets=torch.zeros(shape))


FOUR, COLUMN = torch.rand(4), torch.rand(4, 1)
LOGITS, SPREAD = torch.rand(4, 3), torch.rand(4, 1, 3)
ATOMS = torch.linspace(0.0, 1.0, 5)


@pytest.mark.parametrize(
    "equation",
    [
        lambda: ops.bradley_terry(FOUR, COLUMN),
        lambda: ops.dpo(FOUR, FOUR, COLUMN, COLUMN, beta=0.1),
        lambda: ops.plackett_luce(torch.rand(4, 2), torch.tensor([[0, 1]])),
        lambda: ops.two_hot_loss(torch.rand(4, 5), COLUMN, ATOMS),
        lambda: ops.categorical_kl(LOGITS, SPREAD),
        lambda: ops.cross_entropy(LOGITS, SPREAD),
        lambda: ops.explained_variance(LOGITS, SPREAD),
        lambda: ops.explained_variance(FOUR, COLUMN),
        lambda: ops.weighted_mean(FOUR, COLUMN),
        lambda: ops.clip_fraction(FOUR, FOUR, clip_low=0.2, clip_high=0.2, weights=COLUMN),
        lambda: ops.gaussian_log_prob(FOUR, FOUR, COLUMN),
    ],
)
def test_equations_reject_what_torch_would_broadcast(equation, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as outside of the tests
    with pytest.raises(ValueError, match="reshape it, since broadcasting would pair the wrong elements"):
        equation()
