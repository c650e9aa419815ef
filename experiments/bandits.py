"""Claim: the regret of ε-greedy grows linearly; the regret of KL-UCB and Thompson sampling stays below C ln T.

The 10-armed testbed (Sutton and Barto 2018, chapter 2): 20 000 problems of 1000 pulls, scored on the last 100. And four
problems with rewards of 1 or 0: cumulative regret over 10 000 pulls, compared with `C ln T` with the constant of Lai
and Robbins (1985). It bounds the slope of the regret asymptotically, so the regret itself may be below it at first.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from matplotlib.axes import Axes
from numpy.typing import NDArray

from operant.tabular.bandits import Arms, BanditLearner, lai_robbins
from operant.tabular.strategies import (
    KLUCB,
    UCB1,
    EpsilonGreedy,
    EpsilonGreedyConfig,
    GradientBandit,
    GradientBanditConfig,
    KLUCBConfig,
    UCBConfig,
)
from operant.tabular.thompson import Thompson, ThompsonConfig

PROBLEMS, PULLS, ORACLE = 20_000, 1000, 1.5388
LONG, EVERY = 10_000, 100

Make = Callable[[Arms, range], BanditLearner]


def epsilon_greedy(**settings: Any) -> Make:
    """Return a factory of ε-greedy learners."""
    return lambda arms, seeds: EpsilonGreedy(
        EpsilonGreedyConfig(steps_per_iteration=EVERY, **settings), arms, seeds=seeds
    )


def ucb(**settings: Any) -> Make:
    """Return a factory of UCB learners."""
    return lambda arms, seeds: UCB1(UCBConfig(steps_per_iteration=EVERY, **settings), arms, seeds=seeds)


def gradient(**settings: Any) -> Make:
    """Return a factory of gradient bandits."""
    return lambda arms, seeds: GradientBandit(
        GradientBanditConfig(steps_per_iteration=EVERY, **settings), arms, seeds=seeds
    )


def kl_ucb(arms: Arms, seeds: range) -> BanditLearner:
    """Return a KL-UCB learner."""
    return KLUCB(KLUCBConfig(steps_per_iteration=EVERY), arms, seeds=seeds)


def thompson(arms: Arms, seeds: range) -> BanditLearner:
    """Return a learner that samples from beta posteriors."""
    return Thompson(ThompsonConfig(steps_per_iteration=EVERY), arms, seeds=seeds)


TESTBED: dict[str, tuple[Make, str | None, str]] = {
    "greedy": (epsilon_greedy(exploration_rate=0.0), "1.031", "35.8"),
    "ε = 0.01": (epsilon_greedy(exploration_rate=0.01), "1.316", "59.9"),
    "ε = 0.1": (epsilon_greedy(exploration_rate=0.1), "1.368", "79.4"),
    "optimistic, Q = 5, α = 0.1": (
        epsilon_greedy(exploration_rate=0.0, step_size=0.1, initial_value=5.0),
        "1.498",
        "85.1",
    ),
    "UCB, c = 2": (ucb(bonus_coef=2.0), "1.489", "85.1"),
    "UCB, c = 1": (ucb(bonus_coef=1.0), "1.527", "92.4"),
    "gradient, α = 0.1": (gradient(step_size=0.1), "1.502", "84.5"),
    "gradient, α = 0.4": (gradient(step_size=0.4), None, "73.3"),
    "gradient, α = 0.1, no baseline": (gradient(step_size=0.1, baseline=False), "1.201", "48.1"),
}
"""Strategies with the reward and the share of best arms, in %, that the reference has over the last 100 pulls."""
SHIFT = 4.0
"""Mean of the arms' means for the gradient bandits (figure 2.5); rewards are reported without it."""

