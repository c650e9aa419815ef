"""Trust-region steps: conjugate gradients, Fisher-vector products, the natural step, the line search.

TRPO (Schulman et al. 2015, arXiv 1502.05477, §6 and App. C) maximizes a surrogate with gradient g while the mean KL
from the old policy stays below δ. To second order KL(old‖θ) = ½ sᵀF s, with F the Fisher matrix, so the optimal step
has the direction F⁻¹g. F is not formed explicitly; the functions only compute products v -> F v.

Leading dimensions are independent problems, e.g. the seeds of a run: parameters are flat vectors [..., D], and each
problem converges, fails and stops independently. NaN or Inf in one problem does not affect the others. Only the early
exit of `backtrack` synchronizes with the device.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Operator = Callable[[Tensor], Tensor]
"""A symmetric positive semi-definite matrix as its product with a vector, [..., D] -> [..., D]."""

_RELATIVE_RESIDUAL = 1e-10


def conjugate_gradient(
    matvec: Operator, b: Float[Tensor, "*B D"], *, iterations: int, tolerance: float
) -> Float[Tensor, "*B D"]:
    """Solve A x = b for symmetric positive definite A by conjugate gradients from x = 0 (Hestenes and Stiefel 1952).

    A problem stops with its current x once its squared residual norm is at most `tolerance`, or at a direction d with
    dᵀA d <= 0, along which A is not positive definite. D iterations solve it exactly up to rounding.

    Args:
        matvec: v -> A v, for each problem independently.
        b: Right-hand sides.
        iterations: Maximum number of products with A, at least 1; 10 in the TRPO paper. More give a more accurate x.
        tolerance: Bound on ‖b - A x‖², in the squared units of b; at least 0.

    Returns:
        The solutions x.

    Raises:
        ValueError: If `iterations` or `tolerance` is out of range.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
    x = torch.zeros_like(b)
    residual = direction = b
    norm = _dot(b, b)
    for _ in range(iterations):
        product = matvec(direction)
        curvature = _dot(direction, product)
        stopped = (norm <= tolerance) | (curvature <= 0)
        length = (norm / curvature).masked_fill(stopped, 0)
        x = x + length * direction
        residual = residual - length * product
        next_norm = _dot(residual, residual)
        direction = torch.where(stopped, direction, residual + next_norm / norm * direction)
        norm = next_norm
    return x


def fisher_vector_product(
    kl_of_parameters: Callable[[Tensor], Tensor],
    parameters: Float[Tensor, "*B D"],
    vector: Float[Tensor, "*B D"],
    *,
    damping: float,
) -> Float[Tensor, "*B D"]:
    """Compute (F + damping·I) v, with F the Hessian of a KL divergence, by double backpropagation.

    For several vectors at the same parameters use `fisher_operator`, which computes the first derivative once.

    Args:
        kl_of_parameters: As in `fisher_operator`.
        parameters: As in `fisher_operator`.
        vector: v.
        damping: As in `fisher_operator`.

    Returns:
        The products, without gradient.
    """
    return fisher_operator(kl_of_parameters, parameters, damping=damping)(vector)


