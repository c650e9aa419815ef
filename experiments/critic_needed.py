"""Question: does GRPO need no critic because it has no intermediate rewards?

GRPO rewards an answer once, at its end, and uses the mean of a group of answers as baseline; it has no critic. If that
works because there are no intermediate rewards, a critic should be better as soon as there are some: a baseline per
answer does not depend on the position in the answer.

Both cases use one task, writing about two animals. Each kind word of an answer gives 1 and each invalid word -1; an
answer has at most 64 tokens. The total reward of an answer is the same in all arms, only its timing differs. Paid at
the end, with the last token:

- group: all tokens get the total reward of their answer minus the mean of its group;
- critic: generalized advantage estimates, with λ = 0.95 or with λ = 1, which uses the critic only as a baseline.

Paid at once, with the last letter of each word:

- group, steps: process supervision of GRPO, whose tokens get the rewards of the words that end later, each less the
  mean of all (Shao et al. 2024, arXiv:2402.03300, section 4.1.3);
- group, to go: tokens get the rewards-to-go minus their mean over the group at the same token; with λ = 0.95 a reward
  k tokens ahead has the weight 0.95^k, as in generalized advantage estimates with a constant critic;
- critic: as above.

All arms use the same number of prompts, answers and steps, the same clip range and equal token weights, and divide
advantages by the standard deviation of the batch (process supervision by that of the group). Five seeds vary
demonstrations, initialization, prompts and sampling; all arms of a seed start from the same weights. The learning rates
were chosen on seed 100. The results are the total rewards of the answers sampled for training, against the number of
tokens sampled before, and the explained variance of the critic before it learns from a batch. The only claim is that
all arms learn; the question is answered by the results.

    python experiments/critic_needed.py            # about ten minutes; resumes where it stopped
    python experiments/critic_needed.py --draw
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from arms import band, gather, over_seeds
from checks import COLORS, conclude, panels, save
from small_models import PROMPT, demonstrate, small
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from operant.language import GRPO, RLHF, GRPOConfig, RLHFConfig, examples
from operant.language.critic import Critic
from operant.language.engines.native import NativeEngine
from operant.language.models import LanguageModel
from operant.language.process_rewards import StepRewards, step_rewards_of
from operant.language.rewards import combine
from operant.language.rollouts import Rollout
from operant.language.tasks import find
from operant.language.tasks.writing import ADJECTIVES, KIND, NOUNS, VERBS
from operant.language.token_rewards import token_advantages, whitened
from operant.state import State

SEEDS, BATCHES, LONGEST, DEMONSTRATIONS = range(5), 20, 64, 4000
COMMON: dict[str, Any] = {
    "prompts_per_batch": 16,
    "num_generations": 8,
    "num_minibatches": 4,
    "num_iterations": 1,
    "learning_rate": 5e-4,
    "lr_schedule": "linear",
    "importance_sampling_correction": "none",
}
CRITIC: dict[str, Any] = {"beta": 0.0, "critic_learning_rate": 1e-3, "clip_range_vf": None}
END, ONCE = "paid at the end", "paid at once"
WORDS = {"the", *NOUNS, *VERBS, *ADJECTIVES}


def word_rewards(prompt: str, completion: str) -> list[tuple[int, float]]:
    """Return the end of each word of an answer, in characters, and its reward."""
    return [
        (word.end(), 1.0 if word[0] in KIND else 0.0 if word[0] in WORDS else -1.0)
        for word in re.finditer(r"[^ .]+", completion)
    ]


def worth(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float | None]:
    """Return the total reward of each answer."""
    return [sum(r for _, r in word_rewards(*pair)) for pair in zip(prompts, completions, strict=True)]


TASK = replace(find("preference"), rewards=(worth,), step_rewards=word_rewards, max_completion_length=LONGEST)


def payments(steps: StepRewards, rollout: Rollout) -> list[Tensor]:
    """Return the rewards of all tokens of the answers, `[l]` each: that of a word is at its last token."""
    answers, rows = rollout.answers, list[Tensor]()
    for completion, *table in zip(answers.completions, *steps(answers.prompts, answers.completions), strict=True):
        rewards, ends, exists = table
        rows.append(torch.zeros(len(completion.ids)).index_add(0, ends[exists], rewards[exists]))
    assert torch.equal(torch.stack([row.sum() for row in rows]), rollout.judged.total)
    return rows


class ToGo(GRPO):
    """GRPO whose token advantages are rewards-to-go minus their mean over the group at the same token."""

    lam = 1.0

    def estimate_advantages(self, rollout: Rollout) -> Any:
        """Return the advantage of every token."""
        assert self.steps is not None
        rewards = payments(self.steps, rollout)
        after, nothing = torch.zeros(len(rewards)), [torch.zeros_like(row) for row in rewards]
        to_go = token_advantages(rewards, nothing, after, cut=after.bool(), gamma=1.0, lam=self.lam)
        table = pad_sequence(to_go, batch_first=True).unflatten(0, (-1, rollout.group))
        distances = (table - table.mean(1, keepdim=True)).flatten(0, 1)
        rows = [row[: len(own)] for row, own in zip(distances, to_go, strict=True)]
        return super().estimate_advantages(rollout)._replace(advantages=whitened(rows))


class Soon(ToGo):
    """The same with discounted rewards."""

    lam = 0.95


class Paying(RLHF):
    """PPO with rewards of single tokens."""

    steps: StepRewards

    def estimate_advantages(self, rollout: Rollout) -> Any:
        """Return the advantage of every token and the target of its value, and the scores of the answers."""
        batch, metrics = super().estimate_advantages(rollout)
        config, rewards = self.config, payments(self.steps, rollout)
        after = torch.zeros(len(rewards))
        advantages = token_advantages(
            rewards, batch.values, after, cut=after.bool(), gamma=config.gamma, lam=config.gae_lambda
        )
        targets = [a + v for a, v in zip(advantages, batch.values, strict=True)]
        return batch._replace(advantages=whitened(advantages), targets=targets), metrics


def group(kind: type[GRPO] = GRPO, **values: Any) -> Callable[..., GRPO]:
    """Return a factory of learners with a group baseline."""

    def make(model: LanguageModel, prompts: Any, steps: StepRewards, **common: Any) -> GRPO:
        config = GRPOConfig(**COMMON, **values)
        return kind(config, model, NativeEngine(model), prompts, combine([worth]), steps=steps, **common)

    return make


def critic(kind: type[RLHF] = RLHF, **values: Any) -> Callable[..., RLHF]:
    """Return a factory of learners with a critic, initialized as a copy of the policy with values of 0."""

    def make(model: LanguageModel, prompts: Any, steps: StepRewards, **common: Any) -> RLHF:
        config, own = RLHFConfig(**COMMON | CRITIC, **values), Critic.copy_of(model)
        learner = kind(config, model, NativeEngine(model), prompts, combine([worth]), critic=own, **common)
        if isinstance(learner, Paying):
            learner.steps = steps
        return learner

    return make


ARMS: dict[str, Callable[..., GRPO | RLHF]] = {
    f"group, {END}": group(advantage="batch"),
    f"critic, λ = 0.95, {END}": critic(gae_lambda=0.95),
    f"critic, λ = 1, {END}": critic(gae_lambda=1.0),
    f"group, steps, {ONCE}": group(supervision="process"),
    f"group, to go, {ONCE}": group(ToGo),
    f"group, to go with λ = 0.95, {ONCE}": group(Soon),
    f"critic, λ = 0.95, {ONCE}": critic(Paying, gae_lambda=0.95),
    f"critic, λ = 1, {ONCE}": critic(Paying, gae_lambda=1.0),
}
COMPARED = [
    (f"critic, λ = 1, {END}", f"group, {END}"),
    (f"critic, λ = 0.95, {END}", f"group, {END}"),
    (f"critic, λ = 1, {ONCE}", f"group, to go, {ONCE}"),
    (f"critic, λ = 0.95, {ONCE}", f"group, to go with λ = 0.95, {ONCE}"),
    (f"critic, λ = 0.95, {ONCE}", f"group, steps, {ONCE}"),
    (f"group, to go, {ONCE}", f"group, {END}"),
    (f"group, to go with λ = 0.95, {ONCE}", f"group, to go, {ONCE}"),
]


@cache
def start(seed: int) -> tuple[LanguageModel, State]:
    """Return a model trained on a few thousand demonstrations, and its weights."""
    model = small(seed=seed)
    return model, demonstrate(
        model, TASK.rows("train", DEMONSTRATIONS, seed=seed), epochs=2, seed=seed, learning_rate=3e-3
    )


def follow(arm: str, seed: int) -> dict[str, list[float]]:
    """Train an arm, and return sampled tokens, rewards and the critic's explained variance by batch."""
    model, weights = start(seed)
    model.load_state_dict(weights)
    prompts = examples.prompts(model.tokenizer, TASK.rows("train", 1000, seed=seed), max_prompt_length=PROMPT)
    budget, steps = BATCHES * COMMON["prompts_per_batch"], step_rewards_of(TASK, model.tokenizer)
    learner = ARMS[arm](model, prompts, steps, max_tokens=LONGEST, seed=seed, budget=budget)
    curves: dict[str, list[float]] = {"tokens": [], "worth": [], "explained variance": []}
    tokens = 0.0
    for _ in range(BATCHES):
        metrics = learner.iterate()
        curves["tokens"].append(tokens)
        curves["worth"].append(float(metrics["reward"]))
        if "value/explained_variance" in metrics:
            curves["explained variance"].append(float(metrics["value/explained_variance"]))
        tokens += float(metrics["completions/mean_length"]) * COMMON["prompts_per_batch"] * COMMON["num_generations"]
    print(seed, arm, *(f"{value:.2f}" for value in curves["worth"]), flush=True)
    return curves


