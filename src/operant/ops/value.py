r"""Targets and losses of value functions."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import huber_loss as smooth_loss
from torch.nn.functional import mse_loss

from operant.ops.shapes import require_shape


def q_target(
    reward: Float[Tensor, "*B"],
    next_q: Float[Tensor, "*B"],
    *,
    terminated: Bool[Tensor, "*B"],
    gamma: float | Float[Tensor, "..."],
) -> Float[Tensor, "*B"]:
    r"""Compute the bootstrapped target `r + γ (1 - terminated) Q(s', a')`, detached.

    `next_q` defines the method: the maximum of the target network for DQN (Mnih et al. 2015), or
    `double_q`, `clipped_double_q`, `soft_q`. A truncated episode bootstraps: only `terminated`
    removes the next value (Pardo et al. 2018, arXiv 1712.00378). For an n-step target, `reward` is
    `Σ_{k<n} γ^k r_{t+k}`, `next_q` belongs to `s_{t+n}` and `gamma` is `γ^n`, a tensor if windows differ.

    Args:
        reward: rewards.
        next_q: values of the true successor; ignored where terminated, so they may be NaN there.
        terminated: true where the successor is terminal.
        gamma: discount, a number in [0, 1] or a tensor that broadcasts.

    Returns:
        Targets without a gradient.

    Raises:
        ValueError: if shapes differ, or a numeric `gamma` lies outside [0, 1].
    """
    require_shape(reward.shape, "reward", next_q=next_q, terminated=terminated)
    if not isinstance(gamma, Tensor) and not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
    return (reward + gamma * next_q.masked_fill(terminated, 0.0)).detach()


def scaled_q_target(
    reward: Float[Tensor, "*B"],
    next_q: Float[Tensor, "*B"],
    *,
    terminated: Bool[Tensor, "*B"],
    gamma: float | Float[Tensor, "..."],
    scale: Float[Tensor, "..."],
    next_scale: Float[Tensor, "..."],
) -> Float[Tensor, "*B"]:
    r"""Compute the target `(r + γ (1 - terminated) c' Q(s', a')) / c` of critics of scaled returns, detached.

    Fujimoto et al. 2025, arXiv 2501.16142: critics predict returns divided by c, the mean absolute reward, so their
    gradients do not depend on the scale of rewards. The target network was trained with another scale, c'. With
    c = c' = 1 the target is `q_target`.

    Args:
        reward: rewards.
        next_q: values of the true successor, divided by c'; ignored where terminated.
        terminated: true where the successor is terminal.
        gamma: as in `q_target`.
        scale: c, positive; a tensor that broadcasts.
        next_scale: c', positive; a tensor that broadcasts.

    Returns:
        Targets without a gradient.

    Raises:
        ValueError: see `q_target`.
    """
    return q_target(reward, next_scale * next_q, terminated=terminated, gamma=gamma) / scale


def return_range(low: float, high: float, *, gamma: float) -> tuple[float, float]:
    r"""Return the bounds of returns with rewards between `low` and `high`.

    A return of n >= 1 rewards of r is `r (1 - γ^n) / (1 - γ)`, between `r` and `r / (1 - γ)`. With rewards from -1 to 0
    the range is `[-1 / (1 - γ), 0]`, to which Andrychowicz et al. (2017, arXiv 1707.01495, appendix A) clip the targets
    of hindsight experience replay: a target outside is an error of the network that bootstrapping would propagate.

    Args:
        low: minimum reward of a step.
        high: maximum reward of a step.
        gamma: discount, in [0, 1]; with 1 a bound other than 0 is infinite.

    Raises:
        ValueError: if `low` is above `high`, or `gamma` lies outside [0, 1].
    """
    if not low <= high:
        raise ValueError(f"low is {low} and high is {high}, expected low <= high")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
    longest = 1.0 / (1.0 - gamma) if gamma < 1.0 else torch.inf
    return low * longest if low < 0.0 else low, high * longest if high > 0.0 else high


def double_q(next_q_online: Float[Tensor, "*B A"], next_q_target: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
    r"""Compute the value of double Q-learning, `Q_target(s', argmax_a Q_online(s', a))`.

    The online network selects the action, and the target network evaluates it (van Hasselt et al. 2016,
    arXiv 1509.06461, equation 4). This reduces the overestimation that the maximum over noisy values causes.

    Args:
        next_q_online: `[..., A]` action values of the online network at s'.
        next_q_target: `[..., A]` action values of the target network at s'.

    Returns:
        `[...]` values.
    """
    return next_q_target.gather(-1, next_q_online.max(-1, keepdim=True).indices).squeeze(-1)  # argmax is slower


def clipped_double_q(q: Float[Tensor, " K *B"]) -> Float[Tensor, "*B"]:
    r"""Return the minimum over K critics, `min_k Q_k` (Fujimoto et al. 2018, arXiv 1802.09477, equation 10).

    Args:
        q: `[K, ...]` values of the critics, stacked; the papers have K = 2.

    Returns:
        `[...]` values; the gradient reaches the smallest critic.
    """
    return q.amin(0)


def soft_q(
    next_q: Float[Tensor, "*B"], next_log_prob: Float[Tensor, "*B"], *, alpha: float | Float[Tensor, "..."]
) -> Float[Tensor, "*B"]:
    r"""Compute the soft value of a sampled action, `Q(s', a') - α log π(a'|s')`.

    Haarnoja et al. (2018, arXiv 1801.01290, equation 3); a' is sampled from the current policy at s'.

    Args:
        next_q: values of the sampled actions.
        next_log_prob: their log-probabilities.
        alpha: temperature, in units of reward per nat; a number or a tensor that broadcasts (`[S, 1]` for one per
            seed).

    Returns:
        Values, for `q_target`.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(next_q.shape, "next_q", next_log_prob=next_log_prob)
    return next_q - alpha * next_log_prob


