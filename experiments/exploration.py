"""Claim: planned exploration finds distant rewards; random exploration does not.

RiverSwim and SixArms (Strehl and Littman 2008): rewards of 5000 steps, 200 runs. DeepSea (Osband et al. 2019), with
actions that differ from cell to cell: episodes until none fails any more, for all 21 sizes of the benchmark; a
random policy finds the treasure once in 2^size episodes.
"""

from typing import Any

import gymnasium
import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from numpy.typing import NDArray

from operant.mdp import MDP, backward_induction
from operant.tabular import learner_for

RUNS, STEPS = 200, 5000
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Q-learning, ε = 0.1": ("q-learning", {"gamma": 0.95}),
    "SARSA, ε = 0.1": ("sarsa", {"gamma": 0.95}),
    "R-max, m = 5": ("r-max", {"known": 5}),
    "R-max, m = 16": ("r-max", {"known": 16}),
    "MBIE-EB, β = 0.1": ("mbie-eb", {"bonus_coef": 0.1}),
}
RIVER = {
    "Q-learning, ε = 0.1": ("23.3", 1e-3),
    "R-max, m = 5": ("0.97", 1e-6),
    "R-max, m = 16": ("2.94", 1e-6),
    "MBIE-EB, β = 0.1": ("3.22", 1e-6),
}
"""Mean reward of the reference in 5000 steps, and its unit: thousands or millions."""
MEDIANS = {"R-max, m = 5": 25e3, "R-max, m = 16": 3.02e6}
SIZES, SEAS = tuple(range(10, 51, 2)), 5


def rewards(task: str) -> dict[str, NDArray[np.float64]]:
    """Return the reward of each learner in the first episode of 5000 steps, `[runs]`."""
    world = MDP.from_gymnasium(task)
    largest = {"reward_max": float(world.rewards.max())}
    earned = {}
    for label, (name, values) in LEARNERS.items():
        more = largest if name in ("r-max", "mbie-eb") else {}
        learner = learner_for(name, world, seeds=range(RUNS), **values, **more)
        earned[label] = learner.run_episodes(1).returns[:, 0]
    return earned


def failures(size: int, episodes: int, name: str, **values: Any) -> NDArray[np.int64]:
    """Return the number of episodes before the first treasure, `[seas]`."""
    sea = MDP.from_gymnasium(gymnasium.make("operant/DeepSea-v0", size=size, mapping_seed=size))
    history = learner_for(name, sea, seeds=range(SEAS), gamma=0.99, **values).run_episodes(episodes)
    return (history.returns < 0.9).sum(axis=1)


def main() -> None:
    """Train, compare and plot; fail if a number or a claim does not hold."""
    worlds = {name: f"operant/{name}-v0" for name in ("RiverSwim", "SixArms")}
    earned = {name: rewards(task) for name, task in worlds.items()}
    best = {}
    for name, task in worlds.items():
        model = MDP.from_gymnasium(task)
        best[name] = float(model.start @ backward_induction(model, horizon=STEPS).values[0])
    river = earned["RiverSwim"]
    checks = [Check.of(f"RiverSwim: {n}", river[n], text, scale=scale) for n, (text, scale) in RIVER.items()]
    checks.append(
        Check("RiverSwim: best in 5000 steps, millions", best["RiverSwim"] / 1e6, 0.0, 3.3365, 3e-3, exact=True)
    )
    missed = {size: failures(size, 4 * size, "r-max", known=1) for size in SIZES}
    chance = {size: failures(size, 10_000, "q-learning") for size in (10, 20)}
    claims = {
        "RiverSwim: nobody earns more than is possible, on average": max(e.mean() for e in river.values())
        < best["RiverSwim"],
        "RiverSwim: the medians of R-max are within 3 % of the reference": all(
            abs(np.median(river[name]) / median - 1.0) < 0.03 for name, median in MEDIANS.items()
        ),
        "RiverSwim: planned exploration earns a hundred times as much as ε-greedy": bool(
            river["R-max, m = 16"].mean() > 100 * river["Q-learning, ε = 0.1"].mean()
        ),
        "SixArms: planned exploration earns more than ten times as much as ε-greedy": bool(
            earned["SixArms"]["MBIE-EB, β = 0.1"].mean() > 10 * earned["SixArms"]["Q-learning, ε = 0.1"].mean()
        ),
        "DeepSea: R-max misses the treasure 2 N - 1 times at every size, and never again": all(
            (count == 2 * size - 1).all() for size, count in missed.items()
        ),
        "DeepSea: Q-learning misses it in more than 90 % of 10 000 episodes at size 20": bool(
            (chance[20] > 9000).all()
        ),
    }
    figure, axes = panels(3)
    for axis, (name, scores) in zip(axes, earned.items(), strict=False):
        for k, (label, each) in enumerate(scores.items()):
            axis.plot(np.sort(each), np.linspace(0, 1, RUNS), color=COLORS[k], label=label)
        axis.axvline(best[name], color="black", linestyle=":", linewidth=1)
        axis.set(xscale="log", xlabel="reward in 5000 steps", title=f"{name}, {RUNS} runs (dotted: the best)")
    axes[0].set_ylabel("share of runs with less")
    axes[2].plot(SIZES, [count.mean() for count in missed.values()], "o", color=COLORS[0], label="R-max, m = 1")
    axes[2].plot(SIZES, [2.0 * size - 1.0 for size in SIZES], color=COLORS[0], linewidth=1, label="2 N - 1")
    axes[2].plot(SIZES[:8], [2.0**size for size in SIZES[:8]], color=COLORS[1], label="random policy, once in $2^N$")
    axes[2].set(yscale="log", xlabel="size N", title="DeepSea: failed episodes", ylim=(10, 1e7))
    save(figure, __file__, (axes[0], axes[2]))
    results = {name: {label: summary(each) for label, each in scores.items()} for name, scores in earned.items()}
    results["best in 5000 steps"] = best
    results["DeepSea: failed episodes"] = missed | {f"Q-learning, {size}": count for size, count in chance.items()}
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
