"""Random numbers inside kernels: one splitmix64 sequence per seed.

A stream is one uint64; element `i` of an array `[S]` is the complete state of seed `i`, and is advanced in place
(Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA). Streams start from
`operant.streams`, so they depend only on the seed and the purpose.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import cast

import numpy as np
from numpy.typing import NDArray

from operant.mdp.bellman_kernels import compiled
from operant.streams import seed_sequence

__all__ = ["StreamStates", "next_bits", "stream_states", "uniform"]

StreamStates = NDArray[np.uint64]

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31 = (np.uint64(bits) for bits in (11, 27, 30, 31))
_RESOLUTION = 2.0**-53


def stream_states(seeds: Sequence[int], purpose: str) -> StreamStates:
    """Return the initial state `[S]` of each seed's stream for a purpose.

    Raises:
        ValueError: if a seed is negative.
        TypeError: if a seed is not a whole number.
    """
    for seed in seeds:
        if not isinstance(cast(object, seed), Integral):
            raise TypeError(f"seed is {seed!r}, expected a whole number")
    return np.array([seed_sequence(seed, purpose).generate_state(1, np.uint64)[0] for seed in seeds], np.uint64)


@compiled
def next_bits(rng: StreamStates, i: int) -> np.uint64:
    """Advance stream `i` and return 64 random bits."""
    state = rng[i] + _STEP
    rng[i] = state
    state = (state ^ (state >> _30)) * _FIRST
    state = (state ^ (state >> _27)) * _SECOND
    return state ^ (state >> _31)


@compiled
def uniform(rng: StreamStates, i: int) -> float:
    """Return a float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(next_bits(rng, i) >> _11)) * _RESOLUTION
