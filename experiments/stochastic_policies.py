"""Claim: in some tasks only a stochastic policy is good, and policy gradients find it.

Rock-paper-scissors against an opponent who knows the policy and answers it best: every deterministic policy always
loses, and choosing uniformly cannot be beaten. The policy is a softmax, its gradient is exact, and the opponent
adapts at every step. The short corridor (Sutton and Barto 2018, example 13.1): three states look the same, and in the
second of them left is right; always going one way never arrives, and what a value method can do, ε-greedy, is far
from the best. PPO sees a constant there, and begins from going nearly always left or nearly always right.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from checks import COLORS, Check, conclude, panels, save
from gymnasium.wrappers import FlattenObservation
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

import operant.envs  # noqa: F401 - registers the corridor
from operant import ops
from operant.control import PPO, PPOConfig
from operant.envs import make
from operant.mdp import MDP, policy_evaluation

PAYOFF = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], dtype=torch.float64)
"""Rewards of rock, paper and scissors (rows) against rock, paper and scissors."""
GAME_STEPS = 2000
BEST = 2.0 - np.sqrt(2.0)
EPSILON = 0.1
STARTS = {"left": 0.05, "right": 0.95}
CONFIG = PPOConfig(
    num_envs=8,
    num_steps=128,
    num_epochs=4,
    num_minibatches=4,
    learning_rate=5e-3,
    lr_schedule="linear",
    clip_range_schedule="linear",
    gamma=1.0,
    gae_lambda=1.0,
    hidden_sizes=(8,),
)
BUDGET, SEEDS = 40_960, range(6)

Floats = NDArray[np.float64]


def worst_case(policy: Tensor) -> Tensor:
    """Return the values of policies `[..., 3]` against their best responses."""
    return (policy @ PAYOFF).amin(-1)


def play() -> Floats:
    """Follow the exact policy gradient against the best answer to the present policy; return all policies."""
    logits = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    path = []
    for step in range(GAME_STEPS):
        policy = logits.softmax(-1)
        path.append(policy.detach().numpy().copy())
        answer = (policy @ PAYOFF).argmin()
        losses = ops.policy_gradient(policy.log(), PAYOFF[:, answer])
        (gradient,) = torch.autograd.grad((policy.detach() * losses).sum(), logits)
        with torch.no_grad():
            logits -= gradient / (1.0 + step) ** 0.5
    return np.array(path)


def corridor_return(right: float) -> float:
    """Return the exact return of going right with a probability, in every state."""
    model = MDP.from_gymnasium("operant/ShortCorridor-v0")
    policy = np.tile([1.0 - right, right], (model.states, 1))
    return float(policy_evaluation(model, policy, gamma=1.0).values[0])


def seen_corridor() -> gymnasium.Env:
    """Make the corridor with its constant observation as a vector."""
    return FlattenObservation(gymnasium.make("operant/ShortCorridor-v0"))


def walk() -> tuple[Floats, Floats]:
    """Train PPO in the corridor; return the steps and the probabilities of going right, `[iterations, seeds]`."""
    gymnasium.register("SeenShortCorridor-v0", seen_corridor)
    env = make("SeenShortCorridor-v0", CONFIG.num_envs, SEEDS)
    ppo = PPO(CONFIG, env, seeds=SEEDS, budget=BUDGET)
    for seed in SEEDS:
        right = list(STARTS.values())[seed % 2]
        _, bias = ppo.agent.networks.actor[-1]
        bias[seed, 0] = torch.tensor([0.0, np.log(right / (1.0 - right))])
    steps, chances = [], []
    while True:
        logits = ppo.agent.networks.policy(torch.ones(len(SEEDS), 1, 1))
        chances.append(logits.softmax(-1)[:, 0, 1].double().numpy())
        steps.append(ppo.consumed)
        if ppo.consumed >= BUDGET:
            ppo.close()
            return np.array(steps), np.array(chances)
        ppo.iterate()


def draw_game(axis: Axes, path: Floats) -> None:
    """Plot the worst-case return of all policies, and the path of the gradient."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    weights = np.array([(i, j, 60 - i - j) for i in range(61) for j in range(61 - i)]) / 60.0
    earned = worst_case(torch.from_numpy(weights)).numpy()
    colors = axis.tricontourf(*(weights @ corners).T, earned, levels=12, cmap="Blues_r")
    axis.figure.colorbar(colors, ax=axis, shrink=0.7, label="earned against the best answer")
    axis.plot(*(path @ corners).T, color=COLORS[1], linewidth=0.8)
    axis.plot(*(path[[0, -1]] @ corners).T, "o", color=COLORS[1], markersize=4)
    for corner, name, side in zip(corners, ("rock", "paper", "scissors"), ("top", "top", "bottom"), strict=True):
        axis.text(*corner, name, ha="center", va=side)
    axis.set(title="rock-paper-scissors", xlim=(-0.1, 1.1), ylim=(-0.1, 1.0), aspect="equal")
    axis.axis("off")


