"""Claim: a difference of potentials added to the reward changes no optimal action; a plain bonus changes them.

Ng, Harada and Russell 1999. 1 000 random models of 2 to 7 states, each with a normal potential Φ of every state and
the discounts 0.3, 0.9 or 0.95, solved exactly: without shaping, with `γ Φ(s') - Φ(s)` (`operant.explore.shaped`), and
with Φ(s') as a plain bonus for entering a state, which is not a difference of potentials. Each is repeated with Φ of
several scales. Two actions are equally good if their values differ by at most 1e-8.

The counter-example by hand: from the start one action leads to a middle state; there one action leads to the goal,
which pays 1, the other back to the start. With γ = 0.9 a bonus b for entering the middle makes going back and forth
worth 0.9 b / (1 - 0.81), which is more than 1 from b = 0.211 on.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from checks import COLORS, Check, conclude, panels, save
from numpy.typing import NDArray

from operant.explore import shaped
from operant.mdp import MDP, action_values, solve
from operant.mdp.examples import random_model

Floats = NDArray[np.float64]

MODELS, SCALES, GAMMA = 1000, (0.1, 0.3, 1.0, 3.0, 10.0), 0.9
START, MIDDLE, GOAL = range(3)
BONUSES = np.linspace(0.0, 0.5, 26)


def optimal(mdp: MDP, gamma: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the optimal values `[S]` of a model, and which actions are optimal, `[S, A]`."""
    values = action_values(mdp, solve(mdp, gamma=gamma, tolerance=1e-11).values, gamma=gamma)
    best = values.max(axis=1, keepdims=True)
    return best[:, 0], mdp.feasible & (values > best - 1e-8)


def paid(mdp: MDP, bonus: Floats) -> MDP:
    """Return a model with a plain bonus for entering each state."""
    return replace(mdp, rewards=mdp.rewards + bonus[mdp.successors])


def models() -> Iterator[tuple[MDP, Floats, float]]:
    """Return random models, each with a standard normal potential and a discount."""
    rng = np.random.default_rng(0)
    for seed in range(MODELS):
        sizes = int(rng.integers(2, 8)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
        mdp = random_model(*sizes, seed=seed, termination=float(rng.choice([0.0, 0.3])), infeasible=0.2)
        yield mdp, rng.normal(size=mdp.states), float(rng.choice([0.3, 0.9, 0.95]))


def compare() -> dict[str, Any]:
    """Return by scale how many models have other optimal actions, and the largest error of V' = V - Φ."""
    changed = {"potential": np.zeros(len(SCALES), int), "bonus": np.zeros(len(SCALES), int)}
    error = 0.0
    for mdp, potential, gamma in models():
        values, best = optimal(mdp, gamma)
        for i, scale in enumerate(SCALES):
            after, shaped_best = optimal(shaped(mdp, scale * potential, gamma=gamma), gamma)
            error = max(error, float(np.abs(after - (values - scale * potential)).max()))
            changed["potential"][i] += not np.array_equal(shaped_best, best)
            changed["bonus"][i] += not np.array_equal(optimal(paid(mdp, scale * potential), gamma)[1], best)
    return {"scales": SCALES, "models": MODELS, "changed": changed, "largest error of the values": error}


def walk() -> MDP:
    """Return start, middle and goal: action 0 moves forward, action 1 back."""
    transitions, rewards = np.zeros((2, 3, 2, 3))
    transitions[START, :, [MIDDLE, START]] = transitions[MIDDLE, :, [GOAL, START]] = np.eye(2)
    rewards[MIDDLE, 0, GOAL] = 1.0
    return MDP.from_arrays(transitions, rewards, terminal=np.arange(3) == GOAL)


def by_hand() -> dict[str, Any]:
    """Return the values of both actions in the middle, `[bonuses, 2]`, with each bonus and with it as a potential."""
    found: dict[str, list[Floats]] = {"bonus": [], "potential": []}
    for bonus in BONUSES:
        extra = np.array([0.0, bonus, 0.0])
        for name, mdp in (("bonus", paid(walk(), extra)), ("potential", shaped(walk(), extra, gamma=GAMMA))):
            found[name].append(action_values(mdp, solve(mdp, gamma=GAMMA).values, gamma=GAMMA)[MIDDLE])
    return {"bonuses": BONUSES, **{name: np.array(values) for name, values in found.items()}}


def draw(found: dict[str, Any], example: dict[str, Any]) -> None:
    """Draw how many models change by the scale of the potential, and the values of the counter-example."""
    figure, axes = panels(2)
    names = (("bonus", "bonus Φ(s')", COLORS[1]), ("potential", "potential, γ Φ(s') - Φ(s)", COLORS[0]))
    for name, label, color in names:
        axes[0].plot(SCALES, found["changed"][name], "o-", color=color, label=label)
        for action, style in enumerate(("-", "--")):
            way = ("to the goal", "back")[action]
            axes[1].plot(BONUSES, example[name][:, action], style, color=color, label=f"{way}, {name}")
    axes[0].set(xscale="log", xlabel="standard deviation of Φ", ylabel="models with other optimal actions")
    axes[0].set(title=f"{MODELS} random models", ylim=(-30, MODELS))
    axes[1].set(title="counter-example, in the middle state", xlabel="bonus or potential of the middle")
    axes[1].set_ylabel("value of the action")
    save(figure, __file__, axes)


def main() -> None:
    """Solve, draw; fail if a claim does not hold."""
    found, example = compare(), by_hand()
    draw(found, example)
    changed, better = found["changed"], example["bonus"][:, 1] > example["bonus"][:, 0]
    claims = {
        f"no optimal action of {MODELS} models changes by shaping, at every scale": not changed["potential"].any(),
        "every value falls by the potential of its state": found["largest error of the values"] < 1e-7,
        "a bonus of every scale changes the optimal actions of some models": bool(changed["bonus"].all()),
        "counter-example: going back becomes optimal between 0.20 and 0.22": np.array_equal(better, BONUSES > 0.21),
        "counter-example: with a potential the goal stays optimal": bool(
            (example["potential"][:, 0] > example["potential"][:, 1]).all()
        ),
    }
    checks = [Check("going back with a bonus of 0.5", float(example["bonus"][-1, 1]), 0.0, 2.368421, 1e-6, exact=True)]
    conclude(__file__, {"random models": found, "counter-example": example}, checks, claims)


if __name__ == "__main__":
    main()
