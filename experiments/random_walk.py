"""Claim: on random walks TD has a lower error than constant-α Monte Carlo, and n-step methods a lower one than both.

The root mean square error over the states, averaged over independent walks: TD(0) and Monte Carlo with 5 states
(Sutton and Barto 2018, example 6.2), and with 19 states n-step TD (figure 7.2), the offline λ-return algorithm (figure
12.3), TD(λ) (figure 12.6) and true online TD(λ) (figure 12.8).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from numpy.typing import NDArray

from operant.mdp import MDP
from operant.tabular import (
    LambdaReturn,
    LambdaReturnConfig,
    MonteCarloPrediction,
    MonteCarloPredictionConfig,
    NStepTD,
    NStepTDConfig,
    Prediction,
    TDLambda,
    TDLambdaConfig,
)

SMALL_RUNS, SMALL_EPISODES, SMALL_AT = 10_000, 100, (0, 10, 25, 50, 100)
RUNS, EPISODES = 1000, 10
LAMBDAS = (0.0, 0.4, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0)
STEP_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
STEP_SIZES = (0.01, 0.02, 0.03, 0.05, *(step / 20 for step in range(2, 21)))

Errors = NDArray[np.float64]
Method = Callable[[float, range], Prediction]

SMALL = MDP.from_gymnasium("operant/RandomWalk5-v0")
LARGE = MDP.from_gymnasium("operant/RandomWalk19-v0")


def td(step_size: float, seeds: range) -> Prediction:
    """Return TD(0) on the small walk."""
    return NStepTD(NStepTDConfig(gamma=1.0, step_size=step_size, initial_value=0.5), SMALL, seeds=seeds)


def monte_carlo(step_size: float, seeds: range) -> Prediction:
    """Return constant-α Monte Carlo on the small walk."""
    config = MonteCarloPredictionConfig(
        gamma=1.0, step_size=step_size, initial_value=0.5, step_size_schedule="constant", visits="every"
    )
    return MonteCarloPrediction(config, SMALL, seeds=seeds)


def n_step(n: int) -> Method:
    """Return a factory of n-step TD on the large walk."""
    return lambda alpha, seeds: NStepTD(NStepTDConfig(gamma=1.0, step_size=alpha, n_step=n), LARGE, seeds=seeds)


def lambda_return(lam: float) -> Method:
    """Return a factory of the offline λ-return algorithm on the large walk."""
    return lambda alpha, seeds: LambdaReturn(
        LambdaReturnConfig(gamma=1.0, step_size=alpha, td_lambda=lam), LARGE, seeds=seeds
    )


def traces(kind: Any) -> Callable[[float], Method]:
    """Return a factory of TD(λ) with these traces on the large walk."""
    return lambda lam: (
        lambda alpha, seeds: TDLambda(
            TDLambdaConfig(gamma=1.0, step_size=alpha, td_lambda=lam, traces=kind), LARGE, seeds=seeds
        )
    )


def errors(learner: Prediction, truth: NDArray[np.float64], at: Sequence[int]) -> Errors:
    """Return the root mean square error over the states after these numbers of episodes, `[len(at), runs]`."""
    found = []
    for episodes in at:
        if episodes:
            learner.run_episodes(episodes)
        with np.errstate(over="ignore", invalid="ignore"):  # α that is too large diverges
            found.append(np.sqrt(np.mean((learner.values[:, 1:-1] - truth) ** 2, axis=1)))
    return np.array(found)


def small_walk() -> dict[str, Errors]:
    """Return the errors `[101, runs]` of TD and Monte Carlo by name."""
    truth, seeds = np.arange(1, 6) / 6, range(SMALL_RUNS)
    learners = {f"TD α={alpha:g}": td(alpha, seeds) for alpha in (0.05, 0.1, 0.15)}
    learners |= {f"MC α={alpha:g}": monte_carlo(alpha, seeds) for alpha in (0.01, 0.02, 0.03, 0.04)}
    return {name: errors(learner, truth, range(SMALL_EPISODES + 1)) for name, learner in learners.items()}


def early_error(method: Method, alpha: float, seeds: range) -> Errors:
    """Return the error `[runs]`, averaged over the first ten episodes."""
    truth = np.arange(-9, 10) / 10
    return errors(method(alpha, seeds), truth, range(1, EPISODES + 1)).mean(axis=0)


def large_walk(methods: dict[str, Method]) -> dict[str, list[Errors]]:
    """Return the errors of every method with every step size, `[runs]` each."""
    seeds = range(RUNS)
    return {name: [early_error(method, alpha, seeds) for alpha in STEP_SIZES] for name, method in methods.items()}


SMALL_REFERENCE: dict[str, tuple[str | None, ...]] = {
    "TD α=0.05": (".2357", ".1746", ".1097", ".0532", ".0356"),
    "TD α=0.1": (".2357", ".1283", ".0564", ".0503", ".0556"),
    "TD α=0.15": (".2357", ".0948", ".0574", ".0687", ".0703"),
    "MC α=0.01": (".2357", ".2124", ".1826", ".1444", ".0973"),
    "MC α=0.02": (".2357", None, None, None, ".0818"),
    "MC α=0.03": (".2357", None, None, None, ".0931"),
    "MC α=0.04": (".2357", None, None, None, ".1063"),
}
N_STEP_REFERENCE = {
    1: (".3465", 0.8),
    2: (".2792", 0.6),
    4: (".2662", 0.4),
    8: (".2796", 0.25),
    16: (".3153", 0.15),
    32: (".3673", 0.1),
    64: (".4167", 0.05),
}
LAMBDA_REFERENCE = {
    "λ-return": {0.0: ".3666", 0.4: ".2914", 0.8: ".2629", 0.9: ".2842", 1.0: ".4904"},
    "TD(λ)": {0.0: ".3454", 0.4: ".2732", 0.8: ".2624", 0.9: ".2900", 1.0: ".4988"},
    "true online": {0.0: ".3454", 0.4: ".2736", 0.8: ".2548", 0.9: ".2765", 1.0: ".4904"},
}


def best(curve: Sequence[Errors]) -> tuple[float, Errors]:
    """Return the step size with the lowest mean error, and its errors."""
    chosen = int(np.nanargmin([values.mean() for values in curve]))
    return STEP_SIZES[chosen], curve[chosen]


def small_checks(small: dict[str, Errors]) -> list[Check]:
    """Compare the small walk with the reference."""
    return [
        Check.of(f"5 states, {name}, episode {episodes}", small[name][episodes], printed)
        for name, numbers in SMALL_REFERENCE.items()
        for episodes, printed in zip(SMALL_AT, numbers, strict=True)
        if printed
    ]


def draw(
    small: dict[str, Errors], steps: dict[str, list[Errors]], families: dict[str, dict[str, list[Errors]]]
) -> None:
    """Draw all four figures."""
    figure, axes = panels(2, 2)
    for (name, values), color in zip(small.items(), COLORS, strict=False):
        style = "-" if name.startswith("TD") else "--"
        axes[0].plot(values.mean(axis=1), style, color=color, label=name, linewidth=1.2)
    axes[0].set(xlabel="episodes", ylabel="RMS error", title=f"5 states, {SMALL_RUNS} runs")
    for (name, curve), color in zip(steps.items(), COLORS, strict=False):
        axes[1].plot(STEP_SIZES, [values.mean() for values in curve], color=color, label=name, linewidth=1.2)
    axes[1].set(xlabel="α", xlim=(0.0, 1.3), ylim=(0.24, 0.56), title=f"19 states, n-step TD, {RUNS} runs")
    axes[2].plot(
        [str(n) for n in STEP_COUNTS], [best(curve)[1].mean() for curve in steps.values()], "o-", color="black"
    )
    axes[2].set(
        xlabel="n", ylabel="RMS error, first 10 episodes, best α", ylim=(0.24, 0.52), title="19 states, n-step TD"
    )
    for (family, curves), color in zip(families.items(), COLORS, strict=False):
        least = [best(curve)[1].mean() for curve in curves.values()]
        axes[3].plot([f"{lam:g}" for lam in LAMBDAS], least, "o-", color=color, label=family, linewidth=1.2)
    axes[3].set(xlabel="λ", ylim=(0.24, 0.52), title="19 states, λ")
    save(figure, __file__, (axes[0], axes[1], axes[3]))


def main() -> None:
    """Run all walks, compare with the reference and plot; fail if a number or a claim does not hold."""
    small = small_walk()
    steps = large_walk({f"n={n}": n_step(n) for n in STEP_COUNTS})
    makers = {"λ-return": lambda_return, "TD(λ)": traces("accumulating"), "true online": traces("true_online")}
    families = {
        family: large_walk({f"{family}, λ={lam:g}": make(lam) for lam in LAMBDAS}) for family, make in makers.items()
    }
    curves = steps | {name: curve for family in families.values() for name, curve in family.items()}
    printed = {f"n={n}": number for n, (number, _) in N_STEP_REFERENCE.items()}
    printed |= {f"{family}, λ={lam:g}": text for family, row in LAMBDA_REFERENCE.items() for lam, text in row.items()}
    checks = small_checks(small)
    checks += [Check.of(f"19 states, {name}, best α", best(curves[name])[1], text) for name, text in printed.items()]
    last = {name: float(values[-1].mean()) for name, values in small.items()}
    least = {name: float(best(curve)[1].mean()) for name, curve in curves.items()}
    claims = {
        "TD with its best α ends below Monte Carlo with its own": min(
            error for name, error in last.items() if name.startswith("TD")
        )
        < min(error for name, error in last.items() if name.startswith("MC")),
        "the best n is 4": min(steps, key=lambda name: least[name]) == "n=4",
        "the best step sizes fall with n as in the reference": all(
            best(steps[f"n={n}"])[0] == alpha for n, (_, alpha) in N_STEP_REFERENCE.items()
        ),
        "online TD(0) is true online TD(0)": bool(
            np.array_equal(best(curves["TD(λ), λ=0"])[1], best(curves["true online, λ=0"])[1])
        ),
        "offline and true online λ = 1 are the same": bool(
            np.allclose(best(curves["λ-return, λ=1"])[1], best(curves["true online, λ=1"])[1])
        ),
    }
    draw(small, steps, families)
    results = {
        "5 states, last error": {name: summary(values[-1]) for name, values in small.items()},
        "5 states, mean error": {name: values.mean(axis=1) for name, values in small.items()},
        "19 states": {
            name: {"step_sizes": STEP_SIZES, "means": [values.mean() for values in curve], "best": best(curve)[0]}
            | {"error": summary(best(curve)[1])}
            for name, curve in curves.items()
        },
    }
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
