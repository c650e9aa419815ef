r"""Values as distributions over a support: MuZero's invertible transform, and two-hot targets.

Networks learn returns of any scale by cross-entropy over K atoms, after squashing (MuZero,
Schrittwieser et al. 2020, arXiv 1911.08265, appendix F: 601 atoms from -300 to 300). A number between two atoms is
encoded as two weights whose mean is the number.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from operant.ops.shapes import require_shape


def signed_hyperbolic(x: Float[Tensor, "*B"], *, eps: float = 1e-3) -> Float[Tensor, "*B"]:
    r"""Squash values by h(x) = sign(x) (sqrt(|x| + 1) - 1) + ε x (Pohlen et al. 2018, arXiv 1805.11593, eq. 3).

    The slope is 1/2 + ε at 0, the growth that of a square root. `signed_parabolic` is the inverse.

    Args:
        x: values.
        eps: ε, at least 0; a positive value makes the inverse Lipschitz. 0.001 in MuZero.

    Raises:
        ValueError: if `eps` is negative.
    """
    _check_eps(eps)
    return x / ((x.abs() + 1).sqrt() + 1) + eps * x  # |x| / (sqrt(|x| + 1) + 1) is sqrt(|x| + 1) - 1


def signed_parabolic(x: Float[Tensor, "*B"], *, eps: float = 1e-3) -> Float[Tensor, "*B"]:
    r"""Invert `signed_hyperbolic`: sign(x) (((sqrt(1 + 4 ε (|x| + 1 + ε)) - 1) / (2 ε))² - 1).

    Pohlen et al. 2018, arXiv 1805.11593, proposition A.2.

    Args:
        x: squashed values.
        eps: ε of `signed_hyperbolic`; 0 is allowed.

    Raises:
        ValueError: if `eps` is negative.
    """
    _check_eps(eps)
    # The formula of the paper has an error of 1e-4 near 0 in float32.
    # w = sqrt(|h⁻¹| + 1) - 1 solves ε w² + (1 + 2 ε) w = |x|.
    slope = 1 + 2 * eps
    w = 2 * x / (slope + (slope**2 + 4 * eps * x.abs()).sqrt())
    return w * (w.abs() + 2)


def symlog(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""Squash values by sign(x) log(|x| + 1) (Hafner et al. 2023, arXiv 2301.04104, eq. 9).

    The slope is 1 at 0, the growth logarithmic. `symexp` is the inverse.
    """
    return x.sign() * x.abs().log1p()


def symexp(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""Invert `symlog`: sign(x) (exp(|x|) - 1)."""
    return x.sign() * x.abs().expm1()


def symexp_support(size: int, *, bound: float = 20.0) -> Float[Tensor, " K"]:
    r"""Return an odd number of atoms, symexp of evenly spaced numbers from `-bound` to `bound`.

    Hafner et al. 2023, arXiv 2301.04104, eq. 10. The atoms are exactly symmetric around 0.

    Raises:
        ValueError: if `size` is even or less than 3.
    """
    if size < 3 or size % 2 == 0:
        raise ValueError(f"size is {size}, expected an odd number of at least 3, such as 255")
    positive = symexp(torch.linspace(0, bound, size // 2 + 1, dtype=torch.float64)).float()
    return torch.cat((-positive[1:].flip(0), positive))


def two_hot(x: Float[Tensor, "*B"], support: Float[Tensor, " K"]) -> Float[Tensor, "*B K"]:
    r"""Encode each number as weights of the two nearest atoms whose mean is the number, detached.

    Between atoms a < b, b has the weight (x - a) / (b - a) and a the rest. Numbers outside the support are clamped.

    Args:
        x: numbers.
        support: K >= 2 atoms in increasing order, evenly spaced or not.

    Returns:
        `[..., K]` non-negative weights that sum to 1; NaN where `x` is NaN.

    Raises:
        ValueError: if the support has fewer than two atoms.
    """
    if len(support) < 2:
        raise ValueError(f"support has {len(support)} atoms, expected at least 2: torch.linspace(-300, 300, 601)")
    x = x.detach().clamp(support[0], support[-1]).contiguous()
    upper = torch.searchsorted(support, x, right=True).clamp(1, len(support) - 1)
    low, high = support[upper - 1], support[upper]
    share = ((x - low) / (high - low)).unsqueeze(-1)
    weights = share.new_zeros(*x.shape, len(support))
    index = upper.unsqueeze(-1)
    return weights.scatter(-1, index, share).scatter(-1, index - 1, 1 - share)


def two_hot_mean(logits: Float[Tensor, "*B K"], support: Float[Tensor, " K"]) -> Float[Tensor, "*B"]:
    r"""Decode a number as the mean Σ_k softmax(logits)_k support_k of a distribution over the support.

    Args:
        logits: `[..., K]` logits of the atoms.
        support: K atoms.

    Returns:
        `[...]` means, between the ends of the support.
    """
    dtype = torch.promote_types(logits.dtype, support.dtype)
    return logits.softmax(-1, dtype=dtype) @ support.to(dtype)


def symmetric_mean(logits: Float[Tensor, "*B K"], support: Float[Tensor, " K"]) -> Float[Tensor, "*B"]:
    r"""Compute `two_hot_mean` for a support that is symmetric around 0; exactly 0 for symmetric logits.

    It sums the differences p_k - p_{K-1-k} times the positive atoms, because the sum over all atoms would be the
    difference of two large numbers.

    Args:
        logits: `[..., K]` logits of the atoms.
        support: K atoms, an odd number, `support[k] = -support[K - 1 - k]`.
    """
    dtype, half = torch.promote_types(logits.dtype, support.dtype), len(support) // 2
    probabilities = logits.softmax(-1, dtype=dtype)
    difference = probabilities[..., half + 1 :] - probabilities[..., :half].flip(-1)
    return difference @ support[half + 1 :].to(dtype)


def two_hot_loss(
    logits: Float[Tensor, "*B K"], target: Float[Tensor, "*B"], support: Float[Tensor, " K"]
) -> Float[Tensor, "*B"]:
    r"""Compute the cross-entropy -Σ_k two_hot(target)_k log softmax(logits)_k.

    Its gradient with respect to the logits is softmax(logits) - two_hot(target), so its scale does not depend on the
    scale of the target.

    Args:
        logits: `[..., K]` logits of the atoms.
        target: numbers on the scale of the support (squash them first if the support is squashed).
        support: K atoms in increasing order.

    Returns:
        Losses of each element, at least the entropy of the two weights.

    Raises:
        ValueError: if the support has fewer than two atoms, or `target` has another shape than `logits` without atoms.
    """
    require_shape(logits.shape[:-1], "logits without the atoms", target=target)
    return -(two_hot(target, support) * logits.log_softmax(-1)).sum(-1)


def _check_eps(eps: float) -> None:
    if not eps >= 0:
        raise ValueError(f"eps is {eps}, expected a number of at least 0, such as 0.001")
