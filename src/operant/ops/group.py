"""Group-relative advantages from several samples per prompt, without a critic.

Statistics are computed in float64, after subtracting the first valid reward of the group. So equal rewards give exactly
0 in any dtype. (A float32 mean of 64 rewards of 1.1 is not exactly 1.1, and dividing by a tiny standard deviation would
amplify this rounding error to an advantage of ordinary size.)

The statistics are those of the tensors passed. If a batch is distributed over ranks or micro-batches, gather whole
groups first, and for `scale="batch"` the whole batch.
"""

import math

import torch
from jaxtyping import Bool, Float, Int, Int64, Real
from torch import Tensor


def group_advantages(
    rewards: Real[Tensor, "P G"],
    *,
    scale: str = "group",
    correction: int = 1,
    eps: float = 1e-4,
    valid: Bool[Tensor, "P G"] | None = None,
    baseline: Float[Tensor, " P"] | Float[Tensor, "P G"] | None = None,
) -> Float[Tensor, "P G"]:
    """Compute group-relative advantages: A_i = (r_i - mean(r)) / (std(r) + eps).

    GRPO, outcome supervision (Shao et al. 2024, arXiv 2402.03300, §4.1.2). `scale="none"` is Dr. GRPO (Liu et al. 2025,
    arXiv 2503.20783, §3): dividing by the group's standard deviation gives most weight to prompts that are almost
    always or almost never solved. With rewards 0 and 1, pass rate p, correction 0 and eps 0, a correct answer gets
    sqrt((1-p)/p) and a wrong one -sqrt(p/(1-p)).

    A group with a standard deviation of 0 (all valid rewards equal, one valid reward, or none) gets exactly 0. With a
    `baseline`, this holds for `scale="group"` only; with the other scales such a group keeps its difference from the
    baseline.

    Args:
        rewards: Rewards of G answers to each of P prompts; integers are accepted.
        scale: Divisor: the standard deviation of the `group`, that of all rewards of the `batch`, or 1 (`none`).
        correction: Degrees of freedom subtracted in the standard deviation, 0 or 1. The paper does not specify it; 1 is
            torch's default. 0 makes advantages sqrt(G/(G-1)) times larger.
        eps: Added to the standard deviation, in units of the reward, at least 0.
        valid: False if an answer has no reward; it is excluded from the statistics and gets 0. Default: all valid.
        baseline: Replacement of the group's mean, per prompt or per answer, e.g. a mean over extra samples.

    Returns:
        Advantages, in the dtype of the rewards (torch's default dtype for integers).

    Raises:
        ValueError: If a valid reward is NaN or Inf, or `scale`, `correction` or `eps` is out of range.
    """
    _check_scaling(correction, eps)
    if scale not in {"group", "batch", "none"}:
        raise ValueError(f"scale must be 'group', 'batch' or 'none', got {scale!r}")
    valid = _checked_valid(rewards, valid)
    deviations = _deviations(rewards, valid)
    if baseline is None:
        advantages = deviations
    else:
        mean = baseline.double() if baseline.ndim == rewards.ndim else baseline.double().unsqueeze(-1)
        advantages = (rewards.double() - mean).masked_fill(~valid, 0)
    if scale == "group":
        advantages = advantages / _divisor(deviations, valid, correction, eps)
    elif scale == "batch":
        all_valid = valid.reshape(1, -1)
        advantages = advantages / _divisor(_deviations(rewards.reshape(1, -1), all_valid), all_valid, correction, eps)
    return advantages.to(_float_dtype(rewards))


def leave_one_out(rewards: Real[Tensor, "P G"], *, valid: Bool[Tensor, "P G"] | None = None) -> Float[Tensor, "P G"]:
    """Compute each reward minus the mean of the others: A_i = r_i - Σ_{j≠i} r_j/(G-1) = G/(G-1) (r_i - mean(r)).

    RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740). The baseline of an answer does not depend on that
    answer, so the policy gradient stays unbiased; the mean of the whole group scales it by (G-1)/G.

    Args:
        rewards: Rewards of G answers to each of P prompts, G >= 2; integers are accepted.
        valid: False if an answer has no reward; it is excluded from the means and gets 0. Default: all valid.

    Returns:
        Advantages, in the dtype of the rewards (torch's default dtype for integers); exactly 0 for groups of equal
        rewards and for groups with a single valid reward.

    Raises:
        ValueError: If G is 1 or a valid reward is NaN or Inf.
    """
    size = rewards.shape[-1]
    if size < 2:
        raise ValueError(f"leave_one_out needs at least 2 answers to a prompt, got {size}; sample a larger group")
    valid = _checked_valid(rewards, valid)
    counts = valid.sum(-1, keepdim=True).double()
    return (_deviations(rewards, valid) * (counts / (counts - 1).clamp(min=1))).to(_float_dtype(rewards))


