"""Losses of models with latent states: likelihoods of images and next states, and errors of latent predictions.

A variational autoencoder (Kingma & Welling 2014, arXiv 1312.6114) maximizes log p(x|z) - KL(q(z|x)‖p(z)): the first
term is `bernoulli_log_prob` for pixels, the second `gaussian_kl` to the standard normal. A mixture density network
(Bishop 1994) predicts a real vector by K Gaussians with diagonal covariance and a categorical choice between them. A
representation for control predicts the latent state of the next observation.
The caller samples noise and passes it as a tensor. Logarithms are natural.
"""

import math

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, mse_loss

from operant.ops.distributions import categorical_sample, gaussian_log_prob, gaussian_sample
from operant.ops.shapes import require_shape


def bernoulli_log_prob(logits: Float[Tensor, "*B A"], values: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute the log-probability Σ x log σ(l) + (1 - x) log σ(-l), summed over the A independent bits (last axis).

    Args:
        logits: Log-odds of each bit.
        values: Bits, or gray values between 0 and 1, for which the result is the negative cross-entropy.
    """
    return (values * logsigmoid(logits) + (1 - values) * logsigmoid(-logits)).sum(-1)


def gaussian_mixture_log_prob(
    logits: Float[Tensor, "*B K"],
    mean: Float[Tensor, "*B K A"],
    log_std: Float[Tensor, "*B K A"],
    values: Float[Tensor, "*B A"],
) -> Float[Tensor, "*B"]:
    """Compute the log-density log Σ_k softmax(logits)_k N(values; mean_k, std_k) of a mixture of K diagonal Gaussians.

    Args:
        logits: Unnormalized log-probabilities of the components.
        mean: Means of the components.
        log_std: Log standard deviations of the components.
        values: Points, A numbers each.
    """
    components = gaussian_log_prob(mean, log_std, values.unsqueeze(-2).expand_as(mean))
    return (log_softmax(logits, -1) + components).logsumexp(-1)


def gaussian_mixture_sample(
    logits: Float[Tensor, "*B K"],
    mean: Float[Tensor, "*B K A"],
    log_std: Float[Tensor, "*B K A"],
    choice: Float[Tensor, "*B K"],
    noise: Float[Tensor, "*B A"],
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "*B A"]:
    """Sample from a mixture at a temperature τ: logits / τ, and standard deviations times sqrt(τ).

    The temperature is that of Ha & Schmidhuber 2018 (arXiv 1803.10122, section 4): above 1 samples are more random than
    the model; as it approaches 0, the sample becomes the mean of the most likely component.

    Args:
        logits: Unnormalized log-probabilities of the components.
        mean: Means of the components.
        log_std: Log standard deviations of the components.
        choice: Standard Gumbel noise, for the component.
        noise: Standard normal noise, for the point.
        temperature: τ, positive.

    Raises:
        ValueError: The temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    chosen = categorical_sample(logits / temperature, choice)
    index = chosen.unsqueeze(-1).unsqueeze(-1).expand(*chosen.shape, 1, mean.shape[-1])
    center, spread = (part.gather(-2, index).squeeze(-2) for part in (mean, log_std))
    return gaussian_sample(center, spread + 0.5 * math.log(temperature), noise)


def latent_prediction_loss(predicted: Float[Tensor, "*B A"], target: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    """Compute the mean squared error (1/A) Σ_i (ẑ_i - z_i)² of a predicted latent state.

    Fujimoto et al. 2025, arXiv 2501.16142. The target is detached and comes from a target network. With a gradient
    through both, a constant latent state would be a perfect prediction.

    Args:
        predicted: Predicted latent states.
        target: Latent states of the true successors.

    Raises:
        ValueError: If the shapes differ.
    """
    require_shape(predicted.shape, "predicted", target=target)
    return mse_loss(predicted, target.detach(), reduction="none").mean(-1)
