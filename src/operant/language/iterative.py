"""Iterative GRPO: GRPO with continued training of the reward model (arXiv:2402.03300, algorithm 1).

A reward model is accurate on answers similar to its training data, but the policy changes. Every `ref_reset_interval`
batches, an annotator compares the policy's latest answers, the reward model is trained on these comparisons mixed with
a fraction of older ones (Shao et al. 2024, section 4.1.4), and the reference is reset to the current policy. In between
the learner is GRPO on the score of the reward model.

What differs from the paper: resetting the reference also resets the policy's optimizer state, as in ProRL. A simulated
annotator, which uses the reward of the task, compares two answers to each prompt. Rewards are those of whole answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import torch

from operant import streams
from operant.language.configs import ModelOptions
from operant.language.engines.protocol import Engine
from operant.language.examples import Pair, Prompt, pairs
from operant.language.grpo import GRPO, GRPOConfig
from operant.language.grpo_batch import Learned
from operant.language.models import LanguageModel
from operant.language.packing import take
from operant.language.preferences.annotator import SimulatedAnnotator
from operant.language.preferences.items import Item, Presentation
from operant.language.processes import loaded
from operant.language.reward_model import RewardModel, RewardModelConfig
from operant.language.rewards import RewardFunctions, Rewards
from operant.language.rollouts import Sampler
from operant.language.scoring import is_classifier, starting_head
from operant.language.tasks import Row
from operant.ops.weights import Aggregation
from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt
from operant.runtime.learner import Metrics
from operant.runtime.run import Run
from operant.runtime.shards import Shards
from operant.runtime.weights import opened
from operant.state import State, load_part
from operant.tensors import floats, integers

PRESETS: Mapping[str, Mapping[str, Any]] = {}
"""There are no variants; every field of GRPO can be set."""


Columns = Mapping[str, Sequence[Any]]
"""Arguments of reward functions with one entry per completion."""
TrainerState = Mapping[str, float] | None
"""Trainer state of reward functions."""


@dataclass(frozen=True, kw_only=True)
class IterativeGRPOConfig(GRPOConfig):
    """Hyperparameters."""

    loss_aggregation: Aggregation = "sequence_mean"
    """Aggregation of the loss, as in GRPO (`operant.ops.token_weights`)."""
    beta: NonNegativeFloat = 0.04
    """Coefficient of the KL penalty to the latest reference, per nat and token."""
    ref_reset_interval: PositiveInt = 20
    """Number of batches per iteration, after which reference and reward model are updated, at least 1."""
    replay: Annotated[float, Interval("[0, 1)")] = 0.1
    """Fraction of older comparisons in the training data of the reward model, in [0, 1). Larger values reduce
    forgetting."""
    reward_learning_rate: PositiveFloat = 3e-5
    """Learning rate of AdamW for the reward model."""
    reward_batch_size: PositiveInt = 32
    """Number of comparisons per optimizer step of the reward model."""
    annotator_temperature: NonNegativeFloat = 1.0
    """Temperature of the annotator's choices, in units of the task's reward; 0: always prefer the better answer."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.supervision != "outcome":
            raise ValueError("iterative-grpo compares whole answers: it needs supervision=outcome, got process")


class Companions(NamedTuple):
    """Reward model and annotator of a policy.

    Attributes:
        reward: learner of the reward model, already trained.
        annotator: simulated annotator that compares answers.
        history: earlier training comparisons of the reward model.
    """

    reward: RewardModel
    annotator: SimulatedAnnotator
    history: list[Pair]


class Observed:
    """Reward functions whose arguments are also passed to another function, before the rewards are computed.

    The function is given the arguments with one entry per completion, and the trainer state.
    """

    def __init__(self, rewards: RewardFunctions, observe: Callable[[Columns, TrainerState], None]):
        self.names, self._rewards, self._observe = rewards.names, rewards, observe

    def __call__(self, *, trainer_state: TrainerState = None, **given: Any) -> Rewards:
        """Compute the rewards of completions."""
        self._observe(given, trainer_state)
        return self._rewards(**given, trainer_state=trainer_state)


