"""Claim: PPO with an episodic bonus crosses rooms that random exploration does not (arXiv:2306.03236).

`MultiRoom-N4-S5-v0` of MiniGrid (Chevalier-Boisvert et al. 2023, arXiv:2306.13831): six small rooms behind closed
doors, new in every episode, with the goal in the last. The command of the documentation with its defaults, another
bonus, or none; and a noisy television, whose screen the action `done` changes, which does nothing else in this task:

    operant train ppo MiniGrid-MultiRoom-N4-S5-v0 --bonus episodic --seeds 5
    operant train ppo MiniGrid-MultiRoom-N4-S5-v0 --bonus episodic --wrapper "operant.envs:NoisyTV(action=6)"

Scores are returns of the greedy policy in 100 episodes. RL Baselines3 Zoo's PPO has 0.000 after 10 million steps. The
return of shortest ways, found with all rooms in view, says what can be reached. The preset was chosen on the seeds 1000
and 1001. The first case has five seeds, the others have two and fewer steps: they show where learning begins.

    python experiments/rooms.py                # half an hour; needs the extra `minigrid`; resumes where it stopped
    python experiments/rooms.py --draw
"""

import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, rounded, save

import operant
from operant.envs.registry import make_single, specified
from operant.runtime.metrics import read_records

TASK = "MiniGrid-MultiRoom-N4-S5-v0"
TELEVISION = "operant.envs:NoisyTV(action=6)"
TO_REACH, POINTS = 0.7, 25


class Case(NamedTuple):
    """What is learned.

    Attributes:
        bonus: its name, or none.
        television: whether there is one.
        budget: environment steps of each seed.
        seeds: number of seeds, from 0.
    """

    bonus: str
    television: bool
    budget: int
    seeds: int


CASES = {
    "episodic": Case("episodic", False, 250_000, 5),
    "none": Case("none", False, 100_000, 2),
    "episodic, television": Case("episodic", True, 100_000, 2),
    "rnd": Case("rnd", False, 100_000, 2),
    "rnd, television": Case("rnd", True, 100_000, 2),
}


def learn(*given: Any) -> dict[str, Any]:
    """Train, and return the curve of what the episodes of training earned, the final scores, and the seconds it took.

    Each point of the curve is the mean of the episodes that ended since the last one; None if there was none.
    """
    case, begin = Case(*given), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trained = operant.train(
            "ppo",
            TASK,
            budget=case.budget,
            seeds=range(case.seeds),
            bonus=() if case.bonus == "none" else (case.bonus,),
            wrappers=(TELEVISION,) * case.television,
            run=Path(folder) / "run",
            evaluate_episodes=100,
            evaluate_every=case.budget,
        )
        seconds = time.process_time() - begin
        records = list(read_records(trained.run.metrics_path))
        *_, final = read_records(trained.run.evaluations_path)
    points = [part for part in np.array_split(np.arange(len(records)), POINTS) if len(part)]
    returns, ended = (
        np.array([record[f"rollout/{name}"] for record in records], dtype=np.float64)
        for name in ("episode_return", "episodes")
    )
    earned = [np.nansum((returns * ended)[part], 0) / ended[part].sum(0) for part in points]
    return rounded(
        {
            "steps": [records[part[-1]]["consumed"] for part in points],
            "curve": earned,
            "scores": final["scores"],
            "seconds": seconds,
        }
    )


def shortest(grid: Any, start: tuple[int, int], heading: int) -> int:
    """Return the least number of actions to the goal for one who sees all rooms: turns, steps, and opened doors."""
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
    """Return the mean return of shortest ways through the rooms."""
    env: Any = make_single(specified(TASK)).unwrapped
    returns = []
    for seed in range(episodes):
        env.reset(seed=seed)
        start = (int(env.agent_pos[0]), int(env.agent_pos[1]))
        returns.append(1 - 0.9 * shortest(env.grid, start, int(env.agent_dir)) / env.max_steps)
    return float(np.mean(returns))


def draw(found: dict[str, Any], best: float) -> None:
    """Draw what all cases earned in training over the steps."""
    figure, axes = panels(2)
    for axis, end in zip(axes, ("", ", television"), strict=True):
        for color, style, bonus in zip(COLORS, ("-", "--", ":"), ("episodic", "rnd", "none"), strict=False):
            cell = found.get(f"{bonus}{end}")
            if cell is not None:
                curves = np.array(cell["curve"], dtype=np.float64).T
                label = f"{'no bonus' if bonus == 'none' else bonus}, {len(curves)} seeds"
                band(axis, np.array(cell["steps"]) / 1000, curves, color=color, label=label, style=style)
        axis.axhline(best, color=COLORS[6], linestyle="--", linewidth=1, label="shortest ways")
        axis.set(xlabel="thousand environment steps per seed", xlim=(0, 255), ylim=(-0.02, 0.85))
    axes[0].set(title="MultiRoom-N4-S5-v0", ylabel="return of episodes in training")
    axes[1].set(title="with a noisy television")
    save(figure, __file__, axes)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    found = gather(__file__, __doc__, CASES, tuple, learn)
    best = optimum()
    draw(found, best)
    last = {name: np.array(cell["scores"]) for name, cell in found.items()}
    print(f"shortest ways: {best:.3f}")
    for name, scores in last.items():
        print(f"{name:22s} {scores.mean():.3f}  seeds {scores.round(3).tolist()}  {found[name]['seconds']:.0f} s")
    claims = {
        f"at least {TO_REACH} with the episodic bonus, every seed": last["episodic"].min() >= TO_REACH,
        "at most 0.05 after 100 000 steps without a bonus, every seed": last["none"].max() <= 0.05,
    }
    conclude(__file__, {"shortest": best, "scores": last, "curves": found}, [], claims)


if __name__ == "__main__":
    main()
