"""Does raising the upper clip keep entropy up (DAPO; Yu et al. 2025, arXiv:2503.14476, section 3.1)?

A ratio above 1 + ε has no gradient. This caps an unlikely token at (1 + ε) times its probability: with ε = 0.2,
0.01 can become 0.012. DAPO raises only the upper ε, to 0.28; Magistral uses 0.26 to 0.3, ProRL 0.4.

The task has many right answers: `47<` asks for any larger number of two digits. The initial language model answers the
next number half of the time, and a random one otherwise. It is trained by GRPO with several passes over each batch, so
that ratios are clipped; the arms differ in nothing else. Five seeds start from the same weights. The entropies of the
second half of training are reported.

    python experiments/clip_higher.py            # about three minutes; resumes where it stopped
    python experiments/clip_higher.py --draw
"""

from typing import Any

import numpy as np
from arms import band, gather, over_seeds
from checks import COLORS, conclude, panels, save
from small_models import demonstrate, learner_of, reinforce, small

from operant.language import GRPOConfig
from operant.language.models import LanguageModel
from operant.language.tasks import Row, Task
from operant.state import State

SEEDS, BATCHES = range(5), 80
ARMS = {"0.2 / 0.2": 0.2, "0.2 / 0.28": 0.28, "0.2 / 0.4": 0.4}
COMMON: dict[str, Any] = {
    "prompts_per_batch": 16,
    "num_generations": 16,
    "num_minibatches": 2,
    "num_iterations": 4,
    "learning_rate": 3e-4,
    "warmup_ratio": 0.05,
    "loss_aggregation": "token_mean",
}
KEPT = ("entropy", "reward", "clip_ratio/high_mean", "clip_ratio/low_mean")


def make(generator: np.random.Generator) -> Row:
    """Draw a number of two digits, and a demonstration."""
    number, other = generator.integers(10, 99), generator.integers(10, 100)
    shown = number + 1 if generator.random() < 0.5 else other
    return {"prompt": f"{number}<", "completion": f"{shown}", "answer": f"{number}"}


def larger(completions: list[str], answer: list[str], **_: object) -> list[float | None]:
    """Reward 1 for a larger number of two digits, else 0."""
    return [
        float(len(text) == 2 and text.isdecimal() and text > below)
        for text, below in zip(completions, answer, strict=True)
    ]


TASK = Task("larger", "Name a larger number, as in 47<", make, (larger,), max_completion_length=4)


def begin() -> tuple[LanguageModel, State]:
    """Return a model that answers with the next number half of the time."""
    model = small()
    return model, demonstrate(model, TASK.rows("train", 8000, seed=0, distinct=False), epochs=4, learning_rate=4e-3)


def learn(model: LanguageModel, start: State, high: float, seed: int) -> dict[str, list[float]]:
    """Train with an upper clip range, and return the compared metrics."""
    model.load_state_dict(start)
    config = GRPOConfig(**COMMON, epsilon=0.2, epsilon_high=high)
    records = reinforce(learner_of(model, TASK, config, seed=seed, batches=BATCHES, train_rows=60), BATCHES)
    return {name: [record[name] for record in records] for name in KEPT}


def draw(curves: dict[str, np.ndarray]) -> None:
    """Plot the compared metrics, smoothed over five batches: the mean of the seeds and its interval."""
    figure, axes = panels(3)
    titles = ("entropy, nats per token", "reward", "tokens above the upper clip")
    for axis, name, title in zip(axes, KEPT[:3], titles, strict=True):
        for color, arm in zip(COLORS, ARMS, strict=False):
            table = np.apply_along_axis(
                lambda row: np.convolve(row, np.ones(5) / 5, "valid"), 1, curves[f"{arm}: {name}"]
            )
            band(axis, np.arange(table.shape[1]) + 3, table, color=color, label=arm)
        axis.set(title=title, xlabel="batches")
    save(figure, __file__, axes)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    cases = {f"{arm}, seed {seed}": (high, seed) for seed in SEEDS for arm, high in ARMS.items()}
    found = gather(__file__, __doc__, cases, begin, learn)
    curves = {
        f"{arm}: {name}": np.array([found[f"{arm}, seed {seed}"][name] for seed in SEEDS])
        for arm in ARMS
        for name in KEPT
    }
    late = {arm: {name: curves[f"{arm}: {name}"][:, BATCHES // 2 :].mean(1) for name in KEPT} for arm in ARMS}
    symmetric = late["0.2 / 0.2"]["entropy"]
    gains = {arm: late[arm]["entropy"] - symmetric for arm in ARMS if arm != "0.2 / 0.2"}
    clipped = [curves[f"{arm}: clip_ratio/high_mean"].mean() for arm in ARMS]
    claims = {
        "with a higher clip fewer tokens are clipped": clipped[0] > clipped[1] > clipped[2] > 0,
        "every arm learns": all(float(late[arm]["reward"].min()) > 0.9 for arm in ARMS),
    }
    draw(curves)
    for arm, measured in late.items():
        print(arm, {name: values.mean().round(4) for name, values in measured.items()})
    results = {
        "second half": late,
        "more entropy than 0.2 / 0.2": {arm: over_seeds(gain) for arm, gain in gains.items()},
        "curves": curves,
    }
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
