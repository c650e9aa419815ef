"""Iterative GRPO: the reward model learns on while the policy improves (arXiv:2402.03300, algorithm 1).

A reward model is right about answers like those that it has learned from; a policy that is trained on it soon gives
others. So every `ref_reset_interval` batches an annotator compares the policy's newest answers, the reward model is
trained further on these comparisons with a share of older ones among them (Shao et al. 2024, section 4.1.4), and the
policy of now becomes the reference. In between the learner is GRPO on the score of the reward model.

What differs from the paper: the optimizer of the policy forgets its moments with each new reference, as in ProRL. The
comparisons come from a simulated annotator, who knows the reward of the task, two answers to each prompt. Rewards are
those of whole answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch

from operant import streams
from operant.language.configs import ModelOptions
from operant.language.engines.protocol import Engine
from operant.language.examples import Pair, Prompt, pairs
from operant.language.grpo import GRPO, GRPOConfig
from operant.language.grpo_batch import Learned
from operant.language.models import LanguageModel, load
from operant.language.packing import take
from operant.language.preferences.annotator import SimulatedAnnotator
from operant.language.preferences.items import Item, Presentation
from operant.language.reward_model import RewardModel, RewardModelConfig
from operant.language.rewards import Rewards
from operant.language.rollouts import OWN_COLUMNS, Judge
from operant.language.scoring import starting_head
from operant.language.tasks import Row
from operant.ops.weights import Aggregation
from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt
from operant.runtime.learner import Metrics
from operant.runtime.run import Run
from operant.state import State, load_part

PRESETS: Mapping[str, Mapping[str, Any]] = {}
"""There is one way to do it; every field of GRPO can be set beside it."""


@dataclass(frozen=True, kw_only=True)
class IterativeGRPOConfig(GRPOConfig):
    """Hyperparameters."""

    loss_aggregation: Aggregation = "sequence_mean"
    """What a token weighs, as in GRPO (`operant.ops.token_weights`)."""
    beta: float = 0.04
    """Weight of the KL divergence to the newest reference, a nat a token."""
    ref_reset_interval: PositiveInt = 20
    """Batches of an iteration, after which reference and reward model are renewed, at least 1."""
    replay: Annotated[float, Interval("[0, 1)")] = 0.1
    """Share of older comparisons among those that the reward model is trained on, in [0, 1). More forget less."""
    reward_learning_rate: PositiveFloat = 3e-5
    """Step size of AdamW for the reward model."""
    reward_batch_size: PositiveInt = 32
    """Comparisons of a step of the reward model."""
    annotator_temperature: NonNegativeFloat = 1.0
    """How random the annotator's choices are, in units of the task's reward; 0: always the better answer."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.supervision != "outcome":
            raise ValueError("iterative-grpo compares whole answers: it needs supervision=outcome, got process")


class Companions(NamedTuple):
    """Who a policy learns from.

    Attributes:
        reward: the reward model's learner, trained before.
        annotator: compares answers.
        history: comparisons that the reward model has learned from before.
    """

    reward: RewardModel
    annotator: SimulatedAnnotator
    history: list[Pair]


