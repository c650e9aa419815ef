r"""Returns and advantages of reward sequences.

Shapes: rewards and values are `[T, ...]`, time first; every trailing index is an independent sequence.

Flags, the same in every function:

* `terminated[t]`: the transition of step t ended in a terminal state, whose value is 0. There is no bootstrap.
* `truncated[t]`: the episode was cut short after step t (a time limit). The trace stops there, and the return
  bootstraps from `next_values[t]` (Pardo et al. 2018, arXiv 1712.00378). If both flags are set, termination takes
  precedence.
* `next_values[t]`: the value of the *true* successor of step t. At a truncation this is the value of the final
  observation, not of the observation after the reset. The last step bootstraps from `next_values[-1]` unless it is
  terminated. Entries of terminated steps are ignored and may be NaN.

`gamma` (discount) and `lam` (trace decay) are numbers in [0, 1], or tensors that broadcast to the trailing
dimensions: `[S, 1]` with rewards `[T, S, N]` is one value per seed.
"""

from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from operant.ops.policy import truncated_weights
from operant.ops.shapes import require_shape


class Ends(TypedDict):
    """Flags of episode ends, and the discount: the keyword arguments that all functions here share."""

    terminated: Tensor
    truncated: Tensor
    gamma: float | Tensor


def lambda_returns(
    rewards: Float[Tensor, " T *B"],
    next_values: Float[Tensor, " T *B"],
    *,
    terminated: Bool[Tensor, " T *B"],
    truncated: Bool[Tensor, " T *B"],
    gamma: float | Float[Tensor, "..."],
    lam: float | Float[Tensor, "..."],
) -> Float[Tensor, " T *B"]:
    r"""Compute the λ-return, the geometric mixture of all n-step returns.

    `G_t = r_t + γ [(1 - λ) V(s_{t+1}) + λ G_{t+1}]`: λ = 0 is the one-step target of TD(0), λ = 1 the discounted
    sum of rewards, bootstrapped only where the data ends or was truncated. Sutton and Barto (2018), equation 12.2.

    Args:
        rewards: `[T, ...]` rewards, `r_t` of the transition `s_t -> s_{t+1}`.
        next_values: `[T, ...]` values of the true successors.
        terminated: `[T, ...]` true where the successor is terminal.
        truncated: `[T, ...]` true where the episode was cut short.
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1].

    Returns:
        `[T, ...]` returns, differentiable in the rewards and the values.

    Raises:
        ValueError: if there is no step, shapes differ, or a numeric `gamma` or `lam` lies outside [0, 1].
        TypeError: if a flag is not a bool tensor.
    """
    _check(rewards, terminated, truncated, next_values=next_values)
    _check_unit(gamma=gamma, lam=lam)
    bootstrap = next_values.masked_fill(terminated, 0.0)
    decay = _trace_decay(rewards, terminated, truncated, gamma * lam)
    return _reverse_scan(rewards + (gamma - decay) * bootstrap, decay, bootstrap[-1])


def gae(
    rewards: Float[Tensor, " T *B"],
    values: Float[Tensor, " T *B"],
    next_values: Float[Tensor, " T *B"],
    *,
    terminated: Bool[Tensor, " T *B"],
    truncated: Bool[Tensor, " T *B"],
    gamma: float | Float[Tensor, "..."],
    lam: float | Float[Tensor, "..."],
) -> Float[Tensor, " T *B"]:
    r"""Estimate advantages by GAE, generalized advantage estimation (Schulman et al. 2016, arXiv 1506.02438).

    Equations 16 to 18: `Â_t = Σ_l (γλ)^l δ_{t+l}` with `δ_t = r_t + γ V(s_{t+1}) - V(s_t)`, summed to the end of the
    episode or of the data. λ = 0 gives `δ_t`; λ = 1 the Monte Carlo return minus the value. `Â_t + V(s_t)`, the
    λ-return, is the usual target of the critic, with the values of the rollout held fixed.

    Args:
        rewards: `[T, ...]` rewards.
        values: `[T, ...]` values `V(s_t)` of the states acted in.
        next_values: `[T, ...]` values of the true successors.
        terminated: `[T, ...]` true where the successor is terminal.
        truncated: `[T, ...]` true where the episode was cut short.
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1]; lower means less variance and more reliance on the critic.

    Returns:
        `[T, ...]` advantages.

    Raises:
        ValueError: if there is no step, shapes differ, or a numeric `gamma` or `lam` lies outside [0, 1].
        TypeError: if a flag is not a bool tensor.
    """
    _check(rewards, terminated, truncated, values=values, next_values=next_values)
    _check_unit(gamma=gamma, lam=lam)
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    decay = _trace_decay(rewards, terminated, truncated, gamma * lam)
    return _reverse_scan(deltas, decay, torch.zeros_like(deltas[-1]))


