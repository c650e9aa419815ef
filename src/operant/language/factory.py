"""Factory of learners with data and evaluation: `assemble`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from operant import catalog
from operant.language import examples, memory_estimate, tasks
from operant.language.best import ModelWeights
from operant.language.configs import LanguageConfig, SamplingConfig, is_outside
from operant.language.context import check_context
from operant.language.critic import starting_critic, warn_of_warmup
from operant.language.data import ACCEPTS, Row, kind
from operant.language.datasets import MAX_COMPLETION, TrainingData, material, source_of
from operant.language.divergence import Start
from operant.language.engines.native import ROWS, NativeEngine
from operant.language.engines.outside import OutsideEngine
from operant.language.engines.protocol import Engine
from operant.language.evaluation import Sampled, Scored, deciding, greedy, sampled
from operant.language.iterative import companions, reward_run
from operant.language.ledger import take_ledger
from operant.language.models import LanguageModel
from operant.language.process_rewards import StepRewards, step_rewards_of
from operant.language.processes import loaded, shards_of
from operant.language.rewards import RewardFunctions, combine
from operant.language.runs import check_policy
from operant.language.scoring import RewardModelFunction, load_scorer, load_step_rewards, starting_head
from operant.runtime.configuration import learner_kind
from operant.runtime.evaluation import Evaluation, StoppedError
from operant.runtime.ledger import Ledger
from operant.runtime.sequential_seeds import InTurn
from operant.runtime.settings import Settings
from operant.runtime.shards import group

logger = logging.getLogger(__name__)

Interrupted = Callable[[], bool]
"""Function that returns whether to interrupt an evaluation."""


@dataclass(frozen=True)
class Member:
    """Learner of one seed, with its evaluation functions.

    Attributes:
        learner: an `operant.runtime.learner.Learner`; `learner.model` is the trained model.
        score: function that evaluates it on a maximum number of held-out examples, and may be interrupted.
        engine: sampling engine; None if training does not sample.
        sample: function that samples several answers to each held-out prompt; None if answers have no reward.
    """

    learner: Any
    score: Callable[[int, Interrupted], Scored]
    engine: Engine | None = None
    sample: Callable[[int, int], Sampled] | None = None


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
    learner = learner_kind(algorithm, config)
    if settings.shards > 1 or group().sharded:
        learner = partial(learner, shards=shards_of(learner, algorithm, settings, config, device))
    build = BUILDERS[catalog.find(algorithm.root).learner]
    first, *others = settings.seeds
    members = [build(learner, settings, config, first, device)]
    memory_estimate.require_memory_of_seeds(members[0].learner, settings.seeds)
    members += [build(learner, settings, config, seed, device) for seed in others]
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


def answering(
    model: LanguageModel,
    data: TrainingData,
    rewards: RewardFunctions | None,
    *,
    seed: int,
    trained_on: RewardFunctions | None = None,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Return the evaluation functions of a policy: `score` and `sample` of `Member`.

    On a built-in task the score is the task's reward, independent of the training reward; on a data set it is the
    reward by `rewards`. The rewards by `trained_on` for the same answers are additional metrics if they differ.
    The saved answers have the version of the weights of the training's sampling engine, if any.
    """
    decides = getattr(data.config, "pass_reward", "")
    if data.task:
        rewards = combine(data.task.rewards, data.task.reward_weights)
    if rewards is None:
        return {}
    deciding(decides, rewards.names)  # report an invalid name now, not after training
    encoded = partial(examples.prompts, model.tokenizer, max_prompt_length=data.config.max_prompt_length)
    prompts = data.encode("evaluation", encoded)
    check_context(prompts, model, max_tokens=data.max_tokens)
    size = {"max_tokens": data.max_tokens, "rows": getattr(data.config, "engine_batch_size", ROWS)}
    if trained_on is not None and trained_on.names == rewards.names:
        trained_on = None
    more: dict[str, Any] = {"trained_on": trained_on, "start": Start(model), "tokens": data.config.micro_batch_tokens}

    def score(count: int, stop: Interrupted) -> Scored:
        version = None if engine is None else engine.version
        return greedy(model, prompts[:count], rewards, interrupted=stop, version=version, **size, **more)

    def sample(count: int, most: int) -> Sampled:
        return sampled(model, prompts[:most], rewards, count=count, seed=seed, decides=decides, **size)

    return {"score": score, "sample": sample}


