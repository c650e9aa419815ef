"""Planning by sampling: fit a distribution of plans to candidates and their returns."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus


def cross_entropy_refit(
    candidates: Float[Tensor, "*B C N"], returns: Float[Tensor, "*B C"], *, elites: int
) -> tuple[Float[Tensor, "*B N"], Float[Tensor, "*B N"]]:
    """Return the mean and standard deviation of the `elites` candidates with the highest returns.

    The cross-entropy method (Rubinstein 1999; Botev et al. 2013, algorithm 2.2): the maximum-likelihood fit of a
    diagonal Gaussian to the elites.

    Raises:
        ValueError: if there are fewer candidates than elites.
    """
    if not 1 <= elites <= candidates.shape[-2]:
        raise ValueError(f"elites must be from 1 to the {candidates.shape[-2]} candidates, got {elites}")
    best = returns.topk(elites, dim=-1).indices.unsqueeze(-1)
    chosen = candidates.gather(-2, best.expand(*best.shape[:-1], candidates.shape[-1]))
    return chosen.mean(-2), chosen.std(-2, correction=0)


def path_integral_refit(
    candidates: Float[Tensor, "*B C N"], returns: Float[Tensor, "*B C"], *, temperature: float
) -> tuple[Float[Tensor, "*B N"], Float[Tensor, "*B N"]]:
    """Return the mean and standard deviation of candidates weighted by `exp(return / temperature)`.

    Model predictive path integral control (Williams et al. 2017, equation 26), except that the returns
    of a state are first divided by their standard deviation, so that one temperature suits all tasks. Candidates with
    the return -inf have weight 0, unless all are -inf.

    Raises:
        ValueError: if the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    valid = returns.isfinite()
    finite, count = returns.masked_fill(~valid, 0.0), valid.sum(-1, keepdim=True).clamp(min=1)
    center = finite.sum(-1, keepdim=True) / count
    squares = (finite - center).square().masked_fill(~valid, 0.0)
    scale = (squares.sum(-1, keepdim=True) / count).sqrt().clamp(min=1e-8)
    returns = torch.where(valid.any(-1, keepdim=True), returns, 0.0)
    weights = (returns / scale / temperature).softmax(-1).unsqueeze(-1)
    mean = (weights * candidates).sum(-2)
    variance = (weights * (candidates - mean.unsqueeze(-2)).square()).sum(-2)
    return mean, variance.clamp(min=0).sqrt()


def soft_clamp(values: Float[Tensor, "*B"], low: float, high: float) -> Float[Tensor, "*B"]:
    """Soft-clamp values between two bounds, with a non-zero gradient outside them (Chua et al. 2018, appendix A.1)."""
    below = high - softplus(high - values)
    return low + softplus(below - low)
