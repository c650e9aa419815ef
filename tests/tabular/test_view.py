from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from operant import api
from operant.tabular.view import view_of

FLAGS = {"seeds": 2, "budget": 500, "progress": "silent"}


def test_a_map_has_ends_and_cells_that_are_never_entered(tmp_path):
    trained = api.train("q-learning", "CliffWalking-v1", run=tmp_path / "run", **FLAGS)
    view = view_of(trained.experiment, 1)
    assert (view.shape, view.arrows, np.flatnonzero(view.ends).tolist()) == ((4, 12), "↑→↓←", [47])
    assert np.flatnonzero(view.unreached).tolist() == list(range(37, 47))
    np.testing.assert_array_equal(view.q, trained.q[1])
    np.testing.assert_array_equal(view.values, trained.values[1])
    np.testing.assert_array_equal(view.policy, trained.policy[1])
    assert view.visits.sum() == 500
    assert (view.symbol(47), view.symbol(40)) == ("★", "·")
    trained.q[:] = np.nan  # a copy
    assert np.isfinite(trained.q).all()


@pytest.mark.parametrize(
    ("algorithm", "task", "shape"),
    [
        ("td-lambda", "operant/RandomWalk5-v0", None),
        ("random", "FrozenLake-v1", None),
        ("ucb1", "operant/TwoArms-v0", (1, 2)),
        ("double-q-learning", "operant/ShortcutMaze-v0", (54, 4)),
        ("r-max", "operant/RiverSwim-v0", (6, 2)),
        ("dyna-q", "Taxi-v4", (500, 6)),
    ],
)
def test_every_kind_of_table_can_be_seen(tmp_path, algorithm, task, shape):
    trained = api.train(algorithm, task, run=tmp_path / "run", **FLAGS)
    view = view_of(trained.experiment, 0)
    assert (None if view.q is None else view.q.shape) == shape
    assert trained.policy.shape == (2, *view.policy.shape)
    if shape:
        assert trained.q.shape == (2, *shape)
    if algorithm == "random":
        with pytest.raises(ValueError, match="random learns no values, so there is no `values`"):
            trained.values  # noqa: B018 - a property
    elif not shape:
        with pytest.raises(ValueError, match="learns state values, not action values"):
            trained.q  # noqa: B018 - a property
    trained.close()


def test_a_custom_grid_is_laid_out_as_drawn(tmp_path):
    drawing = "S.\n.G\n"
    trained = api.train("q-learning", "operant/Grid-v0", run=tmp_path / "run", env_kwargs={"drawing": drawing}, **FLAGS)
    view = view_of(trained.experiment, 0)
    assert (view.shape, view.symbol(3)) == ((2, 2), "G")


class Mortal(gymnasium.Env):
    """Three states in a circle, in each of which the episode may end."""

    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)
    initial_state_distrib = np.eye(3)[0]
    P: ClassVar = {
        s: {a: [(0.5, (s + 1) % 3 if a else s, 1.0, False), (0.5, s, 0.0, True)] for a in range(2)} for s in range(3)
    }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return 0, {}

    def step(self, action):
        _, self.state, reward, terminated = self.P[self.state][int(action)][self.np_random.integers(2)]
        return self.state, reward, terminated, False, {}


def test_states_in_which_an_episode_may_go_on_are_no_ends(tmp_path, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Mortal-v0", EnvSpec("Mortal-v0", entry_point=Mortal))
    view = view_of(api.train("q-learning", "Mortal-v0", run=tmp_path / "run", **FLAGS).experiment, 0)
    assert not view.ends.any()
    assert not view.unreached.any()
    assert "★" not in map(view.symbol, range(3))


def test_an_experiment_without_a_table_is_rejected(tmp_path):
    trained = api.train("ppo", "CartPole-v1", run=tmp_path / "run", seeds=1, budget=1, progress="silent")
    with pytest.raises(TypeError, match="of ppo, expected a tabular or bandit experiment"):
        view_of(trained.experiment, 0)
