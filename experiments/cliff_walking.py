"""Claim: on the cliff Q-learning learns the shortest path and SARSA a safer one; exploration costs Q-learning more.

2000 runs of 500 episodes with ε = 0.1 (Sutton and Barto 2018, example 6.6), for two step sizes. The online return is
the mean over the last 100 episodes. The policies are evaluated exactly.
"""

from collections import Counter

import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from operant.mdp import MDP, expected_return
from operant.tabular import ExpectedSarsa, OneStepConfig, QLearning, Sarsa, TabularLearner

RUNS, EPISODES, LAST, JUDGED = 2000, 500, 100, 200
METHODS: dict[str, type[TabularLearner]] = {"SARSA": Sarsa, "Q-learning": QLearning, "Expected SARSA": ExpectedSarsa}
REFERENCE = {
    0.5: {"SARSA": "-26.66", "Q-learning": "-50.16", "Expected SARSA": "-20.90"},
    0.1: {"SARSA": "-22.73", "Q-learning": "-49.01", "Expected SARSA": "-21.98"},
}
BEST_EXPLORING = -20.7077
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))

CLIFF = MDP.from_gymnasium("operant/Cliff-v0")


def way(policy: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the cells on the path of a deterministic policy, at most 50."""
    cells = [(3, 0)]
    while cells[-1] != (3, 11) and len(cells) < 50:
        row, column = cells[-1]
        move = MOVES[int(policy[row * 12 + column].argmax())]
        cells.append((min(max(row + move[0], 0), 3), min(max(column + move[1], 0), 11)))
    return cells


def usual_way(learner: TabularLearner) -> tuple[list[tuple[int, int]], float]:
    """Return the most frequent path of the greedy policies, and its number."""
    ways = Counter(tuple(way(policy)) for policy in learner.policy())
    cells, count = ways.most_common(1)[0]
    return list(cells), count / len(learner.seeds)


def highest_row(cells: list[tuple[int, int]]) -> int:
    """Return the distance of a path from the cliff; 1 is along its edge."""
    return 3 - min(row for row, _ in cells)


def draw_ways(axis: Axes, ways: dict[str, list[tuple[int, int]]]) -> None:
    """Draw the cliff and the paths along it."""
    axis.add_patch(Rectangle((0.5, -0.5), 10, 1, facecolor="#dddddd"))
    axis.text(5.5, 0, "cliff", ha="center", va="center", color="#666666")
    for (name, cells), color, shift in zip(ways.items(), COLORS, (-0.12, 0.0, 0.12), strict=False):
        rows, columns = np.array(cells).T
        axis.plot(columns + shift, 3 - rows + shift, color=color, label=name, linewidth=2)
    axis.text(0, -0.35, "S", ha="center", fontsize=9)
    axis.text(11, -0.35, "G", ha="center", fontsize=9)
    axis.spines[:].set_visible(False)
    axis.hlines(np.arange(-0.5, 4), -0.5, 11.5, color="#e4e4e4", linewidth=0.8, zorder=0)
    axis.vlines(np.arange(-0.5, 12), -0.5, 3.5, color="#e4e4e4", linewidth=0.8, zorder=0)
    axis.set(
        xlim=(-0.5, 11.5), ylim=(-0.5, 3.5), xticks=[], yticks=[], aspect="equal", title="usual greedy way, α = 0.5"
    )


def main() -> None:
    """Train, evaluate, compare and plot; fail if a number or a claim does not hold."""
    checks, results, claims, figures = [], {}, {}, {}
    for step_size, printed in REFERENCE.items():
        for name, method in METHODS.items():
            config = OneStepConfig(gamma=1.0, step_size=step_size, exploration_initial_eps=0.1)
            learner = method(config, CLIFF, seeds=range(RUNS))
            returns = learner.run_episodes(EPISODES).returns
            online = returns[:, -LAST:].mean(axis=1)
            exploring = [expected_return(CLIFF, p, gamma=1.0) for p in learner.policy(exploring=True)[:JUDGED]]
            cells, share = usual_way(learner)
            label = f"{name}, α = {step_size:g}"
            checks.append(Check.of(f"{label}: online return", online, printed[name]))
            results[label] = {
                "online": summary(online),
                "exploring policy, exact": summary(exploring),
                "usual way": cells,
                "share of the usual way": share,
                "curve": returns.mean(axis=0),
            }
            figures[label] = returns.mean(axis=0)
            claims[f"{label}: no policy is better than the best exploring one"] = (
                max(exploring) <= BEST_EXPLORING + 1e-4
            )
            if method is QLearning:
                lengths = np.array([len(way(policy)) - 1 for policy in learner.policy()])
                checks.append(Check.of(f"{label}: return of the greedy policy", -lengths, "-13.00"))
    half = {name: results[f"{name}, α = 0.5"] for name in METHODS}
    claims["Q-learning walks along the edge"] = highest_row(half["Q-learning"]["usual way"]) == 1
    claims["SARSA and Expected SARSA keep away from it"] = all(
        highest_row(half[name]["usual way"]) > 1 for name in ("SARSA", "Expected SARSA")
    )
    claims["exploring costs Q-learning most"] = (
        half["Q-learning"]["exploring policy, exact"]["mean"] < half["SARSA"]["exploring policy, exact"]["mean"]
    )
    figure, axes = panels(2)
    for (label, curve), color in zip(figures.items(), [*COLORS[:3], *COLORS[:3]], strict=True):
        smooth = np.convolve(curve, np.ones(10) / 10, "valid")
        axes[0].plot(smooth, "-" if "0.5" in label else ":", color=color, label=label, linewidth=1.3)
    axes[0].set(ylim=(-100, -10), xlabel="episode", ylabel="online return", title=f"mean of {RUNS} runs, 10 episodes")
    draw_ways(axes[1], {name: half[name]["usual way"] for name in METHODS})
    save(figure, __file__, axes[:1])
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
