r"""Log-probabilities and entropies of tokens, from hidden states and an output embedding, in tiles of the vocabulary.

The logits `[n, V]` are by far the largest tensor of a language model: with 4096 tokens and a vocabulary of 128 000,
2 GiB in float32, and several times that with log-softmax and gradient. Here only one tile of them exists at a time. The
forward pass keeps the log-normalizer of each token, and the backward pass recomputes the tiles.

With `h` the hidden states and `W` the embedding, the logits are `z = c tanh(s (h W^T + b) / c) / T`, or
`s (h W^T + b) / T` without a softcap, where s is the scale, c the softcap and T the temperature; `p = softmax(z)`, and

* `log p_y = z_y - lse(z)`, with gradient `∂ log p_y / ∂z_j = 1[j = y] - p_j`;
* `H = lse(z) - Σ_j p_j z_j`, with gradient `∂H / ∂z_j = -p_j (log p_j + H)`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, cast, overload

import torch
from jaxtyping import Float, Int64
from torch import Tensor

CPU_TILE = 2**20
"""Default number of logits in a tile on a CPU, which fits its cache."""
DEVICE_TILE = 2**25
"""Default number of logits in a tile on other devices."""
KEPT = 2**24
"""Default maximum number of logits kept for the backward pass: 64 MiB in float32."""


@overload
def token_log_probs(
    hidden: Float[Tensor, "n H"],
    weight: Float[Tensor, "V H"],
    targets: Int64[Tensor, " n"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    entropy: Literal[False] = False,
    chunk: int | None = None,
) -> Float[Tensor, " n"]: ...


@overload
def token_log_probs(
    hidden: Float[Tensor, "n H"],
    weight: Float[Tensor, "V H"],
    targets: Int64[Tensor, " n"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    entropy: Literal[True],
    chunk: int | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]: ...


def token_log_probs(
    hidden: Float[Tensor, "n H"],
    weight: Float[Tensor, "V H"],
    targets: Int64[Tensor, " n"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    entropy: bool = False,
    chunk: int | None = None,
) -> Float[Tensor, " n"] | tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    r"""Compute log-probabilities of target tokens, and optionally entropies, without storing the logits `[n, V]`.

    `hidden`, `weight` and `bias` get gradients if they require them; second derivatives are not supported.

    Logits, sums and gradients are float32, or float64 for float64 inputs. Half-precision inputs are converted block by
    block, so no logit is rounded to half precision. On a CUDA device bfloat16 inputs are multiplied with float32
    accumulation, and the gradients of the logits are rounded to bfloat16. Autocast does not apply.

    Args:
        hidden: `[n, H]` hidden states of the last layer after the final norm, each at the position *before* its target.
        weight: `[V, H]` output embedding.
        targets: `[n]` token ids, in 0 to V - 1. Omit masked tokens.
        bias: `[V]` bias of the logits.
        temperature: divisor of the logits, positive: the sampling temperature for sampled tokens.
        softcap: c in `c tanh(logit / c)`, positive; None for no cap. Before the temperature (Gemma Team 2024,
            arXiv 2408.00118, §2).
        scale: factor of the logits, before the softcap; some models define one.
        entropy: whether to return the entropies as well.
        chunk: number of logits in a tile. If there are at most this many logits in total, they are kept for the
            backward pass. None: tiles of 2^20 on a CPU and 2^25 elsewhere, and up to 2^24 logits are kept.

    Returns:
        `[n]` log-probabilities, float32 or float64; with `entropy`, a pair of them and the `[n]` entropies in nats.

    Raises:
        ValueError: if shapes do not agree, a target is out of range, or a number is not positive.
        RuntimeError: in the backward pass, if it is called with `create_graph=True`.
    """
    _check(
        hidden, weight, targets, bias, {"temperature": temperature, "softcap": softcap, "scale": scale, "chunk": chunk}
    )
    tile = CPU_TILE if hidden.device.type == "cpu" else DEVICE_TILE
    form = _Form(temperature, softcap, scale, chunk or tile, chunk or KEPT)
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _TokenLogProbs.apply)  # pyright: ignore[reportUnknownMemberType]
    log_probs, entropies = apply(hidden, weight, bias, _Request(targets, form, entropy))
    return (log_probs, entropies) if entropy else log_probs


class _Form(NamedTuple):
    """Scaling of the logits, the size of a tile, and the maximum number of logits kept."""

    temperature: float
    softcap: float | None
    scale: float
    chunk: int
    kept: int

    @property
    def slope(self) -> float:
        """Derivative of a logit with respect to its product with the embedding, without the softcap's."""
        return self.scale / self.temperature

    def apply_(self, tile: Tensor, bias: Tensor | None) -> Tensor:
        """Turn products into logits, in place."""
        if bias is not None:
            tile.add_(bias)
        if self.softcap is not None:
            return tile.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        return tile if self.slope == 1.0 else tile.mul_(self.slope)

    def chain_(self, gradient: Tensor, tile: Tensor) -> Tensor:
        """Turn the gradient with respect to logits into that with respect to products, in place."""
        if self.softcap is not None:
            bend = (tile * (self.temperature / self.softcap)).square_()
            gradient.sub_(bend.mul_(gradient))
        return gradient if self.slope == 1.0 else gradient.mul_(self.slope)


