import dataclasses

import numpy as np
import pytest
import torch

from operant import ops
from operant.tabular import LambdaReturnConfig, MonteCarloConfig, MonteCarloPredictionConfig, enumerated, learner_for

from .checks import contract, stepping_is_simulating
from .models import build, corridor, forest, policy_values, random_walk, self_loop, true_values
from .twin import TwinAgent, TwinPrediction, play


class Episodic:
    """Twin with returns of a whole episode, forwards by their definition, in the order of the steps."""

    first, lam, together = False, 1.0, False

    def add(self, step, last_value):
        self.steps = [*getattr(self, "steps", []), step]
        if not (step.terminated or step.truncated):
            return
        cells = [(s.state, self.cell(s)) for s in self.steps]
        values = [self.q[s][a] for s, a in cells[1:]] + [last_value]
        following = last_value
        targets = []
        for s, value in zip(reversed(self.steps), reversed(values), strict=True):
            following = s.reward + self.gamma * ((1 - self.lam) * value + self.lam * following)
            targets.insert(0, following)
        before = [self.q[s][a] for s, a in cells]
        for t, (state, cell) in enumerate(cells):
            if not (self.first and cells[t] in cells[:t]):
                extra = self.q[state][cell] - before[t] if self.together else 0.0
                self.improve(state, cell, targets[t] + extra)
        self.steps = []


class TwinPredictor(Episodic, TwinPrediction):
    def cell(self, step):
        return 0

    def learn(self, step):
        self.add(step, self.value(step))


class TwinControl(Episodic, TwinAgent):
    def cell(self, step):
        return step.action

    def learn(self, step):
        self.add(step, 0.0 if step.terminated else self.expected(step.successor))


@pytest.mark.parametrize(
    ("name", "twin", "values", "attributes"),
    [
        ("monte-carlo", TwinControl, {"visits": "every", "exploration_initial_eps": 0.3}, {}),
        ("monte-carlo", TwinControl, {"visits": "first", "exploration_initial_eps": 0.3}, {"first": True}),
        ("monte-carlo-prediction", TwinPredictor, {"step_size_schedule": "constant"}, {"first": True}),
        ("lambda-return", TwinPredictor, {"td_lambda": 0.7}, {"lam": 0.7}),
        ("lambda-return", TwinPredictor, {"td_lambda": 0.7, "sweep": "together"}, {"lam": 0.7, "together": True}),
    ],
)
def test_the_kernel_is_the_algorithm_in_plain_python(name, twin, values, attributes):
    mdp = forest(seed=1)
    learner = learner_for(name, mdp, seeds=(7, 8), steps_per_iteration=500, gamma=0.9, step_size=0.2, **values)
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = twin(mdp, seed, gamma=0.9, alpha=0.2, epsilon=0.3)
        vars(agent).update(attributes)
        play(mdp, agent, seed, 500)
        expected = np.array(agent.q)[:, : learner.q.shape[2]]
        np.testing.assert_allclose(learner.q[i], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["monte-carlo", "monte-carlo-prediction", "lambda-return"])
def test_contract(name):
    contract(name)
    stepping_is_simulating(name, steps=300)


def test_first_visits_are_unbiased_and_last_visits_are_not():
    """In one state that is left with probability 1/2: V = -1, and the first return of every episode has that mean."""
    first = learner_for("monte-carlo-prediction", self_loop(), seeds=(0,), gamma=1.0)
    every = learner_for("monte-carlo-prediction", self_loop(), seeds=range(2000), gamma=1.0, visits="every")
    returns = first.run_episodes(20_000).returns[0]
    assert first.values[0, 0] == pytest.approx(returns.mean(), rel=1e-9)
    assert first.values[0, 0] == pytest.approx(-1.0, abs=0.05)
    assert first.agent.table.visits[0, 0, 0] == 20_000
    every.run_episodes(1)  # averaged over the visits of one episode, the return is half as large
    assert every.values.mean() == pytest.approx(-0.5, abs=0.1)


def test_the_step_size_of_averages_counts_visits_and_not_steps():
    mdp = random_walk(5)
    learner = learner_for("monte-carlo-prediction", mdp, seeds=(3,), gamma=1.0, visits="every")
    learner.run_episodes(3000)
    np.testing.assert_allclose(learner.values[0], true_values(5), atol=0.04)


def test_targets_are_the_op():
    rewards = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    truth = torch.tensor([False, False, False, True])
    values = torch.tensor([0.4, 0.1, -0.3, 7.0], dtype=torch.float64)
    mdp = build(4, 1, [(s, 0, (s + 1) % 4, 1.0, float(rewards[s]), s == 3) for s in range(4)])
    learner = learner_for(
        "lambda-return",
        mdp,
        seeds=(0,),
        td_lambda=0.6,
        gamma=0.9,
        step_size=1.0,
        sweep="together",
        steps_per_iteration=4,
    )
    learner.q[0, 1:, 0] = values[:3].numpy()
    learner.iterate()
    expected = ops.lambda_returns(
        rewards, values, terminated=truth, truncated=torch.zeros_like(truth), gamma=0.9, lam=0.6
    )
    np.testing.assert_allclose(learner.values[0], expected.numpy(), rtol=1e-12)


