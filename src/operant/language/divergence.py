"""KL divergence of a policy from earlier ones: over one batch, `kl_of_batch`, and since initialization, `Start`."""

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from operant import ops
from operant.language.configs import SamplingConfig
from operant.language.models import LanguageModel, Reference
from operant.language.packing import Sample, micro_batches, pack, take

logger = logging.getLogger(__name__)

ANSWERS, SHARE = 16, 32
"""Maximum number of answers of a batch to score again after its last step, and the inverse of their fraction."""
LARGEST = 50_000_000
"""Maximum number of parameters of a model that is copied only to measure KL(policy‖start)."""

WEIGHTED: Mapping[str, tuple[bool, ...]] = {"k1": (True,), "k2": (False,), "k3": (True, False)}
"""Whether each sample of an estimate of KL(policy‖ref) may have its probability ratio as weight, the default first."""


def is_weighted(estimator: str, chosen: bool | None) -> bool:
    """Return whether each sample of an estimate of KL(policy‖ref) is weighted by its probability ratio.

    Args:
        estimator: name in `operant.ops.kl_estimate`.
        chosen: value of `kl_weighted`; None: as the estimator needs it.

    Raises:
        ValueError: the gradient would be that of no divergence.
    """
    allowed = WEIGHTED[estimator]
    weighted = allowed[0] if chosen is None else chosen
    if weighted not in allowed:
        wrong = "an expected gradient of 0" if estimator == "k1" else "the gradient of no divergence"
        raise ValueError(
            f"kl_estimator={estimator} with kl_weighted={chosen} has {wrong}: leave out kl_weighted, or use "
            "kl_estimator=k3"
        )
    return weighted


@torch.no_grad()
def kl_of_batch(
    model: LanguageModel, samples: Sequence[Sample], old: Sequence[Tensor], config: SamplingConfig
) -> Tensor:
    """Estimate KL(old‖new) of the updates on a batch by k3 on some of its answers, in nats per token.

    Evenly spaced answers, at most 16 and 1/32 of the batch but at least one, are scored again. This takes 1 to 2 % of
    an iteration of GRPO with 256 answers.

    Args:
        model: policy after the last step of the batch.
        samples: answers, sampled from the policy before the first step.
        old: log-probabilities of their tokens before the first step, `[l]` each.
        config: options with the sampling temperature and the maximum number of tokens per forward pass.
    """
    count = min(ANSWERS, max(1, len(samples) // SHARE))
    chosen = [len(samples) * k // count for k in range(count)]
    own, before = take(samples, chosen), take(old, chosen)
    parts = micro_batches(own, tokens=config.micro_batch_tokens)
    packed = [pack(take(own, part), ends=False, device=model.device) for part in parts]
    new = torch.cat([model.log_probs(batch, temperature=config.temperature)[0] for batch in packed])
    return ops.approximate_kl(new, torch.cat(before).to(new.device))


class Start:
    """Initial policy of a run, to measure KL(policy‖start).

    For an adapter that was initialized to zero it is the model without adapter; other models are copied if small.

    Args:
        model: policy before training and before loading a state.
    """

    def __init__(self, model: LanguageModel):
        count = sum(value.numel() for value in model.network.parameters())
        self._reference = Reference(model) if model.fresh_adapter or count <= LARGEST else None
        if self._reference is None:
            logger.info(
                "KL(policy‖start) is not measured: a model with %d parameters is not copied (at most %d); "
                "train an adapter (--lora-r) to measure it",
                count,
                LARGEST,
            )

    def kl(self, model: LanguageModel, samples: Sequence[Sample], *, tokens: int) -> dict[str, float]:
        """Estimate KL(policy‖start) by k3 on answers sampled from the policy at temperature 1.

        Args:
            model: current policy.
            samples: answers sampled from it.
            tokens: maximum number of tokens per forward pass.

        Returns:
            `objective/kl_start` in nats per answer and `kl_start` in nats per token; empty if it is not measured.
        """
        if self._reference is None or not samples:
            return {}
        total, length = 0.0, 0
        for part in micro_batches(samples, tokens=tokens):
            packed = pack(take(samples, part), ends=False, device=model.device)
            with torch.no_grad():
                new, _ = model.log_probs(packed)
            total += float(ops.kl_estimate(new, self._reference.log_probs(packed), "k3").sum())
            length += len(new)
        return {"objective/kl_start": total / len(samples), "kl_start": total / length}