STRATEGIES: dict[str, tuple[Make, int]] = {
    "ε-greedy, ε = 0.1": (epsilon_greedy(exploration_rate=0.1), 1000),
    "UCB1": (ucb(), 1000),
    "KL-UCB": (kl_ucb, 300),
    "Thompson sampling": (thompson, 1000),
}
"""Strategies for arms with rewards of 1 or 0, and the number of runs."""
ARMS: dict[str, tuple[tuple[float, ...], str, tuple[tuple[str, str], ...]]] = {
    "0.9, 0.8": ((0.9, 0.8), "2.2521", (("10.4", "55.5"), ("25.0", "87.8"), ("7.7", "15.3"), ("6.7", "10.3"))),
    "0.6, 0.5": ((0.6, 0.5), "4.8993", (("14.5", "61.0"), ("25.2", "88.0"), ("13.4", "30.1"), ("12.1", "20.3"))),
    "0.1, 3 × 0.05, 3 × 0.02, 3 × 0.01": (
        (0.1, *[0.05] * 3, *[0.02] * 3, *[0.01] * 3),
        "17.4452",
        (("16.3", "90.0"), ("61.4", "501.4"), ("43.0", "112.8"), ("40.6", "80.8")),
    ),
    "0.9, 0.8, ..., 0.1": (
        tuple(k / 10 for k in range(9, 0, -1)),
        "7.5165",
        (("61.6", "430.9"), ("132.4", "331.0"), ("35.7", "58.7"), ("29.3", "41.9")),
    ),
}
"""Problems: the arms, the constant of Lai and Robbins, and the regret of each strategy after 1000 and 10 000 pulls.

The numbers of ε-greedy are those of `ordered_ties`.
"""


