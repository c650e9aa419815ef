import numpy as np
import pytest

from operant.runtime.encoding import flatten, unflatten
from operant.tabular.bandits import Arms, bernoulli_kl, lai_robbins, top_arm
from operant.tabular.random import stream_states
from operant.tabular.strategies import EpsilonGreedy, EpsilonGreedyConfig


def bandit(arms, seeds, **values):
    return EpsilonGreedy(EpsilonGreedyConfig(**values), arms, seeds=seeds)


@pytest.mark.parametrize(
    ("means", "constant"),
    [
        ([0.9, 0.8], 2.2521),
        ([0.6, 0.5], 4.8993),
        ([0.1] + [0.05] * 3 + [0.02] * 3 + [0.01] * 3, 17.4452),
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], 7.5165),
        ([0.55, 0.45], 4.9833),
        ([0.9] + [0.8] * 9, 20.2689),
        ([0.5] + [0.45] * 9, 89.8496),
    ],
)
def test_the_least_regret(means, constant):
    assert lai_robbins(Arms.paying_one(means))[0] == pytest.approx(constant, abs=5e-5)


def test_the_least_regret_of_normal_arms():
    assert lai_robbins(Arms.normal([1.0, 0.5, 1.0], noise=2.0))[0] == pytest.approx(2 * 4 / 0.5)
    assert lai_robbins(Arms.normal([1.0, 0.5], noise=0.0))[0] == 0.0
    assert lai_robbins(Arms.paying_one([1.0, 0.5]))[0] == 0.0


def test_the_divergence():
    p, q = 0.3, 0.6
    assert bernoulli_kl(p, q) == pytest.approx(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    assert bernoulli_kl(0.0, 0.5) == pytest.approx(np.log(2))
    assert bernoulli_kl(1.0, 0.5) == pytest.approx(np.log(2))


def test_rewards_have_the_means_of_the_arms():
    for arms in (Arms.paying_one([0.2, 0.7], seeds=4), Arms.normal([-1.0, 3.0], seeds=4, noise=2.0)):
        made = bandit(arms, range(4), exploration_rate=1.0, steps_per_iteration=20_000)
        report = made.iterate()
        np.testing.assert_allclose(made.pulls.estimates, arms.means, atol=0.1)
        np.testing.assert_allclose(report["bandit/reward"], arms.means.mean(axis=1), atol=0.1)
        np.testing.assert_allclose(report["bandit/best_arm"], 0.5, atol=0.02)
        gap = arms.means[:, 1] - arms.means[:, 0]
        np.testing.assert_allclose(made.pulls.regret, made.pulls.counts[:, 0] * gap)
        assert (made.pulls.counts.sum(axis=1) == 20_000).all()


def test_the_testbed():
    arms = Arms.testbed(range(4000), 10)
    assert arms.means.mean() == pytest.approx(0.0, abs=0.03)
    assert arms.means.std() == pytest.approx(1.0, abs=0.03)
    assert arms.best.mean() == pytest.approx(1.5388, abs=0.04)
    np.testing.assert_array_equal(Arms.testbed([17]).means[0], arms.means[17])
    assert Arms.testbed(range(50), center=4.0).means.mean() == pytest.approx(4.0, abs=0.3)


def test_iterations_neighbors_and_resuming_make_no_difference():
    arms = Arms.testbed((3, 4, 5))
    whole, pieces = bandit(arms, (3, 4, 5), steps_per_iteration=100), bandit(arms, (3, 4, 5), steps_per_iteration=7)
    whole.iterate()
    pieces.budget = 100
    while pieces.consumed < 100:
        pieces.iterate()
    np.testing.assert_array_equal(whole.pulls.estimates, pieces.pulls.estimates)
    alone = bandit(Arms.testbed((5,)), (5,), steps_per_iteration=100)
    alone.iterate()
    np.testing.assert_array_equal(alone.pulls.counts[0], whole.pulls.counts[2])
    resumed = bandit(arms, (3, 4, 5), steps_per_iteration=100)
    resumed.load_state_dict(unflatten(*flatten(whole.state_dict())))
    assert resumed.consumed == 100
    for left, right in zip(whole.iterate().values(), resumed.iterate().values(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_the_top_arm_is_any_of_the_best():
    rng = stream_states([0], "test")
    values = np.array([1.0, 5.0, 5.0, 2.0, 5.0])
    shares = np.bincount([top_arm(values, rng, 0) for _ in range(6000)], minlength=5) / 6000
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 0, 1 / 3], atol=0.03)


def test_wrong_arms_are_rejected():
    for probabilities in ([0.5, 1.1], [float("nan")], [-0.1]):
        with pytest.raises(ValueError, match=r"probabilities must be in \[0, 1\]"):
            Arms.paying_one(probabilities)
    with pytest.raises(ValueError, match=r"got 1.2 for arm 0 of problem 0$"):
        Arms.paying_one([1.2, 0.5], seeds=2000)
    with pytest.raises(ValueError, match=r"means must be finite, got inf for arm 1 of problem 0$"):
        Arms.normal([1.0, np.inf], seeds=2000)
    with pytest.raises(ValueError, match="noise must be finite and not negative"):
        Arms.normal([1.0], noise=-1.0)
    with pytest.raises(ValueError, match=r"arms must be \[K\] or \[S, K\]"):
        Arms.normal([])
    with pytest.raises(ValueError, match="2 seeds need the same number of problems, got 1"):
        bandit(Arms.normal([1.0]), (0, 1))
    with pytest.raises(ValueError, match="budget must be at least 1 pull"):
        EpsilonGreedy(EpsilonGreedyConfig(), Arms.normal([1.0]), seeds=(0,), budget=0)
