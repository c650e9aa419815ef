"""A learned model as a table: of a hand-written model, and of an ensemble trained on a small world."""

import numpy as np
import pytest
import torch

from operant import mdp
from operant.envs import make
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Collector
from operant.worlds.ensemble import LearnedModel, ModelConfig, Prediction
from operant.worlds.tabulated import tabulated

MAZE = "operant/Maze2x3-v0"
SEEDS = (3, 5)
CPU = torch.device("cpu")


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_a_model_by_hand_becomes_a_table():
    """Action 0 stays and gives 1; action 1 moves on with probability 1/2, and ends from the last state."""
    model = LearnedModel(ModelConfig(ensemble_size=2), seeds=SEEDS, width=3, dimensions=2, device=CPU)

    def predict(obs, actions, noise):
        lucky = noise[..., 0] > 0
        on = (actions[..., 1] > 0) & lucky
        after = torch.where(on.unsqueeze(-1), obs.roll(1, -1), obs) + 0.3 * noise[..., :3].tanh()
        ends = (actions[..., 1] > 0) & (obs[..., 2] > 0)
        return Prediction(after, actions[..., 0] + 0 * noise[..., 0], 1 - ends.float())

    model.predict = predict
    start = np.array([1.0, 0, 0])
    found = tabulated(model, states=3, actions=2, start=start, generators=generators(0, 1), samples=500)
    assert len(found) == 2
    for one in found:
        assert (one.states, one.actions) == (3, 2)
        np.testing.assert_allclose(one.start, start)
        for state in range(3):
            stays, goes = (slice(*one.indptr[row : row + 2]) for row in (2 * state, 2 * state + 1))
            assert one.successors[stays].tolist() == [state]
            assert one.rewards[stays].tolist() == [1]
            assert not one.terminates[stays].any()
            assert (one.rewards[goes] == 0).all()
            assert sorted(one.successors[goes]) == sorted((state, (state + 1) % 3))
            np.testing.assert_allclose(one.probabilities[goes], 0.5, atol=0.06)
            assert (one.terminates[goes] == (state == 2)).all()
    assert not np.array_equal(found[0].probabilities, found[1].probabilities)


def test_ends_are_as_frequent_as_they_are_likely():
    model = LearnedModel(ModelConfig(ensemble_size=2), seeds=(3,), width=2, dimensions=2, device=CPU)
    model.predict = lambda obs, actions, noise: Prediction(
        obs, torch.zeros_like(obs[..., 0]), torch.full_like(obs[..., 0], 0.7)
    )
    (found,) = tabulated(model, states=2, actions=2, start=np.ones(2) / 2, generators=generators(0), samples=1000)
    np.testing.assert_allclose(found.probabilities[found.terminates], 0.3, atol=0.05)
    assert found.terminates.sum() == 4


def test_plans_in_a_learned_table_are_those_of_the_world():
    env = make(MAZE, 4, SEEDS)
    collector, replay = Collector(env, seeds=2), Replay(seeds=2, rows=4, capacity=600)
    draw = generators(7, 8)

    def act(obs, t):
        chosen = torch.stack([torch.randint(4, (4,), generator=g) for g in draw])
        return (torch.nn.functional.one_hot(chosen, 4).float(),), chosen

    rollout = collector.collect(150, act)
    replay.add(rollout, rollout.kept[0])
    config = ModelConfig(ensemble_size=2, model_batch_size=64, model_gradient_steps=1000, model_learning_rate=5e-3)
    model = LearnedModel(config, seeds=SEEDS, width=6, dimensions=4, device=CPU)
    model.fit(replay)
    truth = mdp.MDP.from_gymnasium(MAZE)
    for one in tabulated(model, states=6, actions=4, start=truth.start, generators=draw):
        policy = mdp.solve(one, gamma=0.9).policy
        assert mdp.value_lost(truth, policy, gamma=0.9).start < 1e-6


def test_the_vectors_have_a_number_for_each_state():
    model = LearnedModel(ModelConfig(ensemble_size=2), seeds=SEEDS, width=3, dimensions=2, device=CPU)
    with pytest.raises(ValueError, match="the model has observations of size 3, expected one-hot vectors of 4 states"):
        tabulated(model, states=4, actions=2, start=np.ones(4) / 4, generators=generators(0, 1))
