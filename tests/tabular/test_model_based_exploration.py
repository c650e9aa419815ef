import numpy as np
import pytest

from operant.mdp import MDP, expected_return, solve
from operant.tabular import MBIEEBConfig, RMaxConfig, learner_for

from .checks import contract, stepping_is_simulating
from .models import forest, optimal_values
from .twin import TwinAgent, play


class TwinOptimist(TwinAgent):
    known, beta, always, value_max, tolerance = 3, 0.0, False, 30.0, 1e-9

    def __init__(self, mdp, seed, **values):
        super().__init__(mdp, seed, initial=self.value_max, **values)
        self.outcomes, self.rewards = {}, {}

    def choose(self, state):
        return self.greedy(state)

    def value(self, cell):
        outcomes = self.outcomes.get(cell, {})
        tries = sum(outcomes.values())
        if tries < self.known:
            return self.value_max
        total = sum(n * self.best(s) for s, n in outcomes.items() if s is not None)
        return min((self.rewards[cell] + self.gamma * total) / tries + self.beta / np.sqrt(tries), self.value_max)

    def learn(self, step):
        cell = step.state, step.action
        outcomes = self.outcomes.setdefault(cell, {})
        target = None if step.terminated else step.successor
        outcomes[target] = outcomes.get(target, 0) + 1
        self.rewards[cell] = self.rewards.get(cell, 0.0) + step.reward
        if not (self.always or sum(outcomes.values()) == self.known):
            return
        largest = np.inf
        while largest > self.tolerance * self.value_max:
            largest = 0.0
            for s, options in enumerate(self.options):
                for a in options:
                    value = self.value((s, a))
                    largest = max(largest, abs(value - self.q[s][a]))
                    self.q[s][a] = value


def test_known_actions_are_not_clipped_and_a_reward_above_the_maximum_is_reported_once(caplog):
    mdp = MDP.from_table([[0, 0, 0, 1.0, 2.0], [0, 1, 0, 1.0, 5.0]], max_steps=50)
    learner = learner_for("r-max", mdp, seeds=(1,), steps_per_iteration=100, gamma=0.5, known=3)
    learner.iterate()
    assert learner.q[0, 0].max() == pytest.approx(10.0 if learner.visits[0, 0, 1] > 2 else 4.0, abs=1e-3)
    learner.run_episodes(20)
    assert caplog.text.count("but reward_max is 1") == 1
    caplog.clear()
    fitting = learner_for("r-max", mdp, seeds=(1,), steps_per_iteration=100, gamma=0.5, known=3, reward_max=5.0)
    fitting.iterate()
    assert fitting.q[0, 0] == pytest.approx([7.0, 10.0], abs=1e-3)
    clipped = learner_for("mbie-eb", mdp, seeds=(1,), steps_per_iteration=100, gamma=0.5, reward_max=5.0)
    clipped.iterate()
    assert clipped.q.max() == 10.0
    assert not caplog.text


@pytest.mark.parametrize(
    ("name", "values", "attributes"),
    [
        ("r-max", {"known": 3}, {"known": 3}),
        ("mbie-eb", {"bonus_coef": 0.2}, {"known": 1, "beta": 0.2 * 3.0, "always": True}),
    ],
)
def test_the_kernel_is_the_algorithm_in_plain_python(name, values, attributes):
    mdp = forest(seed=1)
    learner = learner_for(
        name, mdp, seeds=(7, 8), steps_per_iteration=150, gamma=0.9, reward_max=3.0, tolerance=1e-9, **values
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = TwinOptimist(mdp, seed, gamma=0.9)
        vars(agent).update(attributes)
        world = play(mdp, agent, seed, 150)
        assert learner.world.state[i] == world.state
        found = np.where(mdp.feasible, learner.q[i], 0.0)
        np.testing.assert_allclose(found, np.where(mdp.feasible, agent.q, 0.0), rtol=1e-7)


@pytest.mark.parametrize("name", ["r-max", "mbie-eb"])
def test_contract(name):
    contract(name, reward_max=3.0)
    stepping_is_simulating(name, reward_max=1.0)


def test_planning_is_exact_for_known_states():
    mdp = forest(seed=2, max_steps=None)
    learner = learner_for(
        "r-max", mdp, seeds=range(3), steps_per_iteration=60_000, gamma=0.9, reward_max=3.0, known=2000
    )
    learner.iterate()
    assert (learner.agent.model.tries[:, mdp.feasible] >= 2000).all()
    np.testing.assert_allclose(learner.values, np.tile(optimal_values(mdp, 0.9), (3, 1)), atol=0.2)


@pytest.mark.parametrize(
    ("name", "values", "expected", "spread"),
    [
        ("r-max", {"known": 16, "reward_max": 1e4}, 2.94e6, 0.15e6),
        ("mbie-eb", {"bonus_coef": 0.1, "reward_max": 1e4}, 3.22e6, 0.12e6),
        ("q-learning", {"gamma": 0.95}, 23.3e3, 300.0),
    ],
)
def test_river_swim(name, values, expected, spread):
    """Sum of rewards of 5000 steps (Strehl and Littman 2008); the far reward is found by planning, not at random."""
    learner = learner_for(name, MDP.from_gymnasium("operant/RiverSwim-v0"), seeds=range(100), **values)
    assert learner.run_episodes(1).returns.mean() == pytest.approx(expected, abs=spread)


def test_a_discount_near_one_does_not_stop_planning_immediately():
    """One step then changes a value by far less than the tolerance, a share of the largest value."""
    river = MDP.from_gymnasium("operant/RiverSwim-v0")
    learner = learner_for(
        "r-max", river, seeds=range(3), steps_per_iteration=20_000, gamma=0.99999, reward_max=10_000.0
    )
    learner.iterate()
    best = river.start @ solve(river, gamma=0.99999).values
    earned = [expected_return(river, policy, gamma=0.99999) for policy in learner.policy()]
    assert min(earned) > 0.99 * best


def test_deep_sea_is_solved_where_chance_is_hopeless():
    """Each wrong step loses the only reward: random actions find it once in 1024 episodes."""
    mdp = MDP.from_gymnasium("operant/DeepSea-v0")
    size = round(np.sqrt(mdp.states))
    found = {}
    for name, values in (("r-max", {"known": 1}), ("mbie-eb", {}), ("q-learning", {"exploration_initial_eps": 0.1})):
        learner = learner_for(name, mdp, seeds=range(5), gamma=0.99, **values)
        found[name] = learner.run_episodes(3 * size**2).returns[:, -20:].mean()
    assert found["r-max"] > 0.98
    assert found["mbie-eb"] > 0.9
    assert found["q-learning"] < 0.5


def test_values_out_of_range_are_rejected():
    with pytest.raises(ValueError, match="gamma must be in"):
        RMaxConfig(gamma=1.0)
    with pytest.raises(ValueError, match=r"known must be in .1, inf., got 0"):
        RMaxConfig(known=0)
    with pytest.raises(ValueError, match=r"reward_max must be in .0, inf., got 0"):
        MBIEEBConfig(reward_max=0.0)
    with pytest.raises(ValueError, match=r"bonus_coef must be in .0, inf., got -1"):
        MBIEEBConfig(bonus_coef=-1.0)
