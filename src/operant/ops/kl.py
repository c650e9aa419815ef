r"""Kullback-Leibler divergences: estimated from samples, exact, and controllers of the penalty weight.

`KL(p‖q) = E_{x~p}[log p(x) - log q(x)]`, in nats.
"""

from typing import Literal, TypeVar

from jaxtyping import Float
from torch import Tensor

from operant.ops.shapes import require_shape

KLEstimator = Literal["k1", "k2", "k3"]
Number = TypeVar("Number", float, Tensor)

_MAX_LOG_RATIO = 20.0


def kl_estimate(
    log_probs: Float[Tensor, "*B"],
    ref_log_probs: Float[Tensor, "*B"],
    kind: KLEstimator,
    *,
    old_log_probs: Float[Tensor, "*B"] | None = None,
) -> Float[Tensor, "*B"]:
    r"""Estimate KL(policy‖ref) from single samples, one estimate per sampled action or token.

    With `d = log π(x) - log π_ref(x)` (Schulman 2020, "Approximating KL divergence"; k3 is equation 4 of
    DeepSeekMath, Shao et al. 2024, arXiv 2402.03300):

    * k1 = `d`: unbiased, positive or negative, high variance.
    * k2 = `d² / 2`: biased, never negative.
    * k3 = `exp(-d) - 1 + d`: unbiased, never negative, lower variance near the reference.

    An estimate with an unbiased *value* can have a biased *gradient*. The expected gradient of the mean over samples of
    the policy is:

    | kind | without `old_log_probs` | with `old_log_probs` |
    | --- | --- | --- |
    | k1 | 0: no regularization | that of KL(policy‖ref) |
    | k2 | that of KL(policy‖ref) | that of E_policy[k2], which is not a KL |
    | k3 | that of KL(ref‖policy) | that of KL(policy‖ref) |

    The right column holds for samples of any `old` policy with the same support: each estimate is multiplied by
    `rho = π(x) / π_old(x)`, with its gradient. The left column holds on-policy only; for samples of another policy, k1
    and k3 without the ratio do not estimate a KL. On-policy, `old_log_probs=log_probs.detach()` gives the right column.

    Both log-ratios are clamped to at most 20 before `exp`: a token with a probability near 0 gives e^20 instead of
    overflowing, without a gradient through that factor.

    Args:
        log_probs: log-probabilities of the samples under the policy.
        ref_log_probs: those under the reference, of the same shape. Detach them if they carry a graph.
        kind: the estimator, one of k1, k2, k3.
        old_log_probs: those under the policy that drew the samples; None if that is the policy itself. Treated as
            constants.

    Returns:
        Estimates, of the shape of `log_probs`.

    Raises:
        ValueError: if `kind` is unknown or shapes differ.
    """
    for name, other in (("ref_log_probs", ref_log_probs), ("old_log_probs", old_log_probs)):
        if other is not None:
            require_shape(log_probs.shape, "log_probs", **{name: other})
    difference = log_probs - ref_log_probs
    match kind:
        case "k1":
            estimate = difference
        case "k2":
            estimate = 0.5 * difference.square()
        case "k3":
            estimate = k3(-difference)
        case _:
            raise ValueError(f"kind is {kind!r}, expected 'k1', 'k2' or 'k3'")
    if old_log_probs is None:
        return estimate
    return (log_probs - old_log_probs.detach()).clamp(max=_MAX_LOG_RATIO).exp() * estimate


