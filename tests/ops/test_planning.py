"""Planning by sampling: hand-worked numbers and invariants."""

import math

import pytest
import torch
from torch.testing import assert_close

from operant import ops


def test_the_cross_entropy_method_fits_the_best_candidates():
    """By hand: of the returns 1, 4, 2, 3 the two best belong to the candidates 10 and 30."""
    candidates = torch.tensor([[0.0, 5.0], [10.0, 1.0], [20.0, 7.0], [30.0, 3.0]])
    mean, std = ops.cross_entropy_refit(candidates, torch.tensor([1.0, 4.0, 2.0, 3.0]), elites=2)
    assert mean.tolist() == [20.0, 2.0]
    assert std.tolist() == [10.0, 1.0]


def test_all_candidates_as_elites_are_their_mean():
    candidates = torch.randn(3, 2, 7, 4, generator=torch.Generator().manual_seed(0))
    mean, std = ops.cross_entropy_refit(candidates, torch.zeros(3, 2, 7), elites=7)
    assert_close(mean, candidates.mean(2))
    assert_close(std, candidates.std(2, correction=0))


@pytest.mark.parametrize("elites", [0, 5])
def test_elites_are_some_of_the_candidates(elites):
    with pytest.raises(ValueError, match=f"elites must be from 1 to the 4 candidates, got {elites}"):
        ops.cross_entropy_refit(torch.zeros(4, 1), torch.zeros(4), elites=elites)


def test_path_integrals_weigh_by_the_exponential_of_the_return():
    """By hand: returns 0 and 2 have deviation 1; at temperature 2 their weights are as 1 to e."""
    mean, std = ops.path_integral_refit(torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 2.0]), temperature=2.0)
    share = math.e / (1 + math.e)
    assert mean.item() == pytest.approx(share)
    assert std.item() == pytest.approx(math.sqrt(share * (1 - share)))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperatures_are_positive(temperature):
    with pytest.raises(ValueError, match=f"temperature is {temperature}, expected a positive number"):
        ops.path_integral_refit(torch.zeros(2, 1), torch.zeros(2), temperature=temperature)


def test_path_integrals_forget_the_scale_of_the_returns():
    generator = torch.Generator().manual_seed(0)
    candidates, returns = torch.randn(5, 9, 3, generator=generator), torch.randn(5, 9, generator=generator)
    for found, same in zip(
        ops.path_integral_refit(candidates, returns, temperature=0.5),
        ops.path_integral_refit(candidates, 1000 * returns + 7, temperature=0.5),
        strict=True,
    ):
        assert_close(found, same, rtol=1e-3, atol=1e-4)


def test_path_integrals_leave_out_what_is_worth_nothing():
    candidates, returns = torch.tensor([[0.0], [1.0], [50.0]]), torch.tensor([0.0, 2.0, -torch.inf])
    mean, std = ops.path_integral_refit(candidates, returns, temperature=2.0)
    assert mean.item() == pytest.approx(math.e / (1 + math.e))
    mean, std = ops.path_integral_refit(candidates, torch.full((3,), -torch.inf), temperature=2.0)
    assert mean.item() == pytest.approx(17.0)
    assert std.isfinite().all()


def test_equal_returns_weigh_alike():
    candidates = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    assert_close(ops.path_integral_refit(candidates, torch.ones(4), temperature=0.1)[0], candidates.mean(0))


@pytest.mark.parametrize("refit", [ops.cross_entropy_refit, ops.path_integral_refit])
def test_rounds_of_drawing_and_refitting_find_the_top_of_a_quadratic(refit):
    generator, top = torch.Generator().manual_seed(1), torch.tensor([0.3, -0.7, 1.2])
    mean, std = torch.zeros(3), torch.ones(3)
    options = {"elites": 10} if refit is ops.cross_entropy_refit else {"temperature": 0.3}
    for _ in range(20):
        candidates = mean + std * torch.randn(100, 3, generator=generator)
        mean, std = refit(candidates, -(candidates - top).square().sum(-1), **options)
    assert_close(mean, top, atol=0.02, rtol=0)


def test_a_soft_clamp_stays_within_its_bounds_and_has_a_slope():
    values = torch.tensor([-100.0, -10.0, -4.0, 1.0, 30.0], requires_grad=True)
    held = ops.soft_clamp(values, -10.0, 1.0)
    assert ((held >= -10.0) & (held <= 1.0 + 1e-4)).all()
    assert held[2].item() == pytest.approx(-4.0, abs=0.01)
    assert held[3].item() == pytest.approx(1.0 - math.log(2), abs=1e-3)  # high - softplus(0)
    held.sum().backward()
    assert values.grad[1] > 0.4
    assert values.grad[3] > 0.4
