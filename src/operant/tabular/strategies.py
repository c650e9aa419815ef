"""Strategies for bandits.

    ε-greedy            a random arm with probability ε, else the best so far: regret grows linearly
    UCB1                the largest `Q + c sqrt(ln t / N)` (Auer, Cesa-Bianchi and Fischer 2002)
    KL-UCB              the largest plausible mean q, `N KL(Q, q) <= ln t` (Garivier and Cappé 2011)
    gradient bandit     preferences, by gradient ascent on the expected reward (Sutton and Barto 2018, section 2.8)

Thompson sampling is in `operant.tabular.thompson`. Ties are broken at random. UCB1 and KL-UCB first pull every arm
once. What differs from the papers: the bound of KL-UCB is `ln t`, without the term `3 ln ln t`, which the proof needs
and the authors omit in practice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from operant.runtime.bounds import NonNegativeFloat, UnitFloat
from operant.tabular.bandits import (
    Arms,
    BanditLearner,
    Floats,
    Pulls,
    StrategyConfig,
    bernoulli_kl,
    pull,
    pull_and_average,
    top_arm,
)
from operant.tabular.numba_config import compiled
from operant.tabular.random import StreamStates, below, uniform

PRESETS: Mapping[str, Mapping[str, Any]] = {}
"""No task-specific settings."""

BISECTIONS = 40

UNTRIED = float(np.finfo(np.float64).max)
"""Index of an unpulled arm, above all others. It is finite, because it is part of the saved state."""


@dataclass(frozen=True)
class EpsilonGreedyConfig(StrategyConfig):
    """Hyperparameters of the ε-greedy strategy."""

    exploration_rate: UnitFloat = 0.1
    """ε, the probability of a random arm."""
    step_size: UnitFloat = 0.0
    """Step size of estimates; 0: estimates are the means of all rewards."""
    initial_value: float = 0.0
    """Initial estimate of an arm. A high one with a constant step size encourages exploration (optimism)."""

    def rule(self) -> "EpsilonGreedyRule":
        """Return the kernel's constants."""
        return EpsilonGreedyRule(float(self.exploration_rate), float(self.step_size))


@dataclass(frozen=True)
class UCBConfig(StrategyConfig):
    """Hyperparameters of UCB1."""

    bonus_coef: NonNegativeFloat = 2.0**0.5
    """c of the bonus `c sqrt(ln t / N)`, in units of reward. Higher explores longer; √2 is UCB1 for rewards in [0, 1].
    """

    def rule(self) -> "UCBRule":
        """Return the kernel's constants."""
        return UCBRule(float(self.bonus_coef))


@dataclass(frozen=True)
class KLUCBConfig(StrategyConfig):
    """Hyperparameters of KL-UCB, for rewards in [0, 1]: none."""

    def rule(self) -> "UCBRule":
        """Return the kernel's constants."""
        return UCBRule(1.0)


@dataclass(frozen=True)
class GradientBanditConfig(StrategyConfig):
    """Hyperparameters of the gradient bandit."""

    step_size: NonNegativeFloat = 0.1
    """Step size of preferences. A higher one converges sooner, possibly to a suboptimal arm."""
    baseline: bool = True
    """Whether to use the mean reward so far as the baseline; otherwise 0."""

    def rule(self) -> "GradientRule":
        """Return the kernel's constants."""
        return GradientRule(float(self.step_size), self.baseline)


class EpsilonGreedyRule(NamedTuple):
    """ε, and the step size of estimates (0 for means)."""

    epsilon: float
    step_size: float


class UCBRule(NamedTuple):
    """The scale of the bonus."""

    scale: float


class GradientRule(NamedTuple):
    """The step size, and whether there is a baseline."""

    step_size: float
    baseline: bool


@compiled
def ucb_index(estimate: float, count: int, clock: int, scale: float) -> float:
    """Return `Q + c sqrt(ln t / N)`; `UNTRIED` for an unpulled arm. `clock` starts at 1."""
    return estimate + scale * np.sqrt(np.log(clock) / count) if count > 0 else UNTRIED


@compiled
def kl_ucb_index(estimate: float, count: int, clock: int) -> float:
    """Return the largest q with `N KL(Q, q) <= ln t`; `UNTRIED` for an unpulled arm."""
    if count == 0:
        return UNTRIED
    bound = np.log(clock) / count
    low, high = estimate, min(1.0, estimate + np.sqrt(0.5 * bound))  # Pinsker: KL >= 2 (q - p)²
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if middle < 1.0 and bernoulli_kl(estimate, middle) <= bound:
            low = middle
        else:
            high = middle
    return low


