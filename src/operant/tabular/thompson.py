"""Thompson sampling: sample from the posterior, and pull the best arm of the sample.

Thompson 1933, *Biometrika* 25; as algorithm 1 of Agrawal and Goyal 2012, "Analysis of Thompson sampling for the
multi-armed bandit problem" (beta priors), and with normal priors as in their "Further optimal regret bounds" of 2013,
which samples from a normal distribution with the variance 1 / (N + 1): the posterior of the prior N(0, 1) and rewards
of variance 1, the defaults here. They assume rewards in [0, 1]. The prior must fit the scale of the rewards: under one
that is too narrow, an arm whose first rewards are far above 0 can be pulled forever.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import Interval, PositiveFloat
from operant.runtime.kernel_cache import python_of
from operant.tabular.bandits import (
    Arms,
    BanditLearner,
    Floats,
    Kernel,
    Pulls,
    StrategyConfig,
    pull_and_average,
    top_arm,
)
from operant.tabular.numba_config import compiled
from operant.tabular.random import beta, normal

logger = logging.getLogger(__name__)

PRESETS: Mapping[str, Mapping[str, Any]] = {}
"""No task-specific settings."""


@dataclass(frozen=True)
class ThompsonConfig(StrategyConfig):
    """Hyperparameters of Thompson sampling."""

    prior: Literal["auto", "beta", "gaussian"] = "auto"
    """Prior: `beta`, for Bernoulli rewards; `gaussian`; or `auto`, by the task."""
    successes: Annotated[float, Interval("[1, inf)")] = 1.0
    """First parameter of the beta prior, at least 1; (1, 1) is uniform."""
    failures: Annotated[float, Interval("[1, inf)")] = 1.0
    """Second parameter of the beta prior, at least 1."""
    prior_deviation: PositiveFloat = 1.0
    """Standard deviation of the gaussian prior of the means, around 0. It must be as large as the means may be:
    otherwise a bad arm can be pulled forever. Higher explores longer."""
    noise: PositiveFloat = 1.0
    """Standard deviation of the rewards of an arm, which the gaussian prior does not learn. Higher explores longer."""


class PriorRule(NamedTuple):
    """The two parameters of the prior."""

    first: float
    second: float


@compiled
def beta_posterior(estimate: float, count: int, successes: float, failures: float) -> tuple[float, float]:
    """Return the parameters of the beta posterior of an arm with mean reward `estimate` in `count` pulls."""
    ones = estimate * count
    return successes + ones, failures + (count - ones)


@compiled
def gaussian_posterior(estimate: float, count: int, deviation: float, noise: float) -> tuple[float, float]:
    """Return mean and standard deviation of the normal posterior, given `count` rewards with mean `estimate`."""
    precision = 1.0 / deviation**2 + count / noise**2
    return (count / noise**2) * estimate / precision, np.sqrt(1.0 / precision)


@compiled
def run_beta(arms: Arms, pulls: Pulls, rule: PriorRule, steps: int) -> None:
    """Pull `steps` arms of every seed, each the best of a sample from beta posteriors."""
    for i in range(len(pulls.clock)):
        for _ in range(steps):
            for k in range(pulls.counts.shape[1]):
                a, b = beta_posterior(pulls.estimates[i, k], pulls.counts[i, k], rule.first, rule.second)
                pulls.scores[i, k] = beta(pulls.rng, i, a, b)
            pull_and_average(arms, pulls, i, top_arm(pulls.scores[i], pulls.rng, i), 0.0)


@compiled
def run_gaussian(arms: Arms, pulls: Pulls, rule: PriorRule, steps: int) -> None:
    """Pull `steps` arms of every seed, each the best of a sample from normal posteriors."""
    for i in range(len(pulls.clock)):
        for _ in range(steps):
            for k in range(pulls.counts.shape[1]):
                mean, deviation = gaussian_posterior(pulls.estimates[i, k], pulls.counts[i, k], rule.first, rule.second)
                pulls.scores[i, k] = mean + deviation * normal(pulls.rng, i)
            pull_and_average(arms, pulls, i, top_arm(pulls.scores[i], pulls.rng, i), 0.0)


class _OfAllArms(Protocol):
    """The formula of a posterior, for arrays with one element per arm."""

    def __call__(
        self, estimates: Floats, counts: NDArray[np.int64], first: float, second: float, /
    ) -> tuple[Floats, Floats]: ...


KERNELS: Mapping[str, Kernel] = MappingProxyType({"beta": run_beta, "gaussian": run_gaussian})
"""Kernels and formulas by prior."""


class Thompson(BanditLearner):
    """Thompson sampling (see `BanditLearner` for the arguments)."""

    config: ThompsonConfig
    rule: PriorRule
    FOR_NORMAL_REWARDS = "the prior gaussian"

    @property
    def prior(self) -> str:
        """The prior: `beta` or `gaussian`."""
        if self.config.prior != "auto":
            return self.config.prior
        return "beta" if self.arms.bernoulli else "gaussian"

    def called(self) -> str:
        """Return the name of the strategy for messages."""
        return f"thompson with the prior {self.prior}"

    def needs_bernoulli(self) -> bool:
        """Return whether rewards must be Bernoulli, as for the beta prior."""
        return self.prior == "beta"

    def make_rule(self) -> PriorRule:
        """Return the kernel's constants; warn about values of another prior than the one that suits the rewards."""
        config, usual = self.config, ThompsonConfig()
        for name in ("prior_deviation", "noise") if self.prior == "beta" else ("successes", "failures"):
            if config.prior == "auto" and getattr(config, name) != getattr(usual, name):
                logger.warning(
                    "thompson: %s=%s has no effect with the prior %s, which suits these rewards: leave it out",
                    *(name, getattr(config, name), self.prior),
                )
        if self.prior == "beta":
            return PriorRule(float(config.successes), float(config.failures))
        return PriorRule(float(config.prior_deviation), float(config.noise))

    def kernel(self) -> Kernel:
        """Return the kernel of the prior."""
        return KERNELS[self.prior]

    def preferences(self) -> Floats:
        """Return the posterior means `[S, K]`."""
        counts, estimates = self.pulls.counts, self.pulls.estimates
        if self.prior == "beta":
            a, b = cast(_OfAllArms, python_of(beta_posterior))(estimates, counts, *self.rule)
            return a / (a + b)
        return cast(_OfAllArms, python_of(gaussian_posterior))(estimates, counts, *self.rule)[0]
