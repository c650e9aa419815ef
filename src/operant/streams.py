"""Random streams, identified by seed, purpose and index.

Nothing in operant uses a global generator. A stream is identified by `(seed, purpose, index)`: the seed of the run,
the purpose of the numbers ("policy", "environment", ...) and an index among streams of the same purpose. Different
streams are independent, and adding a stream does not change the others.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # importing torch takes seconds, and streams of NumPy do not need it
    import torch
    from torch import Tensor


def seed_sequence(seed: int, purpose: str, *index: int) -> np.random.SeedSequence:
    """Return the `SeedSequence` of the stream `(seed, purpose, *index)`.

    Args:
        seed: a non-negative integer.
        purpose: purpose of the numbers; any string.
        *index: index among streams of the same purpose; non-negative integers.

    Raises:
        ValueError: `seed` or an index is negative.
    """
    if seed < 0 or any(i < 0 for i in index):
        raise ValueError(f"seed and index must be non-negative, got seed {seed} and index {index}")
    # Spawn keys instead of entropy: entropy is padded with zeros, so "policy" and ("policy", 0) would be the same.
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *index))


def integer(seed: int, purpose: str, *index: int, bits: int = 31) -> int:
    """Return the stream's integer in `[0, 2**bits)`, with at most 63 bits."""
    bits64 = int(seed_sequence(seed, purpose, *index).generate_state(1, np.uint64)[0])
    return bits64 >> (64 - bits)


def torch_generator(seed: int, purpose: str, *index: int, device: "str | torch.device" = "cpu") -> "torch.Generator":
    """Return a `torch.Generator` on `device` at the start of the stream `(seed, purpose, *index)`."""
    import torch  # noqa: PLC0415 - see above

    return torch.Generator(device=device).manual_seed(integer(seed, purpose, *index, bits=63))


def of_seeds(seeds: Sequence[int], purpose: str, *, device: "str | torch.device" = "cpu") -> "list[torch.Generator]":
    """Return one generator per seed, of the stream `(seed, purpose)`."""
    return [torch_generator(seed, purpose, device=device) for seed in seeds]


def gumbel(shape: Sequence[int], generator: "torch.Generator") -> "Tensor":
    """Sample standard Gumbel noise of the given shape, on the generator's device."""
    import torch  # noqa: PLC0415 - see above

    return torch.empty(tuple(shape), device=generator.device).exponential_(generator=generator).log_().neg_()


def draw(
    generators: "Sequence[torch.Generator]", sample: "Callable[[torch.Generator], Tensor]", dim: int = 0
) -> "Tensor":
    """Draw a sample from each seed's generator, and stack the samples along dimension `dim`."""
    import torch  # noqa: PLC0415 - see above

    return torch.stack([sample(generator) for generator in generators], dim)


def row_seeds(seeds: Sequence[int], rows: int, purpose: str, first: int = 0) -> list[int]:
    """Return a seed for each of the `rows` environments of each seed, in the order of `[S, N]` flattened to `[B]`.

    The number of a row depends only on its seed, its index and the purpose. Indices start at `first`.
    """
    return [integer(seed, purpose, row) for seed in seeds for row in range(first, first + rows)]


def episode_seed(row_seed: int, episode: int) -> int:
    """Return the reset seed of one episode of one environment, below 2**31 as Gymnasium's environments require."""
    return integer(row_seed, "episode", episode)
