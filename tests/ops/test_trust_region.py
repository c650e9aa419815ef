"""Trust-region steps against dense linear algebra; every leading dimension is an independent problem."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.kl import categorical_kl, gaussian_kl
from operant.ops.trust_region import (
    Operator,
    backtrack,
    categorical_fisher,
    conjugate_gradient,
    fisher_operator,
    fisher_vector_product,
    gaussian_fisher,
    natural_step,
)

SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_problem(seed: int, shape: tuple[int, ...], size: int) -> tuple[Tensor, Tensor]:
    """Return symmetric matrices with eigenvalues of 0.5 and above, and right-hand sides."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*shape, size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + 0.5 * torch.eye(size, dtype=torch.float64)
    return matrix, torch.randn(*shape, size, generator=generator, dtype=torch.float64)


def product_with(matrix: Tensor) -> Operator:
    return lambda vector: (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def quadratic(matrix: Tensor, vector: Tensor) -> Tensor:
    return (vector * product_with(matrix)(vector)).sum(-1)


def textbook_conjugate_gradient(matrix: Tensor, b: Tensor, iterations: int, tolerance: float) -> Tensor:
    x, r = torch.zeros_like(b), b
    p = r
    for _ in range(iterations):
        if r @ r <= tolerance:
            break
        alpha = (r @ r) / (p @ matrix @ p)
        x, r_next = x + alpha * p, r - alpha * (matrix @ p)
        p, r = r_next + (r_next @ r_next) / (r @ r) * p, r_next
    return x


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), SHAPES, st.integers(1, 6))
def test_conjugate_gradient_solves(seed: int, shape: tuple[int, ...], size: int) -> None:
    matrix, b = random_problem(seed, shape, size)
    x = conjugate_gradient(product_with(matrix), b, iterations=3 * size, tolerance=1e-24)
    torch.testing.assert_close(x, torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-7)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.0, 1e-3, 0.5, 5.0]))
def test_conjugate_gradient_is_the_textbook_one_for_each_problem(
    seed: int, size: int, iterations: int, tolerance: float
) -> None:
    matrix, b = random_problem(seed, (4,), size)
    b[0] = 0
    x = conjugate_gradient(product_with(matrix), b, iterations=iterations, tolerance=tolerance)
    expected = [textbook_conjugate_gradient(matrix[i], b[i], iterations, tolerance) for i in range(4)]
    torch.testing.assert_close(x, torch.stack(expected), rtol=1e-7, atol=1e-9)
    assert (x[0] == 0).all()


def test_conjugate_gradient_by_hand() -> None:
    # Hestenes-Stiefel on diag(1, 4), b = (1, 1): first step 2/5, then the solution (1, 1/4).
    matvec = product_with(torch.diag(f64([1, 4])))
    torch.testing.assert_close(conjugate_gradient(matvec, f64([1, 1]), iterations=1, tolerance=0.0), f64([0.4, 0.4]))
    torch.testing.assert_close(conjugate_gradient(matvec, f64([1, 1]), iterations=2, tolerance=0.0), f64([1, 0.25]))


def test_conjugate_gradient_is_stable_past_convergence() -> None:
    matrix, b = random_problem(3, (5,), 4)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        x = conjugate_gradient(product_with(matrix.to(dtype)), b.to(dtype), iterations=200, tolerance=0.0)
        assert x.dtype == dtype
        error = x - torch.linalg.solve(matrix, b)
        assert error.abs().max() < tolerance


def test_problems_that_cannot_be_solved_stop_and_stay_alone() -> None:
    matrix = torch.stack([torch.zeros(2, 2), torch.eye(2), torch.full((2, 2), math.nan), -torch.eye(2)]).double()
    b = f64([[1, 2], [1, 2], [1, 2], [1, 2]])
    x = conjugate_gradient(product_with(matrix), b, iterations=5, tolerance=1e-10)
    assert x[[0, 1, 3]].tolist() == [[0, 0], [1, 2], [0, 0]]
    assert x[2].isnan().all()


def categorical_kl_from(old: Tensor) -> Operator:
    """Return KL(old‖new) of softmax policies whose parameters are the logits."""
    log_old = old.detach().log_softmax(-1)
    return lambda logits: (log_old.exp() * (log_old - logits.log_softmax(-1))).sum(-1)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), SHAPES, st.integers(1, 5), st.sampled_from([0.0, 0.1]))
