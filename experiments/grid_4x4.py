"""Claim: Q-learning finds the shortest path through a 4 x 4 grid; random actions need ten times as many steps.

+1 at the goal, -0.01 a step, episodes of at most 200 steps. Q-learning with α = 0.1, γ = 0.99 and ε falling from 1 by a
factor of 0.9995 per episode to 0.01, for 10 000 episodes. The policies are evaluated exactly.
"""

import dataclasses

import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from matplotlib.axes import Axes
from numpy.typing import NDArray

from operant.mdp import MDP, expected_return, policy_evaluation
from operant.tabular import OneStepConfig, QLearning, RandomAgent, RandomConfig

SEEDS, EPISODES, LAST = 100, 10_000, 100
RANDOM_SEEDS, RANDOM_EPISODES = 1000, 50
BEST = 0.901980
ARROWS = "↑→↓←"

GRID = MDP.from_gymnasium("operant/Goal4x4-v0")


def arrows(policy: NDArray[np.float64]) -> list[str]:
    """Return the greedy policy `[16, 4]` as four lines of text."""
    symbols = ["★" if GRID.terminal[state] else ARROWS[int(policy[state].argmax())] for state in range(16)]
    return [" ".join(symbols[row * 4 : row * 4 + 4]) for row in range(4)]


def draw_policy(axis: Axes, policy: NDArray[np.float64]) -> None:
    """Plot the arrows of a policy and its values."""
    values = policy_evaluation(GRID, policy, gamma=0.99).values
    axis.imshow(values.reshape(4, 4), cmap="Blues", vmin=0.0, vmax=2.0)
    for state, symbol in enumerate(" ".join(arrows(policy)).split()):
        axis.text(state % 4, state // 4 - 0.1, symbol, ha="center", va="center", fontsize=16)
        axis.text(state % 4, state // 4 + 0.3, f"{values[state]:.3f}", ha="center", va="center", fontsize=8)
    axis.set(xticks=[], yticks=[], title="greedy policy of seed 0, its exact values")
    axis.spines[:].set_visible(False)


def main() -> None:
    """Take random actions, train, evaluate and plot; fail if a number or a claim does not hold."""
    endless = dataclasses.replace(GRID, max_steps=None)
    walks = {
        limit: RandomAgent(RandomConfig(), mdp, seeds=range(RANDOM_SEEDS)).run_episodes(RANDOM_EPISODES)
        for limit, mdp in (("200 steps", GRID), ("no limit", endless))
    }
    failures = (walks["200 steps"].lengths == 200) & (walks["200 steps"].returns < -1.5)
    config = OneStepConfig(
        gamma=0.99,
        step_size=0.1,
        exploration_initial_eps=1.0,
        exploration_schedule="exponential",
        exploration_final_eps=0.01,
        exploration_factor=0.9995,
    )
    learner = QLearning(config, GRID, seeds=range(SEEDS))
    returns = learner.run_episodes(EPISODES).returns
    last = returns[:, -LAST:].mean(axis=1)
    policies = learner.policy()
    exact = np.array([expected_return(GRID, policy, gamma=0.99) for policy in policies])
    epsilon = np.maximum(0.01, 0.9995 ** np.arange(EPISODES))
    checks = [
        Check.of("random: steps to the goal", walks["no limit"].lengths.mean(axis=1), "59.43", exact=True),
        Check.of("random: share of episodes that fail in 200 steps", failures.mean(axis=1), "0.0220", exact=True),
        Check.of("Q-learning: exact value of the greedy policy", exact, f"{BEST:.6f}", exact=True),
    ]
    claims = {
        "every seed has learned a best policy": bool(np.allclose(exact, BEST, atol=1e-6)),
        "the last 100 returns are just below the best one, 0.95": bool(((last > 0.93) & (last <= 0.95)).all()),
        "ε reaches 0.01 after 9208 episodes": int((0.9995 ** np.arange(EPISODES) >= 0.01).sum()) in (9208, 9209),
    }
    print("\n".join(arrows(policies[0])))
    figure, axes = panels(3)
    for curve in returns[:20]:
        axes[0].plot(np.convolve(curve, np.ones(LAST) / LAST, "valid"), color=COLORS[0], alpha=0.15, linewidth=0.7)
    smooth = np.convolve(returns.mean(axis=0), np.ones(LAST) / LAST, "valid")
    axes[0].plot(smooth, color=COLORS[0], linewidth=2, label=f"Q-learning, mean of {SEEDS} seeds")
    axes[0].axhline(0.95, color=COLORS[1], linestyle="--", linewidth=1, label="best return, 0.95")
    random_return = float(walks["200 steps"].returns.mean())
    axes[0].axhline(random_return, color=COLORS[6], linewidth=1, label=f"random, {random_return:.2f}")
    axes[0].set(xlabel="episode", ylabel=f"return, mean of {LAST} episodes", ylim=(-0.2, 1.0))
    steps = walks["no limit"].lengths.ravel()
    axes[1].hist(steps, bins=np.arange(0, 401, 10).tolist(), color=COLORS[6], density=True)
    axes[1].axvline(200, color=COLORS[1], linestyle="--", label=f"limit: {failures.mean():.1%} fail")
    axes[1].axvline(steps.mean(), color="black", label=f"mean: {steps.mean():.2f} steps")
    axes[1].set(xlabel="steps to the goal, at random", yticks=[], xlim=(0, 400))
    draw_policy(axes[2], policies[0])
    save(figure, __file__, axes[:2])
    results = {
        "last 100 returns": summary(last),
        "exact value": summary(exact),
        "policy of seed 0": arrows(policies[0]),
        "curve, every 100 episodes": returns.mean(axis=0)[::100],
        "epsilon, every 100 episodes": epsilon[::100],
        "random, steps": summary(walks["no limit"].lengths.mean(axis=1)),
        "random, failures": summary(failures.mean(axis=1)),
    }
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
