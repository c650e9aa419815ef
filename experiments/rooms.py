"""Claim: PPO with an episodic bonus crosses rooms that random exploration does not (arXiv:2306.03236).

`MultiRoom-N4-S5-v0` of MiniGrid (Chevalier-Boisvert et al. 2023, arXiv:2306.13831): six small rooms behind closed
doors, new in every episode, with the goal in the last. The command of the documentation with its defaults, another
bonus, or none; each also with a noisy television, whose screen the action `done` changes, which does nothing else in
this task. `DoorKey-8x8-v0`, where a key opens a door to the room of the goal, with and without the bonus:

    operant train ppo MiniGrid-MultiRoom-N4-S5-v0 --bonus episodic --seeds 5
    operant train ppo MiniGrid-MultiRoom-N4-S5-v0 --bonus episodic --seeds 5 --wrapper "operant.envs:NoisyTV(action=6)"
    operant train ppo MiniGrid-DoorKey-8x8-v0 --bonus episodic --budget 250000 --seeds 5

Scores are returns of the greedy policy in 100 episodes; next to them, the mean return of the episodes in the last fifth
of training, whose actions are sampled. RL Baselines3 Zoo's PPO has 0.000 after 10 million steps. The
return of shortest paths, found with all rooms in view, says what can be reached. The preset and the budgets were chosen
on the seeds 1000 and 1001.

    python experiments/rooms.py                # an hour; needs the extra `minigrid`; resumes where it stopped
    python experiments/rooms.py --draw
"""

import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from arms import band, gather, groups, merged, titled
from checks import COLORS, conclude, panels, rounded, save

import operant
from operant.envs.registry import make_single, specified
from operant.runtime.metrics import read_records

TASK, DOOR_KEY = "MiniGrid-MultiRoom-N4-S5-v0", "MiniGrid-DoorKey-8x8-v0"
TELEVISION = "operant.envs:NoisyTV(action=6)"
TO_REACH, BONUSES = 0.7, ("episodic", "rnd", "none")


class Case(NamedTuple):
    """What is learned.

    Attributes:
        bonus: its name, or none.
        television: whether there is one.
        budget: environment steps of each seed.
        seeds: number of seeds, from 0.
        task: the environment.
        points: of the curve; few enough that episodes end before each.
        together: whether all seeds are trained in one run, which is faster; else each alone, to be stored sooner.
    """

    bonus: str
    television: bool
    budget: int = 250_000
    seeds: int = 5
    task: str = TASK
    points: int = 25
    together: bool = False

    @property
    def runs(self) -> list[list[int]]:
        """The seeds of each run."""
        return groups(self.seeds, together=self.together)


CASES = {
    **{f"{bonus}{end}": Case(bonus, bool(end)) for bonus in BONUSES for end in ("", ", television")},
    **{f"DoorKey, {bonus}": Case(bonus, False, task=DOOR_KEY, together=True) for bonus in ("episodic", "none")},
}


