"""Claim: rewards teach a small model to add what a few hundred demonstrations could not.

The last stop of `operant tour`, on seeds 0, 11, 42, 1 and 2: a Llama of 0.6 million random weights imitates 350 sums of
two numbers of two digits, with the weights of least validation loss; then GRPO goes on with rewards alone. The score is
the share of 200 held-out sums whose greedy answer is right. Seconds are of training and evaluation, on one thread at
first and on two with rewards.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from checks import COLORS, conclude, panels, save

from operant import api
from operant.cli.tour import GAIN, IMITATION, REACHED, REWARDS, SUMS
from operant.runtime.metrics import read_records

SEEDS = (0, 11, 42, 1, 2)


def main() -> None:
    """Train, write down, draw; fail if a claim does not hold."""
    figure, (axis,) = panels(1, 1)
    found, often = {}, {**REWARDS, "evaluate_every": 2_560}
    with tempfile.TemporaryDirectory() as place:
        for seed, color in zip(SEEDS, COLORS, strict=False):
            folder, begin = Path(place) / str(seed), time.perf_counter()
            first = api.train("sft", SUMS, seeds=[seed], run=folder / "sft", progress="silent", **IMITATION)
            seconds = time.perf_counter() - begin
            last = api.train(
                "grpo", SUMS, seeds=[seed], run=folder / "grpo", init=str(folder / "sft"), progress="silent", **often
            )
            curve = [
                (r["consumed"], r["scores"][0]) for r in read_records(folder / "grpo" / "eval" / "evaluations.jsonl")
            ]
            assert first.outcome is not None
            assert last.outcome is not None
            before = first.outcome.evaluation.scores[0]  # pyright: ignore[reportOptionalMemberAccess]
            found[seed] = {
                "imitation": before,
                "rewards": last.outcome.evaluation.scores[0],  # pyright: ignore[reportOptionalMemberAccess]
                "seconds of imitation": round(seconds, 1),
                "seconds": round(time.perf_counter() - begin, 1),
                "curve": curve,
            }
            print(seed, {k: v for k, v in found[seed].items() if k != "curve"}, flush=True)
            at, scores = np.array([(0, before), *curve]).T
            axis.plot(at, 100 * scores, color=color, label=f"seed {seed}")
    axis.axhline(100 * REACHED, color="0.6", linewidth=1)
    axis.set(xlabel="prompts answered", ylabel="held-out sums right, %", title="rewards after 350 demonstrations")
    save(figure, __file__, [axis])
    asked = [found[seed] for seed in (0, 11, 42)]
    claims = {
        "seeds 0, 11, 42: rewards add at least 25 points": all(f["rewards"] - f["imitation"] >= GAIN for f in asked),
        "seeds 0, 11, 42: at least 85 % at the end": all(f["rewards"] >= REACHED for f in asked),
    }
    conclude(__file__, {str(seed): result for seed, result in found.items()}, [], claims)


if __name__ == "__main__":
    main()