def pass_at_k(right: Int[Tensor, "*B"], *, total: int, k: int) -> Float[Tensor, "*B"]:
    """Estimate pass@k without bias: the probability that at least one of k answers is correct, from `total` answers.

    1 - C(n-c, k)/C(n, k) with c correct answers among n (Chen et al. 2021, arXiv 2107.03374, equation 1), computed as
    the product of (n-c-i)/(n-i) for i < k. The estimate from the first k answers alone has more variance, and
    1 - (1 - c/n)^k is too low.

    Args:
        right: Number of correct answers to each prompt.
        total: Answers to each prompt, n.
        k: Number of attempts, at most n.

    Returns:
        Probabilities, in torch's default dtype.

    Raises:
        ValueError: If k is not in [1, total], or `right` exceeds `total`.
    """
    if not 1 <= k <= total:
        raise ValueError(f"k must be in [1, total={total}], got {k}")
    if ((right < 0) | (right > total)).any():
        raise ValueError(f"right must be in [0, total={total}], got {right.min()} to {right.max()}")
    tries = torch.arange(k, device=right.device)
    failed = (total - right.unsqueeze(-1) - tries).clamp(min=0) / (total - tries)
    return 1 - failed.prod(-1)


def has_signal(rewards: Real[Tensor, "P G"], valid: Bool[Tensor, "P G"] | None = None) -> Bool[Tensor, " P"]:
    """Mask of the prompts with a training signal: those whose valid rewards are not all equal.

    The constraint 0 < |{i: answer i is correct}| < G of DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476,
    eq. 8), for any reward. Apply it to the reward of the verifier, before shaping: with a length
    penalty, rewards differ even if all answers are equally correct.

    Args:
        rewards: Rewards of G answers to each of P prompts.
        valid: False if an answer has no reward. Default: all valid.

    Returns:
        True if the group has a non-zero advantage.

    Raises:
        ValueError: If a valid reward is NaN or Inf.
    """
    return (_from_first(rewards, _checked_valid(rewards, valid)) != 0).any(-1)


def process_advantages(
    step_rewards: Real[Tensor, "P G K"],
    step_ends: Int64[Tensor, "P G K"],
    step_mask: Bool[Tensor, "P G K"],
    *,
    length: int,
    correction: int = 1,
    eps: float = 1e-4,
) -> Float[Tensor, "P G {length}"]:
    """Compute token advantages from rewards of reasoning steps: the sum of normalized rewards from the token onward.

    A_{i,t} = Σ_{j: end(j) >= t} (r_j - mean(R))/(std(R) + eps), where R holds all step rewards of all answers to the
    prompt (GRPO, process supervision; Shao et al. 2024, arXiv 2402.03300, §4.1.3).

    Args:
        step_rewards: Reward of each step of each answer; integers are accepted.
        step_ends: Index of the last token of the step within the answer, inclusive.
        step_mask: True where the step exists; other entries are ignored.
        length: Number of tokens per answer in the result.
        correction: Degrees of freedom subtracted in the standard deviation, 0 or 1.
        eps: Added to the standard deviation, in units of the reward, at least 0.

    Returns:
        Advantages in the dtype of the rewards (torch's default dtype for integers): 0 after the last step of an answer
        and for groups whose step rewards are all equal.

    Raises:
        ValueError: If the reward of an existing step is NaN or Inf, its end is outside [0, length), or `correction`
            or `eps` is out of range.
    """
    _check_scaling(correction, eps)
    _require_finite(step_rewards, step_mask)
    outside = ((step_ends < 0) | (step_ends >= length)) & step_mask
    if outside.any():
        at = _first_true(outside)
        raise ValueError(
            f"the end of the step at (prompt, sample, step) = {at} is {step_ends[at]}, outside the {length} tokens of "
            "the answer; give the index of its last token, or set step_mask to False there"
        )
    valid = step_mask.flatten(1)
    deviations = _deviations(step_rewards.flatten(1), valid)
    normalized = (deviations / _divisor(deviations, valid, correction, eps)).view_as(step_rewards)
    at_end = normalized.new_zeros(*step_rewards.shape[:2], length)
    at_end.scatter_add_(-1, step_ends.masked_fill(~step_mask, 0), normalized)
    return at_end.flip(-1).cumsum(-1).flip(-1).to(_float_dtype(step_rewards))


