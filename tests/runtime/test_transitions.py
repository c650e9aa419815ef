"""Samples of transitions, split into minibatches."""

import torch

from operant.runtime.transitions import Transitions


def test_minibatches_are_parts_of_the_samples_without_a_copy():
    names = ("rewards", "discounts", "index")
    columns = {name: torch.arange(12).view(2, 6) + i for i, name in enumerate(names)}
    obs = torch.arange(36).view(2, 6, 3)
    ends = torch.zeros(2, 6, dtype=torch.bool)
    batch = Transitions(obs=obs, actions=obs, next_obs=obs, terminated=ends, weights=None, **columns)
    first, second, third = batch.parts(3)
    assert second.rewards.tolist() == [[2, 3], [8, 9]]
    assert torch.equal(torch.cat((first.obs, second.obs, third.obs), 1), obs)
    assert third.obs.data_ptr() == obs[:, 4:].data_ptr()
    assert first.weights is second.weights is None