def test_fisher_of_a_softmax(seed: int, shape: tuple[int, ...], size: int, damping: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, vector = torch.randn(2, *shape, size, generator=generator, dtype=torch.float64)
    p = logits.softmax(-1)
    # Both closed form and definition: diag(p) - ppᵀ = Σ_a p_a ∇log p_a ∇log p_aᵀ.
    fisher = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    scores = torch.eye(size, dtype=torch.float64) - p.unsqueeze(-2)
    torch.testing.assert_close(fisher, (p.unsqueeze(-1) * scores).mT @ scores)
    product = fisher_vector_product(categorical_kl_from(logits), logits, vector, damping=damping)
    torch.testing.assert_close(product, product_with(fisher)(vector) + damping * vector)


def test_fisher_of_a_gaussian_by_hand() -> None:
    # θ = (mean, log std): F = diag(1/σ², 2).
    old = f64([0.3, math.log(0.5)])

    def kl(theta: Tensor) -> Tensor:
        mean, log_std = theta.unbind(-1)
        spread = ((2 * old[1]).exp() + (old[0] - mean) ** 2) / (2 * (2 * log_std).exp())
        return log_std - old[1] + spread - 0.5

    torch.testing.assert_close(fisher_vector_product(kl, old, f64([1, 1]), damping=0.0), f64([4, 2]))


def test_fisher_operator_is_reusable_leaves_no_graph_and_works_without_grad() -> None:
    parameters = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.no_grad():
        operator = fisher_operator(categorical_kl_from(parameters), parameters, damping=0.0)
        basis = torch.eye(3)
        columns = torch.stack([operator(basis[i].expand(2, 3)) for i in range(3)], -1)
    p = parameters.detach().softmax(-1)
    torch.testing.assert_close(columns, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2))
    assert not columns.requires_grad
    assert parameters.grad is None


def test_fisher_operator_rejects_a_mean_over_problems() -> None:
    with pytest.raises(ValueError, match=r"one number per problem, shape \(2,\), got \(\)"):
        fisher_operator(lambda theta: theta.square().mean(), torch.zeros(2, 3), damping=0.0)


def test_natural_step_by_hand() -> None:
    # F = diag(1, 100), g = (1, 1): x = (1, .01), xᵀFx = 1.01.
    step = natural_step(product_with(torch.diag(f64([1, 100]))), f64([1, 1]), delta=0.01)
    torch.testing.assert_close(step, math.sqrt(0.02 / 1.01) * f64([1, 0.01]))


@pytest.mark.parametrize(("diagonal", "missed_by"), [([1.0, 100.0], 0.01), ([0.01, 0.01], 1e4)])
def test_scaling_by_the_gradient_instead_misses_the_radius(diagonal: list[float], missed_by: float) -> None:
    fisher, gradient, delta = torch.diag(f64(diagonal)), f64([1, 1]), 0.01
    x = torch.linalg.solve(fisher, gradient)
    wrong = x * (2 * delta / quadratic(fisher, gradient)).sqrt()
    assert 0.5 * quadratic(fisher, wrong).item() / delta == pytest.approx(missed_by, rel=1e-3)
    step = natural_step(product_with(fisher), gradient, delta=delta)
    assert 0.5 * quadratic(fisher, step).item() == pytest.approx(delta)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), SHAPES, st.integers(1, 6), st.integers(1, 10), st.sampled_from([0.0, 0.1]))
def test_natural_step_spends_the_radius(
    seed: int, shape: tuple[int, ...], size: int, iterations: int, damping: float
) -> None:
    matrix, gradient = random_problem(seed, shape, size)
    damped = matrix + damping * torch.eye(size, dtype=torch.float64)
    step = natural_step(product_with(matrix), gradient, delta=0.02, iterations=iterations, damping=damping)
    torch.testing.assert_close(0.5 * quadratic(damped, step), torch.full(shape, 0.02, dtype=torch.float64))
    gain = (gradient * step).sum(-1)
    assert (gain > 0).all()
    # No step of this size gains more than sqrt(2δ gᵀF⁻¹g), and the exact natural step gains that much.
    best = (0.04 * (gradient * torch.linalg.solve(damped, gradient)).sum(-1)).sqrt()
    assert (gain <= best * (1 + 1e-9)).all()
    exact = natural_step(product_with(matrix), gradient, delta=0.02, iterations=4 * size, damping=damping)
    torch.testing.assert_close((gradient * exact).sum(-1), best, rtol=1e-6, atol=0)


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e6, 1e30])
def test_natural_step_does_not_depend_on_the_length_of_the_gradient(factor: float) -> None:
    matrix, gradient = (x.float() for x in random_problem(5, (3,), 4))
    step = natural_step(product_with(matrix), gradient, delta=0.01)
    torch.testing.assert_close(natural_step(product_with(matrix), factor * gradient, delta=0.01), step)


