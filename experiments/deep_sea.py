"""Claim: bootstrapped DQN with prior functions solves DeepSea of every tested size, in far fewer episodes than 2^size.

DeepSea (Osband et al. 2019) by the rules of bsuite (arXiv:1908.03568): the meaning of the actions differs by cell
(`mapping_seed` 42), and a run has at most 10 000 episodes. A size is solved at the first episode at which less than 80
% of all episodes so far missed the treasure. Ten seeds of

- `bootstrapped-dqn` with its preset; a seed that has solved the task continues until all seeds have;
- `dqn` with the same settings except the heads: one network without a prior, with ε-greedy exploration, ε = 0.05;
- R-max, which plans with a tabular model, also at size 100.

The regret of an episode is the exact optimum, 0.99 by `operant.mdp.solve`, minus its return; the plot shows the
cumulative regret.

Every size is stored in `deep_sea.cells.json` as soon as it is done and is not run again, so an interrupted experiment
resumes; `--sizes 10 20` and `--dqn 10` run only these sizes. Times are for one core.
"""

import argparse
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from checks import COLORS, conclude, panels, rounded, save

from operant.control.dqn import DQN, DQNConfig
from operant.envs import BatchEnv, make
from operant.explore import BootstrappedDQN, BootstrappedDQNConfig
from operant.explore.bootstrapped_dqn import PRESETS
from operant.mdp import MDP, solve
from operant.runtime.metrics_window import EPISODES, RETURN
from operant.tabular import learner_for

TASK, MAPPING, SEEDS = "operant/DeepSea-v0", 42, range(10)
MOST, BAD, CELLS = 10_000, 0.8, Path(__file__).with_suffix(".cells.json")
SIZES = tuple(range(10, 51, 2))
"""Of bsuite."""
PLANNED = (*SIZES, 100)
"""For R-max."""
HEADS, GREEDY = "bootstrapped-dqn", "dqn"
GREEDY_SIZES = (10, 12, 20)


def learner_of(kind: str, env: BatchEnv, budget: int) -> DQN:
    """Return a learner with several heads, or one network with ε-greedy exploration."""
    preset = PRESETS[TASK]
    config = BootstrappedDQNConfig(**preset)
    if kind == HEADS:
        return BootstrappedDQN(config, env, seeds=list(SEEDS), budget=budget)
    shared = {field.name: getattr(config, field.name) for field in fields(DQNConfig)}
    epsilon = {"exploration_initial_eps": 0.05, "exploration_final_eps": 0.05}
    return DQN(DQNConfig(**{**shared, **epsilon}), env, seeds=list(SEEDS), budget=budget)


def best_of(size: int) -> tuple[MDP, float]:
    """Return a sea, and the exact optimum of an episode."""
    sea = MDP.from_gymnasium(gymnasium.make(TASK, size=size, mapping_seed=MAPPING))
    return sea, float(solve(sea, gamma=1.0).values[0])


