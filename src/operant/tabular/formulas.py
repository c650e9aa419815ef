"""The update rules, one scalar function each.

Tests compare those with a counterpart in `operant.ops` with it, and the others with numbers worked by hand.
"""

import numpy as np

from operant.tabular.numba_config import compiled


@compiled
def q_target(reward: float, next_value: float, terminated: bool, gamma: float) -> float:
    """Return `r + γ (1 - terminated) V(s')` (`operant.ops.q_target`); `next_value` is ignored if terminated."""
    return reward if terminated else reward + gamma * next_value


@compiled
def moved(value: float, target: float, step_size: float) -> float:
    """Return `value + α (target - value)` (Sutton and Barto 2018, equation 2.4)."""
    return value + step_size * (target - value)


@compiled
def lambda_return(reward: float, next_value: float, next_return: float, gamma: float, lam: float) -> float:
    """Return `G_t^λ` from that of the next step (`operant.ops.lambda_returns`; Sutton and Barto 2018, equation 12.3).

    `r + γ ((1 - λ) V(s') + λ G_{t+1}^λ)`: λ = 0 is TD(0), λ = 1 is Monte Carlo. At the last step of an episode, the
    next value and the next return are both the value of the last state, 0 if the episode has terminated.
    """
    return reward + gamma * ((1.0 - lam) * next_value + lam * next_return)


@compiled
def expected_value(best: float, mean: float, epsilon: float) -> float:
    """Return the value of a state under an ε-greedy policy, `(1 - ε) max_a Q + ε mean_a Q`."""
    return (1.0 - epsilon) * best + epsilon * mean


@compiled
def count_bonus(scale: float, visits: int) -> float:
    """Return `β / sqrt(N)` (Strehl and Littman 2008, MBIE-EB, equation 4)."""
    return scale / np.sqrt(visits)


@compiled
def time_bonus(scale: float, steps: int) -> float:
    """Return `κ sqrt(τ)`, τ the steps since an action was last tried (Sutton and Barto 2018, section 8.3)."""
    return scale * np.sqrt(steps)
