import numpy as np
import pytest

from operant.tabular import PrioritizedSweepingConfig, learner_for

from .checks import contract, stepping_is_simulating
from .models import build, forest, optimal_values
from .twin import TwinAgent, play


class TwinSweeping(TwinAgent):
    """Twin with counts and queue in dictionaries, which searches all cells for the most urgent one."""

    planning, threshold = 10_000, 1e-11

    def __init__(self, mdp, seed, **values):
        super().__init__(mdp, seed, **values)
        self.outcomes, self.rewards, self.queue = {}, {}, {}

    def backup(self, cell):
        outcomes = self.outcomes[cell]
        total = sum(n * self.best(s) for s, n in outcomes.items() if s is not None)
        return (self.rewards[cell] + self.gamma * total) / sum(outcomes.values())

    def consider(self, cell):
        change = abs(self.backup(cell) - self.q[cell[0]][cell[1]])
        if change > self.threshold:
            self.queue[cell] = max(change, self.queue.get(cell, 0.0))

    def learn(self, step):
        cell = step.state, step.action
        outcomes = self.outcomes.setdefault(cell, {})
        target = None if step.terminated else step.successor
        outcomes[target] = outcomes.get(target, 0) + 1
        self.rewards[cell] = self.rewards.get(cell, 0.0) + step.reward
        self.consider(cell)
        for _ in range(self.planning):
            if not self.queue:
                break
            s, a = max(self.queue, key=self.queue.get)
            del self.queue[s, a]
            self.q[s][a] = self.backup((s, a))
            for origin, known in self.outcomes.items():
                if s in known:
                    self.consider(origin)


def test_the_kernel_is_the_algorithm_in_plain_python():
    mdp = forest(seed=1)
    # All urgent cells are backed up, so that the order of equally urgent cells makes no difference.
    values = {"planning_steps": 10_000, "threshold": 1e-11}
    learner = learner_for(
        "prioritized-sweeping",
        mdp,
        seeds=(7, 8),
        steps_per_iteration=60,
        gamma=0.8,
        exploration_initial_eps=0.3,
        **values,
    )
    learner.iterate()
    for i, seed in enumerate((7, 8)):
        agent = TwinSweeping(mdp, seed, gamma=0.8, epsilon=0.3)
        play(mdp, agent, seed, 60)
        np.testing.assert_allclose(learner.q[i], agent.q, rtol=1e-8, atol=1e-9)


def test_contract():
    contract("prioritized-sweeping")
    stepping_is_simulating("prioritized-sweeping")


def test_values_converge_without_a_step_size():
    mdp = forest(seed=2, max_steps=None)
    learner = learner_for(
        "prioritized-sweeping", mdp, seeds=range(4), steps_per_iteration=20_000, gamma=0.9, exploration_initial_eps=0.5
    )
    learner.iterate()
    np.testing.assert_allclose(learner.values, np.tile(optimal_values(mdp, 0.9), (4, 1)), atol=0.2)


def test_one_success_is_known_along_the_whole_corridor():
    """The reward at the end propagates to the start within one step; Q-learning needs one episode per cell."""
    length = 20
    mdp = build(length, 1, [(s, 0, s + 1 if s < 19 else s, 1.0, float(s == 19), s == 19) for s in range(length)])
    learner = learner_for("prioritized-sweeping", mdp, seeds=(0,), gamma=0.9, planning_steps=length)
    learner.run_episodes(1)
    np.testing.assert_allclose(learner.values[0], 0.9 ** np.arange(length)[::-1])


def test_predecessors_are_those_of_the_model():
    learner = learner_for("prioritized-sweeping", forest(seed=6), seeds=(3,), steps_per_iteration=500)
    learner.iterate()
    model, lists = learner.agent.model, learner.agent.predecessors
    slots = model.successors.shape[3]
    larger, wider = lists.with_room(slots), model._replace(full=np.ones(1, bool)).with_room()
    assert slots > 2
    for each, counts in ((lists, model), (larger, wider)):
        for state in range(learner.states):
            edges, edge = set(), each.head[0, state]
            while edge >= 0:
                edges.add(int(edge))
                edge = each.following[0, edge]
            assert edges == set(np.flatnonzero(counts.successors[0].ravel() == state))


def test_values_out_of_range_are_rejected():
    with pytest.raises(ValueError, match=r"planning_steps must be in .1, inf., got 0"):
        PrioritizedSweepingConfig(planning_steps=0)
    with pytest.raises(ValueError, match=r"threshold must be in .0, inf., got -1"):
        PrioritizedSweepingConfig(threshold=-1.0)
