"""Trust-region steps: conjugate gradients, Fisher-vector products, the natural step, the line search.

TRPO (Schulman et al. 2015, arXiv 1502.05477, §6 and App. C): maximize a surrogate with gradient g while the mean KL
from the old policy stays below δ. To second order KL(old‖θ) = ½ sᵀF s with F the Fisher matrix, so the best step is
along F⁻¹g. F is never formed: only v -> F v is needed.

Leading dimensions are independent problems, e.g. the seeds of a run: parameters are flat vectors [..., D], and each
problem converges, fails and stops independently. Only the early exit of `backtrack` moves data off the device. NaN or
Inf in one problem does not affect the others.
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
    """Solves A x = b for symmetric positive definite A by conjugate gradients from x = 0 (Hestenes and Stiefel 1952).

    A problem stops once its squared residual norm is at most `tolerance`, or when it meets a direction d with
    dᵀA d <= 0, where A has no inverse to follow; it keeps the x it has. D iterations solve it exactly up to rounding.

    Args:
        matvec: v -> A v, for each problem independently.
        b: Right-hand sides.
        iterations: Products with A at most, at least 1; the TRPO paper has 10. More come closer to A⁻¹b.
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
    """(F + damping·I) v, with F the Hessian of a KL divergence, by differentiating twice.

    To solve for many vectors at the same parameters use `fisher_operator`, which differentiates the first time once.

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
    """The map v -> (F + damping·I) v, with F the Hessian of a KL divergence at `parameters`.

    Where the KL is 0, at the old policy, its Hessian is the Fisher matrix E[∇log π ∇log πᵀ] (TRPO App. C.1).

    Args:
        kl_of_parameters: Parameters [..., D] -> mean KL(old‖new) [...], one number per problem, in which the old policy
            is a constant and no problem depends on the parameters of another.
        parameters: Where to take the Hessian: those of the old policy.
        damping: Added to the diagonal, in the units of F, at least 0; keeps F invertible. 0.1 is common.

    Returns:
        A function [..., D] -> [..., D] that holds the graph of the first derivative; its results carry no gradient.

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
    """The Fisher matrix of a categorical distribution in its logits times a vector: (diag(p) - p pᵀ) v.

    It is the Hessian of `categorical_kl(old, new)` where both are equal, without sampled actions.

    Args:
        logits: [..., A] unnormalized log-probabilities.
        vector: v, a change of the logits.

    Returns:
        The products; 0 for a v that changes all logits alike, which changes no probability.
    """
    p = logits.softmax(-1)
    return p * (vector - _dot(p, vector))


def gaussian_fisher(
    log_std: Float[Tensor, "*#B A"], mean_vector: Float[Tensor, "*#B A"], log_std_vector: Float[Tensor, "*#B A"]
) -> tuple[Float[Tensor, "*#B A"], Float[Tensor, "*#B A"]]:
    """The Fisher matrix of a Gaussian with diagonal covariance, in mean and log_std, times a vector.

    It is diagonal: 1/σ² for a mean and 2 for a log_std; the Hessian of `gaussian_kl(old, new)` where both are equal.

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
    """The natural-gradient step that spends the whole trust region: s = x·sqrt(2δ/xᵀF x) with x = F⁻¹g.

    So ½ sᵀF s = δ for any length of g and any accuracy of conjugate gradients (TRPO App. C). To scale F⁻¹g by
    sqrt(2δ/gᵀF g) instead would miss δ by orders of magnitude.

    Args:
        matvec: v -> F v, for each problem independently.
        gradient: g, the gradient of an objective to be **maximized**; the step is to be added to the parameters. For a
            loss, pass the negative gradient.
        delta: Size of the trust region: the KL, to second order, in nats; above 0. TRPO has 0.01.
        iterations: Iterations of conjugate gradients at most.
        damping: F + damping·I takes the place of F, both in the direction and in the size. Leave it at 0 where `matvec`
            has damping in it.

    Returns:
        The steps; 0 where the gradient is 0, or where F has no curvature along it.

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
    """The accepted step; 0 where none was."""
    accepted: Bool[Tensor, "*B"]
    """Whether a step was accepted."""
    scale: Float[Tensor, "*B"]
    """The accepted step over the proposed one, a power of the coefficient; 0 where none was."""


def backtrack(
    evaluate: Callable[[Tensor], Tensor],
    step: Float[Tensor, "*B D"],
    *,
    coefficient: float = 0.8,
    max_backtracks: int = 10,
) -> LineSearch:
    """Shrinks each step until it is acceptable: the largest of 1, c, c², ..., c^max_backtracks that passes.

    The line search of TRPO (App. C), where a step passes if the surrogate improves and the KL stays below δ. Each
    problem keeps the first scale that passes, whatever the others do.

    Args:
        evaluate: Scaled steps [..., D] -> bool [...], whether each problem accepts its step. It is called once per
            scale, until all have accepted, and must be false for NaN and Inf, as comparisons are. The result of a
            problem that has already accepted is ignored.
        step: The proposed steps.
        coefficient: c, the factor of one backtrack, in (0, 1). Raising it searches more finely and less far.
        max_backtracks: Number of times that a step may be shrunk, at least 0.

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
        verdict = evaluate(scale.unsqueeze(-1) * step)
        if verdict.shape != scale.shape or verdict.dtype != torch.bool:
            raise ValueError(
                f"evaluate must return one bool per problem, shape {tuple(scale.shape)}, got {verdict.dtype} of shape "
                f"{tuple(verdict.shape)}"
            )
        accepted = accepted | verdict
        if accepted.all():
            break
    scale = scale.masked_fill(~accepted, 0)
    return LineSearch((scale.unsqueeze(-1) * step).masked_fill(~accepted.unsqueeze(-1), 0), accepted, scale)


def _dot(a: Float[Tensor, "*B D"], b: Float[Tensor, "*B D"]) -> Float[Tensor, "*B 1"]:
    return (a * b).sum(-1, keepdim=True)


def _check_damping(damping: float) -> None:
    if not damping >= 0:
        raise ValueError(f"damping must be at least 0, got {damping}")
