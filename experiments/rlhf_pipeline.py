"""Claim: demonstrations, preferences and PPO raise a hidden reward; without the KL term it is over-optimized.

The whole pipeline of Ouyang et al. 2022 (arXiv:2203.02155) on the task `preference`, whose hidden reward only the
simulated annotator knows: supervised fine-tuning on the grammar; two answers of that policy to each of 2500 prompts; an
annotator who prefers by the hidden reward, with the noise of Bradley and Terry; the labels exported as pairs; a reward
model fitted to them; PPO on its score. Five seeds, each with demonstrations, answers, labels and models of its own. The
step sizes were chosen on seeds 100 and 101. What is reported is of answers to held-out prompts, drawn at temperature 1.

- The hidden reward must rise by one standard deviation over the SFT policy's answers, with at most 10 nats of
  KL(policy‖SFT) per answer; the 95 % interval of the gain over the seeds must be above 0.
- Over-optimization (Gao et al. 2022, arXiv:2210.10760): without the KL (β = 0) the score of the reward model keeps
  rising while the hidden reward falls.

    python experiments/rlhf_pipeline.py            # run missing seeds, about 3 minutes per seed
    python experiments/rlhf_pipeline.py --draw     # plot the results so far
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms import interval, over_seeds
from checks import COLORS, conclude, panels, rounded, save

import operant
from operant import streams
from operant.catalog import find
from operant.language import assemble, configuration, examples, tasks
from operant.language.configs import ModelOptions
from operant.language.engines import NativeEngine, Sampling
from operant.language.evaluation import ask
from operant.language.models import LanguageModel, load
from operant.language.preferences import Completion, Item, PreferenceStore, SimulatedAnnotator, export
from operant.language.rollouts import Answers
from operant.language.scoring import load_scorer
from operant.language.tasks.writing import hidden
from operant.runtime.settings import Settings

SEEDS, TASK, HELD_OUT = range(5), "preference", 200
RUNS = Path(__file__).parents[1] / "runs" / "rlhf_pipeline"
SFT: dict[str, Any] = {
    "budget": 5_000,
    "train_examples": 4_000,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "lr_schedule": "cosine",
    "warmup_ratio": 0.05,
    "weight_decay": 0.1,
    "validations": 5,
    "held_out": 100,
}
QUIETLY: dict[str, Any] = {"progress": "silent", "threads": 1}
LABELS, TEMPERATURE = 2_500, 0.2
REWARD: dict[str, Any] = {
    "budget": 5_000,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "lr_schedule": "cosine",
    "warmup_ratio": 0.05,
}
PPO: dict[str, Any] = {
    "prompts_per_batch": 64,
    "num_iterations": 1,
    "num_minibatches": 4,
    "learning_rate": 5e-4,
    "critic_learning_rate": 1e-3,
    "critic_warmup": 2,
    "warmup_ratio": 0.0,
    "betas": (0.9, 0.999),
}
ARMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "β = 0.1": ("ppo-with-kl", 16, {"beta": 0.1, "lr_schedule": "linear"}),
    "β = 0": ("ppo-without-kl", 24, {"beta": 0.0, "lr_schedule": "constant"}),
}
"""File, batches and what is particular: the first must end well, the second continues longer."""
EVERY = 4


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """Return the result of a stage; an unfinished stage starts again."""
    if not path.exists():
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        began = time.process_time()
        found = make() | {"CPU seconds": time.process_time() - began}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rounded(found)) + "\n")
        print(
            path.parent.name,
            path.stem,
            {k: v for k, v in rounded(found).items() if not isinstance(v, list)},
            flush=True,
        )
    return json.loads(path.read_text())


def questions(model: LanguageModel, split: Any, count: int, *, seed: int) -> list[examples.Prompt]:
    """Return prompts of the task."""
    return examples.prompts(model.tokenizer, tasks.find(TASK).rows(split, count, seed=seed))


def answered(model: LanguageModel, asked: Sequence[examples.Prompt], count: int, *, seed: int) -> Answers:
    """Return answers drawn at temperature 1."""
    limit = Sampling(max_tokens=tasks.find(TASK).max_completion_length)
    generator = streams.torch_generator(seed, "answers of the experiment")
    return ask(NativeEngine(model), asked, count, limit, tokenizer=model.tokenizer, generator=generator)


def liked(answers: Answers) -> np.ndarray:
    """Return the hidden reward of each answer."""
    return np.array(hidden([p.row["prompt"] for p in answers.prompts], answers.texts), dtype=np.float64)


def imitate(run: Path, seed: int) -> dict[str, Any]:
    """Fine-tune a new model on demonstrations."""
    budget = SFT["budget"]
    trained = operant.train("sft", TASK, seeds=(seed,), run=run, evaluate_every=budget, **QUIETLY, **SFT)
    model = trained.experiment.learner.learners[0].model
    rewards = liked(answered(model, questions(model, "held-out", HELD_OUT, seed=0), 4, seed=seed))
    return {
        "hidden": rewards.mean(),
        "deviation": rewards.std(ddof=1),
        "loss": trained.experiment.learner.learners[0].least,
    }


def label(folder: Path, seed: int) -> dict[str, Any]:
    """Compare two answers to each prompt, and export the choices as pairs."""
    folder.mkdir(parents=True)
    model = load(ModelOptions(init=str(folder.with_name("sft"))), seed=seed)
    answers = answered(model, questions(model, "train", LABELS, seed=seed), 2, seed=seed)
    rows = zip(answers.prompts[::2], zip(answers.texts[::2], answers.texts[1::2], strict=True), strict=True)
    items = [Item.of(p.row["prompt"], [Completion(t) for t in both]) for p, both in rows if both[0] != both[1]]
    with PreferenceStore(folder / "preferences.sqlite", seed=seed) as store:
        store.add_items(items)
        SimulatedAnnotator(hidden, seed=seed, temperature=TEMPERATURE).label(store)
        pairs = export(store, folder / "pairs.jsonl")
    rewards = liked(answers).reshape(-1, 2)
    return {"pairs": pairs.rows, "gap": np.abs(rewards[:, 0] - rewards[:, 1]).mean()}


def fit(run: Path, seed: int) -> dict[str, Any]:
    """Fit a reward model to the pairs."""
    pairs, sft = run.with_name("labels") / "pairs.jsonl", run.with_name("sft")
    trained = operant.train(
        "reward-model", TASK, seeds=(seed,), run=run, dataset=str(pairs), init=str(sft),
        evaluate_every=REWARD["budget"], **QUIETLY, **REWARD,
    )  # fmt: skip
    model = load(ModelOptions(init=str(sft)), seed=seed)
    answers = answered(model, questions(model, "held-out", HELD_OUT, seed=0), 4, seed=seed)
    scores = scored(load_scorer(str(run), seed=seed), answers)
    accuracy = trained.outcome.evaluation.mean if trained.outcome else None
    return {"accuracy": accuracy, "correlation": np.corrcoef(liked(answers), scores)[0, 1], "deviation": scores.std()}


def scored(scorer: Any, answers: Answers) -> np.ndarray:
    """Return the reward model's score of each answer."""
    ids, cut = [c.ids for c in answers.completions], [c.truncated for c in answers.completions]
    asked = [p.prompt for p in answers.prompts]
    return np.array(scorer([""] * len(ids), answers.texts, ids, prompt_ids=asked, truncated=cut))


