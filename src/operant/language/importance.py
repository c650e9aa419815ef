"""Importance sampling between the engine that sampled tokens and the trained model.

Their kernels or weights may differ. Every step compares the log-probabilities of both, and importance weights can
correct the differences. Before the first step both must agree.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from operant import ops

Correction = Literal["none", "truncate", "mask", "sequence-truncate", "sequence-mask"]
"""Correction: none; importance weights of tokens that are truncated, or masked far from 1; or the same with ratios of
whole sequences."""

TOKEN_CAP, SEQUENCE_CAP = 2.0, 3.0
"""Default caps of weights of tokens and of sequences; 3 is TRL's."""

GAPS: Mapping[torch.dtype, float] = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Maximum mean error of an engine's log-probabilities, in nats, by precision of the trainer."""


def corrections(
    log_probs: Tensor, behavior: Tensor, how: Correction, lengths: Tensor, *, cap: float | None, low: float = 0.5
) -> Tensor:
    """Compute the importance weight of the policy loss of each token, `[m]`.

    Args:
        log_probs: log-probabilities of the sampling policy by the trainer, `[m]`.
        behavior: log-probabilities by the engine, `[m]`.
        how: correction.
        lengths: number of tokens of each sequence, `[B]`; sequences are complete and consecutive.
        cap: maximum weight; None: `TOKEN_CAP` or `SEQUENCE_CAP`.
        low: minimum ratio that `mask` keeps.
    """
    if how == "none":
        return torch.ones_like(log_probs)
    if how in ("sequence-truncate", "sequence-mask"):
        owner = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        cap, mask = SEQUENCE_CAP if cap is None else cap, how == "sequence-mask"
        return ops.sequence_weights(log_probs, behavior, owner, len(lengths), cap=cap, mask=mask)
    cap = TOKEN_CAP if cap is None else cap
    weights = ops.truncated_weights(log_probs, behavior, cap=cap)
    return weights if how == "truncate" else weights * ops.mismatch_mask(log_probs, behavior, low=low, high=cap)


def mismatch_metrics(log_probs: Tensor, behavior: Tensor, weights: Tensor) -> Mapping[str, Tensor]:
    """Return metrics of the difference between engine and trainer, and of the weights, under TRL's names."""
    gap = (log_probs - behavior).abs()
    return {
        "sampling/sampling_logp_difference/mean": gap.mean(),
        "sampling/sampling_logp_difference/max": gap.max(),
        "sampling/importance_sampling_ratio/min": weights.min(),
        "sampling/importance_sampling_ratio/mean": weights.mean(),
        "sampling/importance_sampling_ratio/max": weights.max(),
    }


def check_start(log_probs: Tensor, old: Tensor, behavior: Tensor, *, dtype: torch.dtype) -> None:
    """Check at the first update of a run that all ratios are exactly 1, and that the engine agrees with the trainer.

    Args:
        log_probs: log-probabilities in the first update, before its step, `[m]`.
        old: log-probabilities of the sampling policy by the trainer, `[m]`.
        behavior: log-probabilities by the engine, `[m]`.
        dtype: precision of the model.

    Raises:
        ValueError: the check fails; the message describes possible causes.
    """
    off = float((log_probs.detach() - old).abs().max())
    if off != 0:
        raise ValueError(
            f"before the first step the probability ratio should be exactly 1, but a log-probability is {off:.2g} off: "
            "the model is not deterministic, or its numbers depend on how a batch is packed; look for dropout, noise "
            "or routing in the network"
        )
    gap = float((old - behavior).abs().mean())
    if not gap <= GAPS[dtype]:
        raise ValueError(
            f"the engine's log-probabilities are {gap:.2g} nats off the trainer's before the first step (at most "
            f"{GAPS[dtype]:g} can be rounding): it has other weights, another temperature or another precision"
        )