def draw_corridor(values: Axes, learning: Axes, steps: Floats, chances: Floats) -> None:
    """Plot the return over the probability of going right, and the path of PPO."""
    line = np.linspace(0.03, 0.97, 95)
    values.plot(line, [corridor_return(right) for right in line], color=COLORS[0])
    for right, name in ((EPSILON / 2, "left"), (1 - EPSILON / 2, "right")):
        values.plot(right, corridor_return(right), "s", color=COLORS[6])
        side: dict[str, Any] = {"xytext": (6, -3)} if name == "left" else {"xytext": (-6, -3), "ha": "right"}
        point = (right, corridor_return(right))
        values.annotate(f"ε-greedy, {name}", point, fontsize=8, textcoords="offset points", **side)
    finals = chances[-1]
    values.plot(finals, [corridor_return(p) for p in finals], "o", color=COLORS[1], label="PPO, each seed")
    values.axvline(BEST, color=COLORS[2], linestyle="--", linewidth=1, label="best: 2 - √2")
    values.set(title="short corridor", xlabel="probability of right", ylabel="return", ylim=(-100, 0))
    learning.plot(steps, chances, color=COLORS[1], linewidth=1, alpha=0.8)
    learning.axhline(BEST, color=COLORS[2], linestyle="--", linewidth=1)
    learning.set(title="PPO, 6 seeds", xlabel="environment steps", ylabel="probability of right", ylim=(0, 1))


def main() -> None:
    """Compute, train, compare and plot; fail if a number or a claim does not hold."""
    torch.set_num_threads(1)
    path = play()
    steps, chances = walk()
    greedy = {name: corridor_return(right) for name, right in (("left", EPSILON / 2), ("right", 1 - EPSILON / 2))}
    learned = [corridor_return(right) for right in chances[-1]]
    final = float(worst_case(torch.from_numpy(path[-1])))
    checks = [
        Check("corridor: best return", corridor_return(BEST), 0.0, -(6.0 + 4.0 * 2.0**0.5), 1e-9, exact=True),
        Check("corridor: ε-greedy right", greedy["right"], 0.0, -44.0, 1.0, exact=True),
        Check("corridor: ε-greedy left", greedy["left"], 0.0, -82.0, 1.0, exact=True),
        Check("game: uniform", float(worst_case(torch.full((3,), 1 / 3, dtype=torch.float64))), 0.0, 0.0, 1e-12, True),
    ]
    claims = {
        "game: every deterministic policy always loses": bool((worst_case(torch.eye(3).double()) == -1.0).all()),
        f"game: the gradient ends at a policy that earns at least -0.05 ({final:.4f})": final >= -0.05,
        f"corridor: PPO earns at least -12 with every seed ({min(learned):.2f})": min(learned) >= -12.0,
    }
    figure, axes = panels(3)
    draw_game(axes[0], path)
    draw_corridor(axes[1], axes[2], steps, chances)
    save(figure, __file__, [axes[1]])
    results = {
        "game": {"first": path[0], "last": path[-1], "earns": final},
        "corridor": {"ε-greedy": greedy, "probability of right": chances[-1], "returns": learned},
    }
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
