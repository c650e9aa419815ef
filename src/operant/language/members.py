"""Learners of one seed, with their data and evaluation: `Member`, `Builder`, `BUILDERS`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from operant.language import examples
from operant.language.configs import SamplingConfig, is_outside
from operant.language.context import check_context
from operant.language.critic import starting_critic, warn_of_warmup
from operant.language.data import ACCEPTS, Kind, Row, kind
from operant.language.datasets import TrainingData, load_data
from operant.language.divergence import Start
from operant.language.engines.native import ROWS, NativeEngine
from operant.language.engines.outside import OutsideEngine
from operant.language.engines.protocol import Engine
from operant.language.evaluation import Sampled, Scored, deciding, greedy, sampled
from operant.language.examples import Prompt
from operant.language.iterative import companions, reward_run
from operant.language.models import LanguageModel
from operant.language.process_rewards import StepRewards, step_rewards_of
from operant.language.processes import loaded
from operant.language.rewards import RewardFunctions, combine
from operant.language.rollouts import asked
from operant.language.runs import check_policy
from operant.language.scoring import RewardModelFunction, load_scorer, load_step_rewards, starting_head
from operant.runtime.settings import Settings
from operant.runtime.shards import Shards

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


@dataclass(frozen=True)
class Builder:
    """Builder of the member of one seed.

    Attributes:
        kind: class of the learner, or a function with its parameters.
        settings: settings of the run.
        config: configuration of the algorithm.
        seed: seed of the learner.
        device: device of the models.
        shards: shards of the run, which `kind` passes to the learner; None: the run is not sharded.
    """

    kind: Callable[..., Any]
    settings: Settings
    config: Any
    seed: int
    device: str
    shards: Shards | None

    def sft(self) -> Member:
        """Build a learner of demonstrations, evaluated by its answers, or else by their log-probabilities."""

        def score(learner: Any, held_out: Sequence[Any], count: int) -> list[float]:
            model: LanguageModel = learner.model
            rows = model.completion_log_probs(held_out[:count], tokens=self.config.micro_batch_tokens)
            return [float(row.mean()) for row in rows]

        return self._supervised(("prompt-completion", *ACCEPTS["sft"]), examples.demonstrations, score)

    def dpo(self) -> Member:
        """Build a learner of preferences, evaluated by its answers, or else by the order of pairs."""
        return self._supervised(
            ACCEPTS["dpo"], examples.pairs, lambda learner, held_out, count: learner.accuracies(count)
        )

    def reward_model(self) -> Member:
        """Build a reward model, evaluated by the order of answers, or by its scores of steps."""
        config, process = self.config, self.config.supervision == "process"
        data = self._data(ACCEPTS["reward-model of steps" if process else "reward-model"])
        model = loaded(config, seed=self.seed, device=self.device)

        def encoded(rows: list[Row]) -> Sequence[Any]:
            if process:
                return examples.stepwise(
                    model.tokenizer,
                    rows,
                    eos_ids=model.stop,
                    separator=config.step_separator,
                    finished=config.steps_finished,
                    **data.limits,
                )
            make = examples.pairs if kind(rows) == "preference" else examples.rankings
            return make(model.tokenizer, rows, eos_ids=model.stop, **data.limits)

        train, held_out = data.encode("training", encoded), data.encode("evaluation", encoded)
        check_context([*train, *held_out], model)
        head = starting_head(config.init, model, seed=self.seed)
        learner = self.kind(config, model, train, seed=self.seed, budget=self.settings.budget, head=head)
        return Member(learner, lambda count, _: Scored(learner.accuracies(held_out[:count])))

    def grpo(self) -> Member:
        """Build a learner of GRPO."""
        data, model = self._data(ACCEPTS["grpo"]), self._policy()
        steps = self._steps(data, model) if self.config.supervision == "process" else None
        checked = steps is not None and data.task is not None  # the reward model scores steps, the task whole answers
        scorers = [] if checked else self._scorers(model, data)
        return self._sampling(data, model, self._required(data.reward_functions(scorers)), scorers=scorers, steps=steps)

    def iterative(self) -> Member:
        """Build a learner of iterative GRPO, which continues the training of a reward model."""
        config, data, model = self.config, self._data(ACCEPTS["grpo"]), self._policy()
        run, options = reward_run(config.reward_model)
        # Of rankings, the best and the worst answers.
        learned = load_data(run.settings, options, ACCEPTS["reward-model"], seed=self.seed)
        known = data.reward_functions()  # in one set of processes
        others = companions(
            config,
            learned.train,
            known,
            limits=learned.limits,
            seed=self.seed,
            budget=self.settings.budget,
            device=self.device,
            shards=self.shards,
        )
        scorer = RewardModelFunction(
            others.reward.scorer,
            process=False,
            separator="\n",
            tokenizer=model.tokenizer,
            tokens=config.micro_batch_tokens,
        )
        return self._sampling(data, model, combine([scorer]), evaluated_by=known, others=others)

    def rlhf(self) -> Member:
        """Build a learner of RLHF with its critic."""
        config, data, model = self.config, self._data(ACCEPTS["rlhf"]), self._policy()
        scorers = self._scorers(model, data)
        rewards = self._required(data.reward_functions(scorers))
        if self.seed == self.settings.seeds[0]:
            warn_of_warmup(config, batch=config.prompts_per_batch, budget=self.settings.budget)
        critic = starting_critic(
            config,
            model,
            outcome=any(not scorer.process for scorer in scorers),
            same_vocabulary=all(scorer.same_vocabulary for scorer in scorers),
            seed=self.seed,
            device=self.device,
        )
        return self._sampling(data, model, rewards, scorers=scorers, critic=critic)

    def _data(self, accepted: Sequence[Kind]) -> TrainingData:
        """Load the examples of the learner."""
        return load_data(self.settings, self.config, accepted, seed=self.seed)

    def _policy(self) -> LanguageModel:
        """Return the initial model of a policy."""
        check_policy(self.config.init)
        return loaded(self.config, seed=self.seed, device=self.device)

    def _supervised(
        self,
        accepted: Sequence[Kind],
        encode: Callable[..., list[Any]],
        score: Callable[[Any, Sequence[Any], int], list[float]],
    ) -> Member:
        """Build a learner of given answers.

        Args:
            accepted: kinds of examples that the algorithm accepts.
            encode: function of `operant.language.examples` that encodes them.
            score: function of the learner, the held-out examples and the maximum number of them, that evaluates the
                learner if its answers have no reward.
        """
        data, model = self._data(accepted), self._policy()
        encoded = partial(encode, model.tokenizer, eos_ids=model.stop, **data.limits)
        train, held_out = data.encode("training", encoded), data.encode("evaluation", encoded)
        check_context([*train, *held_out], model)
        learner = self.kind(self.config, model, train, held_out, seed=self.seed, budget=self.settings.budget)
        rewards = data.reward_functions()
        if rewards is None:
            return Member(learner, lambda count, _: Scored(score(learner, held_out, count)))
        return self._answering(learner, model, data, rewards)

    def _sampling(
        self,
        data: TrainingData,
        model: LanguageModel,
        rewards: RewardFunctions,
        *,
        evaluated_by: RewardFunctions | None = None,
        scorers: Sequence[RewardModelFunction] = (),
        **own: Any,
    ) -> Member:
        """Build a learner of sampled answers.

        Args:
            data: training prompts.
            model: policy.
            rewards: reward functions.
            evaluated_by: reward functions of the evaluation on a data set. Default: `rewards`.
            scorers: reward models among the reward functions.
            **own: other arguments of the learner.
        """
        prompts = data.encode("training", self._prompts_of(model, data))
        check_context(prompts, model, max_tokens=data.max_tokens)
        for scorer in scorers:
            check_context(prompts, scorer.scorer.model, max_tokens=data.max_tokens, name="the reward model")
        engine = engine_for(self.config, model)
        learner = self.kind(
            self.config,
            model,
            engine,
            prompts,
            rewards,
            max_tokens=data.max_tokens,
            seed=self.seed,
            budget=self.settings.budget,
            **own,
        )
        learned = rewards if self.config.reward_model else None
        state, rewards = learner.sampler.trainer_state, evaluated_by or rewards
        return self._answering(learner, model, data, rewards, trained_on=learned, state=state, engine=engine)

    def _answering(
        self,
        learner: Any,
        model: LanguageModel,
        data: TrainingData,
        rewards: RewardFunctions,
        *,
        trained_on: RewardFunctions | None = None,
        state: Callable[[], Mapping[str, float] | None] = lambda: None,
        engine: Engine | None = None,
    ) -> Member:
        """Return the member of a policy that is evaluated by the rewards of its answers.

        Args:
            learner: learner of the policy.
            model: policy.
            data: held-out prompts; on a built-in task the score is the task's reward, not that of training.
            rewards: reward functions of the score on a data set.
            trained_on: reward functions of training, whose rewards are additional metrics if the functions differ.
            state: function that returns the trainer state of the reward functions. Default: that of a task, whose
                functions do not use it.
            engine: sampling engine of training, whose version of the weights is saved with the answers.
        """
        if data.task:
            rewards = combine(data.task.rewards, data.task.reward_weights)
        decides: str = getattr(self.config, "pass_reward", "")
        deciding(decides, rewards.names)  # report an invalid name now, not after training
        prompts = data.encode("evaluation", self._prompts_of(model, data))
        check_context(prompts, model, max_tokens=data.max_tokens)
        rows: int = getattr(self.config, "engine_batch_size", ROWS)
        different = trained_on if trained_on is not None and trained_on.names != rewards.names else None
        start = Start(model)

        def score(count: int, stop: Interrupted) -> Scored:
            return greedy(
                model,
                prompts[:count],
                rewards,
                max_tokens=data.max_tokens,
                rows=rows,
                interrupted=stop,
                trained_on=different,
                state=state(),
                start=start,
                tokens=self.config.micro_batch_tokens,
                version=None if engine is None else engine.version,
            )

        def sample(count: int, most: int) -> Sampled:
            return sampled(
                model,
                prompts[:most],
                rewards,
                max_tokens=data.max_tokens,
                count=count,
                seed=self.seed,
                rows=rows,
                decides=decides,
                state=state(),
            )

        return Member(learner, score, engine, sample)

    def _prompts_of(self, model: LanguageModel, data: TrainingData) -> Callable[[list[Row]], list[Prompt]]:
        """Return the function that encodes the prompts of examples for a model, each with the columns of all."""
        most, columns = self.config.max_prompt_length, data.columns
        return partial(examples.prompts, model.tokenizer, max_prompt_length=most, columns=columns)

    def _required(self, rewards: RewardFunctions | None) -> RewardFunctions:
        """Return the reward functions, or raise an error if there are none."""
        if rewards is None:
            raise ValueError(
                "there is no reward function: add --rewards or --reward-model (see `operant train "
                f"{self.settings.algorithm} --help`)"
            )
        return rewards

    def _steps(self, data: TrainingData, model: LanguageModel) -> StepRewards | None:
        """Return the reward function of steps: a process reward model, or the task's."""
        config = self.config
        if not config.reward_model:
            return step_rewards_of(data.task, model.tokenizer) if data.task else None
        return load_step_rewards(
            config.reward_model,
            device=self.device,
            tokenizer=model.tokenizer,
            seed=self.seed,
            remote_code=config.remote_code,
            tokens=config.micro_batch_tokens,
        )

    def _scorers(self, model: LanguageModel, data: TrainingData) -> list[RewardModelFunction]:
        """Return the configured reward model, which can score the prompts, as a list of at most one function."""
        config = self.config
        if not config.reward_model:
            return []
        scorer = load_scorer(
            config.reward_model,
            device=self.device,
            tokenizer=model.tokenizer,
            seed=self.seed,
            remote_code=config.remote_code,
            tokens=config.micro_batch_tokens,
            dtype=config.dtype,
        )
        again = scorer.whole or not scorer.same_vocabulary
        if again and not scorer.scorer.model.tokenizer.chat_template:
            _require_strings([*data.train, *data.held_out], config.reward_model)
        return [scorer]


def _require_strings(rows: Sequence[Row], reward_model: str) -> None:
    """Check that no prompt is a conversation, for a reward model without a chat template."""
    if any(not isinstance(asked(row), str) for row in rows):
        raise ValueError(
            f"the tokenizer of --reward-model {reward_model} has no chat template, but the prompts of the data are "
            "messages, which it must encode: use a reward model with a chat template, or prompts that are strings"
        )


BUILDERS: Mapping[str, Callable[[Builder], Member]] = {
    "SFT": Builder.sft,
    "RewardModel": Builder.reward_model,
    "DPO": Builder.dpo,
    "RLHF": Builder.rlhf,
    "GRPO": Builder.grpo,
    "IterativeGRPO": Builder.iterative,
}
"""Method that builds the member of each class of learners."""
