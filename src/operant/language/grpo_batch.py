"""Training batches of GRPO, and their optimizer steps and metrics: `GRPOBatch`, `plan`, `measured`."""

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
"""Advantage functions, from rewards and validity mask `[P, G]` and ε to advantages `[P, G]`: difference from the
group's mean, divided by the standard deviation of the group or batch, or unscaled; or difference from the mean of the
others."""

AdvantageFunction = Callable[[Tensor, Tensor, float], Tensor]
"""Function with the signature of `ADVANTAGES`."""


def advantage_of(name: str, group: int) -> AdvantageFunction:
    """Return an advantage function by its name in `ADVANTAGES` or the path of a custom function.

    A custom function is called with rewards `[P, G]`, and with `[1, n]` for each group that has answers without a
    reward. These get advantage 0, and so does the only rewarded answer of a group.

    Args:
        name: name or path of the function.
        group: group size G, for a test call with different and with equal rewards.

    Raises:
        operant.doors.DoorError: there is no such function, or it does not take one argument.
        ValueError: its result contains NaN or Inf, or has another shape than the rewards.
    """
    if name in ADVANTAGES:
        return ADVANTAGES[name]
    expected = "a function of rewards [P, G] that returns advantages [P, G]"
    function: Callable[[Tensor], object] = doors.load(name, expected=expected, group="operant.advantages")
    doors.require_arguments(function, f"advantage {name}", 1, expected)

    def checked(rewards: Tensor) -> Tensor:
        found: object = function(rewards)
        if not isinstance(found, Tensor) or found.shape != rewards.shape or not bool(torch.isfinite(found).all()):
            kind = "" if isinstance(found, Tensor) else f", a {type(found).__name__}"
            raise ValueError(
                f"advantage {name} must return a tensor of shape {tuple(rewards.shape)} of finite numbers; given the "
                f"rewards {_shown(rewards)}, it returned {_shown(found)}{kind}"
            )
        return found.to(rewards.dtype)

    def advantages(rewards: Tensor, valid: Tensor, eps: float) -> Tensor:
        found, whole = torch.zeros_like(rewards), valid.all(1)
        if bool(whole.any()):
            found[whole] = checked(rewards[whole])
        for row in integers((~whole & (valid.sum(1) > 1)).nonzero().flatten()):
            found[row, valid[row]] = checked(rewards[row : row + 1, valid[row]])[0]
        return found

    checked(torch.stack([torch.arange(group) / group, torch.ones(group)]))
    return advantages


def _shown(numbers: Any) -> str:
    return " ".join(str(nested(numbers) if isinstance(numbers, Tensor) else numbers).split())[:200]


class GRPOBatch(NamedTuple):
    """N answers for training, with G consecutive answers per prompt.

    Attributes:
        samples: sequences.
        advantages: advantages of the tokens of each answer, `[l]` each.
        behavior: log-probabilities of the tokens by the engine, `[l]` each.
        counts: mask `[N]` of the answers that count in the loss; neither truncated ones, if they are masked, nor those
            without a reward do.
        rewards: rewards from which the advantages are computed, `[N]`; NaN if missing.
        versions: version of the weights that sampled each answer.
    """

    samples: list[Sample]
    advantages: list[Tensor]
    behavior: list[Tensor]
    counts: Tensor
    rewards: Tensor
    versions: list[int]


class Step(NamedTuple):
    """One optimizer step of a batch.

    Attributes:
        parts: micro-batches, each as indices of samples that count.
        answers: number of answers to the prompts of the step, including masked ones, but not those without a reward.
    """

    parts: list[list[int]]
    answers: int


