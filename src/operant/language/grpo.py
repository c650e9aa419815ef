"""Group relative policy optimization (Shao et al. 2024, arXiv:2402.03300) and its variants.

Collect several answers to each prompt; estimate the advantage of each by how much better its reward is than its
siblings', so that no critic is needed; update the policy by the clipped surrogate. Four choices make the family: what
the advantage is, what the objective is, what a token weighs, and which groups take part. A preset names them: `grpo`,
`dr-grpo` (Liu et al. 2025, arXiv:2503.20783), `dapo` (Yu et al. 2025, arXiv:2503.14476), `prorl` (Liu et al. 2025,
arXiv:2505.24864), `rloo` (Ahmadian et al. 2024, arXiv:2402.14740), `gspo` (Zheng et al. 2025, arXiv:2507.18071) and
`cispo` (MiniMax 2025, arXiv:2506.13585).

What differs from the papers: the weights of `token_mean` are one over the tokens of the whole optimizer step, not of
each group (as is usual). Each sample of the KL estimate has its probability ratio as a factor, so the gradient is that
of KL(policy‖ref); without (`kl_weighted`), as in the paper, k3 has the gradient of KL(ref‖policy). Dynamic sampling
(`refill`) samples a new prompt for each dropped group, for at most `max_rounds` rounds, and then continues with what it
has. RLOO's divergence is an optional term of the loss, and not part of the reward.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.language.configs import SamplingConfig
from operant.language.divergence import kl_of_batch
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
from operant.language.optimizer import OptimizerStep, backward
from operant.language.packing import Packed, pack, step_weights, take
from operant.language.process_rewards import StepRewards
from operant.language.rollouts import Judge, Rollout
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
"""Named variants. Task-dependent values (step size, batch sizes) are in `operant.language.presets`."""


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(SamplingConfig):
    """Hyperparameters of GRPO; the defaults are those of TRL's trainer, not of a paper."""

    learning_rate: float = 1e-6
    """Step size of AdamW. Models of a few million parameters need 1e-4 to 1e-3."""
    prompts_per_batch: PositiveInt = 32
    """Prompts per batch, P."""
    num_generations: Annotated[int, Interval("[2, inf)")] = 8
    """Answers to each prompt, G, at least 2. More give a better baseline, and cost proportionally more."""
    num_minibatches: int = 1
    """Optimizer steps per batch, divided by prompts; 1 is on-policy, more are cheaper and clip more. Dropped groups
    make the steps fewer, not smaller."""
    num_iterations: PositiveInt = 1
    """Passes over a batch (TRL: num_iterations)."""
    advantage: Literal["group", "batch", "mean", "leave-one-out"] | str = "group"
    """Baseline and scale of the advantage (`ADVANTAGES`); or your own function from rewards [P, G] to advantages [P,
    G], path/to/file.py:function."""
    advantage_eps: NonNegativeFloat = 1e-4
    """Added to the standard deviation that divides advantages, in units of the reward (TRL: 1e-4, verl: 1e-6). More
    damps groups with nearly equal rewards. Unused by mean and leave-one-out."""
    supervision: Literal["outcome", "process"] = "outcome"
    """Whether to reward answers as a whole, or each of their steps (by the task or a process reward model)."""
    objective: Literal["clip", "sequence", "cispo"] | str = "clip"
    """Quantity that is clipped: ratios of tokens, ratios of sequences (GSPO), or the weights of a policy gradient
    (CISPO); or your own function with the parameters of `operant.language.grpo.of_tokens`, path/to/file.py:function."""
    epsilon: Annotated[float, Interval("(0, 1]")] = 0.2
    """How far a ratio may fall below 1 before its token loses its gradient; unused by cispo."""
    epsilon_high: PositiveFloat = 0.2
    """How far it may rise above 1. More (DAPO: 0.28) lets rare tokens grow, and preserves entropy."""
    dual_clip: Annotated[float, Interval("(1, inf)")] | None = None
    """Bound on the ratio of negative advantages, above 1 (often 3); None: no bound. Unused by cispo."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """Weight of a token: equal for all tokens of the step, one over its answer's length, or one over the longest
    allowed length (`operant.ops.token_weights`)."""
    group_loss_scale: Literal["1/G", "1/sqrt(G)"] = "1/G"
    """Factor of the sum over a group; Adam cancels it, unless the gradient is clipped or has a KL term."""
    filter: Literal["none", "drop", "refill"] = "none"
    """Treatment of groups with equal rewards, before any length penalty: keep them, which dilutes the mean; drop them,
    so that the others count more; or sample replacements (dynamic sampling)."""
    max_rounds: PositiveInt = 10
    """Maximum rounds of sampling per batch under `refill`."""
    statistics: NonNegativeInt = 0
    """Extra answers to each prompt, used only for the mean and standard deviation of the group."""
    mask_truncated_completions: bool = False
    """Whether to mask truncated answers (TRL: mask_truncated_completions). Their tokens leave the loss and the
    denominator of token_mean, not those of sequence_mean and constant; their rewards stay in the statistics."""
    overlong_buffer: UnitFloat = 0.0
    """Last share of the longest length over which the length penalty rises linearly (DAPO: 0.2); 0: no penalty."""
    overlong_penalty: PositiveFloat = 1.0
    """Penalty of an answer of the longest length (verl: penalty_factor). DAPO uses 1 for rewards of 1 and -1; for
    rewards of 1 and 0 use 0.5, so that a long correct answer still beats a short wrong one."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the reference, per nat and token (TRL: beta). Above 0 it needs a model copy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence (`operant.ops.kl_estimate`)."""
    kl_weighted: bool = True
    """Whether each sample of the estimate is weighted by its ratio, with gradient: right for k1 and k3; not for k2."""
    ref_reset_interval: NonNegativeInt = 0
    """Batches between resets of reference and optimizer to the current policy (ProRL); 0: never."""

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
        if self.beta and self.kl_estimator == "k1" and not self.kl_weighted:
            raise ValueError(
                "kl_estimator=k1 with kl_weighted=False has an expected gradient of 0; set one of them otherwise"
            )