def n_step_returns(
    rewards: Float[Tensor, " T *B"],
    next_values: Float[Tensor, " T *B"],
    *,
    terminated: Bool[Tensor, " T *B"],
    truncated: Bool[Tensor, " T *B"],
    gamma: float | Float[Tensor, "..."],
    n: int,
) -> Float[Tensor, " T *B"]:
    r"""Compute the n-step return: n real rewards, then the value (Sutton and Barto 2018, equation 7.1).

    `G_t = r_t + γ r_{t+1} + ... + γ^{n-1} r_{t+n-1} + γ^n V(s_{t+n})`. It stops earlier at a termination (no
    bootstrap), and at a truncation or the last row (bootstrap from `next_values` there). n = 1 is the target of
    TD(0); n >= T is Monte Carlo with a bootstrap at the end of the data. Takes min(n, T) passes over the array.

    Args:
        rewards: `[T, ...]` rewards.
        next_values: `[T, ...]` values of the true successors.
        terminated: `[T, ...]` true where the successor is terminal.
        truncated: `[T, ...]` true where the episode was cut short.
        gamma: discount in [0, 1].
        n: number of real rewards, at least 1.

    Returns:
        `[T, ...]` returns.

    Raises:
        ValueError: if there is no step, shapes differ, n < 1, or a numeric `gamma` lies outside [0, 1].
        TypeError: if a flag is not a bool tensor.
    """
    _check(rewards, terminated, truncated, next_values=next_values)
    _check_unit(gamma=gamma)
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1: an n-step return holds n real rewards")
    one_step = rewards + gamma * next_values.masked_fill(terminated, 0.0)
    stops = terminated | truncated
    stops[-1] = True
    returns = one_step
    for _ in range(min(n, rewards.shape[0]) - 1):
        returns = torch.where(stops, one_step, rewards + gamma * returns.roll(-1, 0))
    return returns


def discounted_returns(
    rewards: Float[Tensor, " T *B"],
    *,
    terminated: Bool[Tensor, " T *B"],
    truncated: Bool[Tensor, " T *B"],
    gamma: float | Float[Tensor, "..."],
    next_values: Float[Tensor, " T *B"] | None = None,
) -> Float[Tensor, " T *B"]:
    r"""Compute the discounted reward-to-go, `G_t = Σ_{k>=0} γ^k r_{t+k}` to the end of the episode.

    It is the λ-return with λ = 1 (Sutton and Barto 2018, equation 3.8).

    Args:
        rewards: `[T, ...]` rewards.
        terminated: `[T, ...]` true where the successor is terminal.
        truncated: `[T, ...]` true where the episode was cut short.
        gamma: discount in [0, 1].
        next_values: `[T, ...]` values of the true successors, read where an episode was truncated and in the last
            row. None: 0 after the cut, which biases the return of an unfinished episode.

    Returns:
        `[T, ...]` returns.

    Raises:
        ValueError: if there is no step, shapes differ, or a numeric `gamma` lies outside [0, 1].
        TypeError: if a flag is not a bool tensor.
    """
    if next_values is None:
        next_values = torch.zeros_like(rewards)
    return lambda_returns(rewards, next_values, terminated=terminated, truncated=truncated, gamma=gamma, lam=1.0)


