"""Groups of answers in the optimizer steps of a batch: `GRPOBatch`, `plan`, `measured`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant import doors, ops
from operant.language.importance import mismatch_metrics
from operant.language.packing import Sample, micro_batches, take
from operant.language.rollouts import Rollout, length_metrics, reward_metrics
from operant.tensors import integers, nested, split

logger = logging.getLogger(__name__)


ADVANTAGES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "group": lambda rewards, valid, eps: ops.group_advantages(rewards, eps=eps, valid=valid),
    "batch": lambda rewards, valid, eps: ops.group_advantages(rewards, scale="batch", eps=eps, valid=valid),
    "mean": lambda rewards, valid, eps: ops.group_advantages(rewards, scale="none", valid=valid),
    "leave-one-out": lambda rewards, valid, eps: ops.leave_one_out(rewards, valid=valid),
}
"""From rewards and validity `[P, G]` and ε to advantages `[P, G]`: the distance to the group's mean, in standard
deviations of the group or of the batch, or unscaled; or the distance to the mean of the others."""

AdvantageFunction = Callable[[Tensor, Tensor, float], Tensor]
"""Function with the signature of `ADVANTAGES`."""


def advantage_of(name: str, group: int) -> AdvantageFunction:
    """Return an advantage function: one of `ADVANTAGES`, or a user's.

    A user's function gets only rewards `[P, G]`, and groups with unrewarded answers separately, `[1, n]`; answers
    without a reward get advantage 0, and so does the only rewarded answer of a group.

    Args:
        name: in the table, or path of the function.
        group: G, for a test with different rewards, and with equal ones.

    Raises:
        operant.doors.DoorError: there is no such function.
        ValueError: its result has NaN or Inf, or not the shape of the rewards.
    """
    if name in ADVANTAGES:
        return ADVANTAGES[name]
    expected = "a function of rewards [P, G] that returns advantages [P, G]"
    function: Any = doors.load(name, expected=expected, group="operant.advantages")

    def judged(rewards: Tensor) -> Tensor:
        found = function(rewards)
        if getattr(found, "shape", None) != rewards.shape or not bool(torch.isfinite(found).all()):
            raise ValueError(
                f"advantage {name} must return a tensor of shape {tuple(rewards.shape)} of finite numbers, except the "
                f"rewards {_shown(rewards)} it returned {_shown(found)}"
            )
        return found.to(rewards.dtype)

    def advantages(rewards: Tensor, valid: Tensor, eps: float) -> Tensor:
        found, whole = torch.zeros_like(rewards), valid.all(1)
        if bool(whole.any()):
            found[whole] = judged(rewards[whole])
        for row in integers((~whole & (valid.sum(1) > 1)).nonzero().flatten()):
            found[row, valid[row]] = judged(rewards[row : row + 1, valid[row]])[0]
        return found

    judged(torch.stack([torch.arange(group) / group, torch.ones(group)]))
    return advantages


def _shown(numbers: Any) -> str:
    return str(nested(numbers) if isinstance(numbers, Tensor) else numbers)[:200]


class GRPOBatch(NamedTuple):
    """N answers for training, consecutive per prompt, G of each.

    Attributes:
        samples: the sequences.
        advantages: `[l]` of each token of each answer.
        behavior: `[l]` log-probabilities by the engine.
        counts: `[N]` whether an answer counts in loss and denominator.
        rewards: `[N]` that the advantages are computed from, NaN if missing.
    """

    samples: list[Sample]
    advantages: list[Tensor]
    behavior: list[Tensor]
    counts: Tensor
    rewards: Tensor


class Step(NamedTuple):
    """One optimizer step of a batch.

    Attributes:
        parts: the micro-batches, each as indices of samples that count.
        answers: number of answers to the prompts of the step, including those that do not count.
    """

    parts: list[list[int]]
    answers: int


class TokenStats(NamedTuple):
    """Records of the m tokens of a micro-batch, `[m]` each.

    Attributes:
        before: log-probabilities by the trainer, of the policy that sampled.
        behavior: log-probabilities by the engine.
        trust: weights of the policy loss (`operant.language.importance.corrections`).
        advantages: of the tokens.
        ratios: clipped log-ratios.
        entropy: of the distributions of the tokens.
        kl: estimates of the divergence from the reference.
        weight: of the tokens in the loss.
        policy: terms of the policy loss; their sum over the micro-batches of a step is its `losses/policy`.
        reference: terms of the KL penalty; their sum is `losses/kl`.
    """

    before: Tensor
    behavior: Tensor
    trust: Tensor
    advantages: Tensor
    ratios: Tensor
    entropy: Tensor
    kl: Tensor
    weight: Tensor
    policy: Tensor
    reference: Tensor


class Learned(NamedTuple):
    """A batch, and the records of its optimizer steps.

    Attributes:
        batch: the answers and advantages.
        steps: the optimizer steps of all passes, in order.
        found: their metrics and micro-batch records.
        group: answers to each prompt, G.
        clip: how far a ratio may fall below 1, and rise above it.
        reference: whether the loss has a term of the divergence from a reference.
        owners: numbers of the prompts of the answers. Default: each prompt has the next G answers.
        columns: further numbers of the tokens of every answer, `[l]` each, by name.
    """

    batch: GRPOBatch
    steps: list[Step]
    found: list[tuple[dict[str, Any], list[TokenStats]]]
    group: int
    clip: tuple[float, float]
    reference: bool
    owners: Sequence[int] | None = None
    columns: Mapping[str, Sequence[Tensor]] = MappingProxyType({})


def plan(
    batch: GRPOBatch, *, group: int, steps: int, tokens: int, generator: torch.Generator, shards: int = 1
) -> list[Step]:
    """Divide a batch randomly into optimizer steps, as equal as possible; groups stay whole.

    Args:
        batch: the answers and advantages.
        group: answers to each prompt, G.
        steps: number of steps; at most one per prompt.
        tokens: maximum tokens of a micro-batch.
        generator: random numbers, on the CPU.
        shards: of each step (see `operant.language.packing.micro_batches`).

    Returns:
        The steps. Answers that do not count are in no micro-batch, and a step with only such answers is dropped.
    """
    prompts = len(batch.samples) // group
    order = integers(torch.randperm(prompts, generator=generator))
    found: list[Step] = []
    for k in range(steps):
        chosen = order[prompts * k // steps : prompts * (k + 1) // steps]
        answers = [i for p in chosen for i in range(p * group, (p + 1) * group) if batch.counts[i]]
        parts = micro_batches(take(batch.samples, answers), tokens=tokens, shards=shards)
        found.append(Step([[answers[i] for i in part] for part in parts], len(chosen) * group))
    return [step for step in found if step.parts]


def warn_of_nothing(prompts: int) -> None:
    """Warn that a batch of this many prompts has no signal."""
    logger.warning(
        "Nothing to learn from %d prompts: the answers to each have equal rewards, or were truncated; use easier or "
        "harder prompts, a larger --num-generations, or a longer --max-completion-length. This warning appears once; "
        "health/empty_batches counts all",
        prompts,
    )


def group_metrics(rollout: Rollout) -> dict[str, float]:
    """Return statistics of all sampled answers, under TRL's names."""
    completions = rollout.answers.completions
    alike = ~ops.has_signal(rollout.rewards().nan_to_num(), rollout.valid())
    return {
        **reward_metrics(rollout),
        **length_metrics(completions),
        "frac_reward_zero_std": float(alike.float().mean()),
        "num_tokens": float(sum(len(c.ids) for c in completions)),
    }