def test_natural_step_of_nothing_is_nothing_and_nan_stays_with_its_problem() -> None:
    matrix, gradient = random_problem(6, (4,), 3)
    alone = natural_step(product_with(matrix[3]), gradient[3], delta=0.01)
    gradient[0] = 0
    gradient[1, 2] = math.nan
    matrix[2] = 0
    step = natural_step(product_with(matrix), gradient, delta=0.01)
    assert (step[[0, 2]] == 0).all()
    assert step[1].isnan().all()
    torch.testing.assert_close(step[3], alone)


def test_natural_step_reaches_the_true_kl_of_a_softmax() -> None:
    # The Fisher matrix of a softmax is singular along (1, ..., 1), and the gradient has no component in that direction.
    generator = torch.Generator().manual_seed(7)
    logits, advantages = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    p = logits.softmax(-1)
    gradient = p * (advantages - (p * advantages).sum(-1, keepdim=True))
    kl = categorical_kl_from(logits)
    step = natural_step(fisher_operator(kl, logits, damping=0.0), gradient, delta=1e-6)
    torch.testing.assert_close(kl(logits + step), torch.full((6,), 1e-6, dtype=torch.float64), rtol=5e-3, atol=0)
    # Its natural gradient is the advantage itself, up to a constant and a length.
    direction = step - step.mean(-1, keepdim=True)
    centered = advantages - advantages.mean(-1, keepdim=True)
    torch.testing.assert_close(torch.cosine_similarity(direction, centered), torch.ones(6, dtype=torch.float64))