def dive(kind: str, size: int) -> dict[str, Any]:
    """Train in one sea until every seed has solved it; return the episodes that each needed, and the mean regret."""
    count, rows = len(SEEDS), int(PRESETS[TASK]["num_envs"])
    env = make(TASK, rows, list(SEEDS), env_kwargs={"size": size, "mapping_seed": MAPPING})
    learner = learner_of(kind, env, MOST * size)
    _, best = best_of(size)
    found, episodes, earned = np.zeros(count), np.zeros(count), np.zeros(count)
    regret: list[tuple[float, float]] = []
    first, solved = np.full(count, np.nan), np.full(count, np.nan)
    begin = time.process_time()
    while np.isnan(solved).any() and episodes.min() < MOST:
        metrics = learner.iterate()
        ended = torch.as_tensor(metrics[EPISODES]).double().numpy()
        total = torch.as_tensor(metrics[RETURN]).double().nan_to_num().numpy() * ended
        episodes += ended
        earned += total
        if ended.any():
            regret.append((episodes.mean(), float((best * episodes - earned).mean())))
        found += np.maximum(np.rint(total + 0.005 * ended), 0)  # a treasure is worth 0.99, a bad dive -0.01 to 0
        first = np.where(np.isnan(first) & (found > 0), episodes, first)
        is_solved = (episodes > 0) & (episodes <= MOST) & (found > (1 - BAD) * episodes)
        solved = np.where(np.isnan(solved) & is_solved, episodes, solved)
    seconds = time.process_time() - begin
    dives, lost = zip(*regret[:: max(1, len(regret) // 100)], strict=True)
    course = {"dives": dives, "regret": lost}
    return rounded({"first": first, "solved": solved, **course, "updates": learner.updates, "seconds": seconds})


def plan(size: int) -> dict[str, Any]:
    """Return the regret of R-max by episode, and the number of episodes until none failed."""
    sea, best = best_of(size)
    dives = 3 * size
    returns = learner_for("r-max", sea, seeds=[0], gamma=0.99, known=1).run_episodes(dives).returns[0]
    regret = np.cumsum(best - returns)
    return {"optimum": best, "regret": regret.tolist(), "failures": int((returns < 0.9).sum())}


def draw(cells: dict[str, Any], planned: dict[int, Any]) -> None:
    """Draw episodes until solved by size, and the regret of the heads and of R-max."""
    figure, axes = panels(3)
    for kind, name, color in ((HEADS, "bootstrapped DQN", COLORS[0]), (GREEDY, "DQN, ε = 0.05", COLORS[2])):
        sizes = sorted(map(int, cells[kind]))
        solved = np.array([[MOST if n is None else n for n in cells[kind][str(size)]["solved"]] for size in sizes])
        if sizes:
            axes[0].plot(sizes, solved, "o", color=color, markersize=3, alpha=0.5)
            axes[0].plot(sizes, np.median(solved, axis=1), color=color, label=f"{name}, median of ten seeds")
    failures = [planned[size]["failures"] for size in PLANNED]
    axes[0].plot(PLANNED, failures, ".-", color=COLORS[1], label="R-max: failed episodes")
    axes[0].plot(SIZES, [2.0**size for size in SIZES], "--", color=COLORS[6], label="chance, 2^size")
    axes[0].set(yscale="log", ylim=(2, 1.3 * MOST), xlabel="size", ylabel="episodes until solved")
    for size, color in zip((10, 20, 30, 40, 50, 100), COLORS, strict=False):
        if (cell := cells[HEADS].get(str(size))) is not None:
            axes[1].plot(cell["dives"], cell["regret"], color=color, label=f"size {size}")
        axes[2].plot(range(1, 3 * size + 1), planned[size]["regret"], color=color, label=f"size {size}")
    axes[1].set(title="bootstrapped DQN, mean of ten seeds", xlabel="dive", ylabel="regret against the optimum, summed")
    axes[2].set(title="R-max", xlabel="dive", ylabel="regret against the optimum, summed")
    save(figure, __file__, axes)


def main() -> None:
    """Run the given sizes, plot all, fail if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="for the heads; default: all of bsuite")
    parser.add_argument("--dqn", type=int, nargs="*", default=GREEDY_SIZES, help="for DQN; default: 10 12 20")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells: dict[str, Any] = json.loads(CELLS.read_text()) if CELLS.exists() else {HEADS: {}, GREEDY: {}}
    for kind, size in [*((HEADS, size) for size in arguments.sizes), *((GREEDY, size) for size in arguments.dqn)]:
        if str(size) not in cells[kind]:
            cells[kind][str(size)] = dive(kind, size)
            CELLS.write_text(json.dumps(cells) + "\n")
        print(f"{kind}, size {size}: {cells[kind][str(size)]}", flush=True)
    planned = {size: plan(size) for size in PLANNED}
    draw(cells, planned)
    ten = len(SEEDS)
    claims = {
        f"bootstrapped DQN was run at all {len(SIZES)} sizes": [*cells[HEADS]] == [str(size) for size in SIZES],
        "in less than three hours on one core": sum(cell["seconds"] for cell in cells[HEADS].values()) < 3 * 3600,
    }
    for size, cell in cells[HEADS].items():
        claims[f"all {ten} seeds with heads solve size {size}"] = [n is None for n in cell["solved"]] == [False] * ten
    for size in GREEDY_SIZES[1:]:
        claims[f"DQN with ε solves size {size} with no seed"] = cells[GREEDY][str(size)]["solved"] == [None] * ten
    claims["R-max fails 2 N - 1 times in a sea of size N, and then never again"] = all(
        planned[size]["failures"] == 2 * size - 1 for size in PLANNED
    )
    claims["its regret is what these dives have missed"] = all(
        planned[size]["regret"][-1] <= planned[size]["optimum"] * (2 * size - 1) + 0.02 * size for size in PLANNED
    )
    conclude(__file__, {**cells, "r-max": {str(size): planned[size] for size in PLANNED}}, [], claims)


if __name__ == "__main__":
    main()
