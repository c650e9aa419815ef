"""The ladder of DAPO (Yu et al. 2025, arXiv:2503.14476, table 1) on a small model: the gain of each added part.

The paper starts from naive GRPO and adds one technique after the other; the KL term is always omitted:

1. GRPO: the mean over the tokens of each answer, both clips 0.2;
2. + overlong filtering: truncated answers are masked;
3. + clip-higher: the upper clip is 0.28;
4. + soft overlong punishment: up to -1 over the last fifth of the longest length;
5. + token-level loss: every token of a step counts the same;
6. + dynamic sampling: groups that are all right or all wrong are replaced.

A further arm is the last rung without the soft punishment.

Task: sums of two to six digits, step by step, with at most 28 tokens. The steps of a long sum need up to 48, so half of
the answers to five terms and three quarters of those to six are cut off at the start. Demonstrations begin with the
first, second or third step, so the model knows shorter solutions with a lower probability. All rungs start from one
fine-tuned model (those of the paper from one base model), with five seeds of prompts, their order and sampling. The
score is avg@4 at temperature 1 on 150 held-out prompts every ten batches; the final score is the mean of the last
three. The target is reached when the mean of two consecutive scores reaches it, and its cost is reported in optimizer
steps and sampled answers.

    python experiments/dapo_ladder.py            # about a quarter of an hour; resumes where it stopped
    python experiments/dapo_ladder.py --draw
"""

from itertools import pairwise
from typing import Any

import numpy as np
from arms import gather, interval, over_seeds
from checks import COLORS, conclude, panels, save
from small_models import Examination, demonstrate, learner_of, reinforce, small

from operant import streams
from operant.language import GRPOConfig
from operant.language.models import LanguageModel
from operant.language.tasks import find
from operant.state import State

TASK = find("steps:terms=2-6,digits=1,operators=+,limit=28")
SEEDS, BATCHES, EVERY, PROMPTS, TARGET = range(5), 100, 10, 150, 0.5
RUNGS: dict[str, dict[str, Any]] = {
    "naive GRPO": {},
    "+ overlong filtering": {"mask_truncated_completions": True},
    "+ clip-higher": {"epsilon_high": 0.28},
    "+ soft overlong": {"overlong_buffer": 0.2},
    "+ token-level loss": {"loss_aggregation": "token_mean"},
    "+ dynamic sampling": {"filter": "refill", "max_rounds": 4},
}
"""What each rung changes, in addition to the rungs before it."""
ASIDE = "all but soft overlong"
"""A further arm: the last rung without the penalty."""
PAPER = {
    "naive GRPO": 30,
    "+ overlong filtering": 36,
    "+ clip-higher": 38,
    "+ soft overlong": 41,
    "+ token-level loss": 42,
    "+ dynamic sampling": 50,
}
"""AIME 2024 avg@32 of Qwen2.5-32B in the paper; DeepSeek-R1-Zero-Qwen-32B, trained elsewhere, has 47."""
ELSEWHERE = 47
COMMON: dict[str, Any] = {
    "prompts_per_batch": 16,
    "num_generations": 8,
    "num_minibatches": 4,
    "learning_rate": 1e-4,
    "warmup_ratio": 0.05,
    "betas": (0.9, 0.99),
    "loss_aggregation": "sequence_mean",
}


def begin() -> tuple[LanguageModel, State]:
    """Return the model that all rungs start from."""
    generator = np.random.default_rng(streams.seed_sequence(0, "demonstrations"))
    rows = TASK.rows("train", 8000, seed=0)
    for row in rows:
        lines = row["completion"].split("\n")
        skipped = min(int(generator.choice([0, 0, 1, 2])), len(lines) - 1)
        row["completion"] = "\n".join(lines[skipped:])
    model = small()
    return model, demonstrate(model, rows, epochs=6, learning_rate=3e-3)


def settings(rung: str) -> dict[str, Any]:
    """Return the changes of a rung and all rungs below it."""
    names = list(RUNGS)
    below = names if rung == ASIDE else names[: names.index(rung) + 1]
    chosen = {k: v for name in below for k, v in RUNGS[name].items()}
    return chosen | {"overlong_buffer": 0.0} if rung == ASIDE else chosen


def climb(model: LanguageModel, start: State, rung: str, seed: int) -> list[dict[str, float]]:
    """Train a rung, and return the measurements of each evaluation, the first before training."""
    model.load_state_dict(start)
    examination = Examination(model, TASK, prompts=PROMPTS)
    first = {"steps": 0.0, "rollouts": 0.0, "score": examination.average(model, 4)}
    config = GRPOConfig(**{**COMMON, **settings(rung)})
    kept = ("entropy", "completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std")
    seen: list[dict[str, float]] = [first]

    def watch(learner: Any, metrics: dict[str, float]) -> None:
        if learner.iterations % EVERY == 0:
            point = {name: metrics[name] for name in ("steps", "rollouts", *kept) if name in metrics}
            seen.append({**point, "score": examination.average(model, 4)})

    learner = learner_of(model, TASK, config, seed=seed, batches=BATCHES, train_rows=4000)
    reinforce(learner, BATCHES, watch)
    print(rung, seed, {name: round(value, 3) for name, value in seen[-1].items()}, flush=True)
    return seen


