"""Learners of all seeds of a run, and their evaluation: `assemble`, `Experiment`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from operant import catalog
from operant.language import memory_estimate, tasks
from operant.language.best import ModelWeights
from operant.language.configs import LanguageConfig
from operant.language.datasets import MAX_COMPLETION, source_of
from operant.language.engines.native import ROWS
from operant.language.evaluation import Sampled, Scored
from operant.language.ledger import take_ledger
from operant.language.members import BUILDERS, Builder, Interrupted, Member
from operant.language.processes import shards_of
from operant.runtime.configuration import learner_kind
from operant.runtime.evaluation import Evaluation, StoppedError
from operant.runtime.ledger import Ledger
from operant.runtime.sequential_seeds import InTurn
from operant.runtime.settings import Settings
from operant.runtime.shards import group

logger = logging.getLogger(__name__)


@dataclass
class Experiment:
    """Learners of several seeds, and their evaluation.

    Attributes:
        members: learners with their evaluation, one per seed.
        settings: settings of the run.
        held_out: number of examples per evaluation.
        learner: combined learner of all seeds.
        weights: trained weights of each seed.
        samples: some answers of the last evaluation, as `{"seed", "prompt", "completion", "reward", ...}`.
        notes: messages to print before training.
    """

    members: list[Member]
    settings: Settings
    held_out: int
    learner: InTurn[Any] = field(init=False)
    weights: list[ModelWeights] = field(init=False)
    samples: list[dict[str, Any]] = field(init=False, default_factory=list[dict[str, Any]])
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Combine the learners."""
        self.learner = InTurn([member.learner for member in self.members], budget=self.settings.budget)
        self.weights = [ModelWeights(member.learner) for member in self.members]

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        backend: str | None = None,
        interrupted: Interrupted = lambda: False,
    ) -> Evaluation:
        """Evaluate every seed on held-out examples: greedy answers by their rewards, or pairs by their order.

        Args:
            episodes: maximum number of examples. Default: all held-out examples.
            backend: unused.
            interrupted: function called before every seed and before every token of an answer; if it returns True, the
                evaluation stops.

        Raises:
            StoppedError: `interrupted` returned True.
        """
        count = self.held_out if episodes is None else episodes
        found = list[Scored]()
        for member in self.members:
            if interrupted():
                raise StoppedError("training was interrupted during an evaluation")
            found.append(member.score(count, interrupted))
        self.samples = [
            {"seed": seed, **sample}
            for seed, scored in zip(self.settings.seeds, found, strict=True)
            for sample in scored.samples
        ]
        rewarded = all(scored.samples for scored in found)  # reward functions may return no reward
        evaluation = Evaluation.of(
            [scored.scores for scored in found], metrics=[scored.metrics for scored in found], optional=rewarded
        )
        seeds, size = self.settings.seeds, evaluation.episodes
        empty = [str(s) for s, n in zip(seeds, evaluation.missing, strict=False) if n == size]
        if empty:
            logger.warning(
                "No answer has a reward, so there is no score (seed %s): every reward function failed, or returned "
                "None, for all %d held-out prompts",
                ", ".join(empty),
                size,
            )
        return evaluation

    def ledgers(self) -> list[Ledger]:
        """Return the token records of the learners' last batches that were not returned before."""
        found = [
            take_ledger(member.learner, consumed=self.learner.consumed, seed=seed)
            for seed, member in zip(self.settings.seeds, self.members, strict=True)
        ]
        return [ledger for ledger in found if ledger is not None]

    @property
    def can_sample(self) -> bool:
        """Whether several answers to each held-out prompt can be sampled and rewarded."""
        return all(member.sample is not None for member in self.members)

    def sample(self, count: int, episodes: int) -> list[Sampled]:
        """Sample `count` answers to each of at most `episodes` held-out prompts, for every seed.

        Raises:
            ValueError: the answers have no reward, or the algorithm trains no generative model.
        """
        if not self.can_sample:
            what = f"this run of {self.settings.algorithm} has no reward function for answers"
            raise ValueError(f"{what}, so sampled ones have no score: leave out --samples")
        return [member.sample(count, episodes) for member in self.members if member.sample]

    def reach(self) -> None:
        """Check that servers required by the learners respond.

        Raises:
            OSError: a server does not respond; the message describes the fix.
        """
        for member in self.members:
            if member.engine:
                member.engine.reach()

    def close(self) -> None:
        """Release the learners' resources."""
        for member in self.members:
            if member.engine:
                member.engine.close()


def assemble(algorithm: catalog.Algorithm, settings: Settings, config: Any, *, device: str) -> Experiment:
    """Create the learners of a run.

    Args:
        algorithm: catalog entry of the algorithm.
        settings: settings of the run.
        config: configuration of the algorithm.
        device: device of the models.

    Raises:
        ValueError: the algorithm does not support the task, the data or the model.
        TypeError: the configuration belongs to another algorithm.
    """
    kind, shards = learner_kind(algorithm, config), None
    if settings.shards > 1 or group().sharded:
        shards = shards_of(kind, algorithm, settings, config, device)
        kind = partial(kind, shards=shards)
    build = BUILDERS[catalog.find(algorithm.root).learner]
    first, *others = settings.seeds
    builder = Builder(kind, settings, config, first, device, shards)
    members = [build(builder)]
    memory_estimate.require_memory_of_seeds(members[0].learner, settings.seeds)
    members += [build(replace(builder, seed=seed)) for seed in others]
    return Experiment(members, settings, config.held_out, notes=(_memory_note(members, settings, config),))


def _memory_note(members: Sequence[Member], settings: Settings, config: LanguageConfig) -> str:
    """Return a memory estimate for the longest sequences of a run, and warn if it exceeds the available memory."""
    longest = config.max_prompt_length + (config.max_completion_length or MAX_COMPLETION)
    if not source_of(config, settings.task):
        task = tasks.find(settings.task)
        prompts = [len(str(row["prompt"])) + 1 for row in task.rows("held-out", 16, seed=0, distinct=False)]
        longest = min(max(prompts), config.max_prompt_length) + (
            config.max_completion_length or task.max_completion_length
        )
    sequences = getattr(config, "prompts_per_batch", 0) * getattr(config, "num_generations", 1) or 2 * getattr(
        config, "batch_size", 1
    )
    rows = 0 if getattr(config, "engine", "native") != "native" else getattr(config, "engine_batch_size", ROWS)
    tokens = min(config.micro_batch_tokens, sequences * longest)
    cached = min(rows, max(sequences, config.held_out)) * longest
    needed = memory_estimate.report([member.learner for member in members], config, tokens=tokens, cached=cached)
    return memory_estimate.describe(needed, tokens=tokens)
