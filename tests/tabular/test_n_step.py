import numpy as np
import pytest
import torch

from operant import ops
from operant.tabular import NStepTD, NStepTDConfig, learner_for

from .checks import contract, stepping_is_simulating
from .models import build, forest, policy_values, random_walk, true_values
from .twin import TwinAgent, TwinPrediction, play


class Windowed:
    """Twin that applies an update as soon as its target is known, from the list of the episode's steps."""

    n = 3

    def push(self, step, following):
        self.steps = [*getattr(self, "steps", []), step]
        ended = step.terminated or step.truncated
        self.known = getattr(self, "known", 0)
        while self.known <= len(self.steps) - self.n or (ended and self.known < len(self.steps)):
            window = self.steps[self.known : self.known + self.n]
            target = sum(self.gamma**k * s.reward for k, s in enumerate(window)) + self.gamma ** len(window) * following
            self.improve(window[0].state, self.cell(window[0]), target)
            self.known += 1
        if ended:
            self.steps, self.known = [], 0


class TwinTD(Windowed, TwinPrediction):
    def cell(self, step):
        return 0

    def learn(self, step):
        self.push(step, self.value(step))


class TwinSarsa(Windowed, TwinAgent):
    def cell(self, step):
        return step.action

    def learn(self, step):
        self.push(step, self.next_action(step))


@pytest.mark.parametrize(("name", "twin"), [("n-step-td", TwinTD), ("n-step-sarsa", TwinSarsa)])
def test_the_kernel_is_the_algorithm_in_plain_python(name, twin):
    mdp = forest(seed=1)
    values = {"exploration_initial_eps": 0.3} if name == "n-step-sarsa" else {}
    learner = learner_for(
        name, mdp, seeds=(7, 8), steps_per_iteration=500, n_step=3, gamma=0.9, step_size=0.2, **values
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = twin(mdp, seed, gamma=0.9, alpha=0.2, epsilon=0.3)
        play(mdp, agent, seed, 500)
        expected = np.array(agent.q)[:, : learner.q.shape[2]]
        np.testing.assert_allclose(learner.q[i], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["n-step-td", "n-step-sarsa"])
def test_contract(name):
    contract(name, n_step=3)
    stepping_is_simulating(name, n_step=3)


def test_one_step_is_sarsa():
    mdp = forest(seed=5)
    single, windowed = (learner_for(name, mdp, seeds=(1, 2)) for name in ("sarsa", "n-step-sarsa"))
    windowed = learner_for("n-step-sarsa", mdp, seeds=(1, 2), n_step=1)
    single.iterate(), windowed.iterate()
    np.testing.assert_array_equal(single.q, windowed.q)


def test_more_steps_than_an_episode_has_are_monte_carlo():
    mdp = random_walk(5)
    windowed = learner_for("n-step-td", mdp, seeds=(1, 2), n_step=1000, gamma=0.9, initial_value=0.5)
    episodic = learner_for(
        "monte-carlo-prediction",
        mdp,
        seeds=(1, 2),
        visits="every",
        step_size_schedule="constant",
        gamma=0.9,
        initial_value=0.5,
    )
    windowed.iterate(), episodic.iterate()
    np.testing.assert_allclose(windowed.values, episodic.values, rtol=1e-12)


@pytest.mark.parametrize("terminated", [True, False])
def test_the_targets_are_the_op(terminated):
    """A chain of four states, whose episode ends or is truncated after the last; values are those from before."""
    rewards = torch.tensor([1.0, 2.0, -3.0, 4.0], dtype=torch.float64)
    values = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)  # of the successor states
    entries = [(s, 0, s + 1, 1.0, float(rewards[s]), terminated and s == 3) for s in range(4)]
    mdp = build(5, 1, [*entries, (4, 0, 4, 1.0, 0.0, True)], max_steps=4)
    learner = learner_for("n-step-td", mdp, seeds=(0,), n_step=3, gamma=0.9, step_size=1.0, steps_per_iteration=4)
    learner.q[0, 1:, 0] = values.numpy()
    learner.iterate()
    ends = torch.tensor([False, False, False, True])
    flags = {"terminated": ends & terminated, "truncated": ends & (not terminated)}
    expected = ops.n_step_returns(rewards, values, **flags, gamma=0.9, n=3)
    np.testing.assert_allclose(learner.values[0, :4], expected.numpy(), rtol=1e-12)


def test_values_converge_to_those_of_the_policy():
    mdp = forest(seed=2, max_steps=None)
    for n in (1, 4):
        learner = learner_for(
            "n-step-td",
            mdp,
            seeds=range(4),
            steps_per_iteration=400_000,
            n_step=n,
            gamma=0.9,
            step_size_schedule="visits",
            step_size_power=0.65,
        )
        learner.iterate()
        exact = policy_values(mdp, learner.followed, 0.9)
        np.testing.assert_allclose(learner.values.mean(axis=0), exact, atol=0.04)


def test_a_given_policy_is_evaluated():
    mdp = forest(seed=2)  # its step limit restarts the walk and does not change the values
    policy = mdp.feasible.argmax(axis=1)
    config = NStepTDConfig(gamma=0.9, steps_per_iteration=400_000, step_size_schedule="visits", step_size_power=0.65)
    learner = NStepTD(config, mdp, seeds=range(4), policy=policy)
    learner.iterate()
    exact = policy_values(mdp, np.eye(mdp.actions)[policy], 0.9)
    assert (learner.agent.table.visits > 0).all()
    np.testing.assert_allclose(learner.values.mean(axis=0), exact, atol=0.04)


@pytest.mark.parametrize(("alpha", "expected"), [(0.05, (0.1746, 0.0532, 0.0356)), (0.1, (0.1283, 0.0503, 0.0556))])
def test_the_random_walk_of_five_states(alpha, expected):
    """RMS error after 10, 50 and 100 episodes of TD(0) (Sutton and Barto 2018, example 6.2)."""
    mdp, seeds = random_walk(5), 2000
    learner = learner_for("n-step-td", mdp, seeds=range(seeds), gamma=1.0, step_size=alpha, initial_value=0.5)
    for episodes, mean in zip((10, 50, 100), expected, strict=True):
        learner.run_episodes(episodes)
        errors = np.sqrt(((learner.values - true_values(5)) ** 2).mean(axis=1))
        assert abs(errors.mean() - mean) < 4 * errors.std() * np.sqrt(1 / seeds + 1 / 10_000) + 5e-5


@pytest.mark.parametrize(
    ("n", "alpha", "expected"), [(1, 0.8, 0.3465), (2, 0.6, 0.2792), (4, 0.4, 0.2662), (8, 0.25, 0.2796)]
)
def test_the_random_walk_of_nineteen_states(n, alpha, expected):
    """RMS error over the first 10 episodes (Sutton and Barto 2018, figure 7.2)."""
    mdp, seeds = random_walk(19, left=-1.0), 1000
    learner = learner_for("n-step-td", mdp, seeds=range(seeds), n_step=n, gamma=1.0, step_size=alpha)
    errors = np.zeros((10, seeds))
    for k in range(10):
        learner.run_episodes(k + 1)
        errors[k] = np.sqrt(((learner.values - true_values(19, left=-1.0)) ** 2).mean(axis=1))
    mean = errors.mean(axis=0)
    assert abs(mean.mean() - expected) < 4 * mean.std() * np.sqrt(2 / seeds) + 5e-5


def test_zero_steps_are_rejected():
    with pytest.raises(ValueError, match=r"n_step must be in .1, inf., got 0"):
        NStepTDConfig(n_step=0)
