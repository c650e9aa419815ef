"""Claim: a maximum over noisy estimates is biased, so Q-learning prefers a worse action; Double Q-learning hardly does.

The chain of Sutton and Barto (2018, example 6.7): 10 000 runs of 300 episodes with α = ε = 0.1 and ten actions after
going left. Going left is worse by 0.1, and ε-greedy exploration alone takes it in 5 % of the episodes.
"""

import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary

from operant.mdp import MDP
from operant.tabular import DoubleQLearning, DoubleQLearningConfig, OneStepConfig, QLearning

RUNS, AT = 10_000, (1, 25, 50, 100, 200, 300)
REFERENCE = {
    "Q-learning": ("51", "93", "83", "47", "15", "11"),
    "Double Q-learning": ("50", "24", "14", "9.2", "7.8", "6.9"),
}
SETTINGS = {"gamma": 1.0, "step_size": 0.1, "exploration_initial_eps": 0.1}


def main() -> None:
    """Learn, compare, draw; fail if a number or a claim does not hold."""
    chain = MDP.from_gymnasium("operant/MaximizationBias-v0")
    learners = {
        "Q-learning": QLearning(OneStepConfig(**SETTINGS), chain, seeds=range(RUNS)),
        "Double Q-learning": DoubleQLearning(DoubleQLearningConfig(**SETTINGS), chain, seeds=range(RUNS)),
    }
    went_left = {name: learner.run_episodes(AT[-1]).lengths == 2 for name, learner in learners.items()}
    checks = [
        Check.of(f"{name}: % left in episode {episode}", went_left[name][:, episode - 1], printed, scale=100.0)
        for name, row in REFERENCE.items()
        for episode, printed in zip(AT, row, strict=True)
    ]
    shares = {name: 100.0 * left.mean(axis=0) for name, left in went_left.items()}
    claims = {
        "Q-learning goes left in most of the first 50 episodes": bool(shares["Q-learning"][:50].mean() > 75.0),
        "Double Q-learning never does so as often again as in the first one": int(shares["Double Q-learning"].argmax())
        < 5,
    }
    figure, (axis,) = panels(1)
    for (name, share), color in zip(shares.items(), COLORS, strict=False):
        axis.plot(np.arange(1, AT[-1] + 1), share, color=color, label=name, linewidth=1.5)
    axis.axhline(5.0, color=COLORS[6], linestyle="--", linewidth=1, label="best, with ε = 0.1")
    axis.set(xlabel="episode", ylabel="% of runs that go left", ylim=(0, 100), title=f"maximization bias, {RUNS} runs")
    save(figure, __file__, [axis])
    results = {
        name: {"share of left, in %": shares[name], "left in 300 episodes": summary(left.sum(axis=1))}
        for name, left in went_left.items()
    }
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
