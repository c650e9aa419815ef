"""Changes of a policy: in one batch, `kl_of_batch`, and since the start of training, `Start`."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from operant import ops
from operant.language.configs import SamplingConfig
from operant.language.models import LanguageModel, Reference
from operant.language.packing import Sample, micro_batches, pack, take

logger = logging.getLogger(__name__)

ANSWERS, SHARE = 16, 32
"""Maximum answers of a batch to score again after its last step, and the inverse of their share of the batch."""
LARGEST = 50_000_000
"""Parameters of the largest model that is copied only to measure KL(policy‖start)."""


@torch.no_grad()
def kl_of_batch(
    model: LanguageModel, samples: Sequence[Sample], old: Sequence[Tensor], config: SamplingConfig
) -> Tensor:
    """Estimate KL(old‖new) of the updates on a batch, in nats per token: k3 on a few of its answers.

    At most 16 answers and a 32nd of the batch (at least one answer), evenly spaced, get another forward pass: 1 to 2 %
    of an iteration of GRPO with 256 answers.

    Args:
        model: the policy after the last step of the batch.
        samples: the answers, sampled from the policy before the first step.
        old: `[l]` log-probabilities of their tokens before the first step.
        config: with the sampling temperature, and the maximum tokens per forward pass.
    """
    count = min(ANSWERS, max(1, len(samples) // SHARE))
    chosen = [len(samples) * k // count for k in range(count)]
    own, before = take(samples, chosen), take(old, chosen)
    parts = micro_batches(own, tokens=config.micro_batch_tokens)
    packed = [pack(take(own, part), device=model.device) for part in parts]
    new = torch.cat([model.log_probs(batch, temperature=config.temperature)[0] for batch in packed])
    return ops.approximate_kl(new, torch.cat(before).to(new.device))


class Start:
    """The initial policy of a run, to measure KL(policy‖start).

    An adapter that was initialized to zero is disabled; other models are copied, if small.

    Args:
        model: the policy, before training or loading.
    """

    def __init__(self, model: LanguageModel):
        count = sum(value.numel() for value in model.network.parameters())
        self._reference = Reference(model) if model.fresh_adapter or count <= LARGEST else None
        if self._reference is None:
            logger.info(
                "KL(policy‖start) is not measured: a model of %d parameters is not copied (at most %d); "
                "train an adapter (--lora-r) to measure it",
                count,
                LARGEST,
            )

    def kl(self, model: LanguageModel, samples: Sequence[Sample], *, tokens: int) -> dict[str, float]:
        """Estimate KL(policy‖start) on answers sampled from the policy at temperature 1: k3, token by token.

        Args:
            model: the current policy.
            samples: its answers.
            tokens: maximum tokens per forward pass.

        Returns:
            `objective/kl_start` in nats per answer and `kl_start` in nats per token; empty if it is not measured.
        """
        if self._reference is None or not samples:
            return {}
        total, length = 0.0, 0
        for part in micro_batches(samples, tokens=tokens):
            packed = pack(take(samples, part), device=model.device)
            with torch.no_grad():
                new, _ = model.log_probs(packed)
            total += float(ops.kl_estimate(new, self._reference.log_probs(packed), "k3").sum())
            length += len(new)
        return {"objective/kl_start": total / len(samples), "kl_start": total / length}