def overlong_penalty(
    lengths: Int[Tensor, "*B"], *, max_length: int, buffer: int, floor: float | None = -1.0
) -> Float[Tensor, "*B"]:
    """Compute the soft overlong penalty, one number per answer, to be added to its reward.

    0 up to max_length - buffer, then (max_length - buffer - length)/buffer, never below `floor`: it falls by 1/buffer
    per token and reaches -1 at max_length (DAPO; Yu et al. 2025, arXiv 2503.14476, eq. 13).

    Args:
        lengths: Tokens of each answer, the end-of-sequence token included.
        max_length: Tokens after which an answer is cut; the paper has 20480.
        buffer: Tokens before `max_length` over which the penalty grows, in [1, max_length]; the paper has 4096.
        floor: Lowest penalty, below 0; None: no limit beyond `max_length`.

    Returns:
        Penalties in torch's default dtype, at most 0.

    Raises:
        ValueError: If `buffer` or `floor` is out of range.
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"buffer must lie in [1, max_length={max_length}], got {buffer}")
    if floor is not None and not floor < 0:
        raise ValueError(f"floor must be below 0, or None for no floor, got {floor}")
    penalty = (max_length - buffer - lengths).clamp(max=0) / buffer
    return penalty if floor is None else penalty.clamp(min=floor)


def _from_first(rewards: Real[Tensor, "P N"], valid: Bool[Tensor, "P N"]) -> Float[Tensor, "P N"]:
    """Subtract the first valid reward of each row, in float64; 0 where invalid."""
    precise = rewards.double()
    first = valid.byte().argmax(-1, keepdim=True)
    return (precise - precise.gather(-1, first)).masked_fill(~valid, 0)


def _deviations(rewards: Real[Tensor, "P N"], valid: Bool[Tensor, "P N"]) -> Float[Tensor, "P N"]:
    """Subtract the mean of each row from its valid rewards, in float64: 0 where equal or invalid, exactly."""
    offsets = _from_first(rewards, valid)
    mean = offsets.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return (offsets - mean).masked_fill(~valid, 0)


def _divisor(
    deviations: Float[Tensor, "P N"], valid: Bool[Tensor, "P N"], correction: int, eps: float
) -> Float[Tensor, "P 1"]:
    """Return the standard deviation of each row plus eps; infinite if it is 0, so that the quotients are 0."""
    freedom = (valid.sum(-1, keepdim=True) - correction).clamp(min=1)
    std = (deviations.square().sum(-1, keepdim=True) / freedom).sqrt()
    return torch.where(std > 0, std + eps, math.inf)


def _float_dtype(rewards: Real[Tensor, "..."]) -> torch.dtype:
    return rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()


def _checked_valid(rewards: Real[Tensor, "P G"], valid: Bool[Tensor, "P G"] | None) -> Bool[Tensor, "P G"]:
    valid = torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid
    _require_finite(rewards, valid)
    return valid


def _require_finite(rewards: Real[Tensor, "..."], valid: Bool[Tensor, "..."]) -> None:
    bad = ~rewards.isfinite() & valid
    if bad.any():
        axes = "(prompt, sample, step)" if rewards.ndim == 3 else "(prompt, sample)"
        at = _first_true(bad)
        raise ValueError(
            f"the reward at {axes} = {at} is {rewards[at]}, expected a finite number; set valid (or step_mask) to "
            "False if there is no reward"
        )


def _first_true(mask: Bool[Tensor, "..."]) -> tuple[int, ...]:
    return tuple(int(index) for index in mask.nonzero()[0])


def _check_scaling(correction: int, eps: float) -> None:
    if correction not in {0, 1}:
        raise ValueError(f"correction must be 0 (population) or 1 (sample standard deviation), got {correction}")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")
