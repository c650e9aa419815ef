"""Reinforcement learning from human feedback: PPO on the tokens of a language model.

Ziegler et al. 2019 (arXiv:1909.08593) and Ouyang et al. 2022 (arXiv:2203.02155), with the details of Huang et al. 2024
(arXiv:2403.17031). A state is the prompt with the tokens so far, an action is the next token. The reward of a token is
-β times the log-ratio of the policy to a frozen reference, whose expectation is the penalty -β KL(policy‖reference);
the last token also gets the score of the answer. A critic estimates the value of every state, generalized advantage
estimation gives the advantages of the tokens, and both policy and critic are updated. The optimal policy is
proportional to the reference times exp(score / β).

The policy step is PPO, a vanilla policy gradient (VPG), or a natural gradient with a trust region (TRPO). PPO's penalty
on KL(old‖new) limits an update; it is independent of the penalty on the reference.

What differs from the papers: there is no padding. Policy and critic have separate optimizers and gradient clipping.
Answers to which no reward function applies are dropped. There is no pretraining loss (PPO-ptx).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.language.configs import ClipRange, require_used
from operant.language.critic import Critic, CriticConfig
from operant.language.divergence import kl_of_batch
from operant.language.engines.protocol import Engine
from operant.language.examples import Prompt
from operant.language.grpo_batch import Learned, Step, TokenStats, ratio_metrics, warn_of_nothing
from operant.language.importance import check_start, corrections, mismatch_metrics
from operant.language.logprobs import check_reference, flat, measure, plans, read
from operant.language.models import LanguageModel, Reference
from operant.language.optimizer import OptimizerStep, backward, progress
from operant.language.packing import pack, step_weights, take
from operant.language.rewards import RewardFunctions
from operant.language.rlhf_batch import RLHFBatch
from operant.language.rollouts import Rollout, length_metrics, reward_metrics
from operant.language.sampling_ahead import sampler_of
from operant.language.token_rewards import outcome_metrics, shaped, token_advantages, token_rewards, whitened
from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, require
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.state import DeclaredState, State
from operant.tensors import backpropagate, integers, split

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "ziegler": {"beta": 0.2, "beta_target": 6.0, "whiten_rewards": True},
    "instructgpt": {"beta": 0.02, "num_iterations": 1, "num_minibatches": 8},
    "huang": {"missing_eos": -1.0, "lr_schedule": "linear"},
    "vpg": {"step": "vpg"},
    "trpo": {"step": "trpo"},
}
"""Presets of the papers, and for each policy step."""


@dataclass(frozen=True, kw_only=True)
class RLHFConfig(CriticConfig, ClipRange):
    """Hyperparameters of RLHF; docs/algorithms/rlhf.md lists the differences from the defaults of TRL's PPO trainer."""

    learning_rate: PositiveFloat = 3e-6
    """Learning rate of AdamW for the policy. Models of a few million parameters need 1e-4 or more."""
    prompts_per_batch: PositiveInt = 64
    """Number of prompts per batch."""
    num_generations: PositiveInt = 1
    """Number of answers per prompt."""
    num_iterations: PositiveInt = 4
    """Number of passes over a batch."""
    num_minibatches: int = 1
    """Number of optimizer steps per pass over a batch, which is split by prompts."""
    step: Literal["ppo", "vpg", "trpo"] = "ppo"
    """Policy step: PPO; vanilla policy gradient (vpg), once per batch; or natural gradient with a trust region (trpo),
    once per batch, for small models. With vpg and trpo, only the critic uses several passes and minibatches."""
    objective: Literal["clip", "penalty", "clip-and-penalty"] | str = "clip"
    """PPO objective: clipped, with a penalty on KL(old‖new), or both; or path/to/file.py:function of a function with
    the parameters of `operant.language.rlhf.OBJECTIVES`."""
    epsilon: Annotated[float, Interval("(0, 1]")] = 0.2
    """Lower clip range: no gradient for negative advantages at ratios below 1 - epsilon."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip range: no gradient for positive advantages at ratios above 1 + epsilon_high; None: epsilon."""
    kl_coef: PositiveFloat = 1.0
    """Initial coefficient of the penalty on KL(old‖new), for objectives with one; TRL's kl_coef is `beta`."""
    kl_coef_target: PositiveFloat | None = 0.01
    """Target of KL(old‖new) per update, in nats per token, to which `kl_coef` is adapted within 1e-6 to 1e6; None:
    constant coefficient."""
    ent_coef: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus of PPO and VPG."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """Aggregation of the loss: mean over all tokens, mean over answers of their token means, or division by a constant,
    the maximum completion length."""
    missing_eos: float | None = None
    """Score that replaces the rewards of a truncated answer; None: its rewards."""
    score_clip: PositiveFloat | None = None
    """Clip range of scores, as maximum absolute value; None: no clipping."""
    whiten_rewards: bool = False
    """Scale the token rewards of a batch to variance 1, without shifting their mean."""
    normalize_advantage: Literal["batch", "none"] = "batch"
    """Normalize the token advantages of a batch to mean 0 and variance 1."""
    beta: NonNegativeFloat = 0.05
    """β, the coefficient of the penalty on KL(policy‖reference), in units of reward per nat."""
    beta_target: PositiveFloat | None = None
    """Target of KL(policy‖reference), in nats per answer, to which β is adapted (Ziegler et al., section 2.2); None:
    constant β."""
    beta_horizon: PositiveInt = 10_000
    """Number of answers over which a relative error of 20 % or more changes β by about 20 %, above a fifth of a batch,
    so that β stays positive."""
    target_kl: PositiveFloat = 0.01
    """Trust region of TRPO: maximum KL(old‖new) of a step, in nats per token."""
    cg_damping: NonNegativeFloat = 0.01
    """Damping added to the diagonal of the Fisher matrix. Larger values move the step towards the plain gradient."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        fifth = self.prompts_per_batch * self.num_generations / 5 if self.beta_target else 0
        require(
            self,
            beta_horizon=f"({fifth}, inf)",
            num_minibatches=f"[1, {self.prompts_per_batch}]",
            objective=doors.choices(("clip", *PENALIZED), self.objective, "operant.objectives"),
        )
        if self.critic == "shared" and self.step != "ppo":
            raise ValueError(
                f"critic=shared needs step=ppo, got step={self.step}, after which the critic's updates would change "
                "the policy: use --critic copy"
            )
        if self.beta_target is not None and self.beta == 0:
            raise ValueError("beta_target multiplies beta by factors, so beta must be above 0, got 0")
        self._require_used()

    def _require_used(self) -> None:
        """Check that options of other objectives and steps have their defaults."""
        ppo, both = self.step == "ppo", "step=ppo and objective={} or clip-and-penalty"
        clips, trpo = ppo and self.objective != "penalty", "step=trpo"
        reference = "of KL(policy‖reference), the coefficient (TRL's kl_coef) is beta, and the target beta_target"
        require_used(
            self,
            f"step={self.step} and objective={self.objective}",
            ("kl_coef", ppo and self.objective != "clip", both.format("penalty"), reference),
            ("kl_coef_target", ppo and self.objective in PENALIZED, both.format("penalty"), reference),
            ("target_kl", self.step == "trpo", trpo, reference),
            ("cg_damping", self.step == "trpo", trpo, ""),
            ("ent_coef", self.step != "trpo", "step=ppo or step=vpg", ""),
            ("objective", ppo, "step=ppo", ""),
            *((name, clips, both.format("clip"), "") for name in ("epsilon", "epsilon_high")),
        )


