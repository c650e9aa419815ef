"""Groups of answers on their way through the optimizer steps of a batch: `Judged`, `plan`, `measured`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant import ops
from operant.language.mismatch import mismatch_metrics
from operant.language.packing import Plan, Sample, micro_batches, take
from operant.language.rollouts import Rollout, length_metrics, reward_metrics


class Judged(NamedTuple):
    """N answers that are learned from, those to one prompt side by side, G of each.

    Attributes:
        samples: the sequences.
        advantages: `[l]` of each token of each answer.
        behaviour: `[l]` log-probabilities that the engine drew them with.
        counts: `[N]` whether an answer counts in loss and denominator.
    """

    samples: list[Sample]
    advantages: list[Tensor]
    behaviour: list[Tensor]
    counts: Tensor


class Seen(NamedTuple):
    """What was seen of the m tokens of a micro-batch, `[m]` each.

    Attributes:
        before: log-probabilities by the trainer, under the policy that sampled.
        behaviour: the same by the engine.
        trust: weights of the policy loss (`operant.language.mismatch.corrections`).
        advantages: of the tokens.
        ratios: log-ratios that were clipped.
        entropy: of the distributions that the tokens were drawn from.
        kl: estimates of the divergence from the reference.
    """

    before: Tensor
    behaviour: Tensor
    trust: Tensor
    advantages: Tensor
    ratios: Tensor
    entropy: Tensor
    kl: Tensor


def plan(batch: Judged, *, group: int, steps: int, tokens: int, generator: torch.Generator) -> Plan:
    """Divide a batch into optimizer steps by chance, as equal as they can be; a group is never parted between two.

    Args:
        batch: what is learned from.
        group: answers to each prompt, G.
        steps: how many; at most one a prompt.
        tokens: most tokens of a micro-batch.
        generator: where chance comes from, on the CPU.

    Returns:
        The steps; answers that do not count are in none, and steps of nothing else are not there.
    """
    prompts = len(batch.samples) // group
    order = torch.randperm(prompts, generator=generator).tolist()
    found: Plan = []
    for k in range(steps):
        chosen = order[prompts * k // steps : prompts * (k + 1) // steps]
        answers = [i for p in chosen for i in range(p * group, (p + 1) * group) if batch.counts[i]]
        parts = micro_batches(take(batch.samples, answers), tokens=tokens)
        found.append([[answers[i] for i in part] for part in parts])
    return [parts for parts in found if parts]


def group_metrics(rollout: Rollout) -> dict[str, float]:
    """Return what all the answers that were sampled are like, under TRL's names."""
    completions = rollout.answers.completions
    alike = ~ops.has_signal(rollout.rewards().nan_to_num(), rollout.valid())
    return {
        **reward_metrics(rollout),
        **length_metrics(completions),
        "frac_reward_zero_std": float(alike.float().mean()),
        "num_tokens": float(sum(len(c.ids) for c in completions)),
    }


def measured(
    steps: Sequence[tuple[Mapping[str, Any], Sequence[Seen]]], *, clip_low: float, clip_high: float
) -> dict[str, Any]:
    """Return means over optimizer steps, and over all tokens that were trained in them, under TRL's names.

    Args:
        steps: what each step says of itself, where what concerns health adds up; and what it has seen of the tokens of
            each micro-batch. Nothing comes of no steps.
        clip_low: how far a ratio may fall below 1 before a token of negative advantage has lost its gradient.
        clip_high: how far it may rise above 1 before one of positive advantage has.
    """
    if not steps:
        return {}
    seen = [tokens for _, parts in steps for tokens in parts]
    before, behaviour, trust, advantages, ratios, entropy, kl = (torch.cat(rows) for rows in zip(*seen, strict=True))
    rho = ratios.exp()
    low, high = (rho < 1 - clip_low) & (advantages < 0), (rho > 1 + clip_high) & (advantages > 0)
    columns = {name: torch.stack([torch.as_tensor(own[name]).cpu() for own, _ in steps]) for name in steps[0][0]}
    return {
        **{name: v.sum() if name.startswith("health/") else v.mean() for name, v in columns.items()},
        "entropy": entropy.mean(),
        "kl": kl.mean(),
        "clip_ratio/low_mean": low.float().mean(),
        "clip_ratio/high_mean": high.float().mean(),
        "clip_ratio/region_mean": (low | high).float().mean(),
        **mismatch_metrics(before, behaviour, trust),
    }