class _Request(NamedTuple):
    """Targets and options, apart from the tensors that take a gradient."""

    targets: Tensor
    form: _Form
    entropy: bool


class _Head:
    """The embedding in blocks of rows, and the tiles of logits that it gives."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, form: _Form) -> None:
        half = hidden.dtype == weight.dtype == torch.bfloat16 and hidden.device.type == "cuda"
        self.dtype = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
        self.factor_dtype = torch.bfloat16 if half else self.dtype
        self.hidden, self.weight, self.bias, self.form = hidden.to(self.factor_dtype), weight, bias, form
        rows, columns = len(hidden), len(weight)
        width = min(columns, max(math.isqrt(form.chunk), 1))
        self.height = max(min(rows, form.chunk // max(width, 1)), 1)
        self.width = max(min(columns, form.chunk // self.height), 1)
        self._memory: list[Tensor] = []

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the embedding in blocks, with their slice of the vocabulary."""
        for begin in range(0, len(self.weight), self.width):
            place = slice(begin, min(begin + self.width, len(self.weight)))
            yield place, self.weight[place].to(self.factor_dtype)

    def rows(self) -> Iterator[slice]:
        """Yield slices of the tokens that share a tile."""
        for begin in range(0, len(self.hidden), self.height):
            yield slice(begin, min(begin + self.height, len(self.hidden)))

    def buffer(self, index: int, rows: slice, block: slice) -> Tensor:
        """Return a buffer for a tile; the same `index` returns the same memory."""
        while len(self._memory) <= index:
            self._memory.append(self.hidden.new_empty(self.height * self.width, dtype=self.dtype))
        shape = (rows.stop - rows.start, block.stop - block.start)
        return self._memory[index][: shape[0] * shape[1]].view(shape)

    def logits(self, rows: slice, block: slice, embedding: Tensor, *, keep: bool = False) -> Tensor:
        """Return a tile of logits, in newly allocated memory if it is to be kept."""
        shape = (rows.stop - rows.start, block.stop - block.start)
        tile = self.hidden.new_empty(shape, dtype=self.dtype) if keep else self.buffer(0, rows, block)
        _multiply_(tile, self.hidden[rows], embedding.T)
        return self.form.apply_(tile, None if self.bias is None else self.bias[block].to(self.dtype))


