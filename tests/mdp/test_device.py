import numpy as np
import pytest

from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.policy_iteration import modified_policy_iteration
from operant.mdp.value_iteration import value_iteration


@pytest.mark.parametrize("solver", [value_iteration, modified_policy_iteration])
@pytest.mark.parametrize("mdp", [slippery_grid(12), random_model(300, 3, 4, seed=1)], ids=["grid", "random"])
def test_torch_and_the_kernels_agree(solver, mdp):
    here = solver(mdp, gamma=0.97, tolerance=1e-7)
    there = solver(mdp, gamma=0.97, tolerance=1e-7, device="cpu")
    np.testing.assert_allclose(there.values, here.values, atol=2e-7)
    assert there.converged
    assert (there.lower <= here.upper).all()


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"device must be .*, got 'nowhere'"):
        value_iteration(slippery_grid(3), gamma=0.9, device="nowhere")
    for solver in (value_iteration, modified_policy_iteration):
        with pytest.raises(ValueError, match=r"device 'cuda:99' is not on this machine"):
            solver(slippery_grid(3), gamma=0.9, device="cuda:99")