def testbed(make: Make, center: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return reward and share of best arms in every block of 100 pulls, each `[blocks, problems]`."""
    seeds = range(PROBLEMS)
    learner = make(Arms.testbed(seeds, center=center), seeds)
    blocks = [learner.iterate() for _ in range(PULLS // EVERY)]
    rewards, best = (
        np.stack([block[name].numpy() for block in blocks]) for name in ("bandit/reward", "bandit/best_arm")
    )
    return rewards - center, best


def regret(make: Make, probabilities: tuple[float, ...], runs: int) -> NDArray[np.float64]:
    """Return the regret after every 100 pulls, `[blocks, runs]`."""
    learner = make(Arms.paying_one(probabilities, runs), range(runs))
    return np.stack([learner.iterate()["bandit/regret"].numpy() for _ in range(LONG // EVERY)])


def ordered_ties(probabilities: tuple[float, ...], runs: int) -> NDArray[np.float64]:
    """Return the regret `[blocks, runs]` of ε-greedy with the settings of the reference.

    It pulls every arm once and then breaks ties by the order of the arms, of which the best one is the first.
    """
    random = np.random.default_rng(0)
    means, every = np.array(probabilities), np.arange(runs)
    estimates, counts, total = np.zeros((runs, means.size)), np.zeros((runs, means.size)), np.zeros(runs)
    found = []
    for pull in range(LONG):
        greedy = np.where(random.random(runs) < 0.1, random.integers(0, means.size, runs), estimates.argmax(axis=1))
        arm = np.full(runs, pull) if pull < means.size else greedy
        counts[every, arm] += 1
        rewards = random.random(runs) < means[arm]
        estimates[every, arm] += (rewards - estimates[every, arm]) / counts[every, arm]
        total += means.max() - means[arm]
        if (pull + 1) % EVERY == 0:
            found.append(total.copy())
    return np.array(found)


def draw_regret(axis: Axes, name: str, curves: dict[str, NDArray[np.float64]], constant: float) -> None:
    """Draw the regret on one problem."""
    at = np.arange(1, LONG // EVERY + 1) * EVERY
    for (label, curve), color in zip(curves.items(), COLORS, strict=False):
        axis.plot(at, curve.mean(axis=1), color=color, label=label, linewidth=1.5)
        axis.fill_between(at, *np.quantile(curve, (0.1, 0.9), axis=1), color=color, alpha=0.12, linewidth=0)
    axis.plot(at, constant * np.log(at), color="black", linestyle="--", linewidth=1, label="C ln T (Lai, Robbins)")
    axis.set(xscale="log", xlabel="pulls T", title=f"arms {name}", ylim=(0, None))


def main() -> None:
    """Pull, compare, draw; fail if a number or a claim does not hold."""
    checks, claims, results = [], {}, {"testbed": {}, "regret": {}}
    figure, axes = panels(3, 2)
    for k, (name, (make, reward, best)) in enumerate(TESTBED.items()):
        rewards, shares = testbed(make, SHIFT if name.startswith("gradient") else 0.0)
        if reward is not None:
            checks.append(Check.of(f"testbed, {name}: reward", rewards[-1], reward))
        checks.append(Check.of(f"testbed, {name}: % best arm", shares[-1], best, scale=100.0))
        results["testbed"][name] = {"reward": summary(rewards[-1]), "best arm": summary(shares[-1])}
        claims[f"testbed, {name}: no more than the best arms pay"] = bool(rewards[-1].mean() < ORACLE)
        at = np.arange(EVERY // 2, PULLS, EVERY)
        for axis, curve in zip(axes, (rewards, 100.0 * shares), strict=False):
            axis.plot(at, curve.mean(axis=1), color=COLORS[k % 8], linestyle="-" if k < 8 else "--", label=name)
    axes[0].axhline(ORACLE, color="black", linestyle=":", linewidth=1)
    axes[0].set(xlabel="pull", title=f"10 arms, {PROBLEMS} problems: reward", ylim=(0.6, 1.6))
    axes[1].set(xlabel="pull", title="% best arm", ylim=(0, 100), xlim=(0, 1900), xticks=[0, 500, 1000])
    for axis, (name, (probabilities, constant, printed)) in zip(axes[2:], ARMS.items(), strict=True):
        curves = {label: regret(make, probabilities, runs) for label, (make, runs) in STRATEGIES.items()}
        c = float(lai_robbins(Arms.paying_one(probabilities))[0])
        checks.append(Check(f"{name}: constant of Lai and Robbins", c, 0.0, float(constant), 1e-4, exact=True))
        ordered = ordered_ties(probabilities, STRATEGIES["ε-greedy, ε = 0.1"][1])
        claims[f"{name}: ties broken by order, the best arm first, flatter ε-greedy"] = bool(
            ordered[-1].mean() < curves["ε-greedy, ε = 0.1"][-1].mean()
        )
        compared = {"ε-greedy with ordered ties": ordered} | {label: curves[label] for label in list(curves)[1:]}
        for (label, curve), row in zip(compared.items(), printed, strict=True):
            for pulls, text in zip((1000, LONG), row, strict=True):
                checks.append(Check.of(f"{name}: {label}, regret at {pulls}", curve[pulls // EVERY - 1], text))
        last = {label: float(curve[-1].mean()) for label, curve in curves.items()}
        claims[f"{name}: Thompson sampling < KL-UCB < UCB1"] = last["Thompson sampling"] < last["KL-UCB"] < last["UCB1"]
        half = {label: float((curve[-1] - curve[LONG // 2 // EVERY - 1]).mean()) for label, curve in curves.items()}
        claims[f"{name}: KL-UCB and Thompson sampling stay below C ln T"] = max(
            last["KL-UCB"], last["Thompson sampling"]
        ) < c * np.log(LONG)
        claims[f"{name}: from pull 5000 on, ε-greedy loses more than twice as much as Thompson sampling"] = (
            half["ε-greedy, ε = 0.1"] > 2.0 * half["Thompson sampling"]
        )
        results["regret"][name] = {
            label: {"curve": curve.mean(axis=1), "last": summary(curve[-1])} for label, curve in curves.items()
        }
        draw_regret(axis, name, curves, c)
    axes[2].set_ylabel("regret, mean and 10 to 90 %")
    save(figure, __file__, (axes[1], axes[2]))
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