def engine_for(config: SamplingConfig, model: LanguageModel) -> Engine:
    """Return the configured engine."""
    if config.engine == "native":
        return NativeEngine(model, rows=config.engine_batch_size)
    if is_outside(config.engine):
        return OutsideEngine(config.engine, model, ahead=config.max_staleness > 0)
    from operant.language.engines.fleet import Fleet
    from operant.language.engines.vllm import VLLMEngine

    first, *others = config.engine.split(",")
    return Fleet([first, *others], model) if others else VLLMEngine(first, model)


def _policy(config: LanguageConfig, *, seed: int, device: str) -> LanguageModel:
    """Return the initial model of a policy."""
    check_policy(config.init)
    return loaded(config, seed=seed, device=device)


def _sft(kind_: Any, settings: Settings, config: Any, seed: int, device: str) -> Member:
    data = material(settings, config, ("prompt-completion", *ACCEPTS["sft"]), seed=seed)
    model = _policy(config, seed=seed, device=device)
    encoded = partial(examples.demonstrations, model.tokenizer, eos_ids=model.stop, **data.limits)
    train, held_out = data.encode("training", encoded), data.encode("evaluation", encoded)
    check_context([*train, *held_out], model)
    learner = kind_(config, model, train, held_out, seed=seed, budget=settings.budget)

    def likelihood(count: int, _: Interrupted) -> Scored:
        rows = model.completion_log_probs(held_out[:count], tokens=config.micro_batch_tokens)
        return Scored([float(row.mean()) for row in rows])

    scoring: dict[str, Any] = {"score": likelihood, **answering(model, data, data.reward_functions(), seed=seed)}
    return Member(learner, **scoring)


def _grpo(kind_: Any, settings: Settings, config: Any, seed: int, device: str) -> Member:
    data = material(settings, config, ACCEPTS["grpo"], seed=seed)
    model = _policy(config, seed=seed, device=device)
    steps = _steps(config, data, model, seed, device) if config.supervision == "process" else None
    checked = steps is not None and data.task is not None  # the reward model scores steps, the task whole answers
    scorers = [] if checked else _reward_model(config, model, seed, device)
    rewards = _needed(data.reward_functions(scorers), settings)
    return _sampling(kind_, settings, data, model, rewards, seed=seed, scorers=scorers, steps=steps)


def _iterative(kind_: Any, settings: Settings, config: Any, seed: int, device: str) -> Member:
    data = material(settings, config, ACCEPTS["grpo"], seed=seed)
    model = _policy(config, seed=seed, device=device)
    run, options = reward_run(config.reward_model)
    learned = material(run.settings, options, ACCEPTS["reward-model"], seed=seed)  # of rankings, the best and the worst
    shards = kind_.keywords["shards"] if isinstance(kind_, partial) else None
    common: dict[str, Any] = {"seed": seed, "budget": settings.budget, "device": device, "shards": shards}
    others = companions(config, learned.train, data.reward_functions(), limits=learned.limits, **common)
    own: dict[str, Any] = {"process": False, "separator": "\n", "tokens": config.micro_batch_tokens}
    scorer = RewardModelFunction(others.reward.scorer, tokenizer=model.tokenizer, **own)
    return _sampling(
        kind_, settings, data, model, combine([scorer]), seed=seed, scored_by=data.reward_functions(), others=others
    )


def _reward_learner(kind_: Any, settings: Settings, config: Any, seed: int, device: str) -> Member:
    process = config.supervision == "process"
    data = material(settings, config, ACCEPTS["reward-model of steps" if process else "reward-model"], seed=seed)
    model = loaded(config, seed=seed, device=device)

    def encoded(rows: list[Row]) -> Sequence[Any]:
        common: dict[str, Any] = {"eos_ids": model.stop, **data.limits}
        if process:
            end = {"separator": config.step_separator, "finished": config.steps_finished}
            return examples.stepwise(model.tokenizer, rows, **common, **end)
        make = examples.pairs if kind(rows) == "preference" else examples.rankings
        return make(model.tokenizer, rows, **common)

    train, held_out = data.encode("training", encoded), data.encode("evaluation", encoded)
    check_context([*train, *held_out], model)
    head = starting_head(config.init, model, seed=seed)
    learner = kind_(config, model, train, seed=seed, budget=settings.budget, head=head)
    return Member(learner, lambda count, _: Scored(learner.accuracies(held_out[:count])))


