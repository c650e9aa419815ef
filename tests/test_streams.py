import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant import streams

NAMES = st.tuples(st.integers(0, 2**40), st.sampled_from(["policy", "networks", "a", "b", ""]))
INDICES = st.lists(st.integers(0, 2**31 - 1), max_size=4)


def words(seed, purpose, *index):
    return tuple(streams.seed_sequence(seed, purpose, *index).generate_state(4).tolist())


def test_streams_never_change():
    # Changing these numbers changes every published result.
    assert streams.integer(0, "policy") == 280055738
    assert streams.integer(0, "policy", 0) == 723170738
    assert streams.integer(7, "environment", 3, bits=63) == 4087281947548091014
    assert streams.row_seeds([0, 1], 2, "environment") == [1027140710, 1782717608, 1911893649, 355232892]
    assert streams.episode_seed(123, 4) == 750895904
    assert torch.randint(0, 1000, (4,), generator=streams.torch_generator(3, "networks")).tolist() == [268, 649, 2, 253]


@settings(deadline=None, max_examples=200)
@given(NAMES, INDICES, NAMES, INDICES)
def test_different_names_are_different_streams(left, left_index, right, right_index):
    same = (left, left_index) == (right, right_index)
    assert (words(*left, *left_index) == words(*right, *right_index)) is same


def test_an_index_of_zero_is_another_stream_than_no_index():
    assert len({words(3, "policy"), words(3, "policy", 0), words(3, "policy", 0, 0), words(3, "policy", 0, 0, 0)}) == 4


def test_a_seed_beyond_32_bits_is_not_a_seed_with_an_index():
    assert len({words(1 + (1 << 32), "a"), words(1, "a"), words(1, "a", 1), words(1 << 32, "a", 1)}) == 4


def test_the_order_of_indices_counts():
    assert words(0, "a", 1, 2) != words(0, "a", 2, 1)


@pytest.mark.parametrize("bits", [1, 31, 63])
def test_integers_fill_their_range(bits):
    numbers = [streams.integer(seed, "range", bits=bits) for seed in range(200)]
    assert 0 <= min(numbers) < 2**bits * 0.1
    assert 2**bits * 0.9 <= max(numbers) + 1 <= 2**bits


def test_integers_have_31_bits_by_default():
    assert max(streams.integer(seed, "range") for seed in range(200)) < 2**31


def test_generators_draw_the_same_again_and_are_independent():
    def draw(*name):
        return torch.randn(4096, generator=streams.torch_generator(*name))

    first = draw(3, "networks")
    assert torch.equal(first, draw(3, "networks"))
    for other in (draw(4, "networks"), draw(3, "policy"), draw(3, "networks", 0)):
        assert np.corrcoef(first.numpy(), other.numpy())[0, 1] == pytest.approx(0, abs=0.06)  # 4 standard errors


def test_a_generator_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    torch.randn(3, generator=streams.torch_generator(0, "policy"))
    assert torch.equal(before, torch.get_rng_state())


def test_row_seeds_depend_on_seed_and_row_alone():
    both = streams.row_seeds([4, 9], 3, "environment")
    assert len(set(both)) == 6
    assert both[:3] == streams.row_seeds([4], 3, "environment")
    assert both[3:] == streams.row_seeds([9], 3, "environment")
    assert both[:2] == streams.row_seeds([4], 2, "environment")
    assert not set(both) & set(streams.row_seeds([4, 9], 3, "evaluation"))


def test_row_seeds_of_nothing_are_none():
    assert streams.row_seeds([], 3, "environment") == streams.row_seeds([1], 0, "environment") == []


def test_episode_seeds_differ_by_row_and_episode():
    seeds = {streams.episode_seed(row, episode) for row in range(20) for episode in range(20)}
    assert len(seeds) == 400
    assert min(seeds) >= 0
    assert max(seeds) < 2**31


@pytest.mark.parametrize(("seed", "index"), [(-1, ()), (0, (-2,)), (0, (1, -2))])
def test_negative_numbers_are_rejected(seed, index):
    with pytest.raises(ValueError, match=rf"must be non-negative, got seed {seed} and index"):
        streams.seed_sequence(seed, "policy", *index)


def test_each_seed_draws_from_its_own_stream_whatever_its_neighbors():
    both = streams.draw(streams.of_seeds([3, 5], "policy"), lambda stream: torch.rand(4, generator=stream), dim=1)
    alone = streams.draw(streams.of_seeds([5], "policy"), lambda stream: torch.rand(4, generator=stream))
    assert both.shape == (4, 2)
    assert torch.equal(both[:, 1], alone[0])
    assert torch.equal(alone[0], torch.rand(4, generator=streams.torch_generator(5, "policy")))


def test_gumbel_noise_has_its_mean_and_variance():
    noise = streams.gumbel((2, 100_000), torch.Generator().manual_seed(0))
    assert noise.shape == (2, 100_000)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(np.pi**2 / 6, abs=0.03)
