"""Log-probabilities and values of all tokens of a batch, by policy, reference and critic: `measure`.

Minibatches are planned first. Recomputing the same packed batch gives bitwise equal numbers, so the probability ratios
at the first step are exactly 1.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from operant.language.critic import Critic
from operant.language.models import LanguageModel, Reference
from operant.language.packing import Packed, Plan, Sample, micro_batches, pack, take
from operant.language.rollouts import shuffled
from operant.runtime.shards import Shards
from operant.tensors import integers, split


class Measured(NamedTuple):
    """Measurements of N samples: lists of N tensors `[l]` with one number per trained token.

    Attributes:
        log_probs: log-probabilities by the policy.
        ref_log_probs: log-probabilities by the reference.
        values: values of the states before the tokens.
        after: values of the states after the last tokens, `[N]`.
    """

    log_probs: list[Tensor]
    ref_log_probs: list[Tensor]
    values: list[Tensor]
    after: Tensor


def plans(
    samples: Sequence[Sample],
    owners: Sequence[int],
    epochs: int,
    minibatches: int,
    *,
    tokens: int,
    seed: int,
    shards: int = 1,
) -> list[Plan]:
    """Split samples into random minibatches of nearly equal size without splitting prompts, in a new order per epoch.

    Args:
        samples: all samples of the batch.
        owners: index of the prompt of each sample, ascending.
        epochs: number of passes over the batch.
        minibatches: number of minibatches per epoch; fewer if there are fewer prompts.
        tokens: maximum number of tokens of a micro-batch.
        seed: random seed of the orders.
        shards: number of shards per minibatch (see `operant.language.packing.micro_batches`).
    """
    prompts = [list(own) for _, own in groupby(range(len(owners)), key=owners.__getitem__)]
    count, cuts = len(prompts), min(minibatches, len(prompts))
    edges = [count * k // cuts for k in range(cuts + 1)]
    found: list[Plan] = []
    for epoch in range(epochs):
        order = shuffled(count, epoch * count, count, seed=seed)
        steps = [[i for p in order[start:end] for i in prompts[p]] for start, end in pairwise(edges)]
        parts = [micro_batches(take(samples, step), tokens=tokens, shards=shards) for step in steps]
        found.append([[[step[i] for i in part] for part in own] for step, own in zip(steps, parts, strict=True)])
    return found


def read(
    model: LanguageModel, samples: Sequence[Sample], part: Sequence[int], *, temperature: float
) -> tuple[Packed, Tensor, Tensor, Tensor]:
    """Pack samples, and compute hidden states `[n, H]`, and log-probabilities and entropies of the tokens `[m]`."""
    packed = pack(take(samples, part), device=model.device)
    hidden = model.read(packed)
    before = hidden.index_select(0, packed.before)
    return packed, hidden, *model.token_log_probs(before, packed.targets, temperature=temperature)


@torch.no_grad()
def measure(
    model: LanguageModel,
    reference: Reference,
    critic: Critic,
    samples: Sequence[Sample],
    planned: Plan,
    *,
    temperature: float,
    shards: Shards | None = None,
) -> Measured:
    """Compute log-probabilities and values of every token of a batch, without gradients.

    Args:
        model: policy.
        reference: reference policy.
        critic: critic.
        samples: N samples.
        planned: minibatches of the samples.
        temperature: temperature of policy and reference.
        shards: shards of the minibatches. Default: one.
    """

    def measured(part: Sequence[int]) -> list[tuple[Tensor, ...]]:
        packed, hidden, log_probs, _ = read(model, samples, part, temperature=temperature)
        ref_log_probs = reference.log_probs(packed, temperature=temperature)
        values, after = critic(packed, hidden)
        flat = [split(row, integers(packed.lengths)) for row in (log_probs, ref_log_probs, values)]
        return [*zip(*flat, after, strict=True)]

    parts = [part for step in planned for part in step]
    rows: dict[int, tuple[Tensor, ...]] = {}
    for part, found in zip(parts, (shards or Shards()).map(measured, parts), strict=True):
        rows |= zip(part, found, strict=True)
    old, ref, values, after = zip(*(rows[i] for i in range(len(samples))), strict=True)
    old, ref, values = ([row.to(model.device) for row in column] for column in (old, ref, values))
    return Measured(old, ref, values, torch.stack(after).to(model.device))


def flat(part: Sequence[int], rows: Sequence[Tensor]) -> Tensor:
    """Concatenate the rows `[l]` of some samples into one tensor `[m]`."""
    return torch.cat([rows[i] for i in part])


def check_reference(kl: Sequence[Tensor]) -> None:
    """Check at the first batch of a run that policy and reference are equal, so that all log-ratios are 0.

    Args:
        kl: log-ratios of policy to reference, `[l]` for each answer.

    Raises:
        ValueError: a log-ratio is not 0; the message describes possible causes.
    """
    off = float(torch.cat(list(kl)).abs().max())
    if off != 0:
        raise ValueError(
            f"before the first step policy and reference should be the same, but a log-probability is {off:.2g} off: "
            "the model is not deterministic (look for dropout, noise or routing in it), or was already trained when "
            "the reference was created"
        )
