"""Targets beyond the atoms of the networks: counted by seed, with one warning."""

import torch

from operant.worlds.clipping import Clipping
from operant.worlds.latent_model import LatentShape
from operant.worlds.unrolling import Unroll


def test_known_targets_beyond_the_bound_are_counted_with_one_warning(caplog):
    shape = LatentShape(inputs=1, actions=2, latent=1, hidden=(1,), activation="relu", support_size=2, squashed=False)
    returns, rewards = torch.zeros(2, 2, 3), torch.zeros(1, 2, 3)
    returns[0, 1], rewards[0, 1, 0] = torch.tensor([2.0, -2.1, 3.0]), 5.0
    known = torch.ones(2, 2, 3)
    known[0, 1, 2] = 0.0
    unused = torch.zeros(0)
    clipping = Clipping(shape)
    counted = clipping.count(Unroll(unused, unused, unused, returns, rewards, unused, known, unused))
    assert counted.tolist() == [0, 2]
    clipping.reported(torch.zeros(2))
    assert not caplog.records
    for _ in range(2):
        assert clipping.reported(counted) is counted
    (record,) = caplog.records
    assert record.getMessage().startswith("returns or rewards are beyond 2, the largest number that support_size 2")
