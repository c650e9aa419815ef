"""Robustness of policies to a change of the physics, by domain randomization and system identification.

Trained in {nominal, randomized, identified}, tested in {nominal, shifted, delayed}: policies trained with the nominal
parameters, with random parameters per episode, and with parameters sampled from the posterior given 20 recorded
trajectories of the shifted system. The commands of the documentation with their defaults, on 10 seeds:

    operant train ppo CartPole-v1 --seeds 10 [--randomize FILE]
    operant train ppo Pendulum-v1 --seeds 10 [--randomize FILE]
    operant evaluate RUN --randomize FILE

The experiment also measures how often the 95 % region covers the true parameters, over 200 identifications.

    python experiments/transfer.py            # some ten minutes; resumes where it stopped
    python experiments/transfer.py --draw
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from arms import gather, interval, over_seeds
from checks import COLORS, conclude, panels, save

import operant
from operant.envs import make, randomizer
from operant.explore import Posterior, Trajectories, identify

SEEDS = range(10)
TRIALS = 200
NOISE = 0.01
"""Standard deviation of the sensor noise in recordings."""


class System(NamedTuple):
    """A task, and its possible changes.

    Attributes:
        shifted: parameters of the real system.
        ranges: ranges of the randomized parameters around their nominal values.
        unknown: names of the identified parameters.
        steps: steps of a recorded trajectory.
    """

    shifted: dict[str, float]
    ranges: str
    unknown: tuple[str, ...]
    steps: int


SYSTEMS = {
    "CartPole-v1": System(
        {"length": 1.5, "force_mag": 6.0},
        "length = { log-uniform = [0.25, 2.0] }\nforce_mag = { log-uniform = [5.0, 20.0] }\n",
        ("length", "force_mag"),
        40,
    ),
    "Pendulum-v1": System(
        {"m": 1.4, "l": 1.1},
        "m = { log-uniform = [0.6, 1.6] }\nl = { log-uniform = [0.8, 1.25] }\n",
        ("m", "l"),
        100,
    ),
}
DELAYS = {"CartPole-v1": 5, "Pendulum-v1": 2}
TRAINED = ("nominal", "randomized", "identified")
TESTED = ("nominal", "shifted", "delayed")


def record(task: str, seed: int) -> Trajectories:
    """Return 20 trajectories of the shifted system with random actions and noisy sensors."""
    system, rows = SYSTEMS[task], 20
    env, draw = make(task, rows, [seed], purpose="recording"), torch.Generator().manual_seed(seed)
    env.set_parameters(**system.shifted)  # pyright: ignore[reportAttributeAccessIssue]
    seen, done, alive = [env.reset()], [], torch.ones(rows, dtype=torch.bool)
    lengths = torch.zeros(rows, dtype=torch.int64)
    for _ in range(system.steps):
        discrete = torch.randint(0, 2, (rows,), generator=draw)
        done.append(discrete if task == "CartPole-v1" else torch.rand(rows, 1, generator=draw) * 4 - 2)
        step = env.step(done[-1])
        seen.append(step.final_obs)
        lengths += alive
        alive &= ~(step.terminated | step.truncated)
    exact = torch.stack(seen, 1).double()  # pyright: ignore[reportArgumentType]
    noise = NOISE * torch.randn(exact.shape, generator=draw, dtype=torch.float64)
    return Trajectories(exact + noise, torch.stack(done, 1), lengths)


def identified(task: str, seed: int) -> Posterior:
    """Return the parameters identified from the trajectories of a seed."""
    return identify(task, record(task, seed), SYSTEMS[task].unknown)


def files(task: str, folder: Path) -> dict[str, Path]:
    """Write the files of `--randomize`, and return them by name."""
    system = SYSTEMS[task]
    texts = {
        "randomized": f"delay = {{ uniform = [0, {DELAYS[task]}] }}\n[parameters]\n{system.ranges}",
        "identified": identified(task, 0).toml(),
        "shifted": "[parameters]\n" + "".join(f"{name} = {value}\n" for name, value in system.shifted.items()),
        "delayed": f"delay = {DELAYS[task]}\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.toml" for name in texts}


def learn(task: str, trained: str) -> dict[str, Any]:
    """Train all seeds, and return their scores in every test."""
    with tempfile.TemporaryDirectory() as folder:
        found = files(task, Path(folder))
        wrappers = (randomizer(found[trained]),) if trained in found else ()
        run = operant.train("ppo", task, seeds=SEEDS, wrappers=wrappers, run=Path(folder) / "run")
        tests = {name: (randomizer(found[name]),) if name in found else () for name in TESTED}
        return {name: list(run.evaluate(100, wrappers=around).scores) for name, around in tests.items()}


def trials(task: str) -> dict[str, Any]:
    """Identify many times, and return whether each region covered the truth, and the error of each estimate."""
    truth = SYSTEMS[task].shifted
    covered, errors = [], []
    for seed in range(TRIALS):
        posterior = identified(task, seed)
        covered.append(posterior.contains(truth))
        errors.append([posterior.estimate[name] / truth[name] - 1 for name in SYSTEMS[task].unknown])
    return {"covered": covered, "errors": errors}


def cell(kind: str, task: str) -> dict[str, Any]:
    """Return a row of the table, or the trials."""
    return trials(task) if kind == "trials" else learn(task, kind)


def draw(found: dict[str, Any]) -> None:
    """Draw the scores: a panel for each task, a group of dots for each test."""
    figure, axes = panels(len(SYSTEMS))
    for axis, task in zip(axes, SYSTEMS, strict=True):
        for i, (trained, color) in enumerate(zip(TRAINED, COLORS, strict=False)):
            for place, test in enumerate(TESTED):
                scores, x = np.array(found[f"{task}, {trained}"][test]), place + 0.25 * (i - 1)
                axis.plot([x, x], interval(scores), color=color, lw=2)
                axis.scatter(np.full(len(scores), x), scores, s=8, color=color, alpha=0.4)
                axis.scatter(x, scores.mean(), s=40, color=color, label=f"trained {trained}" if not place else None)
        axis.set_xticks(range(len(TESTED)), [f"tested {name}" for name in TESTED])
        axis.set(title=task)
    axes[0].set_ylabel("return; 10 seeds, mean and its 95 % interval")
    save(figure, __file__, axes[1:])


def main() -> None:
    """Train, identify, draw; fail if a claim does not hold."""
    cases = {f"{task}, {kind}": (kind, task) for task in SYSTEMS for kind in (*TRAINED, "trials")}
    found = gather(__file__, __doc__, cases, tuple, cell)
    draw(found)
    results: dict[str, Any] = {}
    claims: dict[str, bool] = {}
    for task, system in SYSTEMS.items():
        scores = {
            kind: {test: over_seeds(np.array(found[f"{task}, {kind}"][test])) for test in TESTED} for kind in TRAINED
        }
        tried = found[f"{task}, trials"]
        share, worst = np.mean(tried["covered"]), np.abs(tried["errors"]).max(0)
        results[task] = {
            "scores": scores,
            "covered": share,
            "worst errors": dict(zip(system.unknown, worst, strict=True)),
        }
        for kind in TRAINED:
            print(
                f"{task} trained {kind:10s}",
                {test: round(float(cell["mean"]), 1) for test, cell in scores[kind].items()},
            )
        print(f"{task} regions that cover the truth: {share:.3f}; worst errors: {worst.round(4).tolist()}")
        means = {kind: {test: cell["mean"] for test, cell in row.items()} for kind, row in scores.items()}
        for test in TESTED[1:]:
            better = means["randomized"][test] > means["nominal"][test]
            claims[f"{task}: randomized beats nominal when {test}"] = bool(better)
        claims[f"{task}: randomized is worse than nominal in the nominal system"] = bool(
            means["randomized"]["nominal"] < means["nominal"]["nominal"]
        )
        claims[f"{task}: identified beats nominal when shifted"] = bool(
            means["identified"]["shifted"] > means["nominal"]["shifted"]
        )
        claims[f"{task}: the 95 % region covers the truth in 95 ± 4 % of {TRIALS} trials"] = 0.91 <= share <= 0.99
        claims[f"{task}: 20 trajectories tell every parameter within 5 %"] = bool((worst <= 0.05).all())
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
