import numpy as np
import pytest

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


def test_an_experiment_without_a_table_is_rejected(tmp_path):
    trained = api.train("ppo", "CartPole-v1", run=tmp_path / "run", seeds=1, budget=1, progress="silent")
    with pytest.raises(TypeError, match="of ppo, expected a tabular or bandit experiment"):
        view_of(trained.experiment, 0)
