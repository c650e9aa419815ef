import numpy as np
import pytest

from operant.tabular.simulator import UNLIMITED, Model, Quota, World, advance, begin_all, has_quota, settle

from .models import build, forest, random_walk
from .twin import TwinWorld


def test_the_simulator_is_its_twin():
    mdp = forest(seed=4, max_steps=5)
    model, world = Model.of(mdp), World.new((3, 9), record=1000)
    begin_all(model, world)
    for i, seed in enumerate((3, 9)):
        twin = TwinWorld(mdp, seed)
        for t in range(400):
            assert world.state[i] == twin.state
            options = np.flatnonzero(mdp.feasible[twin.state])
            assert advance(model, world, i, options[t % len(options)]) == twin.advance(int(options[t % len(options)]))
        episodes = len(twin.returns)
        assert world.episodes[i] == episodes > 50
        np.testing.assert_allclose(world.returns[i, :episodes], twin.returns)
        np.testing.assert_array_equal(world.lengths[i, :episodes], twin.lengths)
        np.testing.assert_allclose(world.ended[i], [episodes, sum(twin.returns), sum(twin.lengths)])


def test_frequencies_are_the_probabilities():
    mdp = forest(seed=8, max_steps=None)
    model, world = Model.of(mdp), World.new((0,))
    state, action = 2, int(np.flatnonzero(mdp.feasible[2])[0])
    row = state * mdp.actions + action
    entries = slice(mdp.indptr[row], mdp.indptr[row + 1])
    counts = dict.fromkeys(mdp.successors[entries].tolist(), 0)
    for _ in range(5000):
        world.state[0] = state
        counts[advance(model, world, 0, action).successor] += 1
    np.testing.assert_allclose(np.array(list(counts.values())) / 5000, mdp.probabilities[entries], atol=0.03)


def test_episodes_start_where_they_may():
    mdp = build(4, 1, [(s, 0, s, 1.0, 0.0, True) for s in range(4)], start=[1, 3])
    world = World.new(range(300))
    begin_all(Model.of(mdp), world)
    assert set(world.state) == {1, 3}
    assert 100 < (world.state == 1).sum() < 200


def test_the_limit_cuts_and_does_not_end():
    mdp = build(2, 1, [(0, 0, 1, 1.0, 1.0, False), (1, 0, 0, 1.0, 1.0, True)], max_steps=2)
    model, world = Model.of(mdp, max_steps=1), World.new((0,))
    begin_all(model, world)
    step = advance(model, world, 0, 0)
    assert (step.successor, step.terminated, step.truncated) == (1, False, True)
    assert world.state[0] == 0
    step = [advance(Model.of(mdp), world, 0, 0) for _ in range(2)][-1]
    assert (step.terminated, step.truncated) == (True, False), "termination at the limit is termination"
    assert Model.of(random_walk()).max_steps == UNLIMITED


def test_records_stop_when_they_are_full():
    world = World.new((0,), record=1)
    for reward in (1.0, 2.0):
        settle(world, 0, reward, 0, True)
    assert world.returns.tolist() == [[1.0]]
    assert world.ended.tolist() == [[2.0, 3.0, 2.0]]


@pytest.mark.parametrize(("left", "episodes", "expected"), [(1, 2, True), (0, 2, False), (1, 1, False)])
def test_a_quota_counts_steps_and_episodes(left, episodes, expected):
    world = World.new((0,))
    world.episodes[0] = 1
    assert has_quota(world, Quota(np.array([left]), episodes), 0) is expected