def improve(run: Path, seed: int, batches: int, change: dict[str, Any]) -> dict[str, Any]:
    """Train the policy by PPO with the reward model, and measure it during training."""
    entry, sft, reward = find("rlhf"), str(run.with_name("sft")), str(run.with_name("reward-model"))
    config = configuration(entry, TASK, init=sft, reward_model=reward, **PPO, **change)
    budget = batches * config.prompts_per_batch
    experiment = assemble(entry, Settings("rlhf", TASK, (seed,), budget), config, device="cpu")
    learner, base, scorer = (
        experiment.learner.learners[0],
        load(ModelOptions(init=sft), seed=seed),
        load_scorer(reward, seed=seed),
    )
    asked = questions(base, "held-out", HELD_OUT, seed=0)
    curves: dict[str, list[Any]] = {name: [] for name in ("step", "hidden", "proxy", "KL", "characters", "sample")}
    for step in range(batches + 1):
        if step % EVERY == 0:
            answers = answered(learner.model, asked, 1, seed=seed)
            samples = answers.samples()
            own, ref = (
                [float(row.sum()) for row in model.completion_log_probs(samples, tokens=config.micro_batch_tokens)]
                for model in (learner.model, base)
            )
            now = (
                step,
                liked(answers).mean(),
                scored(scorer, answers).mean(),
                np.mean(np.subtract(own, ref)),
                np.mean([len(text) for text in answers.texts]),
                f"{asked[0].row['prompt']} {answers.texts[0]}",
            )
            for name, value in zip(curves, now, strict=True):
                curves[name].append(value)
            print(*(f"{v:.3g}" if isinstance(v, float) else v for v in now), flush=True)
        if step < batches:
            learner.iterate()
    return curves


def pipeline(seed: int, arm: str) -> None:
    """Run the missing stages of one seed, up to an arm of PPO."""
    folder, (name, batches, change) = RUNS / f"seed-{seed}", ARMS[arm]
    stages: dict[str, Callable[[], Any]] = {
        "sft": lambda: imitate(folder / "sft", seed),
        "labels": lambda: label(folder / "labels", seed),
        "reward-model": lambda: fit(folder / "reward-model", seed),
        name: lambda: improve(folder / name, seed, batches, change),
    }
    for stage, make in stages.items():
        kept(folder / f"{stage}.json", make)


