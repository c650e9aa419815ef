"""Action distributions as plain functions: `sample`, `log_prob`, `entropy` and `mode` of three families.

- categorical, over A choices, from unnormalized log-probabilities `logits`; -inf masks a choice;
- gaussian, diagonal, from `mean` and `log_std`, with all A dimensions of the last axis as one action;
- tanh_gaussian, a Gaussian squashed into (-1, 1) by tanh (Haarnoja et al. 2018, arXiv 1801.01290, App. C).

Functions of a family take the same parameters. The caller samples noise and passes it as a tensor, so a sample is a
pure function of parameters and noise, and for Gaussians a differentiable one. Logarithms are natural.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, softmax

from operant.ops.shapes import require_shape

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def categorical_sample(logits: Float[Tensor, "*B A"], noise: Float[Tensor, "*B A"]) -> Int64[Tensor, "*B"]:
    """Sample a choice by the Gumbel-max trick: argmax(logits + noise) has the probabilities softmax(logits).

    Args:
        logits: Unnormalized log-probabilities; each distribution needs at least one finite entry.
        noise: Standard Gumbel noise, -log(-log(u)) with u uniform in (0, 1).
    """
    return (logits + noise).argmax(-1)


def unimix(logits: Float[Tensor, "*B A"], share: float) -> Float[Tensor, "*B A"]:
    """Mix softmax(logits) with the uniform distribution in the proportion `share`; return log-probabilities.

    The minimum probability is share / A, so divergences are finite (Hafner et al. 2023, arXiv 2301.04104).

    Args:
        logits: Unnormalized log-probabilities.
        share: In [0, 1]; 0 gives log softmax(logits).

    Raises:
        ValueError: `share` lies outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}, expected a number in [0, 1], such as 0.01")
    if share == 0:
        return log_softmax(logits, -1)
    return (softmax(logits, -1) * (1 - share) + share / logits.shape[-1]).log()


def gumbel_softmax(
    logits: Float[Tensor, "*B A"], noise: Float[Tensor, "*B A"], *, temperature: float = 1.0
) -> Float[Tensor, "*B A"]:
    """Compute a relaxed choice softmax((logits + noise) / τ), with a gradient (Jang et al. 2017, arXiv 1611.01144).

    Its largest entry is the choice of `categorical_sample` with the same noise, at any temperature.

    Args:
        logits: Unnormalized log-probabilities.
        noise: Standard Gumbel noise, or 0 for the most likely choice.
        temperature: τ, positive; as it approaches 0, the vector becomes one-hot.

    Raises:
        ValueError: The temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    return softmax((logits + noise) / temperature, -1)


def one_hot(choices: Int64[Tensor, "*B"], count: int, *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*B A"]:
    """Return one-hot vectors of `choices`, numbers from 0 to `count - 1`.

    Their values are not read, unlike by `torch.nn.functional.one_hot`, so on a GPU nothing waits for them.
    """
    return (choices.unsqueeze(-1) == torch.arange(count, device=choices.device)).to(dtype)


def straight_through(log_probs: Float[Tensor, "*B A"], choices: Int64[Tensor, "*B"]) -> Float[Tensor, "*B A"]:
    """Return one-hot vectors of `choices` with the gradient of the probabilities (Bengio et al. 2013, arXiv 1308.3432).

    Args:
        log_probs: Normalized log-probabilities.
        choices: Samples from them.
    """
    probabilities = log_probs.exp()
    chosen = one_hot(choices, log_probs.shape[-1], dtype=log_probs.dtype)
    return chosen + (probabilities - probabilities.detach())


def categorical_log_prob(logits: Float[Tensor, "*B A"], actions: Int64[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Compute the log-probability of the choices `actions`; -inf for a masked choice."""
    return _select(log_softmax(logits, -1), actions)


