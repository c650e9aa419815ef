import numpy as np
import pytest
import torch

from operant import ops
from operant.mdp import MDP
from operant.tabular import OneStepConfig, QLearning, expected_returns, learner_for

from .checks import contract, stepping_is_simulating
from .models import build, corridor, forest, optimal_values, policy_values
from .twin import TwinAgent, play

NAMES = ("q-learning", "sarsa", "expected-sarsa")


class TwinQLearning(TwinAgent):
    def learn(self, step):
        following = 0.0 if step.terminated else self.best(step.successor)
        self.improve(step.state, step.action, step.reward + self.gamma * following)


class TwinSarsa(TwinAgent):
    def learn(self, step):
        self.improve(step.state, step.action, step.reward + self.gamma * self.next_action(step))


class TwinExpectedSarsa(TwinAgent):
    def learn(self, step):
        following = 0.0 if step.terminated else self.expected(step.successor)
        self.improve(step.state, step.action, step.reward + self.gamma * following)


@pytest.mark.parametrize(
    ("name", "twin"), list(zip(NAMES, (TwinQLearning, TwinSarsa, TwinExpectedSarsa), strict=True)), ids=NAMES
)
def test_the_kernel_is_the_algorithm_in_plain_python(name, twin):
    mdp = forest(seed=1)
    learner = learner_for(
        name, mdp, seeds=(7, 8), steps_per_iteration=500, gamma=0.9, step_size=0.2, exploration_initial_eps=0.3
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = twin(mdp, seed, gamma=0.9, alpha=0.2, epsilon=0.3)
        world = play(mdp, agent, seed, 500)
        np.testing.assert_allclose(learner.q[i], agent.q, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(learner.agent.table.visits[i], agent.visits)
        assert learner.world.state[i] == world.state
        assert learner.world.episodes[i] == len(world.returns)


@pytest.mark.parametrize("name", NAMES)
def test_contract(name):
    contract(name, exploration_initial_eps=0.2)
    stepping_is_simulating(name, exploration_initial_eps=0.2)


def test_the_target_of_a_step_is_the_op():
    mdp = build(2, 2, [(0, 0, 1, 1.0, 0.5, False), (1, 0, 0, 1.0, 2.0, True), (1, 1, 0, 1.0, -1.0, False)])
    learner = learner_for(
        "q-learning", mdp, seeds=(0,), steps_per_iteration=1, gamma=0.9, step_size=1.0, exploration_initial_eps=0.0
    )
    learner.q[:] = [[3.0, 0.0], [5.0, 4.0]]
    learner.iterate()
    target = ops.q_target(torch.tensor([0.5]), torch.tensor([5.0]), terminated=torch.tensor([False]), gamma=0.9)
    assert learner.q[0, 0, 0] == pytest.approx(target.item())
    learner.iterate()  # the last action ends the episode: the value of its successor does not count
    assert learner.q[0, 1, 0] == 2.0


def test_q_learning_finds_the_optimal_values():
    mdp = forest(seed=2, max_steps=None)
    learner = learner_for(
        "q-learning",
        mdp,
        seeds=range(8),
        steps_per_iteration=300_000,
        gamma=0.9,
        exploration_initial_eps=0.5,
        step_size_schedule="visits",
        step_size_power=0.7,
    )
    learner.iterate()
    np.testing.assert_allclose(learner.values, np.tile(optimal_values(mdp, 0.9), (8, 1)), atol=0.12)
    np.testing.assert_allclose(learner.values.mean(axis=0), optimal_values(mdp, 0.9), atol=0.05)


@pytest.mark.parametrize("name", ["sarsa", "expected-sarsa"])
def test_sarsa_finds_the_values_of_the_policy_that_explores(name):
    mdp = forest(seed=2, max_steps=None)
    learner = learner_for(
        name,
        mdp,
        seeds=range(8),
        steps_per_iteration=300_000,
        gamma=0.9,
        exploration_initial_eps=0.3,
        step_size_schedule="visits",
        step_size_power=0.7,
    )
    learner.iterate()
    for i in range(8):
        exact = policy_values(mdp, learner.policy(exploring=True)[i], 0.9)
        followed = (learner.policy(exploring=True)[i] * learner.q[i]).sum(axis=1)
        np.testing.assert_allclose(followed, exact, atol=0.15)


def test_a_time_limit_is_no_end():
    """The values of a corridor that is truncated every other step are those without truncation."""
    for name in NAMES:
        learner = learner_for(
            name,
            corridor(2, max_steps=1),
            seeds=(0,),
            steps_per_iteration=4000,
            gamma=0.5,
            step_size=0.5,
            exploration_initial_eps=1.0,
        )
        learner.q[0, 1] = 1.0  # never reached by the agent: only bootstrapped from
        learner.iterate()
        assert learner.q[0, 0, 1] == pytest.approx(0.5)


def test_ties_are_broken_at_random():
    learner = learner_for(
        "q-learning",
        corridor(2, max_steps=1),
        seeds=range(400),
        steps_per_iteration=1,
        exploration_initial_eps=0.0,
        step_size=0.0,
    )
    learner.iterate()
    assert 150 < learner.agent.table.visits[:, 0, 1].sum() < 250


def test_optimism_tries_everything_without_chance():
    mdp = corridor(3)
    modest = learner_for(
        "q-learning",
        mdp,
        seeds=(0,),
        steps_per_iteration=200,
        gamma=0.5,
        exploration_initial_eps=0.0,
        initial_value=-1.0,
    )
    hopeful = learner_for(
        "q-learning",
        mdp,
        seeds=(0,),
        steps_per_iteration=200,
        gamma=0.5,
        exploration_initial_eps=0.0,
        initial_value=2.0,
    )
    modest.iterate(), hopeful.iterate()
    assert (hopeful.agent.table.visits[0] > 3).all()
    assert modest.agent.table.visits[0, 0, 0] == 200
    assert hopeful.world.episodes[0] > 20


def test_the_bonus_falls_with_the_root_of_the_tries():
    mdp = build(1, 1, [(0, 0, 0, 1.0, 0.0, True)])
    learner = learner_for("q-learning", mdp, seeds=(0,), steps_per_iteration=1, bonus_coef=3.0, step_size=1.0)
    values = []
    for _ in range(3):
        learner.iterate()
        values.append(learner.q[0, 0, 0])
    np.testing.assert_allclose(values, 3.0 / np.sqrt([1, 2, 3]))
    with pytest.raises(ValueError, match=r"bonus_coef must be in .0, inf., got -1"):
        OneStepConfig(bonus_coef=-1.0)


def test_cliff_walking():
    """Sutton and Barto 2018, example 6.6: Q-learning learns the shortest path and falls more often, SARSA does not."""
    mdp = MDP.from_gymnasium("CliffWalking-v1")
    expected = {"q-learning": -50.16, "sarsa": -26.66, "expected-sarsa": -20.90}
    for name, mean in expected.items():
        learner = learner_for(name, mdp, seeds=range(1000), gamma=1.0, step_size=0.5)
        late = learner.run_episodes(500).returns[:, 400:].mean(axis=1)
        error = 4 * np.hypot(late.std() / np.sqrt(1000), late.std() / np.sqrt(2000)) + 0.005
        assert abs(late.mean() - mean) < error, name
        if name == "q-learning":
            greedy = expected_returns(mdp, learner.policy(), steps=200)[:, 36]
            assert (greedy == -13.0).mean() > 0.99


def test_a_lake_is_learned_to_the_last_percent():
    """The best stationary policies succeed with probability 0.7402 in 100 steps; no policy exceeds 0.7442."""
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    config = OneStepConfig(
        exploration_initial_eps=1.0, step_size_schedule="visits", step_size_power=0.6, steps_per_iteration=300_000
    )
    learner = QLearning(config, mdp, seeds=range(10))
    learner.iterate()
    success = expected_returns(mdp, learner.policy()) @ mdp.start
    np.testing.assert_allclose(success, 0.740165, atol=1e-6)
