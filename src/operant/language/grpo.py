"""Group relative policy optimization (Shao et al. 2024, arXiv:2402.03300) and its variants.

Each iteration samples a group of answers to each prompt, estimates the advantage of each answer by comparing its reward
with those of its group, and updates the policy with the clipped surrogate. Variants differ in advantage, objective,
token weights, and the groups trained on. Presets: `grpo`, `dr-grpo` (Liu et al. 2025, arXiv:2503.20783), `dapo` (Yu et
al. 2025, arXiv:2503.14476), `prorl` (Liu et al. 2025, arXiv:2505.24864), `rloo` (Ahmadian et al. 2024,
arXiv:2402.14740), `gspo` (Zheng et al. 2025, arXiv:2507.18071) and `cispo` (MiniMax 2025, arXiv:2506.13585).

What differs from the papers: `token_mean` averages over the tokens of the whole optimizer step, as is usual, not of
each group. Each sample of the KL estimate by k1 or k3 is multiplied by its probability ratio, so the gradient is that
of KL(policy‖ref); with `kl_weighted=False`, as in the paper, k3 has the gradient of KL(ref‖policy). Dynamic sampling
(`refill`) replaces each dropped group by a new prompt, for at most `max_rounds` rounds and within the budget. The KL
penalty of RLOO is an optional loss term, not part of the reward.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.language.configs import ClipRange, SamplingConfig
from operant.language.divergence import is_weighted, kl_of_batch
from operant.language.engines.protocol import Engine
from operant.language.examples import Prompt
from operant.language.grpo_batch import (
    ADVANTAGES,
    GRPOBatch,
    Learned,
    Step,
    TokenStats,
    advantage_of,
    group_metrics,
    log_probs_before,
    measured,
    plan,
    warn_of_nothing,
)
from operant.language.importance import check_start, corrections
from operant.language.models import LanguageModel, Reference
from operant.language.optimizer import OptimizerStep, backward, progress
from operant.language.packing import Packed, pack, step_weights, take
from operant.language.process_rewards import StepRewards
from operant.language.rewards import RewardFunctions
from operant.language.rollouts import Rollout
from operant.language.sampling_ahead import sampler_of
from operant.runtime.bounds import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
    require,
)
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.state import DeclaredState, State
from operant.tensors import backpropagate, integers

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"loss_aggregation": "sequence_mean", "beta": 0.04},
    "dr-grpo": {"advantage": "mean", "loss_aggregation": "constant"},
    "dapo": {
        "epsilon_high": 0.28,
        "filter": "refill",
        "overlong_buffer": 0.2,
        "overlong_penalty": 0.5,
        "num_generations": 16,
        "num_minibatches": 16,
    },
    "prorl": {
        "epsilon_high": 0.4,
        "filter": "refill",
        "beta": 1e-4,
        "kl_estimator": "k2",
        "kl_weighted": False,
        "ref_reset_interval": 200,
        "temperature": 1.2,
        "num_generations": 16,
        "num_minibatches": 4,
    },
    "rloo": {"advantage": "leave-one-out", "loss_aggregation": "constant"},
    "gspo": {
        "objective": "sequence",
        "loss_aggregation": "sequence_mean",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
        "num_minibatches": 4,
    },
    "cispo": {"objective": "cispo", "epsilon_high": 4.0},
}
"""Variants by name. Values that depend on the task (learning rate, batch sizes) are in `operant.language.presets`."""


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(SamplingConfig, ClipRange):
    """Hyperparameters of GRPO; docs/algorithms/grpo.md lists the differences from TRL's defaults."""

    learning_rate: PositiveFloat = 1e-6
    """Learning rate of AdamW. Models of a few million parameters need 1e-4 to 1e-3."""
    prompts_per_batch: PositiveInt = 32
    """Number of prompts per batch, P."""
    num_generations: Annotated[int, Interval("[2, inf)")] = 8
    """Number of answers per prompt, G, at least 2. More give a better baseline at proportionally higher cost."""
    num_minibatches: int = 1
    """Number of optimizer steps per pass over a batch, which is split by prompts. 1 is on-policy; more use samples
    better but are clipped more often. Dropped groups reduce the number of steps, not their size."""
    num_iterations: PositiveInt = 1
    """Number of passes over a batch."""
    advantage: Literal["group", "batch", "mean", "leave-one-out"] | str = "group"
    """Baseline and scale of the advantage (`ADVANTAGES`), or path/to/file.py:function of a function from rewards [P, G]
    to advantages [P, G]."""
    advantage_eps: NonNegativeFloat = 1e-4
    """Constant added to the standard deviation that divides advantages, in units of the reward (TRL: 1e-4, verl: 1e-6).
    Larger values damp groups with nearly equal rewards. Unused by mean and leave-one-out."""
    supervision: Literal["outcome", "process"] = "outcome"
    """Reward whole answers (outcome), or each of their steps (process; by the task or a process reward model)."""
    objective: Literal["clip", "sequence", "cispo"] | str = "clip"
    """Clipped quantity: ratios of tokens (GRPO), ratios of sequences (GSPO), or weights of the policy gradient (CISPO);
    or path/to/file.py:function of a function with the parameters of `operant.language.grpo.of_tokens`."""
    epsilon: Annotated[float, Interval("(0, 1]")] = 0.2
    """Lower clip range: no gradient for negative advantages at ratios below 1 - epsilon. Unused by cispo."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip range: no gradient for positive advantages at ratios above 1 + epsilon_high; None: epsilon. Larger
    values (DAPO: 0.28) let the probability of rare tokens grow, and preserve entropy."""
    dual_clip: Annotated[float, Interval("(1, inf)")] | None = None
    """Upper bound of the ratio for negative advantages, above 1 (often 3); None: no bound. Unused by cispo."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """Aggregation of the loss: mean over all tokens of the step, mean over answers of their token means, or division by
    a constant, the maximum completion length (`operant.ops.token_weights`)."""
    group_loss_scale: Literal["1/G", "1/sqrt(G)"] = "1/G"
    """Constant factor of the loss; Adam is invariant to it unless gradients are clipped or the loss has a KL term."""
    filter: Literal["none", "drop", "refill"] = "none"
    """Treatment of groups whose rewards, before any length penalty, are equal: keep them, which dilutes the mean; drop
    them, which gives the others more weight; or refill the batch with new prompts (dynamic sampling)."""
    max_rounds: PositiveInt = 10
    """Maximum number of sampling rounds per batch with `refill`. Dropped prompts count in the budget, which ends it."""
    statistics: NonNegativeInt = 0
    """Additional answers per prompt, used only for the mean and standard deviation of the group."""
    mask_truncated_completions: bool = False
    """Exclude truncated answers from the loss. They are excluded from the denominator of token_mean, too, but not from
    those of sequence_mean and constant; their rewards still count in the group statistics."""
    overlong_buffer: UnitFloat = 0.0
    """Last fraction of the maximum completion length, over which the length penalty rises (DAPO: 0.2), at least
    one token. 0: none."""
    overlong_penalty: PositiveFloat = 1.0
    """Penalty at the maximum completion length (verl: penalty_factor). DAPO uses 1 with rewards of 1 and -1; with
    rewards of 1 and 0 use 0.5, so that a long correct answer still has a higher reward than a short wrong one."""
    beta: NonNegativeFloat = 0.0
    """Coefficient of the KL penalty to the reference, per nat and token. Above 0, a copy of the model is needed."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence (`operant.ops.kl_estimate`)."""
    kl_weighted: bool | None = None
    """Weight each sample of the KL estimate by its probability ratio, with gradient; None: k1 and k3, but not k2."""
    ref_reset_interval: NonNegativeInt = 0
    """Batches between resets of the reference to the current policy, and of the optimizer (ProRL). 0: never."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        require(
            self,
            num_minibatches=f"[1, {self.prompts_per_batch}]",
            advantage=doors.choices(ADVANTAGES, self.advantage, "operant.advantages"),
            objective=doors.choices(OBJECTIVES, self.objective, "operant.objectives"),
        )
        if self.supervision == "process" and (self.advantage != "group" or self.overlong_buffer):
            raise ValueError(
                "supervision=process normalizes the rewards of steps over the group: it needs advantage=group and "
                f"overlong_buffer=0, got {self.advantage} and {self.overlong_buffer}"
            )
        self.require_range(self.objective)
        if self.beta:
            is_weighted(self.kl_estimator, self.kl_weighted)


Clipped = tuple[Tensor, Tensor]
"""Loss of each token `[m]`, and its log-ratio `[m]` that is clipped."""


def of_tokens(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
    """Compute the clipped surrogate of each token (GRPO, equation 3; with two clip ranges DAPO, equation 8)."""
    (low, high), dual = config.clip_range, config.dual_clip
    return ops.clipped_surrogate(new, old, advantages, clip_low=low, clip_high=high, dual_clip=dual), new - old


def of_sequences(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
    """Compute the clipped surrogate of sequence-mean ratios, with token gradients (GSPO, equations 7 and 14)."""
    ratios = ops.sequence_log_ratio(new, old, batch.owner, len(batch.lengths))
    return of_tokens(ratios, torch.zeros_like(ratios), advantages, batch, config)


def of_weights(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
    """Compute the policy gradient with clipped importance weights, without a lower bound (CISPO, equation 4)."""
    return ops.cispo(new, old, advantages, cap=1 + config.clip_range[1]), (new - old).clamp(min=0)


Objective = Callable[[Tensor, Tensor, Tensor, Packed, GRPOConfig], Clipped]
OBJECTIVES: Mapping[str, Objective] = {"clip": of_tokens, "sequence": of_sequences, "cispo": of_weights}


def objective_of(name: str) -> Objective:
    """Return an objective by its name in `OBJECTIVES` or the path of a custom function.

    A custom function may return only the losses `[m]`.

    Raises:
        operant.doors.DoorError: there is no such function, or it does not take these arguments.
    """
    expected = "a function (new, old, advantages, batch, config) -> losses [m]"
    function: Any = doors.chosen(OBJECTIVES, name, arguments=5, expected=expected, group="operant.objectives")
    if name in OBJECTIVES:
        return function

    def checked(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
        found = function(new, old, advantages, batch, config)
        losses, ratios = cast(Clipped, found) if isinstance(found, tuple) else (found, new - old)
        if not getattr(losses, "shape", None) == getattr(ratios, "shape", None) == new.shape:
            raise ValueError(
                f"objective {name} must return the losses of {len(new)} tokens, a tensor of shape {tuple(new.shape)}, "
                f"or a pair of losses and log-ratios, got {found!r:.120}"
            )
        return losses, ratios

    return checked


class GRPO(DeclaredState):
    """Learner of GRPO.

    Args:
        config: hyperparameters.
        model: policy; the reference is a copy of its initial state.
        engine: sampling engine.
        prompts: training prompts.
        rewards: reward functions.
        max_tokens: maximum number of tokens of an answer, including EOS.
        seed: random seed of the prompt order and of sampling.
        budget: number of training prompts.
        steps: reward function of the steps of answers, for process supervision.
        shards: shards of prompts and optimizer steps. Default: one.

    Attributes:
        consumed: number of prompts used so far.
        model: policy.
        iterations: number of batches so far.

    Raises:
        ValueError: process supervision lacks rewards of steps.
    """

    STATE = ("model", ("optimizer", "stepper"), "sampler", "reference", "iterations")

    def __init__(
        self,
        config: GRPOConfig,
        model: LanguageModel,
        engine: Engine,
        prompts: Sequence[Prompt],
        rewards: RewardFunctions,
        *,
        max_tokens: int,
        seed: int,
        budget: int,
        steps: StepRewards | None = None,
        shards: Shards | None = None,
    ):
        if config.supervision == "process" and steps is None:
            raise ValueError("supervision=process needs a task with rewards of steps, or a process reward model")
        self.config, self.model, self.budget, self.shards = config, model, budget, shards or Shards()
        common: dict[str, Any] = {"max_tokens": max_tokens, "seed": seed, "budget": budget, "shards": self.shards}
        common["prompts_per_batch"] = config.prompts_per_batch
        self.sampler = sampler_of(config, engine, prompts, rewards, model.tokenizer, **common)
        self.max_tokens, self.steps, self.seed, self.iterations, self._warned = max_tokens, steps, seed, 0, False
        self.advantage = advantage_of(config.advantage, config.num_generations + config.statistics)
        self.objective = objective_of(config.objective)
        self.stepper = OptimizerStep(model.trained(), config)
        self.reference = Reference(model) if config.beta else None
        self._learned: Learned | None = None

    @property
    def consumed(self) -> int:
        """Number of prompts used so far."""
        return self.sampler.asked

    def iterate(self) -> Metrics:
        """Sample answers, estimate their advantages, and update the policy."""
        began = self.consumed
        rollout, metrics = self.collect()
        sampled = self.sampler.metrics()
        self.sampler.begin(self.config.prompts_per_batch, self.config.num_generations + self.config.statistics)
        updated = self.update(self.estimate_advantages(rollout), began=began) if len(rollout) else {}
        if not updated and not self._warned:
            self._warned = True
            warn_of_nothing(self.consumed - began, metrics, group=self.config.num_generations + self.config.statistics)
        self.iterations += 1
        if self.config.ref_reset_interval and self.iterations % self.config.ref_reset_interval == 0:
            self.reset()
        self.sampler.update(self.model, self.iterations)
        return metrics | updated | sampled | {"health/empty_batches": float(not updated)}

    def reset(self) -> None:
        """Reset the reference to the current policy, and the optimizer state (ProRL, section 3.2)."""
        self.stepper.reset()
        if self.reference:
            self.reference.reset()

    def collect(self) -> tuple[Rollout, dict[str, Any]]:
        """Sample answers to P prompts; with a filter, keep only groups with different rewards."""
        if self.config.filter != "none":
            return self.collect_filtered()
        rollout = self.draw(self.config.prompts_per_batch)
        counts = {"sampling/rounds": 1.0, "sampling/groups": float(len(rollout))}
        return rollout, group_metrics(rollout, self.signal) | counts

    def draw(self, prompts: int) -> Rollout:
        """Sample answers to the next prompts."""
        steps = self.steps if self.config.supervision == "process" else None
        return self.sampler.draw(prompts, self.config.num_generations + self.config.statistics, steps=steps)

    def collect_filtered(self) -> tuple[Rollout, dict[str, Any]]:
        """Sample answers to P prompts, drop groups with equal rewards, and with `refill` replace them in the budget."""
        config, missing = self.config, self.config.prompts_per_batch
        drawn, kept, asked = list[Rollout](), list[Rollout](), missing
        while asked > 0 and len(drawn) < (config.max_rounds if config.filter == "refill" else 1):
            drawn.append(self.draw(asked))
            kept.append(drawn[-1].take(integers(self.signal(drawn[-1]).nonzero().squeeze(1))))
            missing -= len(kept[-1])
            asked = min(missing, self.budget - self.consumed)
        metrics = {"sampling/rounds": float(len(drawn)), "sampling/groups": float(config.prompts_per_batch - missing)}
        return Rollout.join(kept), group_metrics(Rollout.join(drawn), self.signal) | metrics

    def signal(self, rollout: Rollout) -> Tensor:
        """Return a mask `[P]` of the groups whose answers, or steps, have different rewards."""
        if self.config.supervision == "process":
            rewards, _, exists = rollout.step_rewards()
            return ops.has_signal(rewards.flatten(1), exists.flatten(1))
        return ops.has_signal(rollout.rewards().nan_to_num(), rollout.valid())

    def estimate_advantages(self, rollout: Rollout) -> GRPOBatch:
        """Return the advantages of all tokens of the training answers."""
        config, size, answers, rewards = self.config, rollout.group, rollout.answers, rollout.rewards()
        lengths = torch.tensor([len(c.ids) for c in answers.completions])
        counts = torch.tensor([not (config.mask_truncated_completions and c.truncated) for c in answers.completions])
        if config.supervision == "process":
            longest = int(lengths.max())
            per_token = ops.process_advantages(*rollout.step_rewards(), length=longest, eps=config.advantage_eps)
            advantages = [row[:n] for row, n in zip(per_token.view(-1, longest), integers(lengths), strict=True)]
        else:
            if config.overlong_buffer:
                buffer = max(1, round(config.overlong_buffer * self.max_tokens))
                penalties = ops.overlong_penalty(lengths, max_length=self.max_tokens, buffer=buffer)
                rewards = rewards + config.overlong_penalty * penalties.view(-1, size)
            counts &= rollout.judged.valid
            scaled = self.advantage(rewards.nan_to_num(), rollout.valid(), config.advantage_eps)
            advantages = [a.expand(n) for a, n in zip(scaled.flatten(), integers(lengths), strict=True)]
        own = [i for i in range(len(lengths)) if i % size < config.num_generations]
        samples, behavior = answers.samples(), [torch.tensor(c.log_probs) for c in answers.completions]
        versions = take([c.version for c in answers.completions], own)
        columns = take(samples, own), take(advantages, own), take(behavior, own)
        return GRPOBatch(*columns, counts[own], rewards.flatten()[own], versions)

    def update(self, batch: GRPOBatch, *, began: int) -> dict[str, Any]:
        """Take the optimizer steps of a batch and return their metrics; no steps if all answers are masked.

        Args:
            batch: answers and advantages.
            began: number of prompts used before the batch, for the learning-rate schedule.
        """
        config = self.config
        chance = streams.torch_generator(self.seed, "minibatches", self.iterations)
        count = -(-len(batch.samples) * config.num_minibatches // (config.num_generations * config.prompts_per_batch))
        limits = {"tokens": config.micro_batch_tokens, "shards": self.shards.count}
        steps = plan(batch, group=config.num_generations, steps=count, generator=chance, **limits)
        # At the first step the policy equals the sampling policy; only `check_start` needs log-probabilities before it.
        known = config.num_iterations == 1 and self.stepper.steps > 0
        old = [None if known and not index else self._log_probs(batch, s.parts) for index, s in enumerate(steps)]
        rounds = [*zip(steps, old, strict=True)] * config.num_iterations
        size = {"steps": len(rounds), "budget": self.budget, "batch": config.prompts_per_batch}
        shares = [progress(began, self.consumed, index, **size) for index in range(len(rounds))]
        found = [self._step(batch, *each, share) for each, share in zip(rounds, shares, strict=True)]
        (low, high), taken = config.clip_range, steps * config.num_iterations
        self._learned = Learned(batch, taken, found, config.num_generations, (low, high), bool(self.reference))
        metrics = measured(found, clip_low=low, clip_high=high)
        if found:
            metrics["policy/kl_old"] = kl_of_batch(self.model, *log_probs_before(batch, steps, found), config)
        return {name: value for name, value in metrics.items() if self.reference or name not in ("kl", "losses/kl")}

    @torch.no_grad()
    def _log_probs(self, batch: GRPOBatch, parts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Compute the current log-probabilities of each micro-batch of later optimizer steps."""
        return self.shards.map(lambda part: self._forward(batch, part)[1], parts)

    def _forward(self, batch: GRPOBatch, part: Sequence[int]) -> tuple[Packed, Tensor, Tensor]:
        packed = pack(take(batch.samples, part), ends=False, device=self.model.device)
        return packed, *self.model.log_probs(packed, temperature=self.config.temperature)

    def _step(
        self, batch: GRPOBatch, step: Step, old: Sequence[Tensor] | None, progress: float
    ) -> tuple[dict[str, Any], list[TokenStats]]:
        """Take one optimizer step, accumulating gradients over micro-batches with a common loss denominator."""
        size: dict[str, Any] = {"longest": self.max_tokens, "answers": step.answers, "device": self.model.device}
        weight = step_weights(batch.samples, step.parts, how=self.config.loss_aggregation, **size)
        parts = [*zip(step.parts, [None] * len(step.parts) if old is None else old, strict=True)]
        rows = backward([self.stepper], parts, lambda part: self._differentiate(batch, *part, weight), self.shards)
        seen = [TokenStats(*row) for row in rows]
        policy = sum((tokens.policy.sum() for tokens in seen), torch.zeros(()))
        penalty = sum((tokens.reference.sum() for tokens in seen), torch.zeros(()))
        norm, skipped = self.stepper.step(progress)
        report = {"losses/policy": policy, "losses/kl": penalty, "losses/gradient_norm": norm}
        return report | {"health/updates": 1.0, "health/skipped_updates": skipped}, seen

    def _differentiate(self, batch: GRPOBatch, part: Sequence[int], old: Tensor | None, weight: Tensor) -> TokenStats:
        """Accumulate the gradient of a micro-batch; `weight[i]` is the loss weight of every token of sample i."""
        config, device = self.config, self.model.device
        factor = math.sqrt(config.num_generations) if config.group_loss_scale == "1/sqrt(G)" else 1.0
        packed, new, entropy = self._forward(batch, part)
        before = new.detach() if old is None else old.to(device)
        advantages, behavior = (torch.cat(take(r, part)).to(device) for r in (batch.advantages, batch.behavior))
        if not self.stepper.steps:
            check_start(new, before, behavior, dtype=self.model.dtype)
        how, cap = config.importance_sampling_correction, config.importance_sampling_cap
        trust = corrections(before, behavior, how, packed.lengths, cap=cap)
        losses, ratios = self.objective(new, before, advantages, packed, config)
        kl = self._divergence(packed, new, before)
        spread = weight[part][packed.owner]
        policy, reference = factor * spread * trust * losses, config.beta * spread * kl
        backpropagate(policy.sum() + reference.sum())
        return TokenStats(before, behavior, trust, advantages, ratios, entropy, kl, spread, policy, reference).detach()

    def _divergence(self, packed: Packed, new: Tensor, old: Tensor) -> Tensor:
        """Estimate KL(policy‖ref) at each token."""
        if self.reference is None:
            return torch.zeros_like(new)
        ref, how = self.reference.log_probs(packed, temperature=self.config.temperature), self.config.kl_estimator
        return ops.kl_estimate(new, ref, how, old_log_probs=old if is_weighted(how, self.config.kl_weighted) else None)

    def take_learned(self) -> Learned | None:
        """Return the last training batch; None if it was already returned."""
        learned, self._learned = self._learned, None
        return learned

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        super().load_state_dict(state)
        self.sampler.update(self.model, self.iterations)
