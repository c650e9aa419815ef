"""Attention for packed token sequences of different lengths, for models of transformers.

It supports every model with transformers' attention interface.

A model is always called with one row `[1, n]` of tokens; only attention distinguishes sequences. A *layout*, passed
through the model as a keyword, defines them: `Segments` for whole sequences, which may share a beginning, and
`operant.language.engines.cache.Slots` for one new token of each of many sequences.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from operant.language.huggingface import register_attention, sdpa_attention
from operant.tensors import from_numpy

NAME = "operant"
"""Name of this attention in transformers."""
SUPPORTED = "Llama, Qwen, Mistral, Gemma 3, GPT-2, ..."
"""Some models whose sequences can be packed."""
_UNSUPPORTED = {
    "softcap": "softcap (soft-capped attention scores, as in Gemma 2)",
    "s_aux": "s_aux (attention sinks, as in gpt-oss)",
    "position_bias": "position_bias (as in T5)",
}
"""Options of attention that need other scores than the scaled products, by their names in transformers."""


class Layout(Protocol):
    """Defines which tokens of a forward pass attend to which."""

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """Return the attention outputs.

        Args:
            layer: index of the layer, from 0.
            queries: `[n, H, D]`.
            keys: `[n, K, D]`; H is a multiple of K, and consecutive query heads share a key head.
            values: as `keys`.
            scale: factor of the dot products.
            window: number of tokens that a token attends to, including itself; None: all preceding tokens.

        Returns:
            `[n, H, D]`.
        """
        ...


class Segment(NamedTuple):
    """Consecutive tokens of the packed row, with causal attention to each other and full attention to their ancestors.

    Attributes:
        start: index of the first token.
        length: number of tokens, at least 1.
        parent: index of the preceding segment of its sequence; None for the first one.
    """

    start: int
    length: int
    parent: int | None = None


class Segments:
    """Layout of whole sequences: trees of segments, such as one prompt with many completions.

    Segments of similar lengths share a padded batch in attention; all other layers work on unpadded tokens.

    Args:
        segments: segments that cover all tokens; a parent precedes its children.
        device: device of the model.

    Raises:
        ValueError: a parent does not come before its child.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device | str = "cpu"):
        paths, buckets = list[Path](), dict[tuple[int, int], list[_Place]]()
        for index, segment in enumerate(segments):
            if segment.parent is not None and not 0 <= segment.parent < index:
                raise ValueError(f"segment {index} has the parent {segment.parent}, which does not come before it")
            own = np.arange(segment.start, segment.start + segment.length)
            paths.append(own if segment.parent is None else np.concatenate([paths[segment.parent], own]))
            before = len(paths[index]) - segment.length
            place = segment.length.bit_length(), (before.bit_length() + 1) // 2
            buckets.setdefault(place, []).append(_Place(segment.start, segment.length, paths[index]))
        self._blocks = [_Block.of(bucket, device) for bucket in buckets.values()]
        order = torch.cat([block.tokens for block in self._blocks])
        self._order = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        self._masks: dict[int | None, list[Tensor]] = {}

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """See `Layout`."""
        if window not in self._masks:
            self._masks[window] = [block.mask(window) for block in self._blocks]
        found = [
            block.attend(queries, keys, values, mask, scale)
            for block, mask in zip(self._blocks, self._masks[window], strict=True)
        ]
        return torch.cat(found).index_select(0, self._order)


Path = npt.NDArray[np.int64]
"""Indices of the tokens of a sequence, up to the end of a segment."""


class _Place(NamedTuple):
    """A segment with its path."""

    start: int
    length: int
    path: Path


