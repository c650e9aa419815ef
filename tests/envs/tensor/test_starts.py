import numpy as np
import pytest
import torch
from scipy import stats

from operant.envs.tensor.starts import mix, random_bits, stream_keys

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def finalize(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def numbers_of(seeds, components, episodes):
    keys = stream_keys(np.asarray(seeds), np.arange(1, components + 1)[:, None])
    return random_bits(keys, np.asarray(episodes)) * 2.0**-53


def test_mix_gives_the_published_splitmix64_sequence_of_seed_0():
    state = torch.tensor([((k * GOLDEN + 2**63) & MASK) - 2**63 for k in (1, 2, 3)])
    assert [word & MASK for word in mix(state).tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("of", [np.array, torch.tensor])
def test_bits_equal_those_of_plain_integers(of):
    seeds, episodes = [0, 1, 2**63 - 1], [0, 7, 123_456_789]
    bits = random_bits(stream_keys(of(seeds), of([[1], [2]])), of(episodes))
    for row, (seed, episode) in enumerate(zip(seeds, episodes, strict=True)):
        for component in (1, 2):
            first = finalize((finalize((seed + GOLDEN) & MASK) + component * GOLDEN) & MASK)
            word = finalize((first + (episode + 1) * GOLDEN) & MASK)
            assert bits[component - 1, row].item() == word >> 11


@pytest.mark.parametrize("axis", ["episodes", "rows", "components"])
def test_numbers_look_uniform_and_unrelated_along_each_axis(axis):
    n = 4000
    if axis == "episodes":
        numbers = numbers_of([3] * n, 1, np.arange(n)).ravel()
    elif axis == "rows":
        numbers = numbers_of(np.arange(n), 1, [0] * n).ravel()
    else:
        numbers = numbers_of([3], n, [0]).ravel()
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4 / n**0.5
    assert len(np.unique(numbers)) == n