def fisher_operator(
    kl_of_parameters: Callable[[Tensor], Tensor], parameters: Float[Tensor, "*B D"], *, damping: float
) -> Operator:
    """Return the operator v -> (F + damping·I) v, with F the Hessian of a KL divergence at `parameters`.

    At the old policy, where the KL is 0, its Hessian is the Fisher matrix E[∇log π ∇log πᵀ] (TRPO App. C.1).

    Args:
        kl_of_parameters: Function from parameters [..., D] to the mean KL(old‖new) [...], one number per problem. The
            old policy is a constant, and problems do not depend on each other's parameters.
        parameters: Parameters of the old policy, at which the Hessian is computed.
        damping: Added to the diagonal, in the units of F, at least 0; keeps F invertible. 0.1 is common.

    Returns:
        A function [..., D] -> [..., D], which keeps the graph of the first derivative. Its results have no gradient.

    Raises:
        ValueError: If `damping` is negative, or the KL is not one number per problem.
    """
    _check_damping(damping)
    with torch.enable_grad():
        point = parameters.detach().requires_grad_()
        kl = kl_of_parameters(point)
        if kl.shape != parameters.shape[:-1]:
            raise ValueError(
                f"kl_of_parameters must return one number per problem, shape {tuple(parameters.shape[:-1])}, got "
                f"{tuple(kl.shape)}; average over states, not over problems"
            )
        (gradient,) = torch.autograd.grad(kl.sum(), point, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        (hessian_vector,) = torch.autograd.grad(gradient, point, vector, retain_graph=True)
        return hessian_vector + damping * vector

    return product


def categorical_fisher(logits: Float[Tensor, "*B A"], vector: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
    """Multiply a vector by the Fisher matrix of a categorical distribution in its logits: (diag(p) - p pᵀ) v.

    This matrix is the Hessian of `categorical_kl(old, new)` at new = old.

    Args:
        logits: [..., A] unnormalized log-probabilities.
        vector: v, a change of the logits.

    Returns:
        The products; 0 for a v that changes all logits equally, because probabilities do not change.
    """
    p = logits.softmax(-1)
    return p * (vector - _dot(p, vector))


def gaussian_fisher(
    log_std: Float[Tensor, "*#B A"], mean_vector: Float[Tensor, "*#B A"], log_std_vector: Float[Tensor, "*#B A"]
) -> tuple[Float[Tensor, "*#B A"], Float[Tensor, "*#B A"]]:
    """Multiply a vector by the Fisher matrix of a diagonal Gaussian in its mean and log_std.

    This matrix is diagonal, with 1/σ² for a mean and 2 for a log_std: the Hessian of `gaussian_kl(old, new)` at
    new = old.

    Args:
        log_std: [..., A] logarithms of the standard deviations.
        mean_vector: The part of v that changes the means.
        log_std_vector: The part that changes `log_std`.

    Returns:
        Both parts of the products.
    """
    return mean_vector * (-2.0 * log_std).exp(), 2.0 * log_std_vector


def natural_step(
    matvec: Operator, gradient: Float[Tensor, "*B D"], *, delta: float, iterations: int = 10, damping: float = 0.0
) -> Float[Tensor, "*B D"]:
    """Compute the longest natural-gradient step in the trust region: s = x·sqrt(2δ/xᵀF x) with x = F⁻¹g.

    Then ½ sᵀF s = δ for any length of g and any accuracy of conjugate gradients (TRPO App. C). (Scaling F⁻¹g by
    sqrt(2δ/gᵀF g) instead would miss δ by orders of magnitude.)

    Args:
        matvec: v -> F v, for each problem independently.
        gradient: g, the gradient of an objective to be **maximized**; add the step to the parameters. For a loss, pass
            the negative gradient.
        delta: Size of the trust region: the KL, to second order, in nats; above 0. 0.01 in the TRPO paper.
        iterations: Maximum number of conjugate-gradient iterations.
        damping: F + damping·I replaces F, both in the direction and in the length. Use 0 if `matvec` already includes
            damping.

    Returns:
        The steps; 0 if the gradient is 0, or if F has no curvature along it.

    Raises:
        ValueError: If `delta`, `iterations` or `damping` is out of range.
    """
    _check_damping(damping)
    if not delta > 0:
        raise ValueError(f"delta must be above 0, got {delta}")

    def damped(vector: Tensor) -> Tensor:
        return matvec(vector) + damping * vector

    largest = gradient.abs().amax(-1, keepdim=True)
    unit = gradient / largest.masked_fill(largest == 0, 1)
    x = conjugate_gradient(damped, unit, iterations=iterations, tolerance=_RELATIVE_RESIDUAL)
    curvature = _dot(x, damped(x))
    return x * (math.sqrt(2 * delta) * curvature.rsqrt()).masked_fill(curvature <= 0, 0)


class LineSearch(NamedTuple):
    """Result of `backtrack`, for each problem."""

    step: Float[Tensor, "*B D"]
    """The accepted step; 0 if none was accepted."""
    accepted: Bool[Tensor, "*B"]
    """Whether a step was accepted."""
    scale: Float[Tensor, "*B"]
    """Ratio of the accepted step to the proposed one, a power of the coefficient; 0 if none was accepted."""


def backtrack(
    evaluate: Callable[[Tensor], Tensor],
    step: Float[Tensor, "*B D"],
    *,
    coefficient: float = 0.8,
    max_backtracks: int = 10,
) -> LineSearch:
    """Shrink each step until it is accepted: return the largest of 1, c, c², ..., c^max_backtracks that passes.

    The line search of TRPO (App. C), where a step passes if the surrogate improves and the KL stays below δ. Each
    problem independently keeps the first scale that passes.

    Args:
        evaluate: Function from scaled steps [..., D] to bools [...], whether each problem accepts its step. It is
            called once per scale until all have accepted, and must return False for NaN and Inf, as comparisons do.
            Results of problems that have already accepted are ignored.
        step: The proposed steps.
        coefficient: c, the factor of one backtrack, in (0, 1). Larger values search a smaller range more finely.
        max_backtracks: Maximum number of reductions, at least 0.

    Returns:
        Accepted steps, which problems have one, and the scales.

    Raises:
        ValueError: If `coefficient` or `max_backtracks` is out of range, or `evaluate` does not return one bool per
            problem.
    """
    if not 0 < coefficient < 1:
        raise ValueError(f"coefficient must lie strictly between 0 and 1, got {coefficient}")
    if max_backtracks < 0:
        raise ValueError(f"max_backtracks must be at least 0, got {max_backtracks}")
    scale = step.new_ones(step.shape[:-1])
    accepted = torch.zeros_like(scale, dtype=torch.bool)
    for power in range(max_backtracks + 1):
        scale = torch.where(accepted, scale, coefficient**power)
        passed = evaluate(scale.unsqueeze(-1) * step)
        if passed.shape != scale.shape or passed.dtype != torch.bool:
            raise ValueError(
                f"evaluate must return one bool per problem, shape {tuple(scale.shape)}, got {passed.dtype} of shape "
                f"{tuple(passed.shape)}"
            )
        accepted = accepted | passed
        if accepted.all():
            break
    scale = scale.masked_fill(~accepted, 0)
    return LineSearch((scale.unsqueeze(-1) * step).masked_fill(~accepted.unsqueeze(-1), 0), accepted, scale)


def _dot(a: Float[Tensor, "*B D"], b: Float[Tensor, "*B D"]) -> Float[Tensor, "*B 1"]:
    return (a * b).sum(-1, keepdim=True)


def _check_damping(damping: float) -> None:
    if not damping >= 0:
        raise ValueError(f"damping must be at least 0, got {damping}")