class _Block(NamedTuple):
    """Segments of similar lengths: `B` of them, with at most `Q` queries and `L` keys."""

    tokens: Tensor
    """Indices of the query tokens, `[m]`."""
    slots: Tensor
    """`[m]` their positions among the `B * Q` padded queries."""
    query_index: Tensor
    """`[B, Q]` tokens, 0 where padded."""
    key_index: Tensor
    """`[B, L]` tokens, 0 where padded."""
    query_positions: Tensor
    """`[B, Q]`; padded queries have the mask of the last one."""
    key_positions: Tensor
    """`[B, L]`; padded keys come after every query."""

    @classmethod
    def of(cls, bucket: Sequence[_Place], device: torch.device | str) -> "_Block":
        starts, lengths, totals = (
            torch.tensor([(s.start, s.length, len(s.path)) for s in bucket]).unsqueeze(-1).unbind(1)
        )
        column = torch.arange(int(lengths.max()))
        live = column < lengths
        query_index = (starts + column).where(live, 0)
        query_positions = totals - lengths + column.minimum(lengths - 1)
        column = torch.arange(int(totals.max()))
        seen = column < totals
        key_index = torch.zeros(seen.shape, dtype=torch.int64)
        key_index[seen] = from_numpy(np.concatenate([s.path for s in bucket]))
        key_positions = column.where(seen, torch.iinfo(torch.int64).max)
        fields = (query_index[live], live.flatten().nonzero().squeeze(1), query_index)
        fields = (*fields, key_index, query_positions, key_positions)
        return cls(*(field.to(device) for field in fields))

    def mask(self, window: int | None) -> Tensor:
        """Return the mask `[B, 1, Q, L]` of keys for each query."""
        distance = self.query_positions.unsqueeze(-1) - self.key_positions.unsqueeze(-2)
        seen = distance >= 0
        return (seen if window is None else seen & (distance < window)).unsqueeze(1)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Return the outputs `[m, H, D]` of the query tokens."""
        queries, keys, values = (
            tokens.index_select(0, index.flatten()).view(*index.shape, *tokens.shape[1:]).transpose(1, 2)
            for tokens, index in ((queries, self.query_index), (keys, self.key_index), (values, self.key_index))
        )
        found = dot_product_attention(queries, keys, values, mask, scale=scale)
        return found.transpose(1, 2).flatten(0, 1).index_select(0, self.slots)


_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention on GPUs. cuDNN's are excluded because cuDNN builds a plan for each new shape, which takes 50 ms
to a second, and the shapes of packed sequences differ from pass to pass: sampling took 70 ms per token on an H200."""


def dot_product_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, scale: float
) -> Tensor:
    """Compute scaled dot-product attention.

    Args:
        queries: `[B, H, Q, D]`.
        keys: `[B, K, L, D]`; H is a multiple of K, and consecutive query heads share a key head.
        values: as `keys`.
        mask: whether each query attends to each key, broadcastable to `[B, H, Q, L]`; None: all attend to all.
        scale: factor of the dot products.

    Returns:
        `[B, H, Q, D]`.
    """
    heads = queries.shape[1] // keys.shape[1]
    if queries.is_cuda and heads > 1:  # with a mask, no kernel of `_KERNELS` but the slow MATH shares heads
        keys, values = (tensor.repeat_interleave(heads, 1) for tensor in (keys, values))
    with sdpa_kernel(_KERNELS) if queries.is_cuda else nullcontext():
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1]
        )


def install(network: Any) -> None:
    """Enable attention layouts in a model of transformers; calls without a layout are unchanged.

    Raises:
        ValueError: the model has recurrent layers, or does not support transformers' attention interface.
    """
    if getattr(network, "_is_stateful", False):
        raise ValueError(
            f"{type(network).__name__} has recurrent layers, whose states would pass from one packed sequence to the "
            f"next; use a model with attention only ({SUPPORTED})"
        )
    register_attention(NAME, _attention)
    network.set_attn_implementation(NAME)
    if network.config._attn_implementation != NAME:
        raise ValueError(
            f"{type(network).__name__} has its own attention, so its sequences cannot be packed; use a model "
            f"with the attention interface of transformers ({SUPPORTED})"
        )


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers, from `[1, H, n, D]` to `[1, n, H, D]`."""
    if layout is None:
        options |= {"scaling": scaling, "sliding_window": sliding_window}
        return sdpa_attention(module, query, key, value, attention_mask, **options)
    strange = [text for name, text in _UNSUPPORTED.items() if options.get(name) is not None]
    if strange or options.get("dropout"):
        what, fix = ", ".join(strange) or "dropout", "set attention_dropout to 0 in its config.json"
        raise ValueError(
            f"{type(module).__name__} uses {what}, which packed sequences do not support; "
            f"{f'use a model without it ({SUPPORTED})' if strange else fix}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    return layout.attend(module.layer_idx, *rows, scale=scale, window=sliding_window).unsqueeze(0), None
