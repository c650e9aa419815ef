"""Distributions inside kernels: samples of the streams of `operant.mdp.random`."""

import numpy as np
from numpy.typing import NDArray

from operant.mdp.random import StreamStates, next_bits, stream_states, uniform
from operant.tabular.numba_config import compiled

__all__ = ["StreamStates", "below", "beta", "draw", "gamma", "next_bits", "normal", "stream_states", "uniform"]

_32 = np.uint64(32)


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
