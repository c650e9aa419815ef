from dataclasses import replace

import numpy as np
import pytest

from operant.mdp import MDP
from operant.tabular import RandomAgent, RandomConfig, learner_for

from .checks import contract, stepping_is_simulating
from .models import forest
from .twin import Stream, TwinWorld


def test_the_kernel_is_the_algorithm_in_plain_python():
    mdp = forest(seed=1)
    learner = learner_for("random", mdp, seeds=(7,), steps_per_iteration=200)
    learner.iterate()
    world, stream = TwinWorld(mdp, 7), Stream(7, "policy")
    for _ in range(200):
        options = np.flatnonzero(mdp.feasible[world.state])
        world.advance(int(options[stream.below(len(options))]))
    assert learner.world.state[0] == world.state
    assert learner.world.episodes[0] == len(world.returns)


def test_contract():
    contract("random")
    stepping_is_simulating("random")


def test_the_four_by_four_grid():
    """59.43 steps to the goal, and 2.2 % of the episodes do not reach it in 200 steps."""
    agent = RandomAgent(RandomConfig(), MDP.from_gymnasium("operant/Goal4x4-v0"), seeds=range(20))
    lengths = agent.run_episodes(500).lengths
    assert (lengths == 200).mean() == pytest.approx(0.0220, abs=4 * np.sqrt(0.022 / 10_000) + 1e-3)
    unlimited = replace(MDP.from_gymnasium("operant/Goal4x4-v0"), max_steps=None)
    lengths = RandomAgent(RandomConfig(), unlimited, seeds=range(20)).run_episodes(500).lengths
    assert lengths.mean() == pytest.approx(59.43, abs=4 * lengths.std() / 100)


def test_it_has_no_schedules_and_every_feasible_action():
    agent = RandomAgent(RandomConfig(), forest(seed=2), seeds=(0,))
    assert agent.schedules() == {}
    np.testing.assert_allclose(agent.policy()[0].sum(axis=1), 1.0)
    assert ((agent.policy()[0] > 0) == agent.feasible).all()
