import numpy as np
import pytest

from operant.envs import GridWorld
from operant.envs.worlds import drawings
from operant.mdp import MDP
from operant.web import simulating


@pytest.fixture(scope="module")
def lake():
    return MDP.from_gymnasium("FrozenLake-v1")


def test_a_long_recording_keeps_its_beginning_and_its_end(lake, monkeypatch):
    whole = simulating.planned(lake, "value-iteration", 0.99, seed=0, backups=1)
    monkeypatch.setattr(simulating, "MOST_FRAMES", 60)
    thin = simulating.planned(lake, "value-iteration", 0.99, seed=0, backups=1)
    assert len(thin.ticks) < 70 < len(whole.ticks)
    assert thin.ticks[:41] == list(range(41))
    assert thin.ticks[-1] == whole.ticks[-1]
    assert thin.complete
    for tick, values in zip(thin.ticks, thin.values, strict=True):
        np.testing.assert_array_equal(values, whole.values[whole.ticks.index(tick)])


def test_a_truncated_recording_is_marked(lake, monkeypatch):
    monkeypatch.setattr(simulating, "MOST_STEPS", 5)
    recording = simulating.planned(lake, "value-iteration", 0.99, seed=0, backups=1)
    assert recording.ticks == [0, 1, 2, 3, 4, 5]
    assert not recording.complete


def test_bits_name_the_actions():
    assert simulating.bits(np.array([[True, False, True, False], [False] * 4])).tolist() == [5, 0]


def test_a_learner_counts_its_visits_and_knows_where_it_is():
    model = MDP.from_gymnasium(GridWorld(drawings.TRAP_8X8))
    chosen = {"step_size": 0.1, "epsilon": 0.1, "initial_value": 0.0}
    recording, values = simulating.learn(model, "q-learning", 0.9, chosen, seed=1, stride=7, count=5)
    assert [visits.sum() for visits in recording.visits] == [0, 7, 14, 21, 28, 35]
    assert recording.places[0] == 56
    assert values == {"gamma": 0.9, "step_size": 0.1, "exploration_initial_eps": 0.1, "initial_value": 0.0}
    assert recording.q[0].shape == (64, 4)