def area(run: dict[str, list[float]]) -> float:
    """Return the mean height of a curve over the tokens sampled."""
    return float(np.trapezoid(run["worth"], run["tokens"]) / run["tokens"][-1])


def last(run: dict[str, list[float]]) -> float:
    """Return the mean of the last three batches."""
    return float(np.mean(run["worth"][-3:]))


def draw(runs: dict[str, list[dict[str, list[float]]]]) -> None:
    """Plot rewards and explained variances over sampled tokens: means of the seeds and intervals."""
    figure, axes = panels(3)
    for axis, paid in zip(axes, (END, ONCE), strict=False):
        for arm in (arm for arm in ARMS if arm.endswith(paid)):
            label = arm.removesuffix(f", {paid}")
            at = np.linspace(0, min(run["tokens"][-1] for run in runs[arm]), 40)
            table = np.array([np.interp(at, run["tokens"], run["worth"]) for run in runs[arm]])
            band(axis, at / 1000, table, color=SHADES[label], label=label)
        axis.set(title=paid, xlabel="thousand tokens sampled", ylim=(-0.7, 12))
    axes[0].set_ylabel("worth of an answer")
    for arm in (arm for arm in ARMS if arm.startswith("critic")):
        label, paid = arm.rsplit(", ", 1)
        table = np.array([run["explained variance"] for run in runs[arm]])
        style = "--" if paid == END else "-"
        band(axes[2], np.arange(1, BATCHES + 1), table, color=SHADES[label], label=arm, style=style)
    axes[2].set(title="variance of the returns that the critic explains", xlabel="batches")
    save(figure, __file__, axes)


