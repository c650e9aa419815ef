import numpy as np

from operant.mdp import random


def test_words_are_those_of_splitmix64():
    """The first outputs of the reference implementation for the seed 1234567."""
    rng = np.array([0, 1234567], np.uint64)
    found = [int(random.next_bits(rng, 1)) for _ in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert rng[0] == 0


def test_streams_differ_by_seed_and_purpose_and_not_by_neighbors():
    together = random.stream_states([1, 2, 3], "policy")
    assert len({*together.tolist(), *random.stream_states([1, 2, 3], "environment").tolist()}) == 6
    assert random.stream_states([2], "policy")[0] == together[1]