def _dpo(kind_: Any, settings: Settings, config: Any, seed: int, device: str) -> Member:
    data = material(settings, config, ACCEPTS["dpo"], seed=seed)
    model = _policy(config, seed=seed, device=device)
    encoded = partial(examples.pairs, model.tokenizer, eos_ids=model.stop, **data.limits)
    train, held_out = data.encode("training", encoded), data.encode("evaluation", encoded)
    check_context([*train, *held_out], model)
    learner = kind_(config, model, train, held_out, seed=seed, budget=settings.budget)

    def score(count: int, _: Interrupted) -> Scored:
        return Scored(learner.accuracies(count))

    scoring: dict[str, Any] = {"score": score, **answering(model, data, data.reward_functions(), seed=seed)}
    return Member(learner, **scoring)


def _rlhf(kind_: Any, settings: Settings, config: Any, seed: int, device: str) -> Member:
    data = material(settings, config, ACCEPTS["rlhf"], seed=seed)
    model = _policy(config, seed=seed, device=device)
    scorers = _reward_model(config, model, seed, device)
    rewards = _needed(data.reward_functions(scorers), settings)
    outcome = any(not scorer.process for scorer in scorers)
    same = all(scorer.same_vocabulary for scorer in scorers)
    if seed == settings.seeds[0]:
        warn_of_warmup(config, batch=config.prompts_per_batch, budget=settings.budget)
    critic = starting_critic(config, model, outcome=outcome, same_vocabulary=same, seed=seed, device=device)
    return _sampling(kind_, settings, data, model, rewards, seed=seed, scorers=scorers, critic=critic)


def _needed(rewards: RewardFunctions | None, settings: Settings) -> RewardFunctions:
    """Return the reward functions, or raise an error if there are none."""
    if rewards is None:
        raise ValueError(
            "there is no reward function: add --rewards or --reward-model (see `operant train "
            f"{settings.algorithm} --help`)"
        )
    return rewards


def _sampling(
    kind_: Any,
    settings: Settings,
    data: TrainingData,
    model: LanguageModel,
    rewards: RewardFunctions,
    *,
    seed: int,
    scored_by: RewardFunctions | None = None,
    scorers: Sequence[RewardModelFunction] = (),
    **own: Any,
) -> Member:
    """Return a member whose learner trains on sampled answers.

    Args:
        kind_: class of the learner.
        settings: settings of the run.
        data: training prompts and the configuration.
        model: policy.
        rewards: reward functions.
        seed: seed of the learner.
        scored_by: reward functions of the evaluation on a data set. Default: `rewards`.
        scorers: reward models among the reward functions.
        **own: other arguments of the learner.
    """
    config: Any = data.config
    encoded = partial(examples.prompts, model.tokenizer, max_prompt_length=config.max_prompt_length)
    prompts = data.encode("training", encoded)
    check_context(prompts, model, max_tokens=data.max_tokens)
    for scorer in scorers:
        check_context(prompts, scorer.scorer.model, max_tokens=data.max_tokens, name="the reward model")
    engine = engine_for(config, model)
    learner = kind_(
        config,
        model,
        engine,
        prompts,
        rewards,
        max_tokens=data.max_tokens,
        seed=seed,
        budget=settings.budget,
        **own,
    )
    learned = rewards if config.reward_model else None
    scoring = answering(model, data, scored_by or rewards, seed=seed, trained_on=learned, engine=engine)
    return Member(learner, engine=engine, **scoring)


def _steps(
    config: SamplingConfig, data: TrainingData, model: LanguageModel, seed: int, device: str
) -> StepRewards | None:
    """Return the reward function of steps: a process reward model, or the task's."""
    if config.reward_model:
        return load_step_rewards(config.reward_model, **_options_of_reward_model(config, model, seed, device))
    return step_rewards_of(data.task, model.tokenizer) if data.task else None


def _reward_model(config: SamplingConfig, model: LanguageModel, seed: int, device: str) -> list[RewardModelFunction]:
    if not config.reward_model:
        return []
    given = _options_of_reward_model(config, model, seed, device)
    return [load_scorer(config.reward_model, dtype=config.dtype, **given)]


def _options_of_reward_model(config: SamplingConfig, model: LanguageModel, seed: int, device: str) -> dict[str, Any]:
    """Return the options with which the reward model of a policy is loaded."""
    limits = {"remote_code": config.remote_code, "tokens": config.micro_batch_tokens}
    return {"device": device, "tokenizer": model.tokenizer, "seed": seed, **limits}


BUILDERS: Mapping[str, Callable[..., Member]] = {
    "SFT": _sft,
    "RewardModel": _reward_learner,
    "DPO": _dpo,
    "RLHF": _rlhf,
    "GRPO": _grpo,
    "IterativeGRPO": _iterative,
}
"""Function that creates the member of a learner class for one seed."""