@compiled
def softmax_arm(preferences: Floats, probabilities: Floats, rng: StreamStates, i: int) -> int:
    """Sample an arm from the softmax of the preferences; the probabilities are written to `probabilities`."""
    largest, total = preferences[0], 0.0
    for k in range(1, len(preferences)):
        largest = max(largest, preferences[k])
    for k in range(len(preferences)):
        probabilities[k] = np.exp(preferences[k] - largest)
        total += probabilities[k]
    drawn, arm = uniform(rng, i), -1
    for k in range(len(preferences)):
        probabilities[k] /= total
        drawn -= probabilities[k]
        if drawn < 0.0 and arm < 0:
            arm = k
    return arm if arm >= 0 else len(preferences) - 1


@compiled
def run_epsilon_greedy(arms: Arms, pulls: Pulls, rule: EpsilonGreedyRule, steps: int) -> None:
    """Pull `steps` arms of every seed, ε-greedily."""
    for i in range(len(pulls.clock)):
        for _ in range(steps):
            if uniform(pulls.rng, i) < rule.epsilon:
                arm = below(pulls.rng, i, pulls.counts.shape[1])
            else:
                arm = top_arm(pulls.estimates[i], pulls.rng, i)
            pull_and_average(arms, pulls, i, arm, rule.step_size)


@compiled
def run_ucb(arms: Arms, pulls: Pulls, rule: UCBRule, steps: int) -> None:
    """Pull `steps` arms of every seed by UCB1."""
    for i in range(len(pulls.clock)):
        for _ in range(steps):
            for k in range(pulls.counts.shape[1]):
                pulls.scores[i, k] = ucb_index(
                    pulls.estimates[i, k], pulls.counts[i, k], pulls.clock[i] + 1, rule.scale
                )
            pull_and_average(arms, pulls, i, top_arm(pulls.scores[i], pulls.rng, i), 0.0)


@compiled
def run_kl_ucb(arms: Arms, pulls: Pulls, rule: UCBRule, steps: int) -> None:
    """Pull `steps` arms of every seed by KL-UCB."""
    for i in range(len(pulls.clock)):
        for _ in range(steps):
            for k in range(pulls.counts.shape[1]):
                pulls.scores[i, k] = kl_ucb_index(pulls.estimates[i, k], pulls.counts[i, k], pulls.clock[i] + 1)
            pull_and_average(arms, pulls, i, top_arm(pulls.scores[i], pulls.rng, i), 0.0)


@compiled
def climb(preferences: Floats, probabilities: Floats, arm: int, gain: float) -> None:
    """Move the preferences along the gradient of the expected reward: `H_k += gain (1[k = arm] - π_k)`."""
    for k in range(len(preferences)):
        preferences[k] += gain * ((1.0 if k == arm else 0.0) - probabilities[k])


@compiled
def run_gradient(arms: Arms, pulls: Pulls, rule: GradientRule, steps: int) -> None:
    """Pull `steps` arms of every seed; `scores` are preferences and `estimates` probabilities."""
    for i in range(len(pulls.clock)):
        for _ in range(steps):
            arm = softmax_arm(pulls.scores[i], pulls.estimates[i], pulls.rng, i)
            before = pulls.mean[i]
            reward = pull(arms, pulls, i, arm)
            baseline = reward if pulls.clock[i] == 1 else before
            climb(pulls.scores[i], pulls.estimates[i], arm, rule.step_size * (reward - baseline * rule.baseline))


class EpsilonGreedy(BanditLearner):
    """The ε-greedy strategy (see `BanditLearner` for the arguments)."""

    config: EpsilonGreedyConfig
    rule: EpsilonGreedyRule
    run = run_epsilon_greedy

    def initial_estimate(self) -> float:
        """Return the initial estimate of every arm."""
        return float(self.config.initial_value)


class UCB1(BanditLearner):
    """UCB1 (see `BanditLearner` for the arguments)."""

    config: UCBConfig
    rule: UCBRule
    run = run_ucb


class KLUCB(BanditLearner):
    """KL-UCB, for Bernoulli rewards (see `BanditLearner` for the arguments)."""

    config: KLUCBConfig
    rule: UCBRule
    run = run_kl_ucb

    def called(self) -> str:
        """Return the name of the strategy for messages."""
        return "kl-ucb"

    def needs_bernoulli(self) -> bool:
        """Return True: the index requires Bernoulli rewards."""
        return True


class GradientBandit(BanditLearner):
    """The gradient bandit, which estimates no values (see `BanditLearner` for the arguments)."""

    config: GradientBanditConfig
    rule: GradientRule
    run = run_gradient
    learns_values = False
    learns_action_values = False

    def preferences(self) -> Floats:
        """Return the preferences `[S, K]`."""
        return self.pulls.scores
