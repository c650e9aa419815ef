"""Identification of MuJoCo's models with and without contacts: factors of the masses and of the gear.

20 trajectories of random actions, of a system with 1.3 times the masses and 0.8 times the gear, and noise on every
observation. The experiment measures how often the 95 % region of `operant identify` covers the truth.

    python experiments/contacts.py            # a quarter of an hour; needs the extras `mujoco` and `worlds`
    python experiments/contacts.py --draw
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from arms import gather
from checks import COLORS, conclude, panels, save

from operant.envs.randomize import MuJoCoPhysics
from operant.explore import Trajectories, identify

TRUE = {"masses": 1.3, "gear": 0.8}
TASKS = {"InvertedPendulum-v5": 20, "Hopper-v5": 10}
"""Steps of a trajectory: a hopper that moves at random has fallen after about 20."""

TRIALS = 20
TRAJECTORIES = 20
NOISE = 0.01


def record(task: str, seed: int) -> Trajectories:
    """Return trajectories of the real system, with noisy sensors."""
    env = gymnasium.make(task)
    physics = MuJoCoPhysics([env.unwrapped.model], list(TRUE), task)  # pyright: ignore[reportAttributeAccessIssue]
    physics.apply({name: torch.tensor([value]) for name, value in TRUE.items()})
    env.action_space.seed(seed)
    draw, recorded = np.random.default_rng(seed), []
    for number in range(TRAJECTORIES):
        seen, done = [env.reset(seed=1000 * seed + number)[0]], []
        for _ in range(TASKS[task]):
            done.append(env.action_space.sample())
            obs, _, terminated, truncated, _ = env.step(done[-1])
            seen.append(obs)
            if terminated or truncated:
                break
        exact = np.array(seen)
        recorded.append((exact + NOISE * draw.standard_normal(exact.shape), np.array(done)))
    return Trajectories.of(recorded)


def trial(task: str, seed: int) -> dict[str, Any]:
    """Return whether the region covered the truth, and the estimates with their intervals."""
    found = identify(task, record(task, seed), list(TRUE))
    return {
        "covered": found.contains(TRUE),
        "estimates": found.estimate,
        "intervals": found.interval(),
        "noise": found.noise.tolist(),
    }


def draw(found: dict[str, Any]) -> None:
    """Draw the estimates of all trials and their intervals."""
    figure, axes = panels(len(TASKS) * len(TRUE))
    pairs = [(task, name) for task in TASKS for name in TRUE]
    for axis, (task, name) in zip(axes, pairs, strict=True):
        trials = [found[f"{task}, seed {seed}"] for seed in range(TRIALS)]
        for seed, each in enumerate(trials):
            color = COLORS[0] if each["covered"] else COLORS[1]
            axis.plot([seed, seed], each["intervals"][name], color=color, lw=2)
            axis.scatter(seed, each["estimates"][name], s=14, color=color)
        axis.axhline(TRUE[name], color=COLORS[-1], lw=0.8)
        axis.set(title=task, xlabel="trial", xticks=range(0, TRIALS, 5), ylabel=f"factor of {name}, 95 % interval")
    save(figure, __file__)


def main() -> None:
    """Identify, draw; fail if a claim does not hold."""
    cases = {f"{task}, seed {seed}": (task, seed) for task in TASKS for seed in range(TRIALS)}
    found = gather(__file__, __doc__, cases, tuple, trial)
    draw(found)
    results: dict[str, Any] = {}
    claims: dict[str, bool] = {}
    for task in TASKS:
        trials = [found[f"{task}, seed {seed}"] for seed in range(TRIALS)]
        covered = sum(each["covered"] for each in trials)
        worst = max(abs(each["estimates"][name] / value - 1) for each in trials for name, value in TRUE.items())
        results[task] = {"covered": covered, "worst error": worst, "noise": np.mean([t["noise"] for t in trials], 0)}
        print(f"{task}: {covered} of {TRIALS} regions cover the truth; worst error {worst:.3f}")
        claims[f"{task}: the 95 % region covers the truth in at least 17 of {TRIALS} trials"] = covered >= 17
        claims[f"{task}: every factor within 5 %"] = worst <= 0.05
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
