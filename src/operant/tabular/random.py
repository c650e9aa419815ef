"""Random numbers inside kernels: one splitmix64 sequence per seed.

A stream is one uint64; element `i` of an array `[S]` is the complete state of seed `i`, and is advanced in place
(Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA). Streams start from
`operant.streams`, so they depend only on the seed and the purpose.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from operant.streams import seed_sequence
from operant.tabular.numba_config import compiled

StreamStates = NDArray[np.uint64]

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31, _32 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32))
_RESOLUTION = 2.0**-53


def stream_states(seeds: Sequence[int], purpose: str) -> StreamStates:
    """Return the initial state `[S]` of each seed's stream for a purpose."""
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


@compiled
def below(rng: StreamStates, i: int, n: int) -> np.int64:
    """Return an int64 in [0, n), for n up to 2³¹; probabilities differ by at most n / 2³²."""
    return np.int64(((next_bits(rng, i) >> _32) * np.uint64(n)) >> _32)


@compiled
def normal(rng: StreamStates, i: int) -> float:
    """Sample from the standard normal distribution (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform(rng, i)))
    return radius * np.cos(2.0 * np.pi * uniform(rng, i))


@compiled
def gamma(rng: StreamStates, i: int, shape: float) -> float:
    """Sample from a gamma distribution with scale 1 (Marsaglia and Tsang 2000, "A simple method"); `shape` >= 1."""
    d = shape - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    while True:
        x = normal(rng, i)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and np.log(1.0 - uniform(rng, i)) < 0.5 * x * x + d - d * v + d * np.log(v):
            return d * v


@compiled
def beta(rng: StreamStates, i: int, a: float, b: float) -> float:
    """Sample from a beta distribution; both parameters are at least 1."""
    x = gamma(rng, i, a)
    return x / (x + gamma(rng, i, b))


@compiled
def draw(cumulative: NDArray[np.float64], begin: int, end: int, rng: StreamStates, i: int) -> int:
    """Sample an index in [begin, end) by inversion of the cumulative probabilities `cumulative[begin:end]`.

    Up to 16 outcomes are searched linearly, more by bisection; a single outcome uses no random number.
    """
    last = end - 1
    if begin == last:
        return begin
    u = uniform(rng, i)
    if last - begin < 16:
        while begin < last and u >= cumulative[begin]:
            begin += 1
        return begin
    while begin < last:
        middle = (begin + last) // 2
        if u >= cumulative[middle]:
            begin = middle + 1
        else:
            last = middle
    return begin