class _TokenLogProbs(torch.autograd.Function):
    """Two passes over the tiles: one for the normalizers, one for the gradients."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, request: _Request
    ) -> tuple[Tensor, Tensor | None]:
        keep = any(ctx.needs_input_grad) and len(hidden) * len(weight) <= request.form.kept
        with torch.autocast(hidden.device.type, enabled=False):
            statistics = _statistics(_Head(hidden, weight, bias, request.form), request, keep)
        entropies = statistics.entropies if request.entropy else None
        ctx.form = request.form
        ctx.set_materialize_grads(False)
        log_normalizer, tiles = statistics.log_normalizer, statistics.tiles
        ctx.save_for_backward(hidden, weight, bias, request.targets, log_normalizer, entropies, *tiles)
        return statistics.log_probs, entropies

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor | None, entropy_grad: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "token_log_probs has no second derivatives: call backward or grad with create_graph=False, or use "
                "categorical_log_prob on the logits"
            )
        if grad is None and entropy_grad is None:
            return None, None, None, None
        hidden, weight, bias, targets, log_normalizer, entropies, *tiles = ctx.saved_tensors
        with torch.autocast(hidden.device.type, enabled=False):
            head = _Head(hidden, weight, bias, ctx.form)
            upstream = _Upstream(targets, log_normalizer, entropies, grad, entropy_grad)
            return *_gradients(head, upstream, tiles, ctx.needs_input_grad), None


class _Statistics(NamedTuple):
    """Results of the forward pass for each token, and the tiles if they are kept."""

    log_probs: Tensor
    log_normalizer: Tensor
    entropies: Tensor
    tiles: list[Tensor]


def _statistics(head: _Head, request: _Request, keep: bool) -> _Statistics:
    """Compute the statistics in one pass over the tiles, with running sums of `exp(z - max z)`."""
    rows_shape = (len(request.targets),)
    greatest = head.hidden.new_full(rows_shape, torch.finfo(head.dtype).min / 2, dtype=head.dtype)
    total, weighted, chosen = (torch.zeros_like(greatest) for _ in range(3))
    tiles: list[Tensor] = []
    for place, embedding in head.blocks():
        for rows in head.rows():
            tile = head.logits(rows, place, embedding, keep=keep)
            if keep:
                tiles.append(tile)
            index, inside = _within(request.targets[rows], place)
            chosen[rows] += tile.gather(1, index.unsqueeze(1)).squeeze(1).masked_fill_(~inside, 0.0)
            peak = torch.maximum(greatest[rows], tile.amax(1))
            step = greatest[rows] - peak
            fade = step.exp()
            shifted = torch.sub(tile, peak.unsqueeze(1), out=head.buffer(1, rows, place))
            powers = torch.exp(shifted, out=head.buffer(2, rows, place) if request.entropy else shifted)
            if request.entropy:
                before = (weighted[rows] + total[rows] * step) * fade
                weighted[rows] = before + shifted.mul_(powers).sum(1)
            total[rows] = total[rows] * fade + powers.sum(1)
            greatest[rows] = peak
    log_total = total.log()
    entropies = log_total - weighted / total
    return _Statistics(chosen - greatest - log_total, greatest + log_total, entropies, tiles)


class _Upstream(NamedTuple):
    """Inputs of the backward pass for each token."""

    targets: Tensor
    log_normalizer: Tensor
    entropies: Tensor | None
    grad: Tensor | None
    entropy_grad: Tensor | None

    def gradient(self, head: _Head, tile: Tensor, rows: slice, place: slice) -> Tensor:
        """Return the gradient with respect to the products behind a tile of logits, which is not modified."""
        out = torch.sub(tile, self.log_normalizer[rows].unsqueeze(1), out=head.buffer(1, rows, place))
        index, inside = _within(self.targets[rows], place)
        grad = torch.zeros_like(self.log_normalizer[rows]) if self.grad is None else self.grad[rows]
        if self.entropies is None or self.entropy_grad is None:
            out.exp_().mul_(-grad.unsqueeze(1))
        else:
            probs = torch.exp(out, out=head.buffer(2, rows, place))
            out.add_(self.entropies[rows].unsqueeze(1)).mul_(-self.entropy_grad[rows].unsqueeze(1))
            out.sub_(grad.unsqueeze(1)).mul_(probs)
        out[torch.arange(len(out), device=out.device), index] += grad * inside
        return head.form.chain_(out, tile)


def _gradients(
    head: _Head, upstream: _Upstream, tiles: list[Tensor], wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of the hidden states, the embedding and the bias, if wanted."""
    to_hidden = torch.empty_like(head.hidden, dtype=head.dtype) if wanted[0] else None
    to_weight = torch.zeros_like(head.weight) if wanted[1] else None
    to_bias = torch.zeros_like(head.bias, dtype=head.dtype) if wanted[2] and head.bias is not None else None
    kept = iter(tiles)
    for place, embedding in head.blocks():
        summed = None if to_weight is None else to_weight[place].to(head.dtype)
        for rows in head.rows():
            tile = next(kept) if tiles else head.logits(rows, place, embedding)
            gradient = upstream.gradient(head, tile, rows, place)
            if to_bias is not None:
                to_bias[place] += gradient.sum(0)
            gradient = gradient.to(head.factor_dtype)
            if to_hidden is not None:
                _multiply_(to_hidden[rows], gradient, embedding, add=place.start > 0)
            if summed is not None:
                _multiply_(summed, gradient.T, head.hidden[rows], add=True)
        if to_weight is not None and summed is not None and summed.dtype != to_weight.dtype:
            to_weight[place] = summed.to(to_weight.dtype)
    return to_hidden, to_weight, to_bias


def _within(targets: Tensor, place: slice) -> tuple[Tensor, Tensor]:
    """Return the column of each target in a block of the vocabulary, 0 if outside, and whether it lies in it."""
    inside = (targets >= place.start) & (targets < place.stop)
    return (targets - place.start).masked_fill_(~inside, 0), inside


def _multiply_(out: Tensor, left: Tensor, right: Tensor, *, add: bool = False) -> None:
    """Write the product of two matrices into `out`, or add it; narrower factors are summed in the dtype of `out`."""
    if left.dtype == out.dtype:
        torch.addmm(out, left, right, beta=float(add), out=out)
        return
    product = torch.mm(left, right, out_dtype=out.dtype)
    if add:
        out.add_(product)
    else:
        out.copy_(product)


def _check(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    numbers: dict[str, float | None],
) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)} and weight {tuple(weight.shape)}, expected [n, H] and [V, H] with "
            "the same H: flatten hidden to its unmasked positions, and pass the weight of a torch.nn.Linear"
        )
    if targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}, expected {tuple(hidden.shape[:1])}, one for each hidden state"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"bias has shape {tuple(bias.shape)}, expected {tuple(weight.shape[:1])}, one for each row of weight"
        )
    for name, value in numbers.items():
        if value is not None and not 0.0 < value < math.inf:
            raise ValueError(f"{name} is {value}, expected a positive number")
    wrong = targets[(targets < 0) | (targets >= len(weight))]
    if len(wrong):
        raise ValueError(
            f"targets contain {int(wrong[0])}, expected token ids from 0 to {len(weight) - 1}: omit masked positions "
            "and their hidden states"
        )
