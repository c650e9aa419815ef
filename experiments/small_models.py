"""Helpers of the experiments about language models: a small model, its initial training, and GRPO on its answers.

Models have some ten thousand to a hundred thousand parameters and read single characters, tasks are short sums, so
that a hundred batches take seconds: enough to see the direction of an effect, not its size in large models.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from operant.language import GRPO, SFT, GRPOConfig, SFTConfig, examples
from operant.language.engines.native import NativeEngine
from operant.language.evaluation import sampled
from operant.language.models import LanguageModel, random_network
from operant.language.optimizer import OptimizerStep
from operant.language.rewards import combine
from operant.language.tasks import Task
from operant.language.tokenizer import character_tokenizer, stop_ids
from operant.state import State, clone

PROMPT = 64
"""Maximum number of tokens of a prompt."""


def small(*, width: int = 64, layers: int = 2, heads: int = 4, seed: int = 0) -> LanguageModel:
    """Return a Llama with random weights that reads characters."""
    tokenizer = character_tokenizer()
    network = random_network("llama", width, layers, heads, inner=2 * width, seed=seed)
    return LanguageModel(network, tokenizer, stop=stop_ids(tokenizer, None))


def demonstrate(
    model: LanguageModel, rows: Sequence[dict[str, Any]], *, epochs: float, seed: int = 0, **values: Any
) -> State:
    """Fine-tune a model on demonstrations, and return its weights.

    Args:
        model: is changed.
        rows: prompt and completion each.
        epochs: number of passes over the data.
        seed: seed of the order.
        **values: fields of `SFTConfig` that differ from `learning_rate=2e-3`, a cosine and `weight_decay=0.1`.
    """
    config = SFTConfig(
        **{
            "learning_rate": 2e-3,
            "lr_schedule": "cosine",
            "warmup_ratio": 0.05,
            "weight_decay": 0.1,
            "keep_best": False,
        }
        | values
    )
    limits = {"max_prompt_length": PROMPT, "max_completion_length": 10 * PROMPT}
    samples = examples.demonstrations(model.tokenizer, rows, eos_ids=model.stop, **limits)
    learner = SFT(config, model, samples, samples[:1], seed=seed, budget=round(epochs * len(samples)))
    while learner.consumed < learner.budget:
        learner.iterate()
    return clone(model.state_dict())


def erring(task: Task, *, rows: int, epochs: float, seed: int = 0, **values: Any) -> tuple[LanguageModel, State]:
    """Return a small model, and its weights, after demonstrations of which half have a mistake and its consequences.

    So the policy knows what is right and is not sure of it, as one that has read much: there is something to explore.

    Args:
        task: has answers of steps.
        rows: demonstrations.
        epochs: number of passes over the demonstrations.
        seed: seed of weights, demonstrations and order.
        **values: as of `demonstrate`.
    """
    model = small(seed=seed)
    shown = [
        {"prompt": row["prompt"], "completion": "\n".join(row["completions"])}
        for row in task.stepwise_rows("train", rows, seed=seed)
    ]
    return model, demonstrate(model, shown, epochs=epochs, seed=seed, **values)


class Examination:
    """Held-out prompts of a task, and the evaluation of a model on them.

    Args:
        model: whose tokenizer reads them.
        task: makes and rewards them.
        prompts: number of prompts.
        max_tokens: longest answer; None: the task's.
    """

    def __init__(self, model: LanguageModel, task: Task, *, prompts: int, max_tokens: int | None = None):
        self.prompts = examples.prompts(
            model.tokenizer, task.rows("held-out", prompts, seed=0), max_prompt_length=PROMPT
        )
        self.rewards = combine(list(task.rewards), None)
        self.max_tokens = max_tokens or task.max_completion_length

    def average(self, model: LanguageModel, count: int, *, seed: int = 0) -> float:
        """Return the mean reward of `count` answers to each prompt, drawn at temperature 1 (avg@count)."""
        return sampled(model, self.prompts, self.rewards, max_tokens=self.max_tokens, count=count, seed=seed).average


class Recorder(OptimizerStep):
    """Optimizer step that stores gradients without updates, so that every batch is sampled from the same policy.

    Attributes:
        gradients: `[D]` of each optimizer step.
    """

    def __init__(self, learner: GRPO):
        super().__init__(learner.model.trained(), learner.config)
        self.gradients: list[torch.Tensor] = []
        self.steps = 1  # nothing is checked as at a start

    def step(self, progress: float) -> tuple[torch.Tensor, float]:
        """Store the gradient, and clear the accumulated one."""
        flat = torch.cat([value.grad.flatten() for value in self.parameters.values() if value.grad is not None])
        for value in self.parameters.values():
            value.grad = None
        self.gradients.append(flat)
        return flat.norm(), 0.0


def learner_of(
    model: LanguageModel, task: Task, config: GRPOConfig, *, seed: int, batches: int, train_rows: int
) -> GRPO:
    """Return a learner that continues from the current weights of a model.

    Args:
        model: is trained.
        task: makes prompts and rewards answers.
        config: configuration of GRPO; `max_completion_length` may cut answers earlier than the task does.
        seed: seed of prompts, their order, and sampling.
        batches: number of batches.
        train_rows: prompts to train on.
    """
    prompts = examples.prompts(model.tokenizer, task.rows("train", train_rows, seed=seed), max_prompt_length=PROMPT)
    longest, budget = config.max_completion_length or task.max_completion_length, batches * config.prompts_per_batch
    rewards = combine(list(task.rewards), None)
    return GRPO(config, model, NativeEngine(model), prompts, rewards, max_tokens=longest, seed=seed, budget=budget)


def reinforce(
    learner: GRPO, batches: int, watch: Callable[[GRPO, dict[str, float]], None] = lambda learner, metrics: None
) -> list[dict[str, float]]:
    """Train with GRPO or a variant, and return the metrics of every batch.

    Args:
        learner: as of `learner_of`.
        batches: number of batches.
        watch: sees the learner and the metrics after each batch, and may add to them.

    Returns:
        Metrics of every batch, with `prompts` asked, `rollouts` sampled and optimizer `steps` taken so far.
    """
    records: list[dict[str, float]] = []
    for _ in range(batches):
        metrics = {name: float(value) for name, value in learner.iterate().items()}
        config, asked = learner.config, learner.consumed
        metrics |= {
            "prompts": float(asked),
            "rollouts": float(asked * (config.num_generations + config.statistics)),
            "steps": float(learner.stepper.steps),
        }
        watch(learner, metrics)
        records.append(metrics)
    return records
