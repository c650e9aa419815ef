"""Claim: Q-learning solves FrozenLake, slippery or not, nearly as well as is possible within 100 steps.

Each policy is evaluated exactly, by its probability of reaching the goal within the limit. On the slippery lake no
policy reaches more than 0.7442, and the optimal policy for γ = 0.99, which does not depend on time, reaches 0.7402.
"""

from typing import Any

import gymnasium
import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from numpy.typing import NDArray
from scipy.sparse import csr_array

from operant.mdp import MDP, backward_induction, value_iteration
from operant.tabular import OneStepConfig, QLearning

SEEDS, POINTS, LIMIT = 100, 200, 100
STEPS = {"slippery": 2_000_000, "not slippery": 10_000}


def success(lake: MDP, policies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability `[N]` that each of N policies `[N, states, A]` reaches the goal within the limit."""
    indptr, successors, probabilities = lake.continuation
    rows = csr_array((probabilities, successors, indptr), shape=(lake.states * lake.actions, lake.states))
    going_on = np.einsum("nsa,sat->nst", policies, rows.toarray().reshape(lake.states, lake.actions, -1))
    rewards = (policies * np.where(lake.feasible, lake.expected_rewards, 0.0)).sum(axis=2)
    values = np.zeros(rewards.shape)
    for _ in range(LIMIT):
        values = rewards + (going_on @ values[:, :, None])[:, :, 0]
    return values @ lake.start


def learn(lake: MDP, steps: int, **settings: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return steps, and the exact success of every seed's greedy policy after them, `[points, seeds]`."""
    config = OneStepConfig(
        gamma=0.99,
        exploration_initial_eps=1.0,
        exploration_schedule="linear",
        exploration_final_eps=0.1,
        exploration_span=steps / 2,
        schedule_unit="steps",
        steps_per_iteration=steps // POINTS,
        **settings,
    )
    learner = QLearning(config, lake, seeds=range(SEEDS))
    at, found = [], []
    for _ in range(POINTS):
        learner.iterate()
        at.append(learner.consumed)
        found.append(success(lake, learner.policy()))
    return np.array(at), np.array(found)


def main() -> None:
    """Solve, train, evaluate and plot; fail if a number or a claim does not hold."""
    slippery = MDP.from_gymnasium(gymnasium.make("FrozenLake-v1"))
    firm = MDP.from_gymnasium(gymnasium.make("FrozenLake-v1", is_slippery=False))
    best = value_iteration(slippery, gamma=0.99, tolerance=1e-10)
    acting = ~slippery.terminal[:, None]
    stationary = float(success(slippery, np.eye(4)[None, np.maximum(best.policy, 0)] * acting)[0])
    ceiling = float(slippery.start @ backward_induction(slippery, horizon=LIMIT).values[0])
    uniform = slippery.feasible / np.maximum(slippery.feasible.sum(axis=1, keepdims=True), 1)
    random = float(success(slippery, uniform[None])[0])
    lakes = {
        "slippery": learn(slippery, STEPS["slippery"], step_size_schedule="visits", step_size_power=0.6),
        "not slippery": learn(firm, STEPS["not slippery"], step_size=0.1),
    }
    finals = {name: scores[-1] for name, (_, scores) in lakes.items()}
    checks = [
        Check("ceiling of all policies", ceiling, 0.0, 0.744190, 1e-6, exact=True),
        Check("the optimal policy for γ = 0.99", stationary, 0.0, 0.740165, 1e-6, exact=True),
        Check("the random policy", random, 0.0, 0.013940, 1e-6, exact=True),
        Check("V* of the start, γ = 0.99", float(best.values[0]), 0.0, 0.5420259320, 1e-9, exact=True),
    ]
    claims = {
        "slippery: no seed exceeds the ceiling": bool((lakes["slippery"][1] <= ceiling + 1e-9).all()),
        "slippery: the median seed reaches 0.73": float(np.median(finals["slippery"])) >= 0.73,
        "slippery: the worst seed reaches 0.70, Gymnasium's threshold": float(finals["slippery"].min()) >= 0.70,
        "not slippery: every seed always reaches the goal": bool((finals["not slippery"] == 1.0).all()),
    }
    figure, axes = panels(2)
    for axis, (name, (at, scores)) in zip(axes, lakes.items(), strict=True):
        axis.plot(at, scores, color=COLORS[0], alpha=0.08, linewidth=0.8)
        axis.plot(at, np.median(scores, axis=1), color=COLORS[0], linewidth=2, label=f"median of {SEEDS} seeds")
        axis.set(xlabel="environment steps of each seed", title=f"FrozenLake, {name}", ylim=(0, 1.04))
    axes[0].axhline(
        ceiling, color=COLORS[1], linestyle="--", linewidth=1, label=f"ceiling of all policies: {ceiling:.4f}"
    )
    axes[0].axhline(
        stationary, color=COLORS[2], linestyle=":", linewidth=1, label=f"optimal, γ = 0.99: {stationary:.4f}"
    )
    axes[0].axhline(random, color=COLORS[6], linewidth=1, label=f"random: {random:.4f}")
    axes[0].set_xscale("log")
    axes[0].set_ylabel("probability of the goal in 100 steps, exact")
    save(figure, __file__, axes)
    results = {
        name: {"success": summary(scores[-1]), "steps": at, "median": np.median(scores, axis=1)}
        for name, (at, scores) in lakes.items()
    }
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
