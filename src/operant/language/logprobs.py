"""Log-probabilities and values of every token of a batch by policy, reference and critic: `measure`.

Minibatches are planned first. Recomputing the same packed batch gives bitwise equal numbers, so the probability ratios
of a first step are exactly 1.
"""

import math
from collections.abc import Sequence
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
    """Records of N samples: lists of N tensors `[l]`, one number per trained token, and of N numbers.

    Attributes:
        log_probs: by the policy.
        ref_log_probs: by the reference.
        values: of the states in which the tokens were chosen.
        after: `[N]` values of the states after the last tokens.
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
    """Divide samples into random minibatches, those of one prompt together, with a new order for each epoch.

    Args:
        samples: the whole batch.
        owners: the prompt of each sample, ascending.
        epochs: passes over the batch.
        minibatches: per epoch; fewer if there are fewer prompts.
        tokens: maximum tokens of a micro-batch.
        seed: of the orders.
        shards: of each minibatch (see `operant.language.packing.micro_batches`).
    """
    prompts = [[i for i, owner in enumerate(owners) if owner == prompt] for prompt in dict.fromkeys(owners)]
    count = len(prompts)
    size = math.ceil(count / minibatches)
    found: list[Plan] = []
    for epoch in range(epochs):
        order = shuffled(count, epoch * count, count, seed=seed)
        steps = [[i for p in order[start : start + size] for i in prompts[p]] for start in range(0, count, size)]
        parts = [micro_batches(take(samples, step), tokens=tokens, shards=shards) for step in steps]
        found.append([[[step[i] for i in part] for part in own] for step, own in zip(steps, parts, strict=True)])
    return found


def read(
    model: LanguageModel, samples: Sequence[Sample], part: Sequence[int], *, temperature: float
) -> tuple[Packed, Tensor, Tensor, Tensor]:
    """Return some samples packed, hidden states `[n, H]`, and log-probabilities and entropies of the tokens `[m]`."""
    packed = pack(take(samples, part), device=model.device)
    hidden = model.read(packed)
    before = hidden.index_select(0, packed.before)
    return packed, hidden, *model.judge(before, packed.targets, temperature=temperature)


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
    """Measure every token of a batch, without a graph.

    Args:
        model: the policy.
        reference: the initial policy.
        critic: the critic.
        samples: the N samples.
        planned: their minibatches.
        temperature: of policy and reference.
        shards: of the minibatches. Default: one.
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
    return Measured(list(old), list(ref), list(values), torch.stack(after))


def flat(part: Sequence[int], rows: Sequence[Tensor]) -> Tensor:
    """Return the tokens' part `[m]` of lists of `[l]`, for some samples."""
    return torch.cat([rows[i] for i in part])


def check_reference(kl: Sequence[Tensor]) -> None:
    """Check the first batch of a run: the policy still equals the reference, so all differences are 0.

    Args:
        kl: for each answer the differences `[l]` of log-probabilities.

    Raises:
        ValueError: one is not 0; the message names the cause.
    """
    off = float(torch.cat(list(kl)).abs().max())
    if off != 0:
        raise ValueError(
            f"before the first step policy and reference should be the same, but a log-probability is {off:.2g} off: "
            "the model is not deterministic (look for dropout, noise or routing in it), or was trained already when "
            "its reference was made"
        )