def dueling(value: Float[Tensor, "*B 1"], advantage: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
    r"""Compute the action values of a dueling network, `V(s) + A(s, a) - mean_a' A(s, a')`.

    Subtracting the mean makes V and A identifiable (Wang et al. 2016, arXiv 1511.06581, equation 9).

    Args:
        value: `[..., 1]` output of the value stream.
        advantage: `[..., A]` output of the advantage stream.

    Returns:
        `[..., A]` action values, whose mean over actions is the value.

    Raises:
        ValueError: if the shapes do not match.
    """
    require_shape(torch.Size((*advantage.shape[:-1], 1)), "advantage without its last dimension", value=value)
    return value + advantage - advantage.mean(-1, keepdim=True)


def value_loss(values: Float[Tensor, "*B"], targets: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""Compute half the squared error to a fixed target, `½ (V - target)²`, per element.

    Targets are detached, also those computed from the values being trained, such as `Â + V`.

    Args:
        values: predictions.
        targets: targets; detached.

    Returns:
        Losses.

    Raises:
        ValueError: if shapes differ.
    """
    require_shape(values.shape, "values", targets=targets)
    return 0.5 * mse_loss(values, targets.detach(), reduction="none")


def clipped_value_loss(
    values: Float[Tensor, "*B"],
    targets: Float[Tensor, "*B"],
    *,
    old_values: Float[Tensor, "*B"],
    clip: float,
) -> Float[Tensor, "*B"]:
    r"""Compute the pessimistic `value_loss` of OpenAI's PPO code.

    It is the larger of the losses of V and of `V_old + clip(V - V_old, -clip, clip)`, so moving the value further than
    `clip` from the rollout's does not reduce the loss. Engstrom et al. (2020, arXiv 2005.12729) and Andrychowicz
    et al. (2021, arXiv 2006.05990) found no benefit.

    Args:
        values: predictions.
        targets: targets; detached.
        old_values: predictions at the time of the rollout; detached.
        clip: clip range of the value, in units of return.

    Returns:
        Losses.

    Raises:
        ValueError: if shapes differ, or `clip` is not positive.
    """
    require_shape(values.shape, "values", old_values=old_values)
    if not clip > 0.0:
        raise ValueError(f"clip is {clip}, expected a positive number")
    old_values = old_values.detach()
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(value_loss(values, targets), value_loss(clipped, targets))


def huber_loss(values: Float[Tensor, "*B"], targets: Float[Tensor, "*B"], *, delta: float = 1.0) -> Float[Tensor, "*B"]:
    r"""Compute the Huber loss to a fixed target: quadratic for small errors, linear for large ones, per element.

    `½ e²` for `|e| <= δ` and `δ (|e| - ½ δ)` beyond, with e = Q - target (Huber 1964). Its gradient is the error
    clipped to [-δ, δ], the error clipping of Mnih et al. (2015, methods). `delta=math.inf` is `value_loss`.

    Args:
        values: predictions.
        targets: targets; detached.
        delta: error above which the loss is linear, in units of return, positive.

    Returns:
        Losses.

    Raises:
        ValueError: if shapes differ, or `delta` is not positive.
    """
    require_shape(values.shape, "values", targets=targets)
    if not delta > 0.0:
        raise ValueError(f"delta is {delta}, expected a positive number, or math.inf for half the squared error")
    return smooth_loss(values, targets.detach(), reduction="none", delta=delta)


def importance_weights(
    probabilities: Float[Tensor, "*B M"], *, beta: float | Float[Tensor, "..."]
) -> Float[Tensor, "*B M"]:
    r"""Compute importance weights of samples that were not drawn uniformly, `w_j = (N P(j))^-β / max_i w_i`.

    Schaul et al. (2016, arXiv 1511.05952, section 3.4): with β = 1 the expected update is that of uniform
    sampling up to a factor; with β = 0 there is no correction. The maximum is over the M samples, so weights only scale
    updates down, and N cancels.

    Args:
        probabilities: `[..., M]` sampling probabilities; 0 gives the weight 0.
        beta: exponent β in [0, 1], a number or a tensor that broadcasts.

    Returns:
        `[..., M]` weights of at most 1.

    Raises:
        ValueError: if a numeric `beta` lies outside [0, 1].
    """
    if not isinstance(beta, Tensor) and not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta is {beta}, expected a number in [0, 1]")
    drawn = probabilities > 0.0
    minimum = probabilities.masked_fill(~drawn, torch.inf).amin(-1, keepdim=True)
    return (minimum / probabilities).pow(beta).masked_fill(~drawn, 0.0)


def potential_shaping(
    potential: Float[Tensor, "*B"],
    next_potential: Float[Tensor, "*B"],
    *,
    terminated: Bool[Tensor, "*B"],
    gamma: float,
) -> Float[Tensor, "*B"]:
    r"""Compute the shaping reward `γ Φ(s') - Φ(s)`, with `Φ = 0` at terminal states.

    Added to the rewards, it changes the values of all actions of a state by the same `-Φ(s)`, so the optimal policies
    stay the same (Ng, Harada and Russell 1999, theorem 1). This requires that the potential of terminal states is 0:
    otherwise episodes that end in different states get different rewards (Grześ 2017). A truncated state keeps its
    potential.

    Args:
        potential: potential of the state.
        next_potential: potential of the true successor; ignored where terminated, so it may be NaN there.
        terminated: true where the successor is terminal.
        gamma: discount of the learner, in [0, 1].

    Raises:
        ValueError: if shapes differ, or `gamma` lies outside [0, 1].
    """
    require_shape(potential.shape, "potential", next_potential=next_potential, terminated=terminated)
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
    return gamma * next_potential.masked_fill(terminated, 0.0) - potential