def k3(log_ratio: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Compute the estimate k3 of KL(p‖q), `rho - 1 - log rho`, with `log rho = log q(x) - log p(x)` for x ~ p."""
    log_ratio = log_ratio.clamp(max=_MAX_LOG_RATIO)
    return log_ratio.expm1() - log_ratio


def categorical_kl(logits_p: Float[Tensor, "*B A"], logits_q: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute the exact KL(p‖q) of two categorical distributions, summed over the last dimension.

    An action with probability 0 under p (logit -inf) adds 0, with a gradient of 0; if only q excludes an action, the
    divergence is infinite.

    Args:
        logits_p: `[..., A]` unnormalized log-probabilities of p.
        logits_q: `[..., A]` those of q.

    Returns:
        `[...]` divergences.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(logits_p.shape, "logits_p", logits_q=logits_q)
    log_p = logits_p.log_softmax(-1)
    return _expectation(log_p, log_p - logits_q.log_softmax(-1))


def cross_entropy(logits_p: Float[Tensor, "*B A"], logits_q: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute the cross-entropy `-Σ p log q` of two categorical distributions: the entropy of p plus KL(p‖q).

    Args:
        logits_p: `[..., A]` unnormalized log-probabilities of p, the target.
        logits_q: `[..., A]` those of q, the prediction.

    Returns:
        `[...]` cross-entropies. Actions with probability 0 under p add 0.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(logits_p.shape, "logits_p", logits_q=logits_q)
    return -_expectation(logits_p.log_softmax(-1), logits_q.log_softmax(-1))


def balanced_kl(
    posterior: Float[Tensor, "*B G A"], prior: Float[Tensor, "*B G A"], *, free: float
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    r"""Compute the balanced KL(posterior‖prior), summed over G categorical variables: (dynamics, representation).

    The dynamics loss, `max(free, KL(sg(posterior)‖prior))`, moves the prior towards the posterior. The representation
    loss, `max(free, KL(posterior‖sg(prior)))`, moves the posterior towards the prior. They have the same value and
    different gradients; below `free` nats both gradients are zero (Hafner et al. 2023, arXiv 2301.04104, eq. 3).

    Args:
        posterior: `[..., G, A]` unnormalized log-probabilities of the posterior.
        prior: `[..., G, A]` unnormalized log-probabilities of the prior.
        free: free nats, at least 0.

    Raises:
        ValueError: if `free` is negative.
    """
    if not free >= 0:
        raise ValueError(f"free is {free}, expected at least 0 nats, such as 1.0")
    dynamics = categorical_kl(posterior.detach(), prior).sum(-1)
    representation = categorical_kl(posterior, prior.detach()).sum(-1)
    return dynamics.clamp(min=free), representation.clamp(min=free)


def gaussian_kl(
    mean_p: Float[Tensor, "*#B A"],
    log_std_p: Float[Tensor, "*#B A"],
    mean_q: Float[Tensor, "*#B A"],
    log_std_q: Float[Tensor, "*#B A"],
) -> Float[Tensor, "*B"]:
    """Compute the exact KL(p‖q) of two Gaussians with diagonal covariance, summed over the last dimension.

    Args:
        mean_p: `[..., A]` mean of p.
        log_std_p: log standard deviation of p. All four may broadcast, such as `[A]`.
        mean_q: `[..., A]` mean of q.
        log_std_q: log standard deviation of q.

    Returns:
        `[...]` divergences.
    """
    log_ratio = log_std_p - log_std_q
    standardized = (mean_p - mean_q) * (-log_std_q).exp()
    return 0.5 * ((2.0 * log_ratio).expm1() - 2.0 * log_ratio + standardized.square()).sum(-1)


def adapt_penalty(beta: Number, kl: Number, *, target: float) -> Number:
    """Double or halve the weight of a KL penalty to steer KL to a target (Schulman et al. 2017, arXiv 1707.06347, §4).

    The weight is halved below `target / 1.5`, doubled above `1.5 target`, and unchanged otherwise. Call it once after
    each policy update.

    Args:
        beta: weight of the penalty, a number or `[S]`.
        kl: KL(old‖new) measured after the update, of the same type as `beta`.
        target: the target divergence, in nats.

    Returns:
        The new weight, of the type of `beta`.

    Raises:
        ValueError: if `target` is not positive.
    """
    _check_positive(target=target)
    return beta * (1 + (kl > 1.5 * target)) / (1 + (kl < target / 1.5))


def adapt_horizon(beta: Number, kl: Number, *, target: float, horizon: int, n: int) -> Number:
    """Steer the weight of a KL penalty by a proportional controller (Ziegler et al. 2019, arXiv 1909.08593, §2.2).

    `β <- β (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon)`; the paper's gain is `n / horizon = 0.1`.

    Args:
        beta: weight of the penalty, a number or `[S]`.
        kl: KL(policy‖ref) of the batch, of the same type as `beta`; for sequence models summed over a sequence.
        target: the target divergence, in nats.
        horizon: samples after which a persistent error of 20 % has changed β by about 20 %.
        n: samples since the last call, in the unit of `horizon`.

    Returns:
        The new weight, of the type of `beta`.

    Raises:
        ValueError: if `target`, `horizon` or `n` is not positive, or `n` is 5 horizons or more, after which the weight
            could be 0 or negative.
    """
    _check_positive(target=target, horizon=horizon, n=n)
    if n >= 5 * horizon:
        raise ValueError(f"horizon is {horizon}, expected more than n / 5 = {n / 5:g}, to keep the weight positive")
    error = kl / target - 1.0
    clipped = error.clamp(-0.2, 0.2) if isinstance(error, Tensor) else min(max(error, -0.2), 0.2)
    return beta * (1.0 + clipped * (n / horizon))


def _expectation(log_p: Float[Tensor, "*B A"], values: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute `Σ p · values` over the last dimension; outcomes of probability 0 add 0, whatever their value."""
    p = log_p.exp()
    return (p * values.masked_fill(p == 0.0, 0.0)).sum(-1)


def _check_positive(**settings: float | int) -> None:
    for name, value in settings.items():
        if not value > 0.0:
            raise ValueError(f"{name} is {value}, expected a positive number")
