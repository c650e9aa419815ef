"""Random numbers inside kernels: one splitmix64 sequence per seed.

A stream is one uint64 word; word `i` of an array `[S]` belongs to seed `i`, is advanced in place and is its complete
state (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA). Streams start from
`operant.streams`, so they depend only on the seed and the purpose.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from operant.streams import seed_sequence
from operant.tabular.numba_config import compiled

Words = NDArray[np.uint64]

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31, _32 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32))
_RESOLUTION = 2.0**-53


def words(seeds: Sequence[int], purpose: str) -> Words:
    """Return the first state `[S]` of each seed's stream for a purpose."""
    return np.array([seed_sequence(seed, purpose).generate_state(1, np.uint64)[0] for seed in seeds], np.uint64)


@compiled
def word(rng: Words, i: int) -> np.uint64:
    """Advance stream `i` and return 64 random bits."""
    state = rng[i] + _STEP
    rng[i] = state
    state = (state ^ (state >> _30)) * _FIRST
    state = (state ^ (state >> _27)) * _SECOND
    return state ^ (state >> _31)


@compiled
def uniform(rng: Words, i: int) -> float:
    """Return a float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(word(rng, i) >> _11)) * _RESOLUTION


@compiled
def below(rng: Words, i: int, n: int) -> np.int64:
    """Return an int64 in [0, n), for n up to 2³¹; probabilities differ by at most n / 2³²."""
    return np.int64(((word(rng, i) >> _32) * np.uint64(n)) >> _32)


@compiled
def normal(rng: Words, i: int) -> float:
    """Return a standard normal number (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform(rng, i)))
    return radius * np.cos(2.0 * np.pi * uniform(rng, i))


@compiled
def gamma(rng: Words, i: int, shape: float) -> float:
    """Return a gamma number of scale 1 (Marsaglia and Tsang 2000, "A simple method"); `shape` is at least 1."""
    d = shape - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    while True:
        x = normal(rng, i)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and np.log(1.0 - uniform(rng, i)) < 0.5 * x * x + d - d * v + d * np.log(v):
            return d * v


@compiled
def beta(rng: Words, i: int, a: float, b: float) -> float:
    """Return a beta number; both parameters are at least 1."""
    x = gamma(rng, i, a)
    return x / (x + gamma(rng, i, b))


@compiled
def draw(cumulative: NDArray[np.float64], begin: int, end: int, rng: Words, i: int) -> int:
    """Return an index in [begin, end), drawn by inversion from `cumulative[begin:end]`, which rises to 1.

    Up to 16 outcomes are searched in order, more by bisection; a single one uses no random number.
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