def learn(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Train, and return the curves of returns in training, the final scores, and the seconds of training.

    Each point of a curve is the mean of the episodes that ended since the last one; None if there was none.
    """
    case, begin = CASES[name], time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trained = operant.train(
            "ppo",
            case.task,
            budget=case.budget,
            seeds=seeds,
            bonus=() if case.bonus == "none" else (case.bonus,),
            wrappers=(TELEVISION,) * case.television,
            run=Path(folder) / "run",
            evaluate_episodes=100,
            evaluate_every=case.budget,
        )
        seconds = time.process_time() - begin
        records = list(read_records(trained.run.metrics_path))
        *_, final = read_records(trained.run.evaluations_path)
    return rounded({**earned(records, case.points), "scores": final["scores"], "seconds": seconds})


def earned(records: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """Return the steps and the returns of `count` points of the curves of all seeds."""
    points = np.array_split(np.arange(len(records)), count)
    returns, ended = (
        np.array([record[f"rollout/{key}"] for record in records], dtype=np.float64)
        for key in ("episode_return", "episodes")
    )
    return {
        "steps": [records[part[-1]]["consumed"] for part in points],
        "curve": [np.nansum((returns * ended)[part], 0) / ended[part].sum(0) for part in points],
    }


def of_all_seeds(cells: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the results of all seeds of a case, with the mean return of the last fifth of training."""
    found = merged(cells, name, CASES[name].runs)
    return found | {"training": found["curve"][-(CASES[name].points // 5) :].mean(0)}


def shortest(grid: Any, start: tuple[int, int], heading: int) -> int:
    """Return the minimum number of actions to the goal with all rooms in view: turns, steps and opened doors."""
    moves = ((1, 0), (0, 1), (-1, 0), (0, -1))
    first = (start, heading, frozenset[tuple[int, int]]())
    reached, line = {first: 0}, deque([first])
    while line:
        place, heading, opened = now = line.popleft()
        ahead = (place[0] + moves[heading][0], place[1] + moves[heading][1])
        thing = grid.get(*ahead)
        kind = "empty" if thing is None or ahead in opened else thing.type
        if kind == "goal":
            return reached[now] + 1
        options = [(place, (heading + turn) % 4, opened) for turn in (1, -1)]
        if kind == "empty":
            options.append((ahead, heading, opened))
        elif kind == "door":
            options.append((place, heading, opened | {ahead}))
        for option in options:
            if option not in reached:
                reached[option] = reached[now] + 1
                line.append(option)
    raise ValueError("the goal cannot be reached")


def optimum(episodes: int = 200) -> float:
    """Return the mean return of shortest paths through the rooms."""
    env: Any = make_single(specified(TASK)).unwrapped
    returns = []
    for seed in range(episodes):
        env.reset(seed=seed)
        start = (int(env.agent_pos[0]), int(env.agent_pos[1]))
        returns.append(1 - 0.9 * shortest(env.grid, start, int(env.agent_dir)) / env.max_steps)
    return float(np.mean(returns))


def draw(found: dict[str, Any], best: float) -> None:
    """Plot the returns in training of all cases."""
    figure, axes = panels(3)
    ends = ("", ", television", "DoorKey, ")
    for axis, end in zip(axes, ends, strict=True):
        for color, style, bonus in zip(COLORS, ("-", "--", ":"), BONUSES, strict=False):
            cell = found.get(f"{end}{bonus}" if end.startswith("D") else f"{bonus}{end}")
            if cell is not None:
                curves = cell["curve"].T
                label = f"{'no bonus' if bonus == 'none' else bonus}, {len(curves)} seeds"
                band(axis, np.array(cell["steps"]) / 1000, curves, color=color, label=label, style=style)
        axis.set(xlabel="thousand environment steps per seed", ylim=(-0.02, 1.1))
    for axis in axes[:2]:
        axis.axhline(best, color=COLORS[6], linestyle="--", linewidth=1, label="shortest paths")
    axes[0].set(title="MultiRoom-N4-S5-v0", ylabel="return of episodes in training")
    axes[1].set(title="with a noisy television")
    axes[2].set(title="DoorKey-8x8-v0")
    save(figure, __file__, axes)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    runs = {
        titled(name, seeds): (name, seeds)
        for turn in range(max(len(case.runs) for case in CASES.values()))
        for name, case in CASES.items()
        for seeds in case.runs[turn : turn + 1]
    }
    cells = gather(__file__, __doc__, runs, tuple, learn)
    found = {name: of_all_seeds(cells, name) for name in CASES}
    best = optimum()
    draw(found, best)
    last = {name: np.array(cell["scores"]) for name, cell in found.items()}
    print(f"shortest paths: {best:.3f}")
    for name, scores in last.items():
        training = found[name]["training"].round(3).tolist()
        print(f"{name:22s} {scores.round(3).tolist()}  in training {training}  {found[name]['seconds']:.0f} s")
    claims = {
        f"at least {TO_REACH} with the episodic bonus, every seed": last["episodic"].min() >= TO_REACH,
        "at most 0.05 without a bonus, every seed": last["none"].max() <= 0.05,
        "DoorKey: at least 0.9 in training with the bonus, every seed": found["DoorKey, episodic"]["training"].min()
        >= 0.9,
        "at most 0.05 with the episodic bonus and a television, every seed": last["episodic, television"].max() <= 0.05,
    }
    conclude(__file__, {"shortest": best, "scores": last, "curves": found}, [], claims)


if __name__ == "__main__":
    main()