class VTrace(NamedTuple):
    """Targets and advantages of V-trace, each `[T, ...]`.

    Attributes:
        targets: targets of the critic, `v_t`.
        advantages: advantages of the actions, times their truncated importance weights.
    """

    targets: Tensor
    advantages: Tensor


def vtrace(
    rewards: Float[Tensor, " T *B"],
    values: Float[Tensor, " T *B"],
    next_values: Float[Tensor, " T *B"],
    log_probs: Float[Tensor, " T *B"],
    behavior_log_probs: Float[Tensor, " T *B"],
    *,
    terminated: Bool[Tensor, " T *B"],
    truncated: Bool[Tensor, " T *B"],
    gamma: float | Float[Tensor, "..."],
    lam: float | Float[Tensor, "..."] = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    r"""Compute V-trace: returns of a policy π from actions of a policy μ (Espeholt et al. 2018, arXiv 1802.01561).

    With `ρ_t = min(rho_bar, π/μ)` and `c_t = λ min(c_bar, π/μ)` the target is, by equation 1 and remark 2,
    `v_t = V(s_t) + Σ_{k>=t} γ^{k-t} (Π_{i=t}^{k-1} c_i) ρ_k (r_k + γ V(s_{k+1}) - V(s_k))`, summed to the end of the
    episode or of the data. `rho_bar` determines which policy's values the targets estimate: without truncation those of
    π, with 1 those of a policy between π and μ. `c_bar` affects only the speed of convergence. The paper assumes
    `c_bar <= rho_bar`.

    The advantage is `ρ_t (r_t + γ [(1 - λ) V(s_{t+1}) + λ v_{t+1}] - V(s_t))`: with λ = 1 that of the paper
    (section 4.2). On-policy the target is the λ-return, and the advantage that of `gae`.

    Args:
        rewards: `[T, ...]` rewards.
        values: `[T, ...]` values `V(s_t)` of the states acted in.
        next_values: `[T, ...]` values of the true successors.
        log_probs: `[T, ...]` log-probabilities of the actions under π, the policy to evaluate.
        behavior_log_probs: `[T, ...]` those under μ, the policy that drew the actions.
        terminated: `[T, ...]` true where the successor is terminal.
        truncated: `[T, ...]` true where the episode was cut short.
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1]; lower means less variance and more reliance on the critic.
        rho_bar: maximum importance weight of TD errors and advantages, positive; `inf` for no truncation.
        c_bar: maximum importance weight of the trace, positive.

    Returns:
        Targets and advantages; no gradient flows through the weights.

    Raises:
        ValueError: if there is no step, shapes differ, a cap is not positive, or a numeric `gamma` or `lam` lies
            outside [0, 1].
        TypeError: if a flag is not a bool tensor.
    """
    _check(
        rewards,
        terminated,
        truncated,
        values=values,
        next_values=next_values,
        log_probs=log_probs,
        behavior_log_probs=behavior_log_probs,
    )
    _check_unit(gamma=gamma, lam=lam)
    if not (rho_bar > 0.0 and c_bar > 0.0):
        raise ValueError(f"rho_bar is {rho_bar} and c_bar is {c_bar}, expected positive numbers: they bound weights")
    rho = truncated_weights(log_probs, behavior_log_probs, cap=rho_bar)
    deltas = rho * (rewards + gamma * next_values.masked_fill(terminated, 0.0) - values)
    decay = _trace_decay(rewards, terminated, truncated, gamma * lam)
    trace = decay * truncated_weights(log_probs, behavior_log_probs, cap=c_bar)
    corrections = _reverse_scan(deltas, trace, torch.zeros_like(deltas[-1]))
    following = torch.cat((corrections[1:], torch.zeros_like(corrections[:1])))
    return VTrace(values + corrections, deltas + rho * decay * following)


def episode_totals(
    rewards: Float[Tensor, " T *B"],
    *,
    terminated: Bool[Tensor, " T *B"],
    truncated: Bool[Tensor, " T *B"],
    gamma: float | Float[Tensor, "..."],
) -> Float[Tensor, " T *B"]:
    r"""Compute the return `R(τ)` of the whole episode, repeated at each of its steps.

    The weight of the plain policy gradient `Σ_t ∇log π(a_t|s_t) R(τ)` (Williams 1992). It includes the rewards
    before an action, which add variance but no bias. The total is discounted from the first step of the episode
    *in this array*: step 0 starts a segment even if its episode began earlier, and an episode that continues after the
    last step is summed up to that step.

    Args:
        rewards: `[T, ...]` rewards.
        terminated: `[T, ...]` true where the successor is terminal.
        truncated: `[T, ...]` true where the episode was cut short.
        gamma: discount in [0, 1].

    Returns:
        `[T, ...]` totals, constant within an episode.

    Raises:
        ValueError: if there is no step, shapes differ, or a numeric `gamma` lies outside [0, 1].
        TypeError: if a flag is not a bool tensor.
    """
    returns = discounted_returns(rewards, terminated=terminated, truncated=truncated, gamma=gamma)
    starts = torch.zeros_like(terminated)
    starts[1:] = (terminated | truncated)[:-1]
    steps = torch.arange(len(rewards), device=rewards.device).view(-1, *[1] * (rewards.ndim - 1))
    first_step = torch.where(starts, steps, 0).cummax(0).values
    return returns.gather(0, first_step)


def first_episode_mask(
    terminated: Bool[Tensor, " T *B"], truncated: Bool[Tensor, " T *B"], *, valid: Bool[Tensor, " T *B"] | None = None
) -> Bool[Tensor, " T *B"]:
    r"""Mask the steps of each window that belong to its first episode: all steps up to the first end, inclusive.

    An unrolled model predicts the transition that ends an episode, but nothing after it.

    Args:
        terminated: true where a transition ended in a terminal state.
        truncated: true where an episode was cut after the step.
        valid: false for unusable steps; such a step and all later ones are masked out. Default: all valid.
    """
    ended = terminated | truncated
    running = torch.cat((torch.zeros_like(ended[:1]), ended[:-1])).cumsum(0) == 0
    return running if valid is None else running & ((~valid).cumsum(0) == 0)


def _trace_decay(rewards: Tensor, terminated: Tensor, truncated: Tensor, decay: float | Tensor) -> Tensor:
    """Return the factor `[T, ...]` by which step t+1 enters step t: `decay` within an episode, 0 at its end."""
    return (~(terminated | truncated)).to(rewards.dtype) * decay


def _reverse_scan(
    offsets: Float[Tensor, " T *B"], factors: Float[Tensor, " T *B"], last: Float[Tensor, "*B"]
) -> Float[Tensor, " T *B"]:
    """Solve `x_t = offsets_t + factors_t x_{t+1}` backwards from `x_T = last`."""
    x = last
    steps: list[Tensor] = []
    for offset, factor in zip(reversed(offsets.unbind()), reversed(factors.unbind()), strict=True):
        x = torch.addcmul(offset, factor, x)
        steps.append(x)
    steps.reverse()
    return torch.stack(steps)


def _check(rewards: Tensor, terminated: Tensor, truncated: Tensor, **values: Tensor) -> None:
    """Raise on shapes that torch would broadcast, and on flags that are not bool."""
    if rewards.ndim == 0 or len(rewards) == 0:
        raise ValueError(f"rewards has shape {tuple(rewards.shape)}, expected [T, ...] with at least one step")
    require_shape(rewards.shape, "rewards", terminated=terminated, truncated=truncated, **values)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if flag.dtype != torch.bool:
            raise TypeError(f"{name} has dtype {flag.dtype}, expected torch.bool: pass {name}.bool()")


def _check_unit(**coefficients: float | Tensor) -> None:
    for name, value in coefficients.items():
        if not isinstance(value, Tensor) and not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {value}, expected a number in [0, 1]")
