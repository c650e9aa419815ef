r"""Actor and temperature losses, and noise, of off-policy algorithms."""

import torch
from jaxtyping import Float
from torch import Tensor

from operant.ops.shapes import require_shape


def soft_value(
    q: Float[Tensor, "*B A"], log_probs: Float[Tensor, "*B A"], *, alpha: float | Float[Tensor, "..."]
) -> Float[Tensor, "*B"]:
    r"""Compute the soft value of a state with finitely many actions, `Σ_a π(a|s) (Q(s, a) - α log π(a|s))`.

    It is the expectation of `soft_q` over actions, computed instead of sampled (Christodoulou 2019, arXiv 1910.07207,
    equation 10). Its negative is the actor's loss (equation 12), with constant `q` and the gradient through
    `log_probs`. Its maximum, at the policy `softmax(Q / α)`, is `α log Σ_a exp(Q / α)`.

    Args:
        q: action values.
        log_probs: log-probabilities of all actions; -inf for masked actions, whose values are ignored.
        alpha: temperature, in units of reward per nat; a number or a tensor that broadcasts (`[S, 1, 1]` for one per
            seed).

    Returns:
        Values.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(q.shape, "q", log_probs=log_probs)
    allowed = log_probs > -torch.inf
    soft = torch.where(allowed, q, 0.0) - alpha * torch.where(allowed, log_probs, 0.0)
    return (log_probs.exp() * soft).sum(-1)


def temperature_loss(
    log_alpha: Float[Tensor, "*#B"], log_probs: Float[Tensor, "*B"], *, target_entropy: float
) -> Float[Tensor, "*B"]:
    r"""Compute the loss `-α (log π(a|s) + H_target)` of a temperature `α = exp(log_alpha)`.

    Haarnoja et al. 2018 (arXiv 1812.05905, equation 18). Gradient descent raises the temperature while the
    policy's entropy is below the target, and lowers it above. α is the Lagrange multiplier of the entropy constraint.

    Args:
        log_alpha: logarithm of the temperature; broadcasts (`[S, 1]` for one per seed).
        log_probs: log-probabilities of actions sampled from the policy, or their mean over its actions, which is minus
            the entropy. They are detached.
        target_entropy: minimum entropy, in nats.

    Returns:
        Losses.
    """
    return -log_alpha.exp() * (log_probs + target_entropy).detach()


def perturbed_action(
    actions: Float[Tensor, "*B"], noise: Float[Tensor, "*B"], *, std: float, clip: float | None = None
) -> Float[Tensor, "*B"]:
    r"""Perturb an action of a deterministic policy in [-1, 1]: `clip(a + clip(std · noise, -c, c), -1, 1)`.

    With a clip `c`, this is target policy smoothing (Fujimoto et al. 2018, arXiv 1802.09477, equation 14: the noise is
    clipped, then the action): the policy cannot exploit peaks of the critic that are narrower than the noise. Without
    one, it is exploration noise.

    Args:
        actions: actions of the policy.
        noise: standard normal.
        std: standard deviation of the noise, in half ranges of the action.
        clip: maximum absolute perturbation, in half ranges of the action; None for no clipping.

    Returns:
        Actions.

    Raises:
        ValueError: if shapes differ, or `clip` is negative.
    """
    require_shape(actions.shape, "actions", noise=noise)
    if clip is not None and not clip >= 0.0:
        raise ValueError(f"clip is {clip}, expected a number of at least 0, or None for no clipping")
    shift = std * noise
    if clip is not None:
        shift = shift.clamp(-clip, clip)
    return (actions + shift).clamp(-1.0, 1.0)