class IterativeGRPO:
    """The learner: a `GRPO` that is judged by a `RewardModel`, which learns on.

    Args:
        config: hyperparameters.
        model: the policy.
        engine: samples from it.
        prompts: the training set.
        judge: rewards answers; the score of `reward` is part of it.
        max_tokens: longest answer, its end of sequence included.
        seed: of all chance.
        budget: prompts.
        others: the reward model, which reads the tokens that the policy writes, and the annotator.

    Attributes:
        grpo: the policy's learner.
        reward: the reward model's.
        annotator: compares answers.
        history: comparisons that the reward model had learned from before.
        newest: comparisons of this iteration.
        labeled: those of the iterations before.

    Raises:
        ValueError: the reward model has another vocabulary than the policy.
    """

    def __init__(
        self,
        config: IterativeGRPOConfig,
        model: LanguageModel,
        engine: Engine,
        prompts: Sequence[Prompt],
        judge: Judge,
        *,
        max_tokens: int,
        seed: int,
        budget: int,
        others: Companions,
    ):
        reward = others.reward
        if model.tokenizer.get_vocab() != reward.model.tokenizer.get_vocab():
            raise ValueError(
                "the reward model has another vocabulary than the policy, so it cannot learn from the policy's tokens: "
                "train it with the policy's --model or --init"
            )
        self.config, self.reward, self.annotator, self.seed = config, reward, others.annotator, seed
        self.history, self._rewards = others.history, judge
        self.newest, self.labeled = list[Pair](), list[Pair]()
        self.grpo = GRPO(config, model, engine, prompts, self._judge, max_tokens=max_tokens, seed=seed, budget=budget)

    @property
    def consumed(self) -> int:
        """Prompts asked so far."""
        return self.grpo.consumed

    @property
    def model(self) -> LanguageModel:
        """The policy."""
        return self.grpo.model

    def iterate(self) -> Metrics:
        """Improve the policy on one batch; after the last of an iteration, improve the reward model."""
        metrics = dict(self.grpo.iterate())  # which renews the reference, too
        if self.grpo.iterations % self.config.ref_reset_interval == 0 and self.newest:
            metrics |= self.retrain()
        return metrics

    def take_learned(self) -> Learned | None:
        """Return the last batch that the policy learned from, and forget it."""
        return self.grpo.take_learned()

    def _judge(self, **given: Any) -> Rewards:
        """Reward answers, and have two answers to each prompt compared."""
        size = self.config.num_generations + self.config.statistics
        for start in range(0, len(given["completions"]), size):
            pair = self.compare({name: column[start : start + size] for name, column in given.items()})
            if pair is not None:
                self.newest.append(pair)
        return self._rewards(**given)

    def compare(self, answers: Mapping[str, Sequence[Any]]) -> Pair | None:
        """Return which of two different answers to a prompt the annotator prefers; None if there is no such.

        Args:
            answers: what a reward function is given, of one prompt.
        """
        texts = answers["completions"]
        second = next((i for i, text in enumerate(texts) if text != texts[0]), None)
        if second is None:
            return None
        shown, prompt = (texts[0], texts[second]), answers["prompts"][0]
        columns = {name: column[0] for name, column in answers.items() if name not in OWN_COLUMNS}
        item = Item.of(prompt, shown)
        presentation = Presentation(item.item_id, self.annotator.name, 0, prompt, shown, (0, 1))
        outcome, _ = self.annotator.answer(presentation, columns)
        if outcome not in ("A", "B"):
            return None
        better, worse = (answers["completion_ids"][i] for i in ((0, second) if outcome == "A" else (second, 0)))
        return Pair(list(answers["prompt_ids"][0]), list(better), list(worse))

    def retrain(self) -> dict[str, Any]:
        """Train the reward model on the newest comparisons and on a share of older ones, each once."""
        older, share = [*self.history, *self.labeled], self.config.replay
        generator = streams.torch_generator(self.seed, "replay", self.grpo.iterations)
        count = min(len(older), round(len(self.newest) * share / (1 - share)))
        replayed = take(older, torch.randperm(len(older), generator=generator)[:count].tolist())
        before = self.reward.accuracies(self.newest)
        examples = self.reward.prepared([*self.newest, *replayed])
        order = torch.randperm(len(examples), generator=generator).tolist()
        losses = []
        for start in range(0, len(order), self.config.reward_batch_size):
            batch = take(examples, order[start : start + self.config.reward_batch_size])
            losses.append(float(self.reward.update(batch)["losses/reward"]))
            self.reward.consumed += len(batch)
        after = self.reward.accuracies(self.newest)
        metrics = {
            "losses/reward": sum(losses) / len(losses),
            "reward_model/accuracy_before": sum(before) / len(before),
            "reward_model/accuracy": sum(after) / len(after),
            "reward_model/comparisons": float(len(self.newest)),
            "reward_model/replayed": float(count),
        }
        self.labeled += self.newest
        self.newest = []
        return metrics

    def state_dict(self) -> State:
        """Return everything that an exact resume needs."""
        pairs = {name: [[p.prompt, p.chosen, p.rejected] for p in getattr(self, name)] for name in _PAIRS}
        return {**self.grpo.state_dict(), "reward": self.reward.state_dict(), **pairs}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state of `state_dict`, exactly."""
        own = {"reward", *_PAIRS}
        self.grpo.load_state_dict({name: part for name, part in state.items() if name not in own})
        load_part(self.reward, state, "reward")
        self.newest, self.labeled = ([Pair(*row) for row in state[name]] for name in _PAIRS)


def reward_run(folder: str) -> tuple[Run, RewardModelConfig]:
    """Return the run of the reward model to begin with, and its configuration.

    Raises:
        RunError: there is no run.
        ValueError: none is named, it is a run of another algorithm, or its model judges steps.
    """
    if not folder:
        raise ValueError("iterative-grpo needs a reward model to begin with: name its run, --reward-model RUN")
    run = Run.open(folder)
    if run.settings.algorithm != "reward-model":
        raise ValueError(
            f"{folder} is a run of {run.settings.algorithm}, but iterative-grpo trains a model of whole answers on; "
            "name a run of `operant train reward-model`"
        )
    config = run.config(RewardModelConfig)
    if config.supervision == "process":
        raise ValueError(
            f"{folder} has trained a reward model of steps (supervision=process), but iterative-grpo compares whole "
            "answers: name a run of `operant train reward-model` with supervision=outcome"
        )
    return run, config


def companions(
    config: IterativeGRPOConfig,
    rows: Sequence[Row],
    known: Judge | None,
    *,
    limits: Mapping[str, int],
    seed: int,
    budget: int,
    device: str,
) -> Companions:
    """Return the reward model of a run, ready to be trained further, and an annotator.

    Args:
        config: names the run (`reward_model`).
        rows: pairs that the reward model has learned from.
        known: the reward that the annotator knows.
        limits: of their lengths, as `operant.language.examples.pairs` takes them.
        seed: of the learner; which seed of the run, too, if it has that.
        budget: prompts.
        device: where the reward model goes.

    Raises:
        RunError: there is no run.
        ValueError: none is named, it is a run of another algorithm, or nothing can play the annotator.
    """
    _, own = reward_run(config.reward_model)
    if known is None:
        raise ValueError("iterative-grpo needs a built-in task, or --rewards, whose reward plays the annotator")
    model = load(ModelOptions(init=config.reward_model, remote_code=config.remote_code), seed=seed, device=device)
    further = replace(
        own,
        learning_rate=config.reward_learning_rate,
        lr_schedule="constant",
        warmup_ratio=0.0,
        micro_batch_tokens=config.micro_batch_tokens,
    )
    head = starting_head(config.reward_model, model, seed=seed)
    return Companions(
        RewardModel(further, model, [], seed=seed, budget=budget, head=head),
        SimulatedAnnotator(_plain(known), seed=seed, temperature=config.annotator_temperature),
        pairs(model.tokenizer, rows, eos_ids=model.stop, **limits),
    )


def _plain(judge: Judge) -> Callable[..., list[float | None]]:
    """Return several reward functions with weights as one that returns a list."""

    def reward(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> Any:
        found = judge(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        return [value if there else None for value, there in zip(found.total.tolist(), found.valid, strict=True)]

    return reward


_PAIRS = ("newest", "labeled")