class IterativeGRPO:
    """Learner of iterative GRPO: a `GRPO` learner and a `RewardModel` learner.

    Args:
        config: hyperparameters.
        model: policy.
        engine: sampling engine.
        prompts: training prompts.
        rewards: reward functions, including the score of `reward`.
        max_tokens: maximum number of tokens of an answer, including EOS.
        seed: random seed.
        budget: number of training prompts.
        others: reward model, with the policy's tokenizer, and annotator.
        shards: shards of prompts and optimizer steps. Default: one.

    Attributes:
        grpo: learner of the policy.
        reward: learner of the reward model.
        annotator: simulated annotator that compares answers.
        history: earlier training comparisons of the reward model.
        newest: comparisons of the current iteration.
        labeled: comparisons of earlier iterations.

    Raises:
        ValueError: the reward model has another vocabulary than the policy.
    """

    def __init__(
        self,
        config: IterativeGRPOConfig,
        model: LanguageModel,
        engine: Engine,
        prompts: Sequence[Prompt],
        rewards: RewardFunctions,
        *,
        max_tokens: int,
        seed: int,
        budget: int,
        others: Companions,
        shards: Shards | None = None,
    ):
        reward = others.reward
        if model.tokenizer.get_vocab() != reward.model.tokenizer.get_vocab():
            raise ValueError(
                "the reward model has another vocabulary than the policy, so it cannot train on the policy's tokens: "
                "train it with the policy's --model or --init"
            )
        self.config, self.reward, self.annotator, self.seed = config, reward, others.annotator, seed
        self.history = others.history
        self.newest, self.labeled = list[Pair](), list[Pair]()
        self.shards = shards or Shards()
        self._compared = list[tuple[int, Pair]]()
        self.grpo = GRPO(
            config,
            model,
            engine,
            prompts,
            Observed(rewards, self._compare_all),
            max_tokens=max_tokens,
            seed=seed,
            budget=budget,
            shards=self.shards,
        )

    @property
    def consumed(self) -> int:
        """Number of prompts used so far."""
        return self.grpo.consumed

    @property
    def model(self) -> LanguageModel:
        """The policy."""
        return self.grpo.model

    @property
    def sampler(self) -> Sampler:
        """Sampler of the policy's answers."""
        return self.grpo.sampler

    def iterate(self) -> Metrics:
        """Update the policy on one batch; after the last batch of an iteration, update the reward model."""
        metrics = dict(self.grpo.iterate())  # which also resets the reference
        self.newest += self._take_compared()
        if self.grpo.iterations % self.config.ref_reset_interval == 0 and self.newest:
            metrics |= self.retrain()
        return metrics

    def take_learned(self) -> Learned | None:
        """Return the last training batch of the policy; None if it was already returned."""
        return self.grpo.take_learned()

    def _compare_all(self, given: Columns, state: TrainerState) -> None:
        """Let the annotator compare two answers to each prompt, given the arguments of reward functions."""
        size = self.config.num_generations + self.config.statistics
        for start in range(0, len(given["completions"]), size):
            pair = self.compare({name: column[start : start + size] for name, column in given.items()}, state)
            if pair is not None:
                self._compared.append((self.consumed, pair))

    def _take_compared(self) -> list[Pair]:
        """Return the new comparisons of all processes, in the order of the prompts."""
        found, self._compared = self._compared, []
        if self.shards.count > 1:
            rows = [[drawn, pair.prompt, pair.chosen, pair.rejected] for drawn, pair in found]
            states = self.shards.gather([{"rows": rows}])
            found = [(drawn, Pair(*row)) for state in states for drawn, *row in state["rows"]]
        return [pair for _, pair in sorted(found, key=itemgetter(0))]  # answers are drawn in several rounds

    def compare(self, answers: Columns, state: TrainerState = None) -> Pair | None:
        """Return the annotator's preference between two different answers to a prompt; None if all are equal.

        Args:
            answers: arguments of reward functions, for one prompt.
            state: trainer state of the annotator's reward function.
        """
        texts = answers["completions"]
        second = next((i for i, text in enumerate(texts) if text != texts[0]), None)
        if second is None:
            return None
        shown, prompt = (texts[0], texts[second]), answers["prompts"][0]
        item = Item.of(prompt, shown)
        presentation = Presentation(item.item_id, self.annotator.name, 0, prompt, shown, (0, 1))
        both = {name: [column[0], column[second]] for name, column in answers.items()}
        rewards = self.annotator.reward(**both, trainer_state=state)
        outcome, _ = self.annotator.choose(presentation, rewards)
        if outcome not in ("A", "B"):
            return None
        better, worse = (answers["completion_ids"][i] for i in ((0, second) if outcome == "A" else (second, 0)))
        return Pair(list(answers["prompt_ids"][0]), list(better), list(worse))

    def retrain(self) -> dict[str, Any]:
        """Train the reward model for one epoch on the newest comparisons and a fraction of older ones."""
        older, share = [*self.history, *self.labeled], self.config.replay
        generator = streams.torch_generator(self.seed, "replay", self.grpo.iterations)
        count = min(len(older), round(len(self.newest) * share / (1 - share)))
        replayed = take(older, integers(torch.randperm(len(older), generator=generator)[:count]))
        before = self.reward.accuracies(self.newest)
        examples = self.reward.prepared([*self.newest, *replayed])
        order = integers(torch.randperm(len(examples), generator=generator))
        losses: list[float] = []
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
        """Return the complete state for an exact resume."""
        pairs = {name: [[p.prompt, p.chosen, p.rejected] for p in getattr(self, name)] for name in _PAIRS}
        return {**self.grpo.state_dict(), "reward": self.reward.state_dict(), **pairs}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        own = {"reward", *_PAIRS}
        self.grpo.load_state_dict({name: part for name, part in state.items() if name not in own})
        load_part(self.reward, state, "reward")
        self.newest, self.labeled = ([Pair(*row) for row in state[name]] for name in _PAIRS)


