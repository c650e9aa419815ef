"""A learning curve of PPO on ALE/Pong-v5 from pixels in an hour on one CPU thread, without a claim.

With one seed it shows that the parts work together, not how well PPO plays. The hyperparameters are those of the preset
except three, for the small budget: a larger learning rate and clip range, and three epochs, as in the paper. Games have
sticky actions. The run is stored in `runs/pong` and resumes where it stopped; when the time is over, the current policy
is evaluated and the curve is plotted:

    python experiments/pong.py [--minutes 60]
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from learning import BLUE, GRAY, ORANGE, describe, plt, write

import operant
from operant.envs.atari import FRAMES
from operant.runtime.metrics import read_records
from operant.runtime.run import Run

TASK = "ALE/Pong-v5"
BUDGET = 2_000_000
"""Environment steps, of four frames each, over which the learning rate falls to zero: more than an hour has."""
EVERY = 40_000
"""Steps between two evaluations."""
RUN = Path(__file__).parents[1] / "runs" / "pong"
BIN = 20_000
"""Steps that are one point of the training curve."""


def training_curve(run: Run) -> list[dict[str, Any]]:
    """Return the mean return of the sampling policy's games that ended, in bins of `BIN` steps, and the seconds."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for record in read_records(run.metrics_path):
        score = np.atleast_1d(np.array(record.get("rollout/episode_return", np.nan), dtype=float))[0]
        if np.isfinite(score):
            place = -(-record["consumed"] // BIN) * BIN
            bins.setdefault(place, []).append((score, record["time/seconds"]))
    return [
        {
            "steps": steps,
            "seconds": max(seconds for _, seconds in found),
            "score": float(np.mean([s for s, _ in found])),
        }
        for steps, found in sorted(bins.items())
    ]


def summarize(trained: operant.Trained) -> dict[str, Any]:
    """Evaluate the latest policy over 20 games and return all results."""
    run = trained.run
    results = describe(trained, "ppo", TASK, episodes=20)
    seconds = {r["consumed"]: r["time/seconds"] for r in read_records(run.metrics_path)}
    for point in results["curve"]:
        point |= {"frames": FRAMES * point["steps"], "seconds": seconds[point["steps"]]}
    steps = trained.experiment.learner.consumed
    results |= {"steps": steps, "frames": FRAMES * steps, "curve_episodes": run.settings.evaluate_episodes}
    return results | {"training": training_curve(run)}


def draw(results: dict[str, Any]) -> None:
    """Draw the scores of greedy games and of the games of training over steps, with minutes above."""
    figure, axis = plt.subplots(figsize=(7, 3.8), constrained_layout=True)
    training, curve = results["training"], results["curve"]
    axis.plot([p["steps"] for p in training], [p["score"] for p in training], color=GRAY, lw=1.5, label="training")
    label = f"greedy, mean of {results['curve_episodes']} games"
    axis.plot(
        [p["steps"] for p in curve], [np.mean(p["scores"]) for p in curve], "o-", color=BLUE, ms=4, lw=2, label=label
    )
    axis.plot(
        results["steps"],
        results["final"]["mean"],
        "x",
        color=ORANGE,
        ms=9,
        mew=2,
        label=f"final, {results['final']['episodes']} games",
    )
    axis.axhline(0.0, color=GRAY, lw=0.8, ls=":")
    axis.set(
        xlabel=f"environment steps of {FRAMES} frames", ylabel="score", ylim=(-22, 22), title=f"PPO on {TASK}, one seed"
    )
    above = axis.twiny()
    above.set_xlim(axis.get_xlim())
    minutes = list(range(0, int(results["training_seconds"] // 60) + 1, 10))
    seconds = [0.0, *(p["seconds"] for p in training)]
    above.set_xticks(np.interp([60 * m for m in minutes], seconds, [0, *(p["steps"] for p in training)]))
    above.set_xticklabels([str(m) for m in minutes])
    above.set_xlabel("minutes of training")
    axis.legend(frameon=False, loc="upper left")
    above.spines["right"].set_visible(False)
    axis.spines["right"].set_visible(False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)


def main() -> None:
    """Train or resume, and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop after this many minutes, including evaluations"
    )
    end = time.monotonic() + 60 * parser.parse_args().minutes

    def late() -> bool:
        return time.monotonic() > end

    if (RUN / "run.json").exists():
        trained = operant.resume(RUN, interrupted=late)
    else:
        trained = operant.train(
            "ppo",
            TASK,
            budget=BUDGET,
            run=RUN,
            interrupted=late,
            evaluate_every=EVERY,
            evaluate_episodes=4,
            checkpoint_seconds=300,
            learning_rate=5e-4,
            num_epochs=3,
            lr_schedule="linear",
            clip_range=0.2,
        )
    results = summarize(trained)
    write(results, __file__)
    draw(results)
    print(f"{results['final']['mean']:.1f} after {results['steps']:,} steps, {results['training_seconds']:.0f} s")
    trained.close()


if __name__ == "__main__":
    main()
