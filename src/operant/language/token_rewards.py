"""Token-level rewards and advantages.

Values of tokens are lists of N tensors `[l]`, one per answer, without padding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from operant import ops
from operant.tensors import integers, split


def shaped(scores: Tensor, cut: Tensor, *, clip: float | None, missing_eos: float | None) -> Tensor:
    """Clip scores `[N]`, and replace those of truncated answers.

    Args:
        scores: scores, `[N]`.
        cut: mask of the answers without EOS, `[N]`.
        clip: maximum absolute value of a score; None: no clipping.
        missing_eos: score of answers without EOS (Huang et al. 2024: -1); None: unchanged.
    """
    if clip is not None:
        scores = scores.clamp(-clip, clip)
    return scores if missing_eos is None else scores.masked_fill(cut, missing_eos)


def token_rewards(kl: Sequence[Tensor], scores: Tensor, *, coefficient: float, whiten: bool = False) -> list[Tensor]:
    """Compute `r_t = -β KL_t + 1[t = last] score` (Ziegler et al. 2019, equation 2; Ouyang et al. 2022, equation 2).

    Args:
        kl: log-ratios of the sampling policy to the reference, `[l]` for each answer, without gradients.
        scores: scores of the answers, `[N]`.
        coefficient: β.
        whiten: whether to scale all rewards to variance 1, without shifting their mean, whose sign is meaningful.
    """
    rewards = [-coefficient * row for row in kl]
    for row, score in zip(rewards, scores, strict=True):
        row[-1] += score
    return whitened(rewards, shift_mean=False) if whiten else rewards


def token_advantages(
    rewards: Sequence[Tensor],
    values: Sequence[Tensor],
    after: Tensor,
    *,
    cut: Tensor,
    gamma: float,
    lam: float,
) -> list[Tensor]:
    """Compute generalized advantage estimates of all tokens (`operant.ops.gae`).

    Args:
        rewards: rewards, `[l]` for each answer.
        values: values of the states before the tokens, `[l]` for each answer.
        after: values of the states after the last tokens, `[N]`; used only for answers in `cut`.
        cut: mask of the answers that bootstrap from `after`, `[N]`; the others end with value 0.
        gamma: discount factor.
        lam: λ.
    """
    last = torch.tensor([len(row) - 1 for row in rewards], device=after.device)
    column = torch.arange(len(last), device=after.device)
    padded_rewards, padded_values = pad_sequence(list(rewards)), pad_sequence(list(values))
    ends = torch.zeros_like(padded_rewards, dtype=torch.bool)
    ends[last, column] = True
    next_values = padded_values.roll(-1, 0)
    next_values[last, column] = after
    found = ops.gae(
        padded_rewards,
        padded_values,
        next_values,
        terminated=ends & ~cut,
        truncated=ends & cut,
        gamma=gamma,
        lam=lam,
    )
    return [row[: end + 1] for row, end in zip(found.T, integers(last), strict=True)]


def whitened(rows: Sequence[Tensor], *, shift_mean: bool = True) -> list[Tensor]:
    """Scale tensors `[l]` to variance 1 over all tokens, and shift their mean to 0 unless `shift_mean` is false."""
    return list(split(ops.whiten(torch.cat(list(rows)), shift_mean=shift_mean), [len(row) for row in rows]))


def outcome_metrics(
    kl: Sequence[Tensor], log_probs: Sequence[Tensor], scores: Tensor, *, coefficient: float
) -> dict[str, Tensor]:
    """Compute means over answers, in nats and units of reward per answer, under the names of TRL's PPO trainer."""
    divergence = torch.stack([row.sum() for row in kl]).mean()
    return {
        "objective/kl": divergence,
        "objective/entropy": -torch.stack([row.sum() for row in log_probs]).mean(),
        "objective/non_score_reward": -coefficient * divergence,
        "objective/rlhf_reward": scores.mean() - coefficient * divergence,
        "objective/scores": scores.mean(),
    }
