"""The table of scores: deep RL algorithms on seven tasks, five seeds each, with published numbers.

Every cell is a separate run that resumes where it stopped, so the table can be filled in several sessions:

    python experiments/scores.py --hours 2                 # run missing cells, cheapest first
    python experiments/scores.py --cells ppo/CartPole-v1   # some cells
    python experiments/scores.py --table                   # print and plot the results so far

A score is the mean over 100 greedy episodes of Gymnasium's own environment, of the final policy. Results of single
cells lie in `experiments/scores/`, each with its whole configuration: the preset of the task if there is one, else
the defaults. The cells are all algorithms of the catalog that can be trained on a task; those that were not run are
named below the table.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from learning import BLUE, GRAY, ORANGE, describe, one_by_one, plt

import operant
from operant import catalog
from operant.runtime.evaluation import Evaluation
from operant.runtime.statistics import iqm, stratified_bootstrap
from operant.streams import integer

SEEDS = range(5)
EPISODES = 100
RESULTS = Path(__file__).with_suffix("")
RUNS = Path(__file__).parents[1] / "runs" / "scores"
COLUMNS = 4
"""Tasks in one row of the plot."""

TASKS: tuple[str, ...] = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "HalfCheetah-v5",
    "Hopper-v5",
)
DISCRETE: tuple[str, ...] = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3")
CONTINUOUS: tuple[str, ...] = ("Pendulum-v1", "HalfCheetah-v5", "Hopper-v5")
ON_POLICY: dict[str, int] = dict(
    zip(TASKS, (100_000, 500_000, 1_000_000, 300_000, 1_000_000, 1_000_000, 1_000_000), strict=True)
)
LONG = {**ON_POLICY, "CartPole-v1": 500_000}
REPLAYED: dict[str, int] = dict(zip(DISCRETE, (100_000, 100_000, 120_000, 100_000), strict=True))
ACTOR_CRITIC: dict[str, int] = dict(zip(CONTINUOUS, (20_000, 100_000, 100_000), strict=True))
WIDE = ("sac", "td3", "ddpg")
"""Actor-critics that spend most time in products of large matrices."""

BUDGETS: dict[str, dict[str, int]] = {
    **dict.fromkeys(("ppo", "ppo-penalty", "trpo", "npg"), ON_POLICY),
    **dict.fromkeys(
        ("a2c", "reinforce", "reinforce-to-go", "reinforce-baseline", "vpg", "a3c", "impala", "actor-critic"), LONG
    ),
    "recurrent-ppo": ON_POLICY,
    **dict.fromkeys(("dqn", "double-dqn", "dueling-dqn", "prioritized-dqn"), REPLAYED),
    "sac-discrete": {**REPLAYED, "CartPole-v1": 50_000},
    **dict.fromkeys(WIDE, ACTOR_CRITIC),
}
"""Environment steps per seed, by algorithm and task; of others those of the catalog (`budget`)."""

MEDIUM = {(name, task) for name in WIDE for task in ("HalfCheetah-v5", "Hopper-v5")}
"""Cells whose matrix products are taken at medium precision (see `precision.py`)."""

ELSEWHERE = ("acrobot", "cartpole", "dqn", "off_policy", "pendulum", "policy_gradient", "trpo")
"""Experiments that contain some of these runs."""

ZOO: dict[str, dict[str, tuple[float, str]]] = {
    "a2c": {
        "CartPole-v1": (500.0, "500k"),
        "Acrobot-v1": (-83.4, "500k"),
        "MountainCar-v0": (-111.3, "1M"),
        "Pendulum-v1": (-163.0, "1M"),
        "LunarLander-v3": (155.8, "200k"),
        "HalfCheetah-v5": (3041.2, "1M"),
        "Hopper-v5": (733.5, "1M"),
    },
    "dqn": {
        "CartPole-v1": (500.0, "50k"),
        "Acrobot-v1": (-76.6, "100k"),
        "MountainCar-v0": (-100.8, "120k"),
        "LunarLander-v3": (154.4, "100k"),
    },
    "ddpg": {"Pendulum-v1": (-152.1, "20k")},
    "ppo": {
        "CartPole-v1": (500.0, "100k"),
        "Acrobot-v1": (-73.5, "1M"),
        "MountainCar-v0": (-110.4, "1M"),
        "Pendulum-v1": (-172.2, "100k"),
        "LunarLander-v3": (242.1, "1M"),
        "HalfCheetah-v5": (5819.1, "1M"),
        "Hopper-v5": (2410.4, "1M"),
    },
    "sac": {"Pendulum-v1": (-157.0, "20k"), "HalfCheetah-v5": (9535.5, "1M"), "Hopper-v5": (2325.5, "1M")},
    "td3": {"Pendulum-v1": (-151.9, "20k"), "HalfCheetah-v5": (9655.7, "1M"), "Hopper-v5": (3606.4, "1M")},
    "trpo": {
        "CartPole-v1": (500.0, "100k"),
        "Acrobot-v1": (-83.1, "100k"),
        "MountainCar-v0": (-107.3, "100k"),
        "Pendulum-v1": (-174.6, "100k"),
        "LunarLander-v3": (133.2, "200k"),
        "HalfCheetah-v5": (1785.5, "1M"),
        "Hopper-v5": (3618.4, "1M"),
    },
}
"""Published by RL Baselines3 Zoo (benchmark.md) with the environment steps of training: one run each, the mean of
150 000 deterministic evaluation steps; LunarLander-v2, HalfCheetah-v3 and Hopper-v3 instead of their successors."""


def random_agent(task: str) -> dict[str, Any]:
    """Evaluate random actions."""
    table = []
    for seed in SEEDS:
        env = gymnasium.make(task)
        env.action_space.seed(integer(seed, "random actions"))
        env.reset(seed=integer(seed, "evaluation"))
        table.append([_random_episode(env) for _ in range(EPISODES)])
        env.close()
    score = Evaluation.of(table)
    final = {"scores": list(score.scores), "mean": score.mean, "iqm": score.iqm, "interval": list(score.interval)}
    return {"algorithm": "random", "task": task, "seeds": list(SEEDS), "budget": 0, "final": final}


def _random_episode(env: gymnasium.Env) -> float:
    env.reset()
    total, ended = 0.0, False
    while not ended:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total, ended = total + float(reward), terminated or truncated
    return total


def budget(algorithm: str, task: str) -> int:
    """Return the environment steps per seed of a cell."""
    return BUDGETS.get(algorithm, {}).get(task) or catalog.find(algorithm).budget_for(task)


def run(algorithm: str, task: str) -> None:
    """Train or resume a cell, and write its result."""
    path = RESULTS / f"{algorithm}_{task}.json"
    if algorithm == "random":
        result = random_agent(task)
    elif algorithm == "a3c":
        result = one_by_one(algorithm, task, SEEDS, budget(algorithm, task))
    else:
        folder, steps = RUNS / f"{algorithm}-{task}", budget(algorithm, task)
        if (folder / "run.json").exists():
            trained = operant.resume(folder, budget=steps)
        else:
            precision = "medium" if (algorithm, task) in MEDIUM else "highest"
            trained = operant.train(algorithm, task, seeds=SEEDS, budget=steps, precision=precision, run=folder)
        result = describe(trained, algorithm, task, episodes=EPISODES)
        trained.close()
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    scores = ", ".join(f"{score:.1f}" for score in result["final"]["scores"])
    print(f"{algorithm} {task}: mean {result['final']['mean']:.1f} ({scores})", flush=True)


def results() -> dict[str, dict[str, Any]]:
    """Return the results so far, by algorithm and task: cells of this table, and the same runs of other experiments."""
    table: dict[str, dict[str, Any]] = {}
    others = [RESULTS.with_name(f"{name}.json") for name in ELSEWHERE]
    for path in [*others, *sorted(RESULTS.glob("*.json"))]:
        for result in _cells(json.loads(path.read_text())) if path.exists() else ():
            name, task = result["algorithm"], result["task"]
            if name == "random" or (task in TASKS and result["budget"] == budget(name, task)):
                place = path.relative_to(RESULTS.parent).as_posix()
                table.setdefault(name, {}).setdefault(task, {**result, "file": place})
    return table


def applicable(task: str) -> list[str]:
    """Return the algorithms of deep control that can be trained on a task, in the order of the table."""
    kind = "discrete" if task in DISCRETE else "continuous"
    # none of the tasks is a board game, whose rules those with a known model need, or shows images
    able = [a for a in catalog.CONTROL if kind in a.actions and a.vectors and a.model != "known"]
    names = {algorithm.name for algorithm in able}
    return [*(name for name in BUDGETS if name in names), *sorted(names - set(BUDGETS))]


def _cells(tree: Any) -> Iterator[dict[str, Any]]:
    """Find results of runs in the file of an experiment."""
    if isinstance(tree, list):
        for part in tree:
            yield from _cells(part)
    elif isinstance(tree, dict) and {"algorithm", "task", "budget", "final"} <= set(tree):
        yield tree
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from _cells(part)


def missing() -> list[tuple[str, str]]:
    """Return the cells that were not run, those with the fewest steps first."""
    table = results()
    cells = [(0, "random", task) for task in TASKS]
    cells += [(budget(name, task), name, task) for task in TASKS for name in applicable(task)]
    return [(name, task) for _, name, task in sorted(cells) if task not in table.get(name, {})]


def markdown() -> str:
    """Return the table: mean and worst seed, IQM with its interval, budget, configuration, and the published number."""
    table = results()
    heads = "task, algorithm, steps, seeds, mean, worst seed, IQM [95 %], training (s), configuration, zoo (steps)"
    lines = [f"| {heads.replace(', ', ' | ')} |"]
    lines.append("|---|---|---:|---:|---:|---:|---|---:|---|---|")
    for task in TASKS:
        for name in ("random", *applicable(task)):
            result = table.get(name, {}).get(task)
            if result is None:
                continue
            final, published = result["final"], ZOO.get(name, {}).get(task)
            scores = np.array(final["scores"])
            low, high = stratified_bootstrap(scores)
            seconds = f"{result['training_seconds']:.0f}" if "training_seconds" in result else ""
            zoo = f"{published[0]:g} ({published[1]})" if published else ""
            lines.append(
                f"| {task} | {name} | {result['budget']:,} | {len(scores)} | "
                f"{scores.mean():.1f} | {scores.min():.1f} | "
                f"{iqm(scores):.1f} [{low:.1f}, {high:.1f}] | {seconds} | {_configuration(result)} | {zoo} |"
            )
    return "\n".join([*lines, "", *_not_run()])


def _configuration(result: dict[str, Any]) -> str:
    """Link the file that holds the hyperparameters of a cell, by where they come from."""
    name, task = result["algorithm"], result["task"]
    if name == "random":
        return f"[none](../experiments/{result['file']})"
    preset = operant.configure(name, task) != operant.configure(name, "none of the tasks")
    return f"[{'preset' if preset else 'defaults'}](../experiments/{result['file']})"


def _not_run() -> list[str]:
    """List the cells that were not run, one line per task."""
    cells = missing()
    total = sum(len(applicable(task)) + 1 for task in TASKS)
    lines = [f"Not run, {len(cells)} of {total} cells:", ""]
    for task in TASKS:
        names = [name for name in ("random", *applicable(task)) if (name, task) in cells]
        lines.append(f"- {task}: {', '.join(names) or 'none'}")
    return lines


def draw() -> None:
    """Draw every cell's seeds with the published number and the random agent."""
    table = results()
    tasks = [task for task in TASKS if any(task in row for name, row in table.items() if name != "random")]
    rows = -(-len(tasks) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(13, 4.2 * rows), constrained_layout=True, squeeze=False)
    for axis in axes.flat[len(tasks) :]:
        axis.set_axis_off()
    for axis, task in zip(axes.flat, tasks, strict=False):
        names = [name for name in applicable(task) if task in table.get(name, {})]
        for row, name in enumerate(names):
            scores = np.array(table[name][task]["final"]["scores"])
            axis.plot(scores, np.full(len(scores), row) + np.linspace(-0.2, 0.2, len(scores)), "o", color=BLUE, ms=3.5)
            axis.plot([scores.mean()] * 2, [row - 0.35, row + 0.35], color=BLUE, lw=2)
            if task in ZOO.get(name, {}):
                axis.plot(ZOO[name][task][0], row, "x", color=ORANGE, ms=8, mew=2)
        if task in table.get("random", {}):
            axis.axvline(table["random"][task]["final"]["mean"], color=GRAY, ls=":", lw=1.5)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(max(len(names), 5) - 0.4, -0.6)
        axis.locator_params(axis="x", nbins=5)
        axis.set_title(task, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("final greedy score of each seed (dots), mean (bar), published (cross), random agent (dotted)")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)


def main() -> None:
    """Run cells until the time is over, then print and plot the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.0, help="start no further cell after this many hours")
    parser.add_argument("--cells", nargs="*", default=[], metavar="ALGORITHM/TASK", help="run these")
    parser.add_argument("--table", action="store_true", help="print the table and draw the plot")
    arguments = parser.parse_args()
    for cell in arguments.cells:
        run(*cell.split("/", 1))
    end = time.monotonic() + 3600 * arguments.hours
    while time.monotonic() < end and (cells := missing()):
        run(*cells[0])
    if arguments.table or arguments.hours:
        print(markdown())
        draw()


if __name__ == "__main__":
    main()
