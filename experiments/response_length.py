"""Claim: dividing the loss by the length makes wrong answers longer (Liu et al. 2025, arXiv:2503.20783, section 3.1).

With the mean over an answer's tokens, each token of a long answer has a smaller gradient. So wrong answers grow, and
right answers shrink. Dr. GRPO divides by a constant, and uses the advantage without the standard deviation of the
group.

Sums of two digits, where length is free: an answer is a result and a tail of any length, and only the result is
rewarded. In half of the demonstrations the result is wrong and the tail consists of question marks, else of dots, six
on average. So the initial policy distinguishes its right and wrong answers, and has no reason to write more or less.
Three variants of the same learner, five seeds, the same start: GRPO, GRPO without the standard deviation, Dr. GRPO.
Every few batches the mean lengths of right and wrong answers are measured on 560 samples.

    python experiments/response_length.py            # about five minutes; resumes where it stopped
    python experiments/response_length.py --draw
"""

from typing import Any

import numpy as np
from arms import band, gather, interval, over_seeds
from checks import COLORS, conclude, panels, save
from small_models import demonstrate, learner_of, reinforce, small

from operant import streams
from operant.language import GRPOConfig, examples
from operant.language.engines import NativeEngine, Sampling
from operant.language.evaluation import ask
from operant.language.models import LanguageModel
from operant.language.tasks import Row, Task
from operant.state import State

SEEDS, BATCHES, EVERY, DOTS, LONGEST = range(5), 60, 5, 6, 48
WAYS: dict[str, dict[str, str]] = {
    "GRPO": {"loss_aggregation": "sequence_mean", "advantage": "group"},
    "GRPO without deviation": {"loss_aggregation": "sequence_mean", "advantage": "mean"},
    "Dr. GRPO": {"loss_aggregation": "constant", "advantage": "mean"},
}
COMMON: dict[str, Any] = {"prompts_per_batch": 16, "num_generations": 16, "learning_rate": 3e-4, "warmup_ratio": 0.05}


def make(generator: np.random.Generator) -> Row:
    """Draw an addition task."""
    first, second = generator.integers(10, size=2)
    return {"prompt": f"{first}+{second}=", "completion": f"{first + second} ", "answer": f"{first + second}"}


def first_word(completions: list[str], answer: list[str], **_: object) -> list[float | None]:
    """Reward 1 if the result is right, whatever follows, else 0."""
    return [float(text.split(" ")[0] == right) for text, right in zip(completions, answer, strict=True)]


TASK = Task("sums with tails", "Add two digits, as in 3+4=", make, (first_word,), max_completion_length=LONGEST)


def begin() -> tuple[LanguageModel, State]:
    """Return a model trained on right and wrong results with additional text."""
    generator = np.random.default_rng(streams.seed_sequence(0, "demonstrations"))
    rows = TASK.rows("train", 6000, seed=0, distinct=False)
    for row in rows:
        result = row["answer"] if generator.random() < 0.5 else f"{generator.integers(19)}"
        dots = min(int(generator.geometric(1 / (DOTS + 1))) - 1, LONGEST - 5)
        row["completion"] = f"{result} {('.' if result == row['answer'] else '?') * dots}"
    model = small()
    return model, demonstrate(model, rows, epochs=10, learning_rate=4e-3)


def look(model: LanguageModel, seed: int) -> dict[str, float]:
    """Return the accuracy and the mean length in tokens of right and wrong answers to the prompts of training."""
    prompts = examples.prompts(model.tokenizer, TASK.rows("train", 70, seed=0), max_prompt_length=16)
    generator = streams.torch_generator(seed, "lengths")
    limit = Sampling(max_tokens=LONGEST)
    answers = ask(NativeEngine(model), prompts, 8, limit, tokenizer=model.tokenizer, generator=generator)
    right = np.array(first_word(answers.texts, [p.row["answer"] for p in answers.prompts]), dtype=bool)
    lengths = np.array([len(c.ids) for c in answers.completions], dtype=float)
    means = {name: float(lengths[of].mean()) if of.any() else np.nan for name, of in ways_to_end(right)}
    return {"accuracy": float(right.mean()), **means}


def ways_to_end(right: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return names and masks of right and wrong answers."""
    return [("right", right), ("wrong", ~right)]


def learn(model: LanguageModel, start: State, way: str, seed: int) -> list[dict[str, float]]:
    """Train one variant, and measure every few batches and before the first."""
    model.load_state_dict(start)
    config = GRPOConfig(**{**COMMON, **WAYS[way]})
    seen = [{"batches": 0.0, **look(model, seed)}]

    def watch(learner: Any, metrics: dict[str, float]) -> None:
        if learner.iterations % EVERY == 0:
            seen.append({"batches": float(learner.iterations), **look(model, seed)})

    learner = learner_of(model, TASK, config, seed=seed, batches=BATCHES, train_rows=70)
    reinforce(learner, BATCHES, watch)
    return seen


def draw(curves: dict[str, np.ndarray], at: np.ndarray) -> None:
    """Draw lengths and accuracy: the mean of the seeds and its interval."""
    figure, axes = panels(3)
    titles = ("wrong answers, tokens", "right answers, tokens", "accuracy")
    for axis, kind, title in zip(axes, ("wrong", "right", "accuracy"), titles, strict=True):
        for color, way in zip(COLORS, WAYS, strict=False):
            band(axis, at, curves[f"{way}: {kind}"], color=color, label=way)
        axis.set(title=title, xlabel="batches")
    save(figure, __file__, axes)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    cases = {f"{way}, seed {seed}": (way, seed) for seed in SEEDS for way in WAYS}
    found = gather(__file__, __doc__, cases, begin, learn)
    curves = {
        f"{way}: {kind}": np.array(
            [[point[kind] for point in found[f"{way}, seed {seed}"]] for seed in SEEDS], dtype=float
        )
        for way in WAYS
        for kind in ("wrong", "right", "accuracy")
    }
    at = np.arange(BATCHES // EVERY + 1) * EVERY
    growth = {way: growths(curves[f"{way}: wrong"]) for way in WAYS}
    shrinking = {way: growths(curves[f"{way}: right"]) for way in WAYS}
    difference = growth["GRPO"] - growth["Dr. GRPO"]
    claims = {
        "GRPO: what is wrong grows, for every seed": bool((growth["GRPO"] > 0).all()),
        "it grows more than with Dr. GRPO": interval(difference)[0] > 0,
    }
    draw(curves, at)
    for way in WAYS:
        print(way, "wrong", growth[way].round(2), "right", shrinking[way].round(2))
    results = {
        "growth of wrong answers": {way: over_seeds(g) for way, g in growth.items()},
        "growth of right answers": {way: over_seeds(g) for way, g in shrinking.items()},
        "GRPO less Dr. GRPO": {"mean": difference.mean(), "interval": interval(difference)},
        "final accuracy": {way: curves[f"{way}: accuracy"][:, -1] for way in WAYS},
        "batches": at,
        "curves": curves,
    }
    conclude(__file__, results, [], claims)


def growths(table: np.ndarray) -> np.ndarray:
    """Return by how many tokens the mean of the last quarter is above the first point, for each seed."""
    return np.nanmean(table[:, -(table.shape[1] // 4) :], axis=1) - table[:, 0]


if __name__ == "__main__":
    main()