def categorical_entropy(logits: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute the entropy -Σ p log p in nats, with 0 log 0 = 0; logits of -inf have the gradient 0."""
    return _entropy(log_softmax(logits, -1))


def categorical_log_prob_entropy(
    logits: Float[Tensor, "*B A"], actions: Int64[Tensor, "*B"]
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """Compute `categorical_log_prob` and `categorical_entropy` with one log-softmax, for updates that need both."""
    log_probs = log_softmax(logits, -1)
    return _select(log_probs, actions), _entropy(log_probs)


def categorical_mode(logits: Float[Tensor, "*B A"]) -> Int64[Tensor, "*B"]:
    """Return the most likely choice; ties go to the first one."""
    return logits.argmax(-1)


def gaussian_sample(
    mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"], noise: Float[Tensor, "*B A"]
) -> Float[Tensor, "*B A"]:
    """Sample the action mean + exp(log_std)·noise, differentiable in the parameters (the reparameterization trick).

    Args:
        mean: Means of the A dimensions.
        log_std: Logarithms of the standard deviations; leading dimensions broadcast, so [A] serves the whole batch.
        noise: Standard normal noise.
    """
    return torch.addcmul(mean, log_std.exp(), noise)


def state_dependent_noise(features: Float[Tensor, "*B L"], weights: Float[Tensor, "*#B L A"]) -> Float[Tensor, "*B A"]:
    """Compute noise that is a function of the state: ε = φ/‖φ‖ · W, standard normal over samples of W.

    State-dependent exploration (Raffin et al. 2021, arXiv 2005.05719, eq. 3), with features of length 1. The
    correlation of the noise in two states is the cosine between their features.

    Args:
        features: Features of the states, φ; if all squares are 0, the noise is 0.
        weights: Samples W of the standard normal distribution, used for several states.
    """
    length = features.square().sum(-1, keepdim=True).sqrt()
    return ((features / length).masked_fill(length == 0, 0.0).unsqueeze(-2) @ weights).squeeze(-2)


def gaussian_log_prob(
    mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"], actions: Float[Tensor, "*B A"]
) -> Float[Tensor, "*B"]:
    """Compute the log-density of `actions`, summed over the A independent dimensions.

    Raises:
        ValueError: if `actions` has another shape than `mean`.
    """
    require_shape(mean.shape, "mean", actions=actions)
    return _log_density((actions - mean) * (-log_std).exp(), log_std)


def gaussian_entropy(mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"]) -> Float[Tensor, "*B"]:
    """Compute the differential entropy Σ (log_std + ½ log 2πe) in nats; only the shape of `mean` matters."""
    entropy = log_std.sum(-1) + mean.shape[-1] * (0.5 + _HALF_LOG_TWO_PI)
    return entropy.expand(mean.shape[:-1])


def gaussian_mode(mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"]) -> Float[Tensor, "*B A"]:
    """Return the most likely action, the mean; `log_std` is not used."""
    return mean


def tanh_gaussian_sample(
    mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"], noise: Float[Tensor, "*B A"]
) -> Float[Tensor, "*B A"]:
    """Sample the action tanh(mean + exp(log_std)·noise), with standard normal `noise`."""
    return gaussian_sample(mean, log_std, noise).tanh()


def tanh_gaussian_log_prob(
    mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"], pre_tanh: Float[Tensor, "*B A"]
) -> Float[Tensor, "*B"]:
    """Compute the log-density of the action tanh(pre_tanh), as a density over actions in (-1, 1)^A.

    log N(u; mean, std) - Σ log(1 - tanh²u) at u = pre_tanh. Store u with the action: in float32 the action rounds to ±1
    for |u| > 9, so u cannot be recovered from it.
    """
    return gaussian_log_prob(mean, log_std, pre_tanh) - _log_tanh_slope(pre_tanh)


def tanh_gaussian_sample_log_prob(
    mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"], noise: Float[Tensor, "*B A"]
) -> tuple[Float[Tensor, "*B A"], Float[Tensor, "*B"]]:
    """Sample an action as `tanh_gaussian_sample` does, with its log-density; both are differentiable.

    The entropy has no closed form. Minus this log-density is an unbiased one-sample estimate of it, also in its
    gradient.
    """
    pre_tanh = gaussian_sample(mean, log_std, noise)
    return pre_tanh.tanh(), _log_density(noise, log_std) - _log_tanh_slope(pre_tanh)


def tanh_gaussian_mode(mean: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"]) -> Float[Tensor, "*B A"]:
    """Return the greedy action tanh(mean), the mode of the Gaussian mapped by tanh, as is usual.

    It is the median of each dimension, but not the mode of the squashed density, which for a wide Gaussian is near ±1.
    `log_std` is not used.
    """
    return mean.tanh()


def _select(log_probs: Float[Tensor, "*B A"], actions: Int64[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _entropy(log_probs: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute -Σ p log p; the clamp makes 0·(-inf) equal 0, in the value and in the gradient."""
    return -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)


def _log_density(z: Float[Tensor, "*B A"], log_std: Float[Tensor, "*#B A"]) -> Float[Tensor, "*B"]:
    """Compute the log-density of mean + exp(log_std)·z."""
    return -0.5 * z.square().sum(-1) - log_std.sum(-1) - z.shape[-1] * _HALF_LOG_TWO_PI


def _log_tanh_slope(u: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute Σ log(1 - tanh²u) as Σ 2 (log 2 - u - softplus(-2u)), without cancellation at large |u|."""
    return 2 * (math.log(2) - u + logsigmoid(2 * u)).sum(-1)
