"""Means and variances over the samples of a batch, the last dimension, with optional weights.

A weight is 1 for a sample that counts and 0 for one that does not; fractions are allowed. Leading dimensions (seeds)
are independent problems. The values at weight 0 must be finite.
"""

from jaxtyping import Float
from torch import Tensor


def weighted_mean(values: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None = None) -> Float[Tensor, "*B"]:
    """Return the mean over the last dimension; 0 where all weights are 0.

    Args:
        values: `[..., M]`.
        weights: `[..., M]`; None weighs all samples equally.
    """
    if weights is None:
        return values.mean(-1)
    return (values * weights).sum(-1) / weights.sum(-1).clamp(min=1e-8)


def standardise(
    values: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None = None, *, eps: float = 1e-8
) -> Float[Tensor, "*B M"]:
    """Shift and scale to mean 0 and standard deviation 1, as PPO does with advantages.

    The standard deviation is the population's, so a single sample gives 0 and not a division by zero.

    Args:
        values: `[..., M]`.
        weights: `[..., M]`; None weighs all samples equally. Samples of weight 0 are shifted and scaled too.
        eps: added to the standard deviation.
    """
    centred = _centred(values, weights)
    return centred / (weighted_mean(centred.square(), weights).sqrt().unsqueeze(-1) + eps)


def explained_variance(
    predictions: Float[Tensor, "*B M"], targets: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None = None
) -> Float[Tensor, "*B"]:
    """Return `1 - Var[targets - predictions] / Var[targets]`: 1 is perfect, 0 no better than a constant.

    Not a number where the targets are all equal.
    """
    total = weighted_mean(_centred(targets, weights).square(), weights)
    unexplained = weighted_mean(_centred(targets - predictions, weights).square(), weights)
    return (1 - unexplained / total).masked_fill(total == 0, float("nan"))


def _centred(values: Float[Tensor, "*B M"], weights: Float[Tensor, "*B M"] | None) -> Float[Tensor, "*B M"]:
    """Subtract the mean, after a sample that counts: of equal values nothing remains, not even a rounding error."""
    live = values[..., :1] if weights is None else values.gather(-1, weights.argmax(-1, keepdim=True))
    shifted = values - live
    return shifted - weighted_mean(shifted, weights).unsqueeze(-1)
