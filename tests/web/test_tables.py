import base64

import numpy as np
import pytest

from operant import api
from operant.web.tables import Tables


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that makes a short run of a table."""
    path = tmp_path_factory.mktemp("tables")

    def make(algorithm, task, **options):
        return api.train(
            algorithm,
            task,
            budget=500,
            run=path / f"{algorithm}-{len(list(path.iterdir()))}",
            progress="silent",
            **options,
        )

    return make


def test_a_grid_is_drawn_as_it_is(trained):
    drawing = "step: -1\n\nS.#\n..G\n"
    shown = Tables(trained("q-learning", "operant/Grid-v0", env_kwargs={"drawing": drawing})).show(0)
    assert [row[:2] for row in shown["world"]["cells"]] == [["S", "."], [".", "."]]
    assert (shown["states"], shown["actions"]) == (6, 4)


def test_frozen_lake_has_the_cells_of_its_map(trained):
    shown = Tables(trained("q-learning", "FrozenLake-v1")).show(0)
    assert [len(row) for row in shown["world"]["cells"]] == [4] * 4
    other = Tables(trained("q-learning", "FrozenLake-v1", env_kwargs={"is_slippery": False})).show(0)
    assert other["world"] is None, "the drawing shows the slippery lake"
    assert other["exact"] is not None


def test_learners_without_a_table_of_values_are_not_shown(trained):
    assert Tables(trained("ucb1", "operant/TenArms-v0")).show(0) == {"table": False}


@pytest.mark.parametrize("actions", [20, 70])
def test_policies_may_have_any_number_of_actions(trained, actions):
    found = trained("q-learning", "operant/Gambler-v0", env_kwargs={"goal": 2 * actions})
    shown = Tables(found).show(0)
    assert shown["actions"] == actions
    flags = np.frombuffer(base64.b64decode(shown["policy"]), "u1").reshape(shown["states"], actions)
    assert np.array_equal(flags, found.experiment.learner.policy()[0] > 0)
    assert flags[actions].any()


def test_changing_worlds_have_no_exact_values(trained):
    shown = Tables(trained("dyna-q", "operant/BlockingMaze-v0")).show(0)
    assert shown["table"]
    assert shown["exact"] is None
