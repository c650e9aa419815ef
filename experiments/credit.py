"""Claim: with an accurate critic, advantages assign the credit to the decisive moves; without one, to the last moves.

`operant/KeyMoves-v0` is a game of 40 moves, played at random here. Moves 12 and 37 decide it, and the reward comes at
the end. By the exact advantages (`operant.mdp`) move 37 has five eighths of the credit, move 12 three eighths and all
others none. The experiment computes estimates of the advantage over 256 games: without a critic, with a critic trained
on 200 games by TD(λ), and with the exact critic. The credit of a move is the mean advantage of action 1 minus that of
action 0; its share is relative to the sum of the absolute credits.

The experiment also measures distribution shift. On the cliff, the state distribution of ε-greedy Q-learning is computed
exactly (`operant.mdp.occupancy`) after every episode, and compared in total variation with that of the first episode,
of the last one and of ten episodes before.
"""

from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save, standard_error
from torch import Tensor

from operant import ops
from operant.envs import make
from operant.mdp import MDP, advantages, occupancy, policy_evaluation
from operant.streams import torch_generator
from operant.tabular import learner_for

SEEDS, GAMES, PRACTICE = range(10), 256, 200
TASK, MOVES, KEYS = "operant/KeyMoves-v0", 40, (12, 37)
CLIFF, EPISODES, BEFORE = "operant/Cliff-v0", 150, 10


def credits_of(advantage: Tensor, actions: Tensor) -> np.ndarray:
    """Return the credit of each move, `[T, S]`, of advantages and actions `[T, S, N]`."""
    right = actions == 1
    of_right, of_wrong = ((advantage * chosen).sum(-1) / chosen.sum(-1).clamp(min=1) for chosen in (right, ~right))
    return ((of_right - of_wrong) / 2).numpy()


def estimates(rewards: Tensor, values: Tensor) -> dict[str, Tensor]:
    """Return advantages `[T, S, N]` by estimator, of rewards `[T, S, N]` and values `[T + 1, S, N]`."""
    ends = torch.zeros_like(rewards, dtype=torch.bool)
    ends[-1] = True
    flags: dict[str, Any] = {"terminated": ends, "truncated": torch.zeros_like(ends), "gamma": 1.0}
    now, after = values[:-1], values[1:]
    found = {"Monte Carlo": ops.discounted_returns(rewards, **flags) - now}
    found |= {f"{n}-step": ops.n_step_returns(rewards, after, n=n, **flags) - now for n in (1, 5, 20)}
    found |= {f"GAE, λ = {lam:g}": ops.gae(rewards, now, after, lam=lam, **flags) for lam in (0.8, 0.95, 0.99)}
    return found


def play() -> tuple[Tensor, Tensor, Tensor]:
    """Return states, actions and rewards `[T, S, N]` of games with random actions."""
    env = make(TASK, GAMES, list(SEEDS))
    obs = env.reset()
    chance = [torch_generator(seed, "moves") for seed in SEEDS]
    states, actions, rewards = [], [], []
    for _ in range(MOVES):
        moves = torch.stack([torch.randint(2, (GAMES,), generator=each) for each in chance])
        step = env.step(moves.flatten())
        states.append(obs.view_as(moves))
        actions.append(moves)
        rewards.append(step.reward.double().view_as(moves))
        obs = step.obs
    env.close()
    return torch.stack(states), torch.stack(actions), torch.stack(rewards)


def shares(credit: np.ndarray) -> dict[str, list[float]]:
    """Return the share of each key move and of all others, by seed, of credits `[T, S]`."""
    parts = np.abs(credit) / np.abs(credit).sum(0)
    named = {f"move {key}": parts[key - 1] for key in KEYS}
    return {name: list(part) for name, part in (named | {"others": 1 - sum(named.values())}).items()}


def assign() -> dict[str, Any]:
    """Return the shares of credit, by critic and estimator."""
    mdp = MDP.from_gymnasium(TASK)
    policy = np.full((mdp.states, 2), 0.5)
    states, actions, rewards = play()
    critic = learner_for("td-lambda", mdp, seeds=SEEDS, gamma=1.0, td_lambda=0.9, step_size=0.05)
    critic.run_episodes(PRACTICE)
    exact = policy_evaluation(mdp, policy, gamma=1.0).values
    tables = {"none": np.zeros((len(SEEDS), mdp.states)), "learned": critic.values, "exact": np.tile(exact, (10, 1))}
    known = torch.from_numpy(advantages(mdp, policy, gamma=1.0)[states.numpy(), actions.numpy()])
    found: dict[str, Any] = {"exact advantages": {"exact": shares(credits_of(known, actions))}}
    for critic_name, table in tables.items():
        rows = torch.from_numpy(table).T[states, torch.arange(len(SEEDS)).view(-1, 1)]
        values = torch.cat([rows, torch.zeros_like(rows[:1])])
        for name, advantage in estimates(rewards, values).items():
            error = (advantage - known).square().mean((0, 2)).sqrt()
            result = shares(credits_of(advantage, actions)) | {"error": error.tolist()}
            found.setdefault(name, {})[critic_name] = result
    return found