SHADES = dict(
    zip(
        ("group", "critic, λ = 0.95", "critic, λ = 1", "group, steps", "group, to go", "group, to go with λ = 0.95"),
        COLORS,
        strict=False,
    )
)


def main() -> None:
    """Train, store and plot the results; fail if an arm does not learn."""
    cases = {f"{arm}, seed {seed}": (arm, seed) for seed in SEEDS for arm in ARMS}
    found = gather(__file__, __doc__, cases, tuple, follow)
    runs = {arm: [found[f"{arm}, seed {seed}"] for seed in SEEDS] for arm in ARMS}
    measures = {"over training": area, "at the end": last}
    scores = {name: {arm: np.array([of(run) for run in runs[arm]]) for arm in ARMS} for name, of in measures.items()}
    leads = {
        name: {f"{one} less {other}": over_seeds(table[one] - table[other]) for one, other in COMPARED}
        for name, table in scores.items()
    }
    draw(runs)
    for arm in ARMS:
        print(f"{arm:32s}", *(f"{name} {table[arm].mean():5.2f}  " for name, table in scores.items()))
    for name, gaps in leads.items():
        for pair, gap in gaps.items():
            print(f"{name:14s} {pair:68s} {gap['mean']:+.2f} ({gap['interval'][0]:+.2f} to {gap['interval'][1]:+.2f})")
    results = {name: {arm: over_seeds(values) for arm, values in table.items()} for name, table in scores.items()}
    claims = {
        f"{arm}: learns with every seed": all(last(run) > run["worth"][0] + 1 for run in runs[arm]) for arm in ARMS
    }
    conclude(__file__, {**results, "leads": leads, "curves": runs}, [], claims)


if __name__ == "__main__":
    main()
