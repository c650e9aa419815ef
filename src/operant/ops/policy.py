r"""Policy-gradient losses, one per element, to be minimized.

Shapes: all tensors of a call have the same shape, usually flat `[n]` with unmasked elements only, or `[S, n]`. The
caller computes the weighted sum: `loss = (weights * per_element).sum()`.

`rho = π(a|s) / π_old(a|s)` is the probability ratio to the policy that sampled the actions. Gradients flow only
through `log_probs` (and the penalty of `penalized_surrogate`). Advantages and old log-probabilities are constants, so
`surrogate(log_probs, log_probs, advantages)` is the on-policy loss. The ratio is not clamped before `exp`: in float32
it overflows only at a log-ratio of 88, and the resulting Inf gradient should be noticed.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from operant.ops.kl import k3
from operant.ops.moments import weighted_mean
from operant.ops.shapes import require_shape
from operant.ops.weights import segment_sum


def policy_gradient(log_probs: Float[Tensor, "*B"], psi: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""Compute the score-function loss `-Ψ log π(a|s)` (Williams 1992; Schulman et al. 2016, arXiv 1506.02438, eq. 1).

    Args:
        log_probs: log-probabilities of the actions taken.
        psi: weight Ψ of each action, such as the total return, a reward-to-go with or without a baseline, or an
            advantage.

    Returns:
        Losses whose mean gradient is minus the policy gradient.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(log_probs.shape, "log_probs", psi=psi)
    return -log_probs * psi.detach()


def surrogate(
    log_probs: Float[Tensor, "*B"], old_log_probs: Float[Tensor, "*B"], advantages: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    r"""Compute the importance-sampled surrogate `-rho A` (Schulman et al. 2015, arXiv 1502.05477, equation 14).

    The ratio corrects for the actions, not for the states visited, so the surrogate equals the new policy's return only
    to first order around the old policy. At the old policy its gradient is that of REINFORCE.

    Args:
        log_probs: log-probabilities of the actions under the policy being improved.
        old_log_probs: those under the policy that drew them.
        advantages: advantages under the old policy.

    Returns:
        Losses.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs, advantages=advantages)
    return -_ratio(log_probs, old_log_probs) * advantages.detach()


def clipped_surrogate(
    log_probs: Float[Tensor, "*B"],
    old_log_probs: Float[Tensor, "*B"],
    advantages: Float[Tensor, "*B"],
    *,
    clip_low: float | Tensor,
    clip_high: float | Tensor,
    dual_clip: float | None = None,
) -> Float[Tensor, "*B"]:
    r"""Compute the clipped surrogate of PPO, `-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)`.

    Schulman et al. 2017 (arXiv 1707.06347, equation 7) with both ranges 0.2; a larger `clip_high` is the
    "clip-higher" of DAPO (Yu et al. 2025, arXiv 2503.14476, equation 8). The loss is at least that of
    `surrogate`.

    Because of the min, the gradient is zero only if the ratio has moved too far in the direction of the advantage:
    `A > 0 and rho > 1 + clip_high`, or `A < 0 and rho < 1 - clip_low`. Outside the range on the other side, the full
    gradient moves the ratio back. Neither the ratio nor the KL divergence is bounded.

    For `A < 0` and a ratio far above 1 the loss is unbounded. `dual_clip = c` bounds it to `c |A|`, with zero gradient
    above the bound (Ye et al. 2020, arXiv 1912.09729, with c = 3).

    The implementation computes `-min(rho A, (1 + clip_high) A)` for `A > 0` and `-min(rho A, (1 - clip_low) A)`
    otherwise, which gives the same value with fewer operations.

    Args:
        log_probs: log-probabilities of the actions under the policy being improved.
        old_log_probs: those under the policy that drew them.
        advantages: advantages under the old policy.
        clip_low: clip range below 1, in (0, 1]. A 0-dimensional tensor is not validated.
        clip_high: clip range above 1, positive.
        dual_clip: upper bound on the ratio for negative advantages, above 1; None for no bound.

    Returns:
        Losses.

    Raises:
        ValueError: if shapes differ or a clip range is out of bounds.
    """
    require_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs, advantages=advantages)
    _check_clip(clip_low, clip_high)
    costs = -advantages.detach()
    losses = _ratio(log_probs, old_log_probs) * costs
    clipped = torch.minimum(costs * (1.0 + clip_high), costs * (1.0 - clip_low))
    losses = torch.where(losses < clipped, clipped, losses)
    if dual_clip is None:
        return losses
    if not dual_clip > 1.0:
        raise ValueError(f"dual_clip is {dual_clip}, expected a number above 1, or None for no bound")
    return torch.minimum(losses, (dual_clip * costs).masked_fill(costs <= 0.0, torch.inf))