def reward_run(folder: str) -> tuple[Run, RewardModelConfig]:
    """Return the run of the initial reward model, and its configuration.

    Raises:
        RunError: there is no run.
        ValueError: none is named, it is a run of another algorithm, or a process reward model.
    """
    if not folder:
        raise ValueError("iterative-grpo needs an initial reward model: add --reward-model RUN")
    if is_classifier(folder):
        raise ValueError(
            f"{folder} is not a run, but iterative-grpo trains its reward model further, also on the pairs of its run: "
            "use a run of `operant train reward-model`"
        )
    run, _ = opened(folder)
    if run.settings.algorithm != "reward-model":
        raise ValueError(
            f"{folder} is a run of {run.settings.algorithm}, but iterative-grpo needs an outcome reward model: "
            "use a run of `operant train reward-model`"
        )
    config = run.config(RewardModelConfig)
    if config.supervision == "process":
        raise ValueError(
            f"{folder} trained a process reward model, but iterative-grpo compares whole answers: use a run of "
            "`operant train reward-model` with supervision=outcome"
        )
    return run, config


def companions(
    config: IterativeGRPOConfig,
    rows: Sequence[Row],
    known: RewardFunctions | None,
    *,
    limits: Mapping[str, int],
    seed: int,
    budget: int,
    device: str,
    shards: Shards | None = None,
) -> Companions:
    """Load the reward model of a run for further training, and create an annotator.

    Args:
        config: hyperparameters, with the run in `reward_model`.
        rows: training pairs of the reward model.
        known: reward function of the annotator.
        limits: length limits, as in `operant.language.examples.pairs`.
        seed: seed of the learner, and of the run if it has that seed.
        budget: number of training prompts.
        device: device of the reward model.
        shards: shards of the optimizer steps of the reward model. Default: one.

    Raises:
        RunError: there is no run.
        ValueError: no run is given, the run has another algorithm, or there is no reward function for the annotator.
    """
    _, own = reward_run(config.reward_model)
    if known is None:
        raise ValueError("iterative-grpo needs a built-in task, or --rewards, for the simulated annotator")
    model = loaded(ModelOptions(init=config.reward_model, remote_code=config.remote_code), seed=seed, device=device)
    further = replace(
        own,
        learning_rate=config.reward_learning_rate,
        lr_schedule="constant",
        warmup_ratio=0.0,
        micro_batch_tokens=config.micro_batch_tokens,
    )
    head = starting_head(config.reward_model, model, seed=seed)
    return Companions(
        RewardModel(further, model, [], seed=seed, budget=budget, head=head, shards=shards),
        SimulatedAnnotator(_plain(known), seed=seed, temperature=config.annotator_temperature),
        pairs(model.tokenizer, rows, eos_ids=model.stop, **limits),
    )


def _plain(rewards: RewardFunctions) -> Callable[..., list[float | None]]:
    """Return weighted reward functions as a single function that returns a list."""

    def reward(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> Any:
        found = rewards(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        return [value if there else None for value, there in zip(floats(found.total), found.valid, strict=True)]

    return reward


_PAIRS = ("newest", "labeled")
