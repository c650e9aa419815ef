"""Claim: planning with a learned model needs less experience, and the exploration bonus of Dyna-Q+ finds new paths.

The maze (Sutton and Barto 2018, figure 8.2): 1000 runs of 50 episodes, with 0, 5 and 50 planning steps after each real
step. The blocking and the shortcut maze (figures 8.4 and 8.5): rewards of Dyna-Q and Dyna-Q+ when the walls move.
"""

from typing import Any

import gymnasium
import numpy as np
from checks import COLORS, Check, conclude, panels, save, summary
from numpy.typing import NDArray

from operant.mdp import MDP
from operant.tabular import DynaQ, DynaQConfig, DynaQPlus, DynaQPlusConfig

RUNS, EPISODES = 1000, 50
REFERENCE = {
    0: {1: "861", 2: "697", 3: "527", 5: "274", 10: "130", 20: "50", 30: "19.0", 50: "17.9"},
    5: {1: "866", 2: "157", 3: "62", 5: "23", 10: "17.1", 20: "16.8"},
    50: {1: "887", 2: "39", 3: "17.6", 5: "17.1"},
}
CHANGING_RUNS, EVERY = 200, 50
MAZES: dict[str, dict[str, Any]] = {
    "BlockingMaze": {"steps": 3000, "change": 1000, "planning": 10, "bonus_coef": 1e-4},
    "ShortcutMaze": {"steps": 6000, "change": 3000, "planning": 50, "bonus_coef": 1e-3},
}
OLD_WAY = 16
"""Steps of the shortest way before the shortcut opens; only a shorter one earns more than a reward every 16 steps."""


def plain() -> dict[int, NDArray[np.int64]]:
    """Return steps of each episode, `[runs, episodes]`, by the number of planning steps."""
    maze = MDP.from_gymnasium("operant/DynaMaze-v0")
    settings = {"gamma": 0.95, "step_size": 0.1, "exploration_initial_eps": 0.1}
    return {
        planning: DynaQ(DynaQConfig(planning_steps=planning, **settings), maze, seeds=range(RUNS))
        .run_episodes(EPISODES)
        .lengths
        for planning in REFERENCE
    }


def changing(name: str) -> dict[str, NDArray[np.int64]]:
    """Return the cumulative reward, `[points, runs]`, in a maze whose walls move."""
    settings = MAZES[name]
    env = gymnasium.make(f"operant/{name}-v0")
    before = MDP.from_gymnasium(env)
    env.reset(options={"steps": settings["change"]})
    after = MDP.from_gymnasium(env)
    common = {
        "gamma": 0.95,
        "step_size": 1.0,
        "exploration_initial_eps": 0.1,
        "planning_steps": settings["planning"],
        "steps_per_iteration": EVERY,
    }
    learners = {
        "Dyna-Q": DynaQ(DynaQConfig(**common), before, seeds=range(CHANGING_RUNS)),
        "Dyna-Q+": DynaQPlus(
            DynaQPlusConfig(bonus_coef=settings["bonus_coef"], **common), before, seeds=range(CHANGING_RUNS)
        ),
    }
    earned = {}
    for label, learner in learners.items():
        points = [np.zeros(CHANGING_RUNS, np.int64)]
        while learner.consumed < settings["steps"]:
            if learner.consumed == settings["change"]:
                learner.replace_model(after)
            learner.iterate()
            points.append(learner.world.episodes.copy())
        earned[label] = np.array(points)
    return earned


def main() -> None:
    """Train, compare and plot; fail if a number or a claim does not hold."""
    lengths, mazes = plain(), {name: changing(name) for name in MAZES}
    checks = [
        Check.of(f"{planning} planning steps: steps of episode {episode}", lengths[planning][:, episode - 1], printed)
        for planning, row in REFERENCE.items()
        for episode, printed in row.items()
    ]
    claims = {
        "more planning needs less experience": bool(
            lengths[50][:, 1:10].mean() < lengths[5][:, 1:10].mean() < lengths[0][:, 1:10].mean()
        ),
    }
    figure, axes = panels(3)
    for (planning, steps), color in zip(lengths.items(), COLORS, strict=False):
        axes[0].plot(
            np.arange(2, EPISODES + 1), steps[:, 1:].mean(axis=0), color=color, label=f"{planning} planning steps"
        )
    axes[0].axhline(14, color=COLORS[6], linestyle="--", linewidth=1, label="shortest way, 14 steps")
    axes[0].set(xlabel="episode", ylabel="steps", ylim=(0, 800), title=f"Dyna maze, {RUNS} runs")
    results: dict[str, Any] = {
        "steps of each episode": {
            planning: {"mean": steps.mean(axis=0), "last episode": summary(steps[:, -1])}
            for planning, steps in lengths.items()
        }
    }
    for axis, (name, earned) in zip(axes[1:], mazes.items(), strict=True):
        change, last = MAZES[name]["change"], MAZES[name]["steps"]
        rates = {label: (points[-1] - points[-1 - 1000 // EVERY]) / 1000 for label, points in earned.items()}
        for (label, points), color in zip(earned.items(), COLORS, strict=False):
            at = np.arange(len(points)) * EVERY
            axis.plot(at, points.mean(axis=1), color=color, label=label)
            axis.fill_between(at, *np.quantile(points, (0.1, 0.9), axis=1), color=color, alpha=0.15, linewidth=0)
        axis.axvline(change, color=COLORS[6], linestyle="--", linewidth=1)
        axis.set(
            xlabel="step", ylabel="reward so far", title=f"{name}, {CHANGING_RUNS} runs, 10 to 90 %", xlim=(0, last)
        )
        results[name] = {
            label: {
                "earned": summary(points[-1]),
                "last 1000 steps": summary(rates[label]),
                "curve": points.mean(axis=1),
            }
            for label, points in earned.items()
        }
        if name == "ShortcutMaze":
            share = {label: float((rate > 1 / OLD_WAY).mean()) for label, rate in rates.items()}
            results[name]["share of runs that find the shortcut"] = share
            claims["ShortcutMaze: Dyna-Q+ finds it in 95 % of the runs, Dyna-Q in less than 5 %"] = (
                share["Dyna-Q+"] >= 0.95 and share["Dyna-Q"] < 0.05
            )
        claims[f"{name}: Dyna-Q+ earns more"] = bool(earned["Dyna-Q+"][-1].mean() > earned["Dyna-Q"][-1].mean())
    save(figure, __file__, axes)
    conclude(__file__, results, checks, claims)


if __name__ == "__main__":
    main()