def measured(
    steps: Sequence[tuple[Mapping[str, Any], Sequence[TokenStats]]], *, clip_low: float, clip_high: float
) -> dict[str, Any]:
    """Return means over optimizer steps, and over all their trained tokens, under TRL's names.

    Args:
        steps: metrics of each step, where health metrics add up; and its records of the tokens of each micro-batch. No
            steps give no metrics.
        clip_low: how far a ratio may fall below 1 before a token of negative advantage loses its gradient.
        clip_high: how far it may rise above 1 before one of positive advantage does.
    """
    if not steps:
        return {}
    seen = [tokens for _, parts in steps for tokens in parts]
    tokens = TokenStats(*(torch.cat(rows) for rows in zip(*seen, strict=True)))
    low, high = clipped(tokens, clip_low=clip_low, clip_high=clip_high)
    columns = {name: torch.stack([torch.as_tensor(own[name]).cpu() for own, _ in steps]) for name in steps[0][0]}
    return {
        **{name: v.sum() if name.startswith("health/") else v.mean() for name, v in columns.items()},
        "entropy": tokens.entropy.mean(),
        "kl": tokens.kl.mean(),
        "clip_ratio/low_mean": low.float().mean(),
        "clip_ratio/high_mean": high.float().mean(),
        "clip_ratio/region_mean": (low | high).float().mean(),
        **mismatch_metrics(tokens.before, tokens.behavior, tokens.trust),
    }


def clipped(tokens: TokenStats, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return which tokens `[m]` have lost their gradient because the ratio is too low, and too high.

    Args:
        tokens: their records.
        clip_low: how far a ratio may fall below 1.
        clip_high: how far it may rise above 1.
    """
    rho = tokens.ratios.exp()
    return (rho < 1 - clip_low) & (tokens.advantages < 0), (rho > 1 + clip_high) & (tokens.advantages > 0)


def log_probs_before(
    batch: GRPOBatch, steps: Sequence[Step], found: Sequence[tuple[Any, Sequence[TokenStats]]]
) -> tuple[list[Sample], list[Tensor]]:
    """The trained answers, and the log-probabilities `[l]` of their tokens before the updates of the batch.

    Args:
        batch: the answers and advantages.
        steps: its optimizer steps.
        found: records of each step of the first pass, and of later ones.
    """
    rows: dict[int, Tensor] = {}
    for step, (_, seen) in zip(steps, found[: len(steps)], strict=True):
        for part, tokens in zip(step.parts, seen, strict=True):
            rows |= zip(part, split(tokens.before, [len(batch.samples[i].completion) for i in part]), strict=True)
    return take(batch.samples, list(rows)), list(rows.values())