def test_an_episode_that_is_cut_ends_in_the_value_of_its_last_state():
    learner = learner_for(
        "monte-carlo-prediction",
        corridor(3, max_steps=1),
        seeds=(0,),
        gamma=0.5,
        step_size=1.0,
        step_size_schedule="constant",
        steps_per_iteration=1,
    )
    learner.q[0, :, 0] = [0.0, 8.0, 0.0]
    for _ in range(20):
        learner.iterate()
        if learner.world.episodes[0] and learner.values[0, 0] == 4.0:
            break
    assert learner.values[0, 0] in (4.0, 2.0, 1.0, 0.5)


@pytest.mark.parametrize("values", [{}, {"step_size_power": 0.6}, {"step_size_schedule": "constant"}])
def test_averages_over_truncated_episodes_cause_a_warning(caplog, values):
    """Reward 1 in each of 20 steps, and the value of the last state, are worth 100."""
    forever = build(1, 1, [(0, 0, 0, 1.0, 1.0, False)], max_steps=20)
    learner = learner_for("monte-carlo-prediction", forever, seeds=(0,), steps_per_iteration=30_000, **values)
    for _ in range(2):
        learner.iterate()
    if values:
        assert not caplog.records
        assert learner.values[0, 0] == pytest.approx(100.0, abs=1.0)
    else:
        (record,) = caplog.records
        assert "a time limit truncated an episode" in record.getMessage()
        assert learner.values[0, 0] < 90.0


def test_truncated_episodes_of_an_environment_cause_the_same_warning(caplog):
    cliff = enumerated("CliffWalking-v1", (0,), env_kwargs={"max_episode_steps": 30})
    learner = learner_for("monte-carlo-prediction", cliff, seeds=(0,), steps_per_iteration=29)
    learner.iterate()
    assert not caplog.records
    learner.iterate()
    assert "a time limit truncated an episode" in caplog.text
    learner.close()


def test_long_episodes_find_room():
    walk = random_walk(41)
    learner = learner_for("monte-carlo-prediction", walk, seeds=range(3), gamma=1.0)
    lengths = learner.run_episodes(30).lengths
    assert lengths.max() > 1000
    assert learner.agent.episode.rewards.shape[1] >= lengths.max()
    smaller = learner_for("monte-carlo-prediction", walk, seeds=range(3), gamma=1.0)
    smaller.load_state_dict(learner.state_dict())
    for each in (learner, smaller):
        each.iterate()
    np.testing.assert_array_equal(learner.values, smaller.values)


def test_control_finds_the_values_of_the_policy_that_explores():
    mdp = forest(seed=2, max_steps=None)
    learner = learner_for(
        "monte-carlo",
        mdp,
        seeds=range(8),
        steps_per_iteration=300_000,
        gamma=0.9,
        exploration_initial_eps=0.3,
        step_size_schedule="visits",
        step_size_power=0.6,
    )
    learner.iterate()
    for i in range(8):
        policy = learner.policy(exploring=True)[i]
        np.testing.assert_allclose((policy * learner.q[i]).sum(axis=1), policy_values(mdp, policy, 0.9), atol=0.25)


def test_the_random_walk_of_five_states():
    """RMS error of every-visit Monte Carlo after 100 episodes (Sutton and Barto 2018, example 6.2)."""
    seeds = 2000
    for alpha, mean in ((0.01, 0.0973), (0.02, 0.0818), (0.04, 0.1063)):
        learner = learner_for(
            "lambda-return",
            random_walk(5),
            seeds=range(seeds),
            td_lambda=1.0,
            gamma=1.0,
            step_size=alpha,
            initial_value=0.5,
        )
        learner.run_episodes(100)
        errors = np.sqrt(((learner.values - true_values(5)) ** 2).mean(axis=1))
        assert abs(errors.mean() - mean) < 4 * errors.std() * np.sqrt(1 / seeds + 1 / 10_000) + 5e-5


def test_values_out_of_range_are_rejected():
    with pytest.raises(ValueError, match="visits must be first or every, got 'last'"):
        MonteCarloPredictionConfig(visits="last")
    with pytest.raises(ValueError, match="visits must be first or every, got 'last'"):
        MonteCarloConfig(visits="last")
    with pytest.raises(ValueError, match=r"td_lambda must be in \[0, 1\], got -0.1"):
        LambdaReturnConfig(td_lambda=-0.1)
    with pytest.raises(ValueError, match="sweep must be sequential or together, got 'both'"):
        LambdaReturnConfig(sweep="both")


@pytest.mark.parametrize("name", ["monte-carlo", "monte-carlo-prediction", "lambda-return"])
def test_learning_at_the_end_of_episodes_needs_an_end(name):
    never = build(2, 1, [(0, 0, 1, 1.0, 1.0, False), (1, 0, 0, 1.0, 0.0, False)])
    with pytest.raises(ValueError, match=r"no episode can end: .*max_steps.*q-learning"):
        learner_for(name, never, seeds=[0])
    learner_for(name, dataclasses.replace(never, max_steps=5), seeds=[0]).iterate()
