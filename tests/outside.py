"""Helpers of the tests of extensions."""

import torch

from operant.runtime.encoding import flatten

SMALL = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "evaluate_episodes": 2}


def same(one, other):
    """Return whether the learners of two runs have equal states, bit for bit."""
    (first, first_tensors), (second, second_tensors) = (
        flatten(t.experiment.learner.state_dict()) for t in (one, other)
    )
    assert first == second
    assert first_tensors.keys() == second_tensors.keys()
    return all(torch.equal(tensor, second_tensors[name]) for name, tensor in first_tensors.items())