def drift() -> dict[str, Any]:
    """Return total variation distances between the states visited at different times, by episode and seed."""
    mdp = MDP.from_gymnasium(CLIFF)
    learner = learner_for("q-learning", mdp, seeds=SEEDS, gamma=1.0, step_size=0.5, exploration_initial_eps=0.1)
    visited = []
    for episode in range(EPISODES + 1):
        policies = learner.policy(exploring=True)
        visits = np.stack([occupancy(mdp, policy, gamma=1.0) for policy in policies])
        visited.append(visits / visits.sum(1, keepdims=True))
        learner.run_episodes(episode + 1)
    all_visits = np.stack(visited)

    def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.abs(one - other).sum(-1) / 2

    before = all_visits[np.maximum(np.arange(EPISODES + 1) - BEFORE, 0)]
    return {
        "to the first": distance(all_visits, all_visits[:1]),
        "to the last": distance(all_visits, all_visits[-1:]),
        f"to {BEFORE} episodes before": distance(all_visits, before),
    }


def draw(found: dict[str, Any], shifts: dict[str, Any]) -> None:
    """Draw shares of credit as bars, and distances over episodes."""
    figure, axes = panels(4, width_ratios=[0.25, 1, 1, 1.1])
    for axis, critic in zip(axes, ("exact advantages", "none", "learned"), strict=False):
        rows = {name: row[critic] for name, row in found.items() if critic in row}
        rows = rows or {"exact": found[critic]["exact"]}
        bottom = np.zeros(len(rows))
        for part, color in zip(("move 12", "move 37", "others"), (COLORS[0], COLORS[1], COLORS[6]), strict=True):
            heights = np.array([np.mean(row[part]) for row in rows.values()])
            axis.bar(range(len(rows)), heights, bottom=bottom, color=color, label=part)
            bottom += heights
        axis.set(ylim=(0, 1.25), yticks=np.linspace(0, 1, 6))
        axis.set_xticks(range(len(rows)), list(rows), rotation=60, ha="right", fontsize=8)
        axis.set_title({"none": "without a critic", "learned": f"critic of {PRACTICE} games"}.get(critic, "exact"))
    axes[0].set_ylabel("share of the credit")
    for (name, distances), color in zip(shifts.items(), COLORS, strict=False):
        axes[3].plot(distances, color=color, linewidth=0.5, alpha=0.3)
        axes[3].plot(distances.mean(1), color=color, linewidth=2, label=name)
    axes[3].set(title="states that Q-learning visits", xlabel="episodes", ylabel="total variation distance")
    save(figure, __file__, (axes[1], axes[3]))


def claims(found: dict[str, Any], shifts: dict[str, Any]) -> dict[str, bool]:
    """Return the claims about the results."""

    def mean(name: str, critic: str, part: str) -> float:
        return float(np.mean(found[name][critic][part]))

    exact = found["exact advantages"]["exact"]
    errors = {critic: np.array(found["GAE, λ = 0.95"][critic]["error"]) for critic in ("none", "learned", "exact")}
    gained = errors["none"] - errors["learned"]
    return {
        "exact: three eighths to move 12, five eighths to move 37": bool(
            np.allclose(exact["move 12"], 0.375) and np.allclose(exact["move 37"], 0.625)
        ),
        "without a critic one step gives the last move everything": mean("1-step", "none", "others") > 0.999,
        "without a critic five steps give move 12 nothing": mean("5-step", "none", "move 12") < 1e-9,
        "without a critic more than half of Monte Carlo's credit is noise": mean("Monte Carlo", "none", "others") > 0.5,
        "with the exact critic one step gives all credit to the two moves but for the luck of the last one": mean(
            "1-step", "exact", "others"
        )
        < 0.1,
        "a learned critic lowers the error of GAE in every seed": bool((gained > 0).all()),
        "states at the end are others than at the beginning": float(shifts["to the first"][-1].min()) > 0.5,
        "the shift slows down": float(np.mean(shifts[f"to {BEFORE} episodes before"][-20:]))
        < float(np.mean(shifts[f"to {BEFORE} episodes before"][10:30])),
    }


def main() -> None:
    """Assign credit, measure the drift, store and plot the results; fail if a claim does not hold."""
    torch.set_num_threads(1)
    found, shifts = assign(), drift()
    for name, by_critic in found.items():
        for critic, row in by_critic.items():
            parts = ", ".join(f"{p} {np.mean(v):.3f} ± {standard_error(v):.3f}" for p, v in row.items())
            print(f"{name:18s} critic {critic:8s} {parts}")
    draw(found, shifts)
    conclude(__file__, {"credit": found, "drift": shifts}, [], claims(found, shifts))


if __name__ == "__main__":
    main()
