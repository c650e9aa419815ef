"""Losses that learn from comparisons: reward models and direct preference optimization.

The model of Bradley and Terry (1952) gives the probability that answer w is preferred to answer l of the same prompt:
P(w ≻ l) = σ(r_w - r_l). Plackett (1975) and Luce (1959) extend it to full rankings. Only differences of scores within a
prompt matter, so scores are defined up to a constant per prompt.

The regularized objective max_π E[r] - β KL(π‖ref) has the solution π* = ref·exp(r/β)/Z. DPO inverts it and uses
r = β log(π/ref) + β log Z as the score of an answer. Z depends only on the prompt, so it cancels in the comparison.

Losses are per comparison, in nats, to be minimized.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from operant.ops.shapes import require_shape


def bradley_terry(
    chosen: Float[Tensor, "*B"],
    rejected: Float[Tensor, "*B"],
    *,
    margin: float | Float[Tensor, "*#B"] | None = None,
) -> Float[Tensor, "*B"]:
    """Compute the negative log-likelihood of a preference, -log σ(chosen - rejected - margin).

    Christiano et al. 2017 (arXiv 1706.03741, §2.2.3); Ouyang et al. 2022 (arXiv 2203.02155, eq. 1); the margin is that
    of Touvron et al. 2023 (arXiv 2307.09288, eq. 2). Equal scores give log 2.

    A ranking of K answers can be used as all its C(K, 2) pairs, as Ouyang et al. do: weight each pair by 1/C(K, 2) and
    keep the pairs of one prompt in one batch. `plackett_luce` uses the likelihood of the whole ranking.

    Args:
        chosen: Scores of the preferred answers.
        rejected: Scores of the other answers.
        margin: Minimum difference of the scores, in units of the score; None is 0.

    Returns:
        One loss per pair.

    Raises:
        ValueError: If shapes differ.
    """
    require_shape(chosen.shape, "chosen", rejected=rejected)
    difference = chosen - rejected
    return -logsigmoid(difference if margin is None else difference - margin)


def plackett_luce(scores: Float[Tensor, "*B K"], ranking: Int64[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
    """Compute the negative log-likelihood of a ranking that is sampled by softmax, best first, without replacement.

    -log P = Σ_k [logsumexp_{j>=k} s_(j) - s_(k)], where s_(k) is the score of the answer ranked k-th (Plackett 1975;
    Luce 1959). With K = 2 this is `bradley_terry`; equal scores give log K!.

    Args:
        scores: Scores of the K answers, in any order.
        ranking: Indices into the last dimension of `scores`, best first (not the rank of each answer).

    Returns:
        One loss per ranking.

    Raises:
        ValueError: If a row of `ranking` is not a permutation of 0 .. K-1, or shapes differ.
    """
    require_shape(scores.shape, "scores", ranking=ranking)
    count = scores.shape[-1]
    broken = (ranking.sort(-1).values != torch.arange(count, device=ranking.device)).any(-1)
    if broken.any():
        raise ValueError(
            f"a ranking must contain every index 0 .. {count - 1} exactly once, best first, got {ranking[broken][0]}; "
            "remove unranked answers from the scores"
        )
    best_first = scores.gather(-1, ranking)
    log_rest = best_first.flip(-1).logcumsumexp(-1).flip(-1)
    return (log_rest - best_first).sum(-1)


def dpo(
    policy_chosen: Float[Tensor, "*B"],
    policy_rejected: Float[Tensor, "*B"],
    ref_chosen: Float[Tensor, "*B"],
    ref_rejected: Float[Tensor, "*B"],
    *,
    beta: float,
    label_smoothing: float = 0.0,
    kind: str = "sigmoid",
) -> Float[Tensor, "*B"]:
    """Compute the loss of direct preference optimization: scores are log-ratios of the policy and a reference.

    With h = log(π_w/ref_w) - log(π_l/ref_l), w the chosen and l the rejected answer:

    - `sigmoid`: -log σ(β h) (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), with gradient
      -β σ(-β h) (∇log π_w - ∇log π_l).
    - `hinge`: max(0, 1 - β h) (Zhao et al. 2023, arXiv 2305.10425; Liu et al. 2023, arXiv 2309.06657).
    - `ipo`: (h - 1/(2β))² (Azar et al. 2023, arXiv 2310.12036, eq. 17).

    `sigmoid` and `hinge` take log-probabilities summed over the tokens of the answer; `ipo` takes their mean per token,
    because its target 1/(2β) does not grow with the length. Tokens of the prompt are excluded. If the policy equals its
    reference, as in the first step, the loss is log 2 = 0.693147 (`sigmoid`), 1 (`hinge`) or 1/(4β²) (`ipo`).

    Args:
        policy_chosen: log π of the chosen answers.
        policy_rejected: log π of the rejected answers.
        ref_chosen: log ref of the chosen answers, without gradient.
        ref_rejected: log ref of the rejected answers, without gradient.
        beta: Strength of the regularization towards the reference, above 0; 0.1 to 0.5 in the paper. Larger values keep
            the policy closer to it.
        label_smoothing: Assumed rate of flipped labels, in [0, 0.5), for `sigmoid` only: -(1-ε) log σ(βh) -
            ε log σ(-βh), conservative DPO (Mitchell 2023).
        kind: `sigmoid`, `ipo` or `hinge`.

    Returns:
        One loss per pair.

    Raises:
        ValueError: If `kind` is unknown, `beta` or `label_smoothing` is out of range, or shapes differ.
    """
    others = {"policy_rejected": policy_rejected, "ref_chosen": ref_chosen, "ref_rejected": ref_rejected}
    require_shape(policy_chosen.shape, "policy_chosen", **others)
    _check_dpo(beta, label_smoothing, kind)
    log_ratio = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    if kind == "ipo":
        return (log_ratio - 1 / (2 * beta)).square()
    logits = beta * log_ratio
    if kind == "hinge":
        return relu(1 - logits)
    return -(1 - label_smoothing) * logsigmoid(logits) - label_smoothing * logsigmoid(-logits)


def _check_dpo(beta: float, label_smoothing: float, kind: str) -> None:
    if kind not in {"sigmoid", "ipo", "hinge"}:
        raise ValueError(f"kind must be 'sigmoid', 'ipo' or 'hinge', got {kind!r}")
    if not beta > 0:
        raise ValueError(f"beta must be above 0, got {beta}; 0 would remove the reference from the loss")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(
            f"label_smoothing must lie in [0, 0.5), got {label_smoothing}; at 0.5 labels carry no information"
        )
    if label_smoothing and kind != "sigmoid":
        raise ValueError(f"label_smoothing={label_smoothing} requires kind='sigmoid', got {kind!r}")