Clipped = tuple[Tensor, Tensor]
"""Losses `[m]` of the tokens, and the clipped log-ratios `[m]`."""


def of_tokens(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
    """The clipped surrogate of each token (GRPO, equation 3; with two ranges DAPO, equation 8)."""
    low, high, dual = config.epsilon, config.epsilon_high, config.dual_clip
    return ops.clipped_surrogate(new, old, advantages, clip_low=low, clip_high=high, dual_clip=dual), new - old


def of_sequences(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
    """The clipped surrogate with sequence-mean log-ratios, and gradients per token (GSPO, equations 7 and 14)."""
    ratios = ops.sequence_log_ratio(new, old, batch.owner, len(batch.lengths))
    return of_tokens(ratios, torch.zeros_like(ratios), advantages, batch, config)


def of_weights(new: Tensor, old: Tensor, advantages: Tensor, batch: Packed, config: GRPOConfig) -> Clipped:
    """The policy gradient with clipped weights (CISPO, equation 4), without a lower bound."""
    return ops.cispo(new, old, advantages, cap=1 + config.epsilon_high), (new - old).clamp(min=0)


Objective = Callable[[Tensor, Tensor, Tensor, Packed, GRPOConfig], Clipped]
OBJECTIVES: Mapping[str, Objective] = {"clip": of_tokens, "sequence": of_sequences, "cispo": of_weights}


def objective_of(name: str) -> Objective:
    """Return one of `OBJECTIVES`, or a user's function, which may return only the losses `[m]`.

    Raises:
        operant.doors.DoorError: there is none.
    """
    function: Any = doors.chosen(
        OBJECTIVES,
        name,
        expected="a function (new, old, advantages, batch, config) -> losses [m]",
        group="operant.objectives",
    )
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
        model: the policy; its initial copy is the reference.
        engine: sampling engine.
        prompts: the training set.
        judge: reward functions of answers.
        max_tokens: longest answer, end of sequence included.
        seed: of the order of the prompts and of sampling.
        budget: prompts.
        steps: rewards of the steps of answers; only for process supervision.
        shards: of prompts and optimizer steps. Default: one.

    Attributes:
        consumed: prompts used so far.
        model: the policy.
        iterations: batches so far.

    Raises:
        ValueError: process supervision has no rewards of steps.
    """

    STATE = ("model", ("optimizer", "stepper"), "sampler", "reference", "iterations")

    def __init__(
        self,
        config: GRPOConfig,
        model: LanguageModel,
        engine: Engine,
        prompts: Sequence[Prompt],
        judge: Judge,
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
        self.sampler = sampler_of(config, engine, prompts, judge, model.tokenizer, **common)
        self.max_tokens, self.steps, self.seed, self.iterations, self._warned = max_tokens, steps, seed, 0, False
        self.advantage = advantage_of(config.advantage, config.num_generations + config.statistics)
        self.objective = objective_of(config.objective)
        self.stepper = OptimizerStep(model.trained(), config)
        self.reference = Reference(model) if config.beta else None
        self._learned: Learned | None = None

    @property
    def consumed(self) -> int:
        """Prompts used so far."""
        return self.sampler.asked

    def iterate(self) -> Metrics:
        """Sample answers, estimate group advantages, and update the policy."""
        began = self.consumed
        rollout, metrics = self.collect()
        self.sampler.begin(self.config.prompts_per_batch, self.config.num_generations + self.config.statistics)
        updated = self.update(self.estimate_advantages(rollout), began=began) if len(rollout) else {}
        if not updated and not self._warned:
            self._warned = True
            warn_of_nothing(self.consumed - began)
        self.iterations += 1
        if self.config.ref_reset_interval and self.iterations % self.config.ref_reset_interval == 0:
            self.reset()
        self.sampler.update(self.model)
        return metrics | updated | self.sampler.metrics() | {"health/empty_batches": float(not updated)}

    def reset(self) -> None:
        """Reset the reference to the current policy, and the moments of the optimizer (ProRL, section 3.2)."""
        self.stepper.reset()
        if self.reference:
            self.reference.reset()

    def collect(self) -> tuple[Rollout, dict[str, Any]]:
        """Sample answers to P prompts; with a filter, keep only groups with a signal."""
        if self.config.filter != "none":
            return self.collect_filtered()
        rollout = self.draw(self.config.prompts_per_batch)
        return rollout, group_metrics(rollout) | {"sampling/rounds": 1.0, "sampling/groups": float(len(rollout))}

    def draw(self, prompts: int) -> Rollout:
        """Sample answers to the next prompts."""
        steps = self.steps if self.config.supervision == "process" else None
        return self.sampler.draw(prompts, self.config.num_generations + self.config.statistics, steps=steps)

    def collect_filtered(self) -> tuple[Rollout, dict[str, Any]]:
        """Sample answers to P prompts, leave out groups without signal, and sample more where these are replaced."""
        config, missing = self.config, self.config.prompts_per_batch
        drawn, kept = list[Rollout](), list[Rollout]()
        while missing and len(drawn) < (config.max_rounds if config.filter == "refill" else 1):
            drawn.append(self.draw(missing))
            kept.append(drawn[-1].take(integers(self.signal(drawn[-1]).nonzero().squeeze(1))))
            missing -= len(kept[-1])
        metrics = {"sampling/rounds": float(len(drawn)), "sampling/groups": float(config.prompts_per_batch - missing)}
        return Rollout.join(kept), group_metrics(Rollout.join(drawn)) | metrics

    def signal(self, rollout: Rollout) -> Tensor:
        """Return which groups `[P]` have answers, or steps, with different rewards."""
        if self.config.supervision == "process":
            rewards, _, exists = rollout.step_rewards()
            return ops.has_signal(rewards.flatten(1), exists.flatten(1))
        return ops.has_signal(rollout.rewards().nan_to_num(), rollout.valid())

    def estimate_advantages(self, rollout: Rollout) -> GRPOBatch:
        """Return the advantages of all tokens of the training answers."""
        config, size, answers, rewards = self.config, rollout.group, rollout.answers, rollout.rewards()
        lengths = torch.tensor([len(c.ids) for c in answers.completions])
        if config.supervision == "process":
            longest = int(lengths.max())
            per_token = ops.process_advantages(*rollout.step_rewards(), length=longest, eps=config.advantage_eps)
            advantages = [row[:n] for row, n in zip(per_token.view(-1, longest), integers(lengths), strict=True)]
        else:
            if buffer := round(config.overlong_buffer * self.max_tokens):
                penalties = ops.overlong_penalty(lengths, max_length=self.max_tokens, buffer=buffer)
                rewards = rewards + config.overlong_penalty * penalties.view(-1, size)
            scaled = self.advantage(rewards.nan_to_num(), rollout.valid(), config.advantage_eps)
            advantages = [a.expand(n) for a, n in zip(scaled.flatten(), integers(lengths), strict=True)]
        counts = torch.tensor([not (config.mask_truncated_completions and c.truncated) for c in answers.completions])
        own = [i for i in range(len(lengths)) if i % size < config.num_generations]
        samples, behavior = answers.samples(), [torch.tensor(c.log_probs) for c in answers.completions]
        return GRPOBatch(
            take(samples, own), take(advantages, own), take(behavior, own), counts[own], rewards.flatten()[own]
        )

    def update(self, batch: GRPOBatch, *, began: int) -> dict[str, Any]:
        """Take the optimizer steps of a batch and return their metrics; none if no answer counts.

        Args:
            batch: the answers and advantages.
            began: prompts used before it, for the schedule of the step size.
        """
        config = self.config
        chance = streams.torch_generator(self.seed, "minibatches", self.iterations)
        count = -(-len(batch.samples) * config.num_minibatches // (config.num_generations * config.prompts_per_batch))
        size = {"tokens": config.micro_batch_tokens, "shards": self.shards.count}
        steps = plan(batch, group=config.num_generations, steps=count, generator=chance, **size)
        # The first step starts at the policy that sampled; only `check_start` needs its log-probabilities beforehand.
        known = config.num_iterations == 1 and self.stepper.steps > 0
        old = [None if known and not index else self._log_probs(batch, s.parts) for index, s in enumerate(steps)]
        rounds = [*zip(steps, old, strict=True)] * config.num_iterations
        asked = self.consumed - began
        found = [
            self._step(batch, step, before, (began + asked * (index + 0.5) / len(rounds)) / self.budget)
            for index, (step, before) in enumerate(rounds)
        ]
        clip, taken = (config.epsilon, config.epsilon_high), steps * config.num_iterations
        self._learned = Learned(batch, taken, found, config.num_generations, clip, bool(self.reference))
        metrics = measured(found, clip_low=config.epsilon, clip_high=config.epsilon_high)
        if found:
            metrics["policy/kl_old"] = kl_of_batch(self.model, *log_probs_before(batch, steps, found), config)
        return {name: value for name, value in metrics.items() if self.reference or name not in ("kl", "losses/kl")}

    @torch.no_grad()
    def _log_probs(self, batch: GRPOBatch, parts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the current log-probabilities, for each micro-batch of a later optimizer step."""
        return self.shards.map(lambda part: self._forward(batch, part)[1], parts)

    def _forward(self, batch: GRPOBatch, part: Sequence[int]) -> tuple[Packed, Tensor, Tensor]:
        packed = pack(take(batch.samples, part), device=self.model.device)
        return packed, *self.model.log_probs(packed, temperature=self.config.temperature)

    def _step(
        self, batch: GRPOBatch, step: Step, old: Sequence[Tensor] | None, progress: float
    ) -> tuple[dict[str, Any], list[TokenStats]]:
        """Take one optimizer step, by micro-batches with one common denominator."""
        config = self.config
        size: dict[str, Any] = {"longest": self.max_tokens, "answers": step.answers, "device": self.model.device}
        weight = step_weights(batch.samples, step.parts, how=config.loss_aggregation, **size)
        parts = [*zip(step.parts, [None] * len(step.parts) if old is None else old, strict=True)]
        rows = backward([self.stepper], parts, lambda part: self._differentiate(batch, *part, weight), self.shards)
        seen = [TokenStats(*row) for row in rows]
        policy = sum((tokens.policy.sum() for tokens in seen), torch.zeros(()))
        penalty = sum((tokens.reference.sum() for tokens in seen), torch.zeros(()))
        norm, skipped = self.stepper.step(progress)
        report = {"losses/policy": policy, "losses/kl": penalty, "losses/gradient_norm": norm}
        return report | {"health/updates": 1.0, "health/skipped_updates": skipped}, seen

    def _differentiate(self, batch: GRPOBatch, part: Sequence[int], old: Tensor | None, weight: Tensor) -> TokenStats:
        """Add the gradient of a micro-batch, of the loss with `weight[i]` for every token of sample i."""
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
        rows = (before, behavior, trust, advantages, ratios, entropy, kl, spread, policy, reference)
        return TokenStats(*(row.detach() for row in rows))

    def _divergence(self, packed: Packed, new: Tensor, old: Tensor) -> Tensor:
        """Return an estimate of KL(policy‖ref) at each token."""
        if self.reference is None:
            return torch.zeros_like(new)
        ref = self.reference.log_probs(packed, temperature=self.config.temperature)
        ratio = old if self.config.kl_weighted else None
        return ops.kl_estimate(new, ref, self.config.kl_estimator, old_log_probs=ratio)

    def take_learned(self) -> Learned | None:
        """Return the last training batch once; None if there is none since the last call."""
        learned, self._learned = self._learned, None
        return learned

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        super().load_state_dict(state)
        self.sampler.update(self.model)
