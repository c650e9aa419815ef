"""Means and variances over the samples of a batch, the last dimension, with optional weights.

Weights are usually 1 for valid samples and 0 for others; fractions are allowed. Leading dimensions (seeds) are
independent problems. Values with weight 0 must be finite.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from operant.ops.shapes import require_shape


def weighted_mean(values: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None = None) -> Float[Tensor, "*B"]:
    """Return the mean over the last dimension; 0 where all weights are 0.

    Args:
        values: `[..., M]`.
        weights: `[..., M]`; None weighs all samples equally.

    Raises:
        ValueError: if shapes differ.
    """
    if weights is None:
        return values.mean(-1)
    require_shape(values.shape, "values", weights=weights)
    return (values * weights).sum(-1) / weights.sum(-1).clamp(min=1e-8)


def standardize(
    values: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None = None, *, eps: float = 1e-8
) -> Float[Tensor, "*B M"]:
    """Standardize to mean 0 and standard deviation 1, as PPO does with advantages.

    It uses the population standard deviation, so a single sample gives 0, not a division by zero.

    Args:
        values: `[..., M]`.
        weights: `[..., M]`; None weighs all samples equally. Samples of weight 0 are shifted and scaled too.
        eps: added to the standard deviation.
    """
    centered = _centered(values, weights)
    return centered / (weighted_mean(centered.square(), weights).sqrt().unsqueeze(-1) + eps)


def whiten(
    values: Float[Tensor, "*B M"],
    weights: Float[Tensor, "*B M"] | None = None,
    *,
    shift_mean: bool = True,
    correction: int = 1,
    eps: float = 1e-8,
) -> Float[Tensor, "*B M"]:
    """Scale to variance 1, and shift to mean 0 or keep the mean: `(values - mean) / sqrt(variance + eps)`.

    RLHF with PPO whitens advantages with a shift, and rewards without one, because the sign of a reward is meaningful
    (Huang et al. 2024, arXiv 2403.17031). `standardize` divides by the population standard deviation plus eps instead,
    as PPO does on other tasks.

    If the total weight is at most `correction`, values are not scaled: a single sample gives 0, or itself if the mean
    is kept. Equal values give exactly 0, or themselves.

    Args:
        values: `[..., M]`.
        weights: `[..., M]`; None weighs all samples equally. Samples of weight 0 are shifted and scaled too.
        shift_mean: whether to shift to mean 0; False keeps the mean, unscaled.
        correction: subtracted from the sum of the weights in the variance: 1 for the unbiased variance, 0 for the
            population variance.
        eps: added to the variance.
    """
    centered = _centered(values, weights)
    total = torch.full_like(values[..., 0], values.shape[-1]) if weights is None else weights.sum(-1)
    squares = (centered.square() if weights is None else weights * centered.square()).sum(-1)
    freedom = total - correction
    variance = squares / freedom.clamp(min=1e-8)
    scale = torch.where(freedom > 0.0, (variance + eps).rsqrt(), 1.0).unsqueeze(-1)
    return centered * scale if shift_mean else values - centered + centered * scale


def explained_variance(
    predictions: Float[Tensor, "*B M"], targets: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None = None
) -> Float[Tensor, "*B"]:
    """Return `1 - Var[targets - predictions] / Var[targets]`: 1 is perfect, 0 no better than a constant.

    NaN where all targets are equal.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(targets.shape, "targets", predictions=predictions)
    total = weighted_mean(_centered(targets, weights).square(), weights)
    unexplained = weighted_mean(_centered(targets - predictions, weights).square(), weights)
    return (1 - unexplained / total).masked_fill(total == 0, float("nan"))


def _centered(values: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None) -> Float[Tensor, "*B M"]:
    """Subtract the mean, after subtracting a valid sample, so that equal values give exactly 0."""
    sample = values[..., :1] if weights is None else values.gather(-1, weights.argmax(-1, keepdim=True))
    shifted = values - sample
    return shifted - weighted_mean(shifted, weights).unsqueeze(-1)


def percentile_range(values: Float[Tensor, "*B M"], *, low: float = 0.05, high: float = 0.95) -> Float[Tensor, "*B"]:
    """Return the distance between two percentiles, interpolated linearly between samples.

    DreamerV3 divides returns by it; it is robust to outliers (Hafner et al. 2023, arXiv 2301.04104,
    eq. 7).

    Args:
        values: `[..., M]`.
        low: lower percentile as a fraction, at least 0.
        high: upper percentile as a fraction, at most 1.

    Raises:
        ValueError: unless `0 <= low < high <= 1`.
    """
    if not 0 <= low < high <= 1:
        raise ValueError(f"low is {low} and high is {high}, expected 0 <= low < high <= 1")
    ordered, last = values.sort(-1).values, values.shape[-1] - 1
    ends: list[Tensor] = []
    for share in (low, high):
        below = int(share * last)
        ends.append(ordered[..., below].lerp(ordered[..., min(below + 1, last)], share * last - below))
    return ends[1] - ends[0]
