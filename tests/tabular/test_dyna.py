import numpy as np
import pytest

from operant.mdp import MDP
from operant.tabular import DynaQConfig, DynaQPlusConfig, learner_for

from .checks import contract, stepping_is_simulating
from .models import build, forest
from .twin import TwinAgent, play


class TwinDyna(TwinAgent):
    planning, kappa, imagines = 4, 0.0, False

    def __init__(self, mdp, seed, **values):
        super().__init__(mdp, seed, **values)
        self.known, self.memory, self.tried, self.time = [], {}, {}, 0

    def backup(self, s, a, reward, successor, terminated):
        following = 0.0 if terminated else self.best(successor)
        self.improve(s, a, reward + self.gamma * following)

    def learn(self, step):
        s, a = step.state, step.action
        self.backup(s, a, step.reward, step.successor, step.terminated)
        for option in self.options[s] if self.imagines else [a]:
            if (s, option) not in self.memory:
                self.known.append((s, option))
                self.memory[s, option] = (0.0, s, False)
        self.time += 1
        self.memory[s, a] = (step.reward, step.successor, step.terminated)
        self.tried[s, a] = self.time
        for _ in range(self.planning):
            cell = self.known[self.stream.below(len(self.known))]
            reward, successor, terminated = self.memory[cell]
            bonus = self.kappa * np.sqrt(self.time - self.tried.get(cell, 0))
            self.backup(*cell, reward + bonus, successor, terminated)


@pytest.mark.parametrize("name", ["dyna-q", "dyna-q-plus"])
def test_the_kernel_is_the_algorithm_in_plain_python(name):
    mdp = forest(seed=1)
    plus = {"bonus_coef": 0.05} if name == "dyna-q-plus" else {}
    learner = learner_for(
        name,
        mdp,
        seeds=(7, 8),
        steps_per_iteration=300,
        gamma=0.9,
        step_size=0.2,
        exploration_initial_eps=0.3,
        planning_steps=4,
        **plus,
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = TwinDyna(mdp, seed, gamma=0.9, alpha=0.2, epsilon=0.3)
        agent.kappa, agent.imagines = plus.get("bonus_coef", 0.0), bool(plus)
        play(mdp, agent, seed, 300)
        np.testing.assert_allclose(learner.q[i], agent.q, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["dyna-q", "dyna-q-plus"])
def test_contract(name):
    contract(name)
    stepping_is_simulating(name)


def test_without_planning_it_is_q_learning():
    mdp = forest(seed=4)
    planned = learner_for("dyna-q", mdp, seeds=(1, 2), planning_steps=0, gamma=0.9)
    plain = learner_for("q-learning", mdp, seeds=(1, 2), gamma=0.9)
    planned.iterate(), plain.iterate()
    np.testing.assert_array_equal(planned.q, plain.q)


@pytest.mark.parametrize(
    ("planning", "expected"), [(0, {2: 697, 10: 130}), (5, {2: 157, 3: 62, 5: 23}), (50, {2: 39, 3: 17.6, 5: 17.1})]
)
def test_the_maze(planning, expected):
    """Steps per episode (Sutton and Barto 2018, figure 8.2): planning needs fewer episodes."""
    seeds = 200
    mdp = MDP.from_gymnasium("operant/DynaMaze-v0")
    learner = learner_for("dyna-q", mdp, seeds=range(seeds), planning_steps=planning)
    lengths = learner.run_episodes(max(expected)).lengths
    for episode, mean in expected.items():
        steps = lengths[:, episode - 1]
        assert abs(steps.mean() - mean) < 4 * steps.std() * np.sqrt(1 / seeds + 1 / 1000) + 0.5, episode


def shortcut(*, opened):
    """Return a corridor of 12 cells around a door that leads directly to the goal when it is open."""
    entries = []
    for s in range(12):
        entries.append((s, 0, s + 1 if s < 11 else s, 1.0, float(s == 11), s == 11))
        entries.append((s, 1, s, 1.0, 1.0, True) if s == 1 and opened else (s, 1, s, 1.0, 0.0, False))
    return build(12, 2, entries)


def test_the_bonus_finds_a_shortcut_that_opens_later():
    found = {}
    for name, values in (("dyna-q", {}), ("dyna-q-plus", {"bonus_coef": 1e-3})):
        learner = learner_for(
            name,
            shortcut(opened=False),
            seeds=range(20),
            steps_per_iteration=3000,
            exploration_initial_eps=0.0,
            planning_steps=10,
            **values,
        )
        learner.iterate()
        learner.replace_model(shortcut(opened=True))
        learner.iterate()
        learner.world.ended[:] = 0
        found[name] = (learner.iterate()["rollout/episode_length"].numpy() < 6).mean()
    assert found["dyna-q"] == 0.0
    assert found["dyna-q-plus"] > 0.9


def test_another_world_is_rejected():
    learner = learner_for("dyna-q", shortcut(opened=False), seeds=(0,))
    with pytest.raises(ValueError, match="same states and feasible actions"):
        learner.replace_model(forest())


def test_values_out_of_range_are_rejected():
    with pytest.raises(ValueError, match=r"planning_steps must be in .0, inf., got -1"):
        DynaQConfig(planning_steps=-1)
    with pytest.raises(ValueError, match=r"bonus_coef must be in .0, inf., got -0\.1"):
        DynaQPlusConfig(bonus_coef=-0.1)