def penalized_surrogate(
    log_probs: Float[Tensor, "*B"],
    old_log_probs: Float[Tensor, "*B"],
    advantages: Float[Tensor, "*B"],
    kl: Float[Tensor, "*B"],
    *,
    beta: float | Float[Tensor, "..."],
) -> Float[Tensor, "*B"]:
    r"""Compute the surrogate with a KL penalty, `-rho A + β KL` (Schulman et al. 2017, arXiv 1707.06347, equation 8).

    Args:
        log_probs: log-probabilities of the actions under the policy being improved.
        old_log_probs: those under the policy that drew them.
        advantages: advantages under the old policy.
        kl: KL(old‖new) at each state, differentiable.
        beta: weight of the penalty, a number or a tensor that broadcasts (`[S, 1]` for one per seed); see
            `kl.adapt_penalty`.

    Returns:
        Losses.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(log_probs.shape, "log_probs", kl=kl)
    return surrogate(log_probs, old_log_probs, advantages) + beta * kl


def sequence_log_ratio(
    log_probs: Float[Tensor, " m"], old_log_probs: Float[Tensor, " m"], segments: Int[Tensor, " m"], count: int
) -> Float[Tensor, " m"]:
    r"""Compute the log-ratio of GSPO for each token: the mean over its sequence, with the gradient of the token itself.

    `sg[log s_i] + log π_t - sg[log π_t]` with `log s_i = 1/|y_i| Σ_t (log π_t - log π_old,t)` and sg a stopped
    gradient (Zheng et al. 2025, arXiv 2507.18071, equations 7 and 14). It replaces the difference of log-probabilities
    in the other losses: `clipped_surrogate(log_ratio, zeros, advantages, ...)`, with clip ranges of about 3e-4, because
    a mean varies less than its terms. If all tokens of a sequence have the same advantage and the weight 1/|y_i|, the
    gradient is that of the ratio `s_i`. Advantages per token are also supported.

    Args:
        log_probs: `[m]` log-probabilities of the tokens under the policy being improved.
        old_log_probs: `[m]` those under the policy that drew them.
        segments: `[m]` the sequence of each token, in 0 to `count - 1`; sequences must be complete.
        count: number of sequences.

    Returns:
        `[m]` log-ratios.

    Raises:
        ValueError: if shapes differ or `count` is negative.
    """
    require_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs, segments=segments)
    differences = log_probs.detach() - old_log_probs.detach()
    lengths = segment_sum(torch.ones_like(differences), segments, count).clamp(min=1.0)
    means = (segment_sum(differences, segments, count) / lengths).to(log_probs.dtype)
    return means[segments] + (log_probs - log_probs.detach())


def cispo(
    log_probs: Float[Tensor, "*B"],
    old_log_probs: Float[Tensor, "*B"],
    advantages: Float[Tensor, "*B"],
    *,
    cap: float,
    floor: float = 0.0,
) -> Float[Tensor, "*B"]:
    r"""Compute the policy gradient with clipped importance weights, `-sg[clip(rho, floor, cap)] A log π(a|s)`.

    CISPO (MiniMax 2025, arXiv 2506.13585, §3.1); sg stops gradients. `clipped_surrogate` sets the gradient of clipped
    tokens to zero; CISPO bounds their weight instead, so every token has a gradient. By default there is no lower
    bound, as in the paper's runs. `cap` is the maximum weight, such as 5. For a setting that is a distance from 1, pass
    `1 + epsilon_high`.

    Args:
        log_probs: log-probabilities of the actions under the policy being improved.
        old_log_probs: those under the policy that drew them.
        advantages: advantages under the old policy.
        cap: maximum weight, positive.
        floor: minimum weight, in [0, cap].

    Returns:
        Losses. Only their gradient is meaningful, not their value.

    Raises:
        ValueError: if shapes differ, `cap` is not positive, or `floor` is not in [0, cap].
    """
    require_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs, advantages=advantages)
    weights = truncated_weights(log_probs, old_log_probs, cap=cap)
    if not 0.0 <= floor <= cap:
        raise ValueError(f"floor is {floor}, expected a number from 0 to cap, {cap}")
    return policy_gradient(log_probs, weights.clamp(min=floor) * advantages.detach())


def truncated_weights(
    log_probs: Float[Tensor, "*B"], behavior_log_probs: Float[Tensor, "*B"], *, cap: float
) -> Float[Tensor, "*B"]:
    r"""Compute truncated importance weights `min(π(a|s) / μ(a|s), cap)`, detached (Ionides 2008).

    They correct a policy-gradient loss for actions sampled by another policy μ: a stale actor (ρ̄ in Espeholt et al.
    2018, arXiv 1802.01561), or a sampling engine whose probabilities differ from the trainer's. The cap trades
    variance for bias. Multiply the policy loss by them, not a KL penalty. They do not change the denominator of the
    mean.

    Args:
        log_probs: log-probabilities under the policy to correct to.
        behavior_log_probs: those under the policy that drew the actions.
        cap: maximum weight, positive.

    Returns:
        Weights in [0, cap].

    Raises:
        ValueError: if shapes differ or `cap` is not positive.
    """
    require_shape(log_probs.shape, "log_probs", behavior_log_probs=behavior_log_probs)
    if not cap > 0.0:
        raise ValueError(f"cap is {cap}, expected a positive number")
    return _ratio(log_probs.detach(), behavior_log_probs).clamp(max=cap)


def mismatch_mask(
    log_probs: Float[Tensor, "*B"], behavior_log_probs: Float[Tensor, "*B"], *, low: float, high: float
) -> Float[Tensor, "*B"]:
    r"""Mask the actions on which two policies disagree, `1[low <= π(a|s) / μ(a|s) <= high]`, detached.

    μ is a sampling engine whose probabilities differ from the trainer's. A ratio far from 1 on either side is probably
    a numerical error, so the token gets no gradient. The product with `truncated_weights` is the two-sided mask of
    IcePop (Ling Team 2025, arXiv 2510.18855, with 0.5 and 5). Masked tokens still count in the denominator of the loss.

    Args:
        log_probs: log-probabilities under the policy to correct to.
        behavior_log_probs: those under the policy that drew the actions.
        low: minimum ratio, not negative.
        high: maximum ratio, at least `low`.

    Returns:
        1 if the ratio is in the range, else 0.

    Raises:
        ValueError: if shapes differ or the range is out of bounds.
    """
    require_shape(log_probs.shape, "log_probs", behavior_log_probs=behavior_log_probs)
    if not 0.0 <= low <= high:
        raise ValueError(f"low is {low} and high is {high}, expected 0 <= low <= high: they bound the ratio itself")
    rho = _ratio(log_probs.detach(), behavior_log_probs)
    return ((rho >= low) & (rho <= high)).to(log_probs.dtype)


def sequence_weights(
    log_probs: Float[Tensor, " m"],
    behavior_log_probs: Float[Tensor, " m"],
    segments: Int[Tensor, " m"],
    count: int,
    *,
    cap: float,
    mask: bool,
) -> Float[Tensor, " m"]:
    r"""Compute importance weights of whole sequences, `w(Π_t π_t / μ_t)`, detached; all tokens of a sequence share one.

    With truncation, `w(ρ) = min(ρ, cap)`. With a mask, `w(ρ) = ρ` up to the cap and 0 above it, so a sequence that is
    far less likely under the engine has no gradient. These are TRL's `sequence_truncate` and `sequence_mask`. The
    product is the ratio that makes the gradient of a whole answer unbiased; ratios of single tokens are a first-order
    approximation. The variance of the product grows with the length, so long answers are often masked if the engines
    differ much. All tokens count in the denominator of the loss.

    Args:
        log_probs: `[m]` log-probabilities of the tokens under the policy to correct to.
        behavior_log_probs: `[m]` those under the policy that drew them.
        segments: `[m]` the sequence of each token, in 0 to `count - 1`; sequences must be complete.
        count: number of sequences.
        cap: maximum weight, positive.
        mask: whether a ratio above the cap gives the weight 0 instead of the cap.

    Returns:
        `[m]` weights in [0, cap].

    Raises:
        ValueError: if shapes differ, `count` is negative or `cap` is not positive.
    """
    require_shape(log_probs.shape, "log_probs", behavior_log_probs=behavior_log_probs, segments=segments)
    if not cap > 0.0:
        raise ValueError(f"cap is {cap}, expected a positive number")
    rho = segment_sum(log_probs.detach() - behavior_log_probs.detach(), segments, count).exp()
    weights = torch.where(rho > cap, 0.0, rho) if mask else rho.clamp(max=cap)
    return weights.to(log_probs.dtype)[segments]


def clip_fraction(
    log_probs: Float[Tensor, "*S n"],
    old_log_probs: Float[Tensor, "*S n"],
    *,
    clip_low: float | Tensor,
    clip_high: float | Tensor,
    weights: Float[Tensor, "*S n"] | None = None,
) -> Float[Tensor, "*S"]:
    r"""Share of the ratios outside `[1 - clip_low, 1 + clip_high]`, a diagnostic without a gradient.

    A ratio outside the range has no gradient only if it moved in the direction of its advantage.

    Args:
        log_probs: `[..., n]` log-probabilities under the policy being improved.
        old_log_probs: `[..., n]` those under the policy that drew the actions.
        clip_low: as in `clipped_surrogate`.
        clip_high: as in `clipped_surrogate`.
        weights: `[..., n]` weights of the mean; None: equal weights.

    Returns:
        `[...]` means over the last dimension; 0 where all weights are 0.

    Raises:
        ValueError: if shapes differ or a clip range is out of bounds.
    """
    require_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs)
    _check_clip(clip_low, clip_high)
    rho = _ratio(log_probs.detach(), old_log_probs)
    return weighted_mean(((rho < 1.0 - clip_low) | (rho > 1.0 + clip_high)).to(rho.dtype), weights)


def approximate_kl(
    log_probs: Float[Tensor, "*S n"],
    old_log_probs: Float[Tensor, "*S n"],
    *,
    weights: Float[Tensor, "*S n"] | None = None,
) -> Float[Tensor, "*S"]:
    r"""Estimate KL(old‖new) from samples of the old policy, a diagnostic without a gradient.

    The mean of `(rho - 1) - log rho`: unbiased and never negative (Schulman 2020, "Approximating KL divergence").

    Args:
        log_probs: `[..., n]` log-probabilities under the policy being improved.
        old_log_probs: `[..., n]` those under the policy that drew the actions.
        weights: `[..., n]` weights of the mean; None: equal weights.

    Returns:
        `[...]` means over the last dimension; 0 where all weights are 0.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs)
    return weighted_mean(k3(log_probs.detach() - old_log_probs.detach()), weights)


def _ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    return (log_probs - old_log_probs.detach()).exp()


def _check_clip(clip_low: float | Tensor, clip_high: float | Tensor) -> None:
    if isinstance(clip_low, Tensor) or isinstance(clip_high, Tensor):
        return  # a compiled update cannot read the values of tensors
    if not (0.0 < clip_low <= 1.0 and clip_high > 0.0):
        raise ValueError(
            f"clip_low is {clip_low} and clip_high is {clip_high}, expected 0 < clip_low <= 1 and clip_high > 0: "
            "they are distances from 1, such as 0.2"
        )
