"""Named random streams.

Nothing in operant draws from a global generator. A stream belongs to `(seed, purpose, index)`: the seed of the run,
what the numbers are for ("policy", "environment", ...) and which of several like streams it is. Streams of different
names are independent, and adding one never shifts another.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # torch takes seconds to import, and numbers of NumPy do without
    import torch
    from torch import Tensor


def seed_sequence(seed: int, purpose: str, *index: int) -> np.random.SeedSequence:
    """Return the entropy of the stream `(seed, purpose, *index)`.

    Args:
        seed: a non-negative integer.
        purpose: what the numbers are for; any string.
        *index: which of several streams with the same purpose; non-negative integers.

    Raises:
        ValueError: `seed` or an index is negative.
    """
    if seed < 0 or any(i < 0 for i in index):
        raise ValueError(f"seed and index must be non-negative, got seed {seed} and index {index}")
    # As spawn keys, not as entropy: entropy is padded with zeros, and would not tell "policy" from ("policy", 0).
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *index))


def integer(seed: int, purpose: str, *index: int, bits: int = 31) -> int:
    """Return one non-negative integer below `2**bits` (at most 63) that belongs to the stream."""
    word = int(seed_sequence(seed, purpose, *index).generate_state(1, np.uint64)[0])
    return word >> (64 - bits)


def torch_generator(seed: int, purpose: str, *index: int, device: "str | torch.device" = "cpu") -> "torch.Generator":
    """Return a `torch.Generator` on `device` that starts the stream `(seed, purpose, *index)`."""
    import torch  # noqa: PLC0415 - see above

    return torch.Generator(device=device).manual_seed(integer(seed, purpose, *index, bits=63))


def of_seeds(seeds: Sequence[int], purpose: str, *, device: "str | torch.device" = "cpu") -> "list[torch.Generator]":
    """Return the stream `(seed, purpose)` of each of S seeds."""
    return [torch_generator(seed, purpose, device=device) for seed in seeds]


def draw(
    generators: "Sequence[torch.Generator]", sample: "Callable[[torch.Generator], Tensor]", dim: int = 0
) -> "Tensor":
    """Return the draws of each seed from its own stream, stacked at the dimension `dim`."""
    import torch  # noqa: PLC0415 - see above

    return torch.stack([sample(generator) for generator in generators], dim)


def row_seeds(seeds: Sequence[int], rows: int, purpose: str, first: int = 0) -> list[int]:
    """Return one seed for each of `rows` environments of each seed, ordered as `[S, N]` flattened to `[B]`.

    Row `n` of a seed gets the same number whatever other seeds and however many rows there are. They are
    counted from `first` on.
    """
    return [integer(seed, purpose, row) for seed in seeds for row in range(first, first + rows)]


def episode_seed(row_seed: int, episode: int) -> int:
    """Return the reset seed of one episode of one row, below 2**31 as Gymnasium's environments want it."""
    return integer(row_seed, "episode", episode)
