"""Random starts that depend only on the environment's seed and the number of the episode.

Each component of each environment has its own splitmix64 sequence (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators", OOPSLA), and episode `k` takes the `k`-th number. The numbers are computed, not drawn,
so they do not depend on other environments or on the time of the call. All integers are int64, whose wrapping
arithmetic is that of uint64; the same lines compute on NumPy arrays and on tensors.
"""

from typing import TypeVar

import numpy as np
from torch import Tensor

Words = TypeVar("Words", np.ndarray, Tensor)

BITS = 53
"""Random bits per number, as many as a float64 holds."""


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(words: Words, bits: int) -> Words:
    """Shift right and fill with zeros; int64's own shift copies the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Words) -> Words:
    """Return splitmix64's finalizer of int64 `words`, a bijection whose outputs look random."""
    words = (words ^ _shift(words, 30)) * _FIRST
    words = (words ^ _shift(words, 27)) * _SECOND
    return words ^ _shift(words, 31)


def stream_keys(seeds: Words, components: Words) -> Words:
    """Return the first state of the sequence of each component of each environment.

    Args:
        seeds: int64 `[B]`.
        components: int64 `[D, 1]`, the numbers from 1 to D.

    Returns:
        int64 `[D, B]`.
    """
    return mix(mix(seeds + _STEP) + components * _STEP) + _STEP


def random_bits(keys: Words, episodes: Words) -> Words:
    """Return the uniform integers in [0, 2⁵³) of one episode of each environment.

    Args:
        keys: int64 `[D, B]` of `stream_keys`.
        episodes: int64 `[B]`, from 0.

    Returns:
        int64 `[D, B]`.
    """
    return _shift(mix(keys + episodes * _STEP), 64 - BITS)