def test_backtrack_by_hand() -> None:
    step = f64([[8, 0], [8, 0], [8, 0], [math.nan, 0]])
    limit = f64([10, 3, 0.5, 10])
    calls: list[Tensor] = []

    def evaluate(scaled: Tensor) -> Tensor:
        calls.append(scaled)
        return scaled[..., 0] <= limit

    found = backtrack(evaluate, step, coefficient=0.5, max_backtracks=3)
    assert found.accepted.tolist() == [True, True, False, False]
    assert found.scale.tolist() == [1, 0.25, 0, 0]
    assert found.step.tolist() == [[8, 0], [2, 0], [0, 0], [0, 0]]
    assert [call[:3, 0].tolist() for call in calls] == [[8, 8, 8], [8, 4, 4], [8, 2, 2], [8, 2, 1]]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4),
    st.sampled_from([0.5, 0.8]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_backtrack_keeps_the_first_scale_that_passes(
    verdicts: list[list[bool]], coefficient: float, dtype: torch.dtype
) -> None:
    table = torch.tensor(verdicts)
    asked = iter(range(4))
    step = torch.arange(1, len(verdicts) + 1, dtype=dtype).unsqueeze(-1).expand(-1, 3)
    found = backtrack(lambda _: table[:, next(asked)], step, coefficient=coefficient, max_backtracks=3)
    scale = [coefficient ** row.index(True) if any(row) else 0.0 for row in verdicts]
    torch.testing.assert_close(found.scale, torch.tensor(scale, dtype=dtype))
    torch.testing.assert_close(found.step, found.scale.unsqueeze(-1) * step)
    assert found.accepted.tolist() == [any(row) for row in verdicts]
    # The search ends once all problems are accepted.
    questions = max(row.index(True) + 1 if any(row) else 4 for row in verdicts)
    assert next(asked, 4) == questions


def test_backtrack_of_one_problem_without_leading_dimensions() -> None:
    found = backtrack(lambda scaled: scaled.norm() < 0.7, f64([0.6, 0.8]))
    assert found.scale.item() == pytest.approx(0.64)
    assert found.step.tolist() == pytest.approx([0.384, 0.512])


@pytest.mark.parametrize("answer", [torch.tensor(True), torch.ones(2, 1, dtype=torch.bool), torch.ones(2)])
def test_backtrack_rejects_answers_that_are_not_one_bool_per_problem(answer: Tensor) -> None:
    with pytest.raises(ValueError, match=r"one bool per problem, shape \(2,\), got torch\."):
        backtrack(lambda _: answer, torch.ones(2, 3))


def test_rejects_bad_arguments() -> None:
    b = torch.ones(2)
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        conjugate_gradient(lambda v: v, b, iterations=0, tolerance=0.0)
    with pytest.raises(ValueError, match=r"tolerance must be at least 0, got -1\.0"):
        conjugate_gradient(lambda v: v, b, iterations=1, tolerance=-1.0)
    with pytest.raises(ValueError, match=r"damping must be at least 0, got -0\.1"):
        fisher_operator(lambda theta: theta.sum(-1), b, damping=-0.1)
    with pytest.raises(ValueError, match=r"damping must be at least 0, got -0\.1"):
        natural_step(lambda v: v, b, delta=0.01, damping=-0.1)
    with pytest.raises(ValueError, match=r"delta must be above 0, got 0\.0"):
        natural_step(lambda v: v, b, delta=0.0)
    with pytest.raises(ValueError, match=r"coefficient must lie strictly between 0 and 1, got 1\.0"):
        backtrack(lambda _: torch.tensor(True), b, coefficient=1.0)
    with pytest.raises(ValueError, match="max_backtracks must be at least 0, got -1"):
        backtrack(lambda _: torch.tensor(True), b, max_backtracks=-1)


def test_fisher_products_by_hand() -> None:
    # p = (1/4, 3/4) and v = (1, 0): p v - p (p . v) = (1/4 - 1/16, -3/16).
    logits = f64([0.0, math.log(3.0)])
    torch.testing.assert_close(categorical_fisher(logits, f64([1, 0])), f64([3, -3]) / 16)
    mean, log_std = gaussian_fisher(f64([math.log(2.0), 0.0]), f64([1, 1]), f64([1, -1]))
    torch.testing.assert_close(mean, f64([0.25, 1.0]))
    torch.testing.assert_close(log_std, f64([2, -2]))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), SHAPES, st.integers(1, 5))
def test_fisher_products_are_expectations_of_scores_and_second_derivatives(
    seed: int, shape: tuple[int, ...], size: int
) -> None:
    logits, vector, mean, log_std = torch.randn(
        4, *shape, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    # E[score scoreᵀ] v, one action at a time; the score of action a in the logits is e_a - p.
    p = logits.softmax(-1)
    scores = torch.eye(size, dtype=torch.float64) - p.unsqueeze(-2)
    expected = (p.unsqueeze(-1) * scores * (scores @ vector.unsqueeze(-1))).sum(-2)
    found = categorical_fisher(logits, vector)
    torch.testing.assert_close(found, expected)
    hessian = fisher_vector_product(lambda new: categorical_kl(logits, new), logits, vector, damping=0.0)
    torch.testing.assert_close(found, hessian)

    both = torch.cat((mean, log_std), dim=-1)
    change = torch.cat((vector, logits), dim=-1)
    hessian = fisher_vector_product(
        lambda new: gaussian_kl(mean, log_std, new[..., :size], new[..., size:]), both, change, damping=0.0
    )
    torch.testing.assert_close(torch.cat(gaussian_fisher(log_std, vector, logits), dim=-1), hessian)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64]), st.floats(-5, 5))
def test_fisher_products_do_not_depend_on_what_changes_no_policy(seed: int, dtype: torch.dtype, shift: float) -> None:
    logits, vector, other = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    found = categorical_fisher(logits, vector)
    assert found.dtype == dtype
    torch.testing.assert_close(categorical_fisher(logits + shift, vector + shift), found, rtol=1e-4, atol=1e-5)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(categorical_fisher(logits[:, order], vector[:, order]), found[:, order])
    # The matrix is symmetric, and the divergence is never negative.
    torch.testing.assert_close((other * found).sum(-1), (vector * categorical_fisher(logits, other)).sum(-1))
    assert ((vector * found).sum(-1) >= -1e-6).all()