def draw(found: dict[int, dict[str, Any]]) -> None:
    """Plot the available seeds as thin lines, and their mean as a thick one."""
    figure, axes = panels(2, 2)
    titles = {"hidden": "hidden reward", "proxy": "score of the reward model", "KL": "KL(policy‖SFT), nats per answer"}
    for color, (arm, (file, _, _)) in zip(COLORS, ARMS.items(), strict=False):
        runs = [stages[file] for stages in found.values() if file in stages]
        if not runs:
            continue
        steps = np.array(runs[0]["step"])
        for axis, name in zip(axes, titles, strict=False):
            rows = np.array([run[name] for run in runs])
            axis.plot(steps, rows.T, color=color, alpha=0.3, linewidth=0.8)
            axis.plot(steps, rows.mean(0), color=color, linewidth=2, label=arm)
        for run in runs:
            axes[3].plot(run["KL"], run["hidden"], color=color, alpha=0.6, linewidth=1, marker="o", markersize=3)
    for axis, (name, title) in zip(axes, titles.items(), strict=False):
        axis.set(title=title, xlabel="batches of PPO", yscale="symlog" if name == "KL" else "linear")
    start = np.mean([stages["sft"]["hidden"] for stages in found.values()])
    deviation = np.mean([stages["sft"]["deviation"] for stages in found.values()])
    axes[0].axhline(start + deviation, color=COLORS[6], linestyle="--", linewidth=1, label="SFT + its deviation")
    axes[3].axvline(10, color=COLORS[6], linestyle="--", linewidth=1)
    axes[3].set(title="hidden reward against divergence", xlabel="KL(policy‖SFT), nats per answer", xscale="symlog")
    axes[3].set_xlim(left=-0.2)
    save(figure, __file__, axes[:1])


def concluded(found: dict[int, dict[str, Any]]) -> None:
    """Store the results and the claims."""
    with_kl, without = (
        {name: np.array([stages[file][name] for stages in found.values()]) for name in ("hidden", "proxy", "KL")}
        for file, _, _ in ARMS.values()
    )
    deviation = np.array([stages["sft"]["deviation"] for stages in found.values()])
    gain = (with_kl["hidden"][:, -1] - with_kl["hidden"][:, 0]) / deviation
    last, top = without["hidden"][:, -1], int(without["hidden"].mean(0).argmax())
    lost = without["hidden"][:, top] - last
    between = interval(with_kl["hidden"][:, -1] - last)
    results = {
        "settings": {"sft": SFT, "labels": LABELS, "temperature": TEMPERATURE, "reward": REWARD, "ppo": PPO, **ARMS},
        "gain in deviations of the SFT policy": over_seeds(gain),
        "KL at the end": {"mean": with_kl["KL"][:, -1].mean(), "seeds": with_kl["KL"][:, -1]},
        "without KL": {
            "batch of the best hidden reward, on average": top * EVERY,
            "hidden reward then minus at the end": {
                "mean": lost.mean(),
                "interval": interval(lost),
            },
            "hidden with KL minus without, at the end": {
                "mean": (with_kl["hidden"][:, -1] - last).mean(),
                "interval": between,
            },
            **{f"{name} at the end": without[name][:, -1] for name in ("KL", "proxy", "hidden")},
        },
        "seeds": found,
    }
    shown = {name: value for name, value in results.items() if name not in ("seeds", "settings")}
    print(json.dumps(rounded(shown), indent=1, ensure_ascii=False))
    claims = {
        "the hidden reward rises by a standard deviation of the SFT policy's, on average over the seeds": gain.mean()
        >= 1,
        "the interval of the gain is above 0": interval(gain)[0] > 0,
        "KL(policy‖SFT) is at most 10 nats with every seed": bool((with_kl["KL"][:, -1] <= 10).all()),
        "without KL the score of the reward model ends higher": without["proxy"][:, -1].mean()
        > with_kl["proxy"][:, -1].mean(),
        "without KL the hidden reward ends lower": between[0] > 0,
    }
    conclude(__file__, results, [], claims)


def main() -> None:
    """Run missing seeds, store and plot the results; fail if a claim does not hold."""
    parser = argparse.ArgumentParser(description="The pipeline from demonstrations to PPO")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--draw", action="store_true", help="plot the results so far, train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.draw:
        for arm in ARMS:
            for seed in arguments.seeds:
                pipeline(seed, arm)
    found = {
        seed: {path.stem: json.loads(path.read_text()) for path in (RUNS / f"seed-{seed}").glob("*.json")}
        for seed in SEEDS
    }
    found = {seed: stages for seed, stages in found.items() if stages}
    draw(found)
    if all(name in found.get(seed, {}) for seed in SEEDS for name, _, _ in ARMS.values()):
        concluded(found)


if __name__ == "__main__":
    main()
