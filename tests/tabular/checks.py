"""Checks of all learners of the package, called by the tests of each."""

import numpy as np

from operant.mdp import MDP
from operant.runtime.encoding import flatten, unflatten
from operant.tabular import Arms, enumerated, learner_for

from .models import forest


def tables(learner):
    """Return all arrays of a learner's state, by path."""
    return {path: tensor.numpy() for path, tensor in flatten(learner.state_dict())[1].items()}


def same(left, right):
    found, expected = tables(left), tables(right)
    assert found.keys() == expected.keys()
    for path in found:
        np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


def contract(algorithm, **values):
    """Check that chunks, other seeds, resume and single steps do not change results."""
    mdp = forest(seed=3)
    learner = learner_for(algorithm, mdp, seeds=(4, 0, 9), steps_per_iteration=60, **values)
    reports = [learner.iterate() for _ in range(5)]
    assert learner.consumed == 300
    assert all(value.shape == (3,) for report in reports for value in report.values())
    assert sum(report["rollout/episodes"].sum() for report in reports) == learner.world.episodes.sum() > 10

    in_pieces = learner_for(algorithm, mdp, seeds=(4, 0, 9), steps_per_iteration=7, budget=300, **values)
    while in_pieces.consumed < 300:
        in_pieces.iterate()
    assert in_pieces.consumed == 300
    same(in_pieces, learner)

    alone = learner_for(algorithm, mdp, seeds=(9,), steps_per_iteration=300, **values)
    alone.iterate()
    states = np.arange(mdp.states)[None]
    np.testing.assert_array_equal(alone.probabilities(states)[0], learner.policy()[2])
    assert alone.world.state[0] == learner.world.state[2]

    resumed = learner_for(algorithm, mdp, seeds=(4, 0, 9), steps_per_iteration=60, **values)
    resumed.load_state_dict(unflatten(*flatten(learner.state_dict())))
    for _ in range(3):
        for report, again in zip(learner.iterate().items(), resumed.iterate().items(), strict=True):
            np.testing.assert_array_equal(report[1], again[1], err_msg=report[0])
    same(resumed, learner)


def stepping_is_simulating(algorithm, task="CliffWalking-v1", steps=150, **values):
    """Check a deterministic task against a Python loop over Gymnasium's environment."""
    simulated = learner_for(algorithm, MDP.from_gymnasium(task), seeds=(1, 2), steps_per_iteration=steps, **values)
    stepped = learner_for(algorithm, enumerated(task, (1, 2)), seeds=(1, 2), steps_per_iteration=steps, **values)
    for learner in (simulated, stepped):
        learner.iterate()
        learner.env = None
    same(stepped, simulated)
    assert simulated.world.total.any() or simulated.world.episodes.any()


def bandit_contract(algorithm, **values):
    """Check that chunks, other seeds and resume do not change results, and that metrics are consistent."""
    arms = Arms.paying_one([[0.1, 0.5, 0.4], [0.7, 0.2, 0.3], [0.6, 0.6, 0.1]])
    learner = learner_for(algorithm, arms, seeds=(4, 0, 9), steps_per_iteration=60, **values)
    reports = [learner.iterate() for _ in range(5)]
    assert learner.consumed == 300
    assert all(value.shape == (3,) for report in reports for value in report.values())
    gaps = (arms.best[:, None] - arms.means) * learner.pulls.counts
    np.testing.assert_allclose(reports[-1]["bandit/regret"], gaps.sum(axis=1))
    share = sum(report["bandit/best_arm"] for report in reports) / 5
    np.testing.assert_allclose(share, (learner.pulls.counts * (arms.means == arms.best[:, None])).sum(axis=1) / 300)

    in_pieces = learner_for(algorithm, arms, seeds=(4, 0, 9), steps_per_iteration=7, budget=300, **values)
    while in_pieces.consumed < 300:
        in_pieces.iterate()
    in_pieces.pulls.reward[:], in_pieces.pulls.best[:] = 0.0, 0
    same(in_pieces, learner)

    alone = learner_for(algorithm, Arms.paying_one(arms.means[2:]), seeds=(9,), steps_per_iteration=300, **values)
    alone.iterate()
    np.testing.assert_array_equal(alone.pulls.counts[0], learner.pulls.counts[2])
    np.testing.assert_array_equal(alone.policy()[0], learner.policy()[2])

    resumed = learner_for(algorithm, arms, seeds=(4, 0, 9), steps_per_iteration=60, **values)
    resumed.load_state_dict(unflatten(*flatten(learner.state_dict())))
    for _ in range(3):
        for report, again in zip(learner.iterate().items(), resumed.iterate().items(), strict=True):
            np.testing.assert_array_equal(report[1], again[1], err_msg=report[0])
    same(resumed, learner)