class TokenStats(NamedTuple):
    """Statistics of the m tokens of a micro-batch, `[m]` each.

    Attributes:
        before: log-probabilities of the sampling policy, computed by the trainer.
        behavior: log-probabilities computed by the engine.
        trust: importance weights of the policy loss (`operant.language.importance.corrections`).
        advantages: advantages.
        ratios: log-ratios that are clipped.
        entropy: entropies of the token distributions.
        kl: estimates of the KL divergence from the reference.
        weight: loss weights.
        policy: terms of the policy loss; their sum over the micro-batches of a step is `losses/policy`.
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

    def detach(self) -> "TokenStats":
        """Return the statistics without their graph."""
        return TokenStats(*(column.detach() for column in self))


class Learned(NamedTuple):
    """A trained batch with the statistics of its optimizer steps.

    Attributes:
        batch: answers and advantages.
        steps: optimizer steps of all passes, in order.
        found: metrics and token statistics of each step.
        group: number of answers per prompt, G.
        clip: lower and upper clip range of the ratio.
        reference: whether the loss has a KL penalty to a reference.
        owners: index of the prompt of each answer. Default: consecutive groups of G answers.
        columns: additional values of the tokens of every answer, `[l]` each, by name.
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
    """Split a batch randomly into optimizer steps of nearly equal size, without splitting groups.

    Args:
        batch: answers and advantages.
        group: number of answers per prompt, G.
        steps: number of steps, at most one per prompt.
        tokens: maximum number of tokens of a micro-batch.
        generator: random generator on the CPU.
        shards: number of shards per step (see `operant.language.packing.micro_batches`).

    Returns:
        The steps. Answers that do not count are in no micro-batch, and a step with only such answers is dropped.
    """
    total = batch.counts | batch.rewards.isfinite()  # masked answers stay in the denominators, unrewarded ones do not
    prompts = len(batch.samples) // group
    order = integers(torch.randperm(prompts, generator=generator))
    found: list[Step] = []
    for k in range(steps):
        chosen = order[prompts * k // steps : prompts * (k + 1) // steps]
        everything = [i for p in chosen for i in range(p * group, (p + 1) * group)]
        answers = [i for i in everything if batch.counts[i]]
        parts = micro_batches(take(batch.samples, answers), tokens=tokens, shards=shards)
        found.append(Step([[answers[i] for i in part] for part in parts], int(total[everything].sum())))
    return [step for step in found if step.parts]


def warn_of_nothing(prompts: int, metrics: Mapping[str, Any], *, group: int) -> None:
    """Warn that no answer of a batch can be trained on.

    Args:
        prompts: number of prompts.
        metrics: metrics of their answers (`group_metrics`).
        group: number of answers per prompt.
    """
    answers, missing = prompts * group, int(metrics["health/missing_rewards"])
    names = [name[8:-5] for name in metrics if name.startswith("rewards/") and name.endswith("/mean")]
    lost = f"{missing} of {answers} answers have no reward: {', '.join(names)} returned None, failed or timed out"
    why = "the answers to each have equal rewards or none, or were truncated; use easier or harder prompts, a larger "
    why += "--num-generations, or a longer --max-completion-length"
    causes = [lost] * bool(missing) + [why] * (missing < answers)
    logger.warning(
        "Nothing to learn from %d prompts: %s. This warning appears once; health/empty_batches counts all",
        *(prompts, "; or ".join(causes)),
    )


def group_metrics(rollout: Rollout, signal: Callable[[Rollout], Tensor]) -> dict[str, float]:
    """Compute statistics of all sampled answers, under TRL's names.

    Args:
        rollout: sampled answers.
        signal: function that returns a mask `[P]` of the groups from which something can be learned.
    """
    completions, alike = rollout.answers.completions, ~signal(rollout)
    return {
        **reward_metrics(rollout),
        **length_metrics(completions),
        "frac_reward_zero_std": float(alike.float().mean()),
        "num_tokens": float(sum(len(c.ids) for c in completions)),
    }


def measured(
    steps: Sequence[tuple[Mapping[str, Any], Sequence[TokenStats]]], *, clip_low: float, clip_high: float
) -> dict[str, Any]:
    """Compute metrics as means over optimizer steps and over all trained tokens, under TRL's names.

    Args:
        steps: metrics of each step, of which health counts are summed, and the token statistics of its micro-batches.
            Without steps there are no metrics.
        clip_low: lower clip range of the ratio, for tokens of negative advantage.
        clip_high: upper clip range of the ratio, for tokens of positive advantage.
    """
    if not steps:
        return {}
    seen = [tokens for _, parts in steps for tokens in parts]
    tokens = TokenStats(*(torch.cat(rows) for rows in zip(*seen, strict=True)))
    low, high = clipped(tokens.ratios, tokens.advantages, clip_low=clip_low, clip_high=clip_high)
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


def clipped(ratios: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return masks `[m]` of the tokens without gradient because the ratio is below, and above, the clip range.

    Args:
        ratios: log-ratios, `[m]`.
        advantages: advantages, `[m]`.
        clip_low: lower clip range of the ratio, for negative advantages.
        clip_high: upper clip range of the ratio, for positive advantages.
    """
    rho = ratios.exp()
    return (rho < 1 - clip_low) & (advantages < 0), (rho > 1 + clip_high) & (advantages > 0)


def ratio_metrics(new: Tensor, old: Tensor, advantages: Tensor, clip: tuple[float, float] | None) -> dict[str, Tensor]:
    """Compute metrics `[m]` of the probability ratios of tokens, under the names of TRL's PPO trainer.

    Args:
        new: log-probabilities of the policy, `[m]`.
        old: log-probabilities of the policy before the update, `[m]`.
        advantages: advantages, `[m]`.
        clip: lower and upper clip range of the ratio; None: the objective does not clip.
    """
    found = {"policy/approxkl_avg": ops.kl_estimate(old, new, "k3"), "val/ratio": (new - old).exp()}
    if clip is not None:
        low, high = clipped(new - old, advantages, clip_low=clip[0], clip_high=clip[1])
        found["policy/clipfrac_avg"] = (low | high).float()
    return found


def log_probs_before(
    batch: GRPOBatch, steps: Sequence[Step], found: Sequence[tuple[Any, Sequence[TokenStats]]]
) -> tuple[list[Sample], list[Tensor]]:
    """Return the trained answers, and the log-probabilities `[l]` of their tokens before the updates of the batch.

    Args:
        batch: answers and advantages.
        steps: optimizer steps of the batch.
        found: metrics and token statistics of each step, starting with the first pass.
    """
    rows: dict[int, Tensor] = {}
    for step, (_, seen) in zip(steps, found[: len(steps)], strict=True):
        for part, tokens in zip(step.parts, seen, strict=True):
            rows |= zip(part, split(tokens.before, [len(batch.samples[i].completion) for i in part]), strict=True)
    return take(batch.samples, list(rows)), list(rows.values())