NATURAL = "operant.experimental.natural_gradient:improve"
"""Policy step for `step="trpo"`, by name, since its module imports this one."""

OBJECTIVES: Mapping[str, Callable[[Tensor, Tensor, Tensor, float, RLHFConfig], Tensor]] = {
    "clip": lambda new, old, advantages, kl_coef, config: ops.clipped_surrogate(
        new, old, advantages, clip_low=config.clip_range[0], clip_high=config.clip_range[1]
    ),
    "penalty": lambda new, old, advantages, kl_coef, config: ops.penalized_surrogate(
        new, old, advantages, ops.kl_estimate(old, new, "k3"), beta=kl_coef
    ),
    "clip-and-penalty": lambda new, old, advantages, kl_coef, config: (
        OBJECTIVES["clip"](new, old, advantages, kl_coef, config) + kl_coef * ops.kl_estimate(old, new, "k3")
    ),
    "vpg": lambda new, old, advantages, kl_coef, config: ops.policy_gradient(new, advantages),
}
"""PPO objectives: loss `[m]` of each token. On samples of the old policy, k3 is an unbiased estimator of KL(old‖new)
and of its gradient."""
PENALIZED = ("penalty", "clip-and-penalty")
"""Objectives with an adaptive penalty coefficient."""


class RLHF(DeclaredState):
    """Learner of RLHF.

    Args:
        config: hyperparameters.
        model: policy; the reference is a copy of its initial state.
        engine: sampling engine.
        prompts: training prompts.
        rewards: reward functions.
        critic: critic.
        max_tokens: maximum number of tokens of an answer, including EOS.
        seed: random seed of the prompt order and of sampling.
        budget: number of training prompts.
        shards: shards of prompts and optimizer steps. Default: one.

    Attributes:
        consumed: number of prompts used so far.
        model: policy.
        beta: current β.
        kl_coef: current coefficient of the penalty on KL(old‖new).
    """

    STATE = (
        *("model", ("optimizer", "stepper"), "critic", ("critic_optimizer", "critic_stepper"), "reference", "sampler"),
        *("coefficients", "iterations"),
    )

    def __init__(
        self,
        config: RLHFConfig,
        model: LanguageModel,
        engine: Engine,
        prompts: Sequence[Prompt],
        rewards: RewardFunctions,
        *,
        critic: Critic,
        max_tokens: int,
        seed: int,
        budget: int,
        shards: Shards | None = None,
    ):
        self.shards = shards or Shards()
        if config.step == "trpo" and (count := self.shards.count) > 1:
            raise ValueError(f"step=trpo does not support shards: use another step, or leave out --shards {count}")
        self.config, self.model, self.critic = config, model, critic
        self.budget, self.max_tokens, self.seed = budget, max_tokens, seed
        common: dict[str, Any] = {"max_tokens": max_tokens, "seed": seed, "budget": budget, "shards": self.shards}
        common["prompts_per_batch"] = config.prompts_per_batch
        self.sampler = sampler_of(config, engine, prompts, rewards, model.tokenizer, **common)
        self.reference = Reference(model)
        self.stepper = OptimizerStep(model.trained(), config)
        at_full_rate = replace(config, warmup_ratio=0.0)  # the first targets are far from the critic's values
        self.critic_stepper = OptimizerStep(critic.trained(), at_full_rate, learning_rate=config.critic_learning_rate)
        form = "a function (new, old, advantages, kl_coef, config) -> losses [m]"
        name = config.objective if config.step == "ppo" else "vpg"
        self.objective = doors.chosen(OBJECTIVES, name, arguments=5, expected=form, group="operant.objectives")
        self._clip = config.clip_range if name in ("clip", "clip-and-penalty") else None
        self.beta, self.kl_coef, self.iterations, self._warned = config.beta, config.kl_coef, 0, False
        self._learned: Learned | None = None

    @property
    def consumed(self) -> int:
        """Number of prompts used so far."""
        return self.sampler.asked

    def iterate(self) -> Metrics:
        """Sample answers, estimate the advantages of their tokens, and update critic and policy."""
        began = self.consumed
        rollout = self.sampler.draw(self.config.prompts_per_batch, self.config.num_generations)
        self.sampler.begin(self.config.prompts_per_batch, self.config.num_generations)
        metrics = reward_metrics(rollout) | length_metrics(rollout.answers.completions) | self.sampler.metrics()
        empty = not rollout.judged.valid.any()
        if not empty:
            batch, judged = self.estimate_advantages(rollout)
            metrics |= judged | self.update(batch, began=began)
        elif not self._warned:
            self._warned = True
            warn_of_nothing(len(rollout), metrics, group=rollout.group)
        self.iterations += 1
        self.sampler.update(self.model, self.iterations)
        return metrics | {"health/empty_batches": float(empty)}

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> tuple[RLHFBatch, dict[str, Any]]:
        """Compute the advantage and the value target of every token, and metrics of the answers."""
        config, device = self.config, self.model.device
        kept = integers(rollout.judged.valid.nonzero().squeeze(1))
        samples, completions = take(rollout.answers.samples(), kept), [rollout.answers.completions[i] for i in kept]
        truncated = torch.tensor([c.truncated for c in completions], device=device)
        scores = rollout.judged.total[kept].to(device)
        scores = shaped(scores, truncated, clip=config.score_clip, missing_eos=config.missing_eos)
        owners = [k // rollout.group for k in kept]
        seed = streams.integer(self.seed, "minibatches", self.iterations)
        size = {"tokens": config.micro_batch_tokens, "shards": self.shards.count}
        planned = plans(samples, owners, config.num_iterations, config.num_minibatches, seed=seed, **size)
        how: dict[str, Any] = {"temperature": config.temperature, "shards": self.shards}
        old, ref, values, after = measure(self.model, self.reference, self.critic, samples, planned[0], **how)
        kl = [ops.kl_estimate(new, before, "k1") for new, before in zip(old, ref, strict=True)]
        if not self.iterations:
            check_reference(kl)
        rewards = token_rewards(kl, scores, coefficient=self.beta, whiten=config.whiten_rewards)
        cut = truncated & config.bootstrap_truncated
        lam = 1.0 if self.iterations < config.critic_warmup else config.gae_lambda
        advantages = token_advantages(rewards, values, after, cut=cut, gamma=config.gamma, lam=lam)
        targets = [a + v for a, v in zip(advantages, values, strict=True)]
        outcome = outcome_metrics(kl, old, scores, coefficient=self.beta)
        metrics: dict[str, Any] = {
            **outcome,
            "objective/beta": self.beta,
            "val/num_eos_tokens": (~truncated).sum(),
            "value/explained_variance": ops.explained_variance(torch.cat(values), torch.cat(targets)),
        }
        behavior = [torch.tensor(c.log_probs, device=device) for c in completions]
        lengths = torch.tensor([len(row) for row in old], device=device)
        correction, cap = config.importance_sampling_correction, config.importance_sampling_cap
        trust = corrections(torch.cat(old), torch.cat(behavior), correction, lengths, cap=cap)
        metrics |= mismatch_metrics(torch.cat(old), torch.cat(behavior), trust)
        advantages = whitened(advantages) if config.normalize_advantage == "batch" else advantages
        self._adapt_beta(outcome["objective/kl"], len(samples))
        return RLHFBatch(
            samples=samples,
            plans=planned,
            behavior=behavior,
            old=old,
            values=values,
            advantages=advantages,
            trust=list(split(trust, integers(lengths))),
            targets=targets,
            rewards=rewards,
            kl=kl,
            scores=scores,
            owners=owners,
            group=rollout.group,
            versions=[c.version for c in completions],
        ), metrics

    def _adapt_beta(self, kl: Tensor, answers: int) -> None:
        """Adapt β to KL(policy‖reference) in nats per answer, after `answers` answers (Ziegler et al., section 2.2)."""
        config, target = self.config, self.config.beta_target
        if target is not None and self.iterations >= config.critic_warmup:
            self.beta = ops.adapt_horizon(self.beta, float(kl), target=target, horizon=config.beta_horizon, n=answers)

    def update(self, batch: RLHFBatch, *, began: int) -> dict[str, Any]:
        """Update policy and critic on a batch, and return its metrics.

        Args:
            batch: answers, advantages and value targets.
            began: number of prompts used before the batch, for the learning-rate schedule.
        """
        config, warm = self.config, self.iterations >= self.config.critic_warmup
        first = batch.parts if self.iterations == config.critic_warmup else []
        for part, new in zip(first, self._log_probs(batch, first), strict=True):
            check_start(new, flat(part, batch.old), flat(part, batch.behavior), dtype=self.model.dtype)
        together = warm and config.step == "ppo"
        self._learned = batch.record(self._clip)
        reports: list[dict[str, Any]] = []
        steps = [parts for each in batch.plans for parts in each]
        size = {"budget": self.budget, "batch": config.prompts_per_batch}
        if warm and config.step == "vpg":
            reports = [self._step(batch, batch.parts, progress(began, self.consumed, 0, steps=1, **size), critic=False)]
        elif warm and config.step == "trpo":
            reports = [doors.load(NATURAL, expected="the natural gradient step")(self, batch)]
        reports += [
            self._step(batch, parts, progress(began, self.consumed, index, steps=len(steps), **size), policy=together)
            for index, parts in enumerate(steps)
        ]
        names = dict.fromkeys(name for report in reports for name in report)
        found = {name: torch.stack([torch.as_tensor(r[name]) for r in reports if name in r]) for name in names}
        metrics = {name: v.sum() if name.startswith("health/") else v.mean() for name, v in found.items()}
        if together and config.objective in PENALIZED:
            metrics |= self._adapt_penalty(batch)
        elif warm:
            metrics["policy/kl_old"] = kl_of_batch(self.model, batch.samples, batch.old, config)
        return metrics

    def _step(
        self, batch: RLHFBatch, parts: list[list[int]], progress: float, *, policy: bool = True, critic: bool = True
    ) -> dict[str, Any]:
        """Take one optimizer step of policy, critic or both, with a common loss denominator for all micro-batches."""
        weight = step_weights(
            batch.samples, parts, how=self.config.loss_aggregation, longest=self.max_tokens, device=self.model.device
        )
        differentiate = partial(self._differentiate, batch, weight=weight, policy=policy, critic=critic)
        found = backward([self.stepper, self.critic_stepper], parts, differentiate, self.shards)
        seen = [TokenStats(*columns) for _, columns in found if policy]
        totals = {name: sum((sums[name] for sums, _ in found), torch.zeros(())) for name in found[0][0]}
        tokens = sum(len(batch.old[i]) for part in parts for i in part)
        metrics, skipped = {name: total / tokens for name, total in totals.items()}, 0.0
        if policy:
            metrics["losses/policy"] = torch.stack([one.policy.sum() for one in seen]).sum()
            metrics["losses/gradient_norm"], skipped = self.stepper.step(progress)
        if critic:
            metrics["losses/critic_gradient_norm"], missed = self.critic_stepper.step(progress)
            skipped += missed
        if policy and self._learned:
            self._learned.steps.append(Step(parts, len(batch.samples)))
            self._learned.found.append((metrics, seen))
        updates = float(policy) + float(critic)
        return metrics | {"health/updates": torch.tensor(updates), "health/skipped_updates": torch.tensor(skipped)}

    def _differentiate(
        self, batch: RLHFBatch, part: Sequence[int], *, weight: Tensor, policy: bool, critic: bool
    ) -> tuple[dict[str, Tensor], TokenStats | None]:
        """Accumulate the gradients of a micro-batch, in which every token of sample i has the loss weight `weight[i]`.

        Returns:
            Sums of metrics; and the statistics of the tokens, if the policy is trained.
        """
        config, device = self.config, self.model.device
        packed, hidden = pack(take(batch.samples, part), device=device), None
        loss, share, tokens = torch.zeros((), device=device), dict[str, Tensor](), None
        if policy:
            packed, hidden, new, entropy = read(self.model, batch.samples, part, temperature=config.temperature)
            losses, share = self._policy_losses(batch, part, new)
            spread = weight[part][packed.owner]
            loss = (spread * (losses - config.ent_coef * entropy)).sum()
            share["policy/entropy_avg"] = entropy.detach()
            tokens = batch.token_stats(part, new, entropy, spread, spread * losses)
        elif self.critic.trunk is None:
            with torch.no_grad():
                hidden = self.model.read(packed)
        if critic:
            (values, _), targets, clip = self.critic(packed, hidden), flat(part, batch.targets), config.clip_range_vf
            errors = (
                ops.value_loss(values, targets)
                if clip is None
                else ops.clipped_value_loss(values, targets, old_values=flat(part, batch.values), clip=clip)
            )
            loss = loss + config.vf_coef * (weight[part][packed.owner] * errors).sum()
            share["losses/value"] = errors.detach()
        backpropagate(loss)
        return {name: value.sum() for name, value in share.items()}, tokens

    def take_learned(self) -> Learned | None:
        """Return the last training batch; None if it was already returned."""
        learned, self._learned = self._learned, None
        return learned

    def _policy_losses(self, batch: RLHFBatch, part: Sequence[int], new: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy losses `[m]` of the tokens of a micro-batch, and metrics of each token."""
        config, old, advantages = self.config, flat(part, batch.old), batch.weighted(part)
        losses = self.objective(new, old, advantages, self.kl_coef, config)
        if getattr(losses, "shape", None) != new.shape:
            raise ValueError(
                f"objective {config.objective} must return the losses of {len(new)} tokens, got {losses!r:.80}"
            )
        return losses, ratio_metrics(new.detach(), old, advantages, self._clip)

    def _adapt_penalty(self, batch: RLHFBatch) -> dict[str, float]:
        """Adapt the penalty coefficient of the next update to KL(old‖new) of this one, in nats per token."""
        new = self._log_probs(batch, batch.parts)
        moved = [ops.kl_estimate(flat(p, batch.old), own, "k3") for p, own in zip(batch.parts, new, strict=True)]
        kl, used, target = float(torch.cat(moved).mean()), self.kl_coef, self.config.kl_coef_target
        if target is not None and math.isfinite(kl):
            self.kl_coef = min(max(ops.adapt_penalty(self.kl_coef, kl, target=target), 1e-6), 1e6)
        return {"policy/kl_old": kl, "policy/kl_coef": used}

    @torch.no_grad()
    def _log_probs(self, batch: RLHFBatch, parts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Compute the current log-probabilities of the tokens of each micro-batch."""
        model, samples, temperature = self.model, batch.samples, self.config.temperature
        found = self.shards.map(lambda part: read(model, samples, part, temperature=temperature)[2], parts)
        return [new.to(model.device) for new in found]

    @property
    def coefficients(self) -> dict[str, float]:
        """Adaptive coefficients, by name."""
        return {"beta": self.beta, "kl_coef": self.kl_coef}

    @coefficients.setter
    def coefficients(self, saved: dict[str, float]) -> None:
        if "kl" in saved:  # format of version 0.1
            saved = {"beta": saved["kl"], "kl_coef": saved["beta"]}
        self.beta, self.kl_coef = saved["beta"], saved["kl_coef"]

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        super().load_state_dict(state)
        self.sampler.update(self.model, self.iterations)
