import numpy as np
import pytest
import torch

from operant import ops
from operant.mdp import MDP
from operant.tabular import learner_for

from .checks import contract, stepping_is_simulating
from .models import build, forest, optimal_values
from .twin import TwinAgent, play


class TwinDouble(TwinAgent):
    def __init__(self, mdp, seed, **values):
        super().__init__(mdp, seed, **values)
        self.pair = [[row[:] for row in self.q] for _ in range(2)]

    def learn(self, step):
        coin = self.stream.below(2)
        own, other = self.pair[coin], self.pair[1 - coin]
        s, a, following = step.state, step.action, 0.0
        if not step.terminated:
            following = other[step.successor][self.greedy(step.successor, own)]
        own[s][a] += self.alpha * (step.reward + self.gamma * following - own[s][a])
        self.q[s][a] = (own[s][a] + other[s][a]) / 2


def test_the_kernel_is_the_algorithm_in_plain_python():
    mdp = forest(seed=1)
    learner = learner_for(
        "double-q-learning",
        mdp,
        seeds=(7, 8),
        steps_per_iteration=500,
        gamma=0.9,
        step_size=0.2,
        exploration_initial_eps=0.3,
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = TwinDouble(mdp, seed, gamma=0.9, alpha=0.2, epsilon=0.3)
        play(mdp, agent, seed, 500)
        np.testing.assert_allclose(learner.q[i], agent.q, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(learner.agent.pair[[i, i + 2]], agent.pair, rtol=1e-12, atol=1e-14)


def test_contract():
    contract("double-q-learning")
    stepping_is_simulating("double-q-learning")


def test_the_next_value_is_the_op():
    own, other = torch.tensor([[1.0, 3.0]]), torch.tensor([[7.0, 5.0]])
    mdp = build(2, 2, [(0, 0, 1, 1.0, 0.0, False), (1, 0, 0, 1.0, 0.0, True), (1, 1, 0, 1.0, 0.0, True)])
    learner = learner_for("double-q-learning", mdp, seeds=range(20), steps_per_iteration=1, gamma=1.0, step_size=1.0)
    learner.agent.pair[:20, 1], learner.agent.pair[20:, 1] = own.numpy(), other.numpy()
    learner.iterate()
    found = {float(value) for value in learner.agent.pair[:, 0, 0]} - {0.0}
    assert found == {ops.double_q(own, other).item(), ops.double_q(other, own).item()} == {5.0, 1.0}


def test_it_finds_the_optimal_values():
    mdp = forest(seed=2, max_steps=None)
    learner = learner_for(
        "double-q-learning",
        mdp,
        seeds=range(4),
        steps_per_iteration=300_000,
        gamma=0.9,
        exploration_initial_eps=0.5,
        step_size_schedule="visits",
        step_size_power=0.7,
    )
    learner.iterate()
    np.testing.assert_allclose(learner.values.mean(axis=0), optimal_values(mdp, 0.9), atol=0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q-learning", {1: 51, 25: 93, 50: 83, 100: 47, 300: 11}),
        ("double-q-learning", {1: 50, 25: 24, 50: 14, 300: 6.9}),
    ],
)
def test_two_tables_remove_the_maximization_bias(name, expected):
    """Percent of episodes that begin with the worse action (Sutton and Barto 2018, example 6.7); the minimum is 5."""
    seeds = 4000
    mdp = MDP.from_gymnasium("operant/MaximizationBias-v0")
    lengths = learner_for(name, mdp, seeds=range(seeds), gamma=1.0).run_episodes(300).lengths
    for episode, percent in expected.items():
        worse = lengths[:, episode - 1] >= 2
        error = 4 * 100 * worse.std() * np.sqrt(1 / seeds + 1 / 10_000)
        assert abs(100 * worse.mean() - percent) < error + 0.5, episode