def reached(run: list[dict[str, float]], unit: str) -> float:
    """Return the steps or rollouts after which the mean of two evaluations is at the target; NaN if it never is."""
    scores = np.array([point["score"] for point in run])
    above = (scores[1:] + scores[:-1]) / 2 >= TARGET
    return run[int(above.argmax()) + 1][unit] if above.any() else float("nan")


def summarize(runs: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Return the scores of the seeds of a rung, the cost of the target, and statistics of the last answers."""
    late = 3
    scores = np.array([[point["score"] for point in run] for run in runs])
    finals = scores[:, -late:].mean(1)
    tail = {
        name: float(np.mean([[point[name] for point in run[-late:]] for run in runs]))
        for name in runs[0][-1]
        if name not in ("steps", "rollouts", "score")
    }
    return {
        "score": finals.mean(),
        "interval": interval(finals),
        "seeds": finals,
        "over training": scores.mean(1),
        "steps to the target": [reached(run, "steps") for run in runs],
        "rollouts to the target": [reached(run, "rollouts") for run in runs],
        "rollouts": float(np.mean([run[-1]["rollouts"] for run in runs])),
        "steps": float(np.mean([run[-1]["steps"] for run in runs])),
        "at the end": tail,
        "curve": scores,
    }


def draw(rungs: dict[str, dict[str, Any]], runs: dict[str, list[list[dict[str, float]]]]) -> None:
    """Draw scores with those of the paper, and curves against batches and against sampled answers."""
    figure, axes = panels(3)
    places = np.arange(len(rungs))
    scores = np.array([100 * rung["score"] for rung in rungs.values()])
    bounds = 100 * np.array([rung["interval"] for rung in rungs.values()])
    for color, place, rung in zip(COLORS, places, rungs.values(), strict=False):
        axes[0].plot(np.full(len(SEEDS), place), 100 * np.array(rung["seeds"]), ".", color=color, alpha=0.5)
    axes[0].errorbar(
        places, scores, [scores - bounds[:, 0], bounds[:, 1] - scores], fmt="o", color=COLORS[7], label="here, avg@4"
    )
    axes[0].plot(places[: len(PAPER)], list(PAPER.values()), "s--", color=COLORS[6], label="paper, AIME 2024 avg@32")
    axes[0].axhline(ELSEWHERE, color=COLORS[6], linewidth=0.8, linestyle=":", label="DeepSeek-R1-Zero-Qwen-32B")
    axes[0].set_xticks(places, list(rungs), rotation=25, ha="right", fontsize=8)
    axes[0].set(title="score, %")
    for axis, unit in ((axes[1], "steps"), (axes[2], "rollouts")):
        for color, (name, of) in zip(COLORS, runs.items(), strict=False):
            at = np.mean([[point[unit] for point in run] for run in of], axis=0)
            axis.plot(at, 100 * rungs[name]["curve"].mean(0), color=color, label=name, linewidth=1.3)
        axis.axhline(100 * TARGET, color=COLORS[6], linewidth=0.8)
        axis.set(title=f"score against {unit}", xlabel="optimizer steps" if unit == "steps" else "sampled answers")
    save(figure, __file__, [axes[0], axes[2]])


def main() -> None:
    """Train all rungs, store and plot the results; fail if all parts together add nothing."""
    cases = {f"{rung}, seed {seed}": (rung, seed) for seed in SEEDS for rung in (*RUNGS, ASIDE)}
    found = gather(__file__, __doc__, cases, begin, climb)
    runs = {rung: [found[f"{rung}, seed {seed}"] for seed in SEEDS] for rung in (*RUNGS, ASIDE)}
    rungs = {rung: summarize(of) for rung, of in runs.items()}
    names = list(RUNGS)
    added = {after: rungs[after]["seeds"] - rungs[before]["seeds"] for before, after in pairwise(names)}
    whole = rungs[names[-1]]["seeds"] - rungs[names[0]]["seeds"]
    added |= {"all of them": whole, f"{ASIDE}, against naive GRPO": rungs[ASIDE]["seeds"] - rungs[names[0]]["seeds"]}
    draw(rungs, runs)
    for name, rung in rungs.items():
        steps, rollouts = (np.array(rung[f"{unit} to the target"]) for unit in ("steps", "rollouts"))
        reaching = int((~np.isnan(steps)).sum())
        print(
            f"{name:24s} {100 * rung['score']:5.1f} [{100 * rung['interval'][0]:.1f}, {100 * rung['interval'][1]:.1f}]"
            f"  paper {PAPER.get(name, '')}  target reached by {reaching} of {len(SEEDS)}: "
            f"{np.nanmedian(steps):.0f} steps, {np.nanmedian(rollouts):.0f} rollouts"
        )
    increments = {name: over_seeds(gain) for name, gain in added.items()}
    for name, gain in increments.items():
        low, high = gain["interval"]
        print(f"{name:24s} {100 * gain['mean']:+5.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
    first = runs[names[0]][0][0]["score"]
    results = {
        "start": first,
        "target": TARGET,
        "rungs": rungs,
        "added": increments,
        "paper": PAPER,
        "elsewhere": ELSEWHERE,
    }
    claims = {"every rung is better than the start": all(rung["seeds"].mean() > first for rung in rungs.values())}
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
