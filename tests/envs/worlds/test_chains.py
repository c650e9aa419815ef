import numpy as np
import pytest
from dense import dense, evaluate, optimal, uniform

from operant.envs.worlds.chains import (
    DeepSea,
    KeyMoves,
    MaximizationBias,
    RandomWalk,
    RiverSwim,
    ShortCorridor,
    SixArms,
)
from operant.mdp import MDP, advantages, expected_return

LEFT, RIGHT = 0, 1


@pytest.mark.parametrize(("states", "left"), [(5, 0.0), (19, -1.0), (1, 0.0)])
def test_values_of_a_random_walk_lie_on_a_line(states, left):
    world = RandomWalk(states, left=left).transitions
    line = left + (1.0 - left) * np.arange(states + 2) / (states + 1)
    assert evaluate(world, uniform(world), 1.0)[1:-1] == pytest.approx(line[1:-1])
    assert world.start.argmax() == (states + 1) // 2


@pytest.mark.parametrize("states", [0, -1, 4])
def test_a_random_walk_has_a_middle(states):
    with pytest.raises(ValueError, match="states must be an odd number"):
        RandomWalk(states)


def test_best_values_of_the_river():
    expected = [6137.93, 7214.76, 8839.45, 10931.8, 13547.1, 16795.56]
    assert optimal(RiverSwim().transitions, 0.95) == pytest.approx(expected, rel=4e-6)


def test_the_best_gain_of_the_river():
    going_on, rewards, _ = dense(RiverSwim().transitions)
    distribution = np.linalg.matrix_power(going_on[:, RIGHT], 4096)[0]
    assert distribution @ rewards[:, RIGHT] == pytest.approx(668.8073, abs=5e-5)
    values = np.zeros(6)
    for _ in range(5000):
        values = (rewards + going_on @ values).max(axis=1)
    # "3.335 to 3.338 million", from the two states that episodes start in
    assert values[1:3] == pytest.approx([3.3350076e6, 3.3379800e6], abs=1.0)


def test_only_the_rarest_way_of_swimming_right_pays():
    world = RiverSwim()
    assert world.P[5][RIGHT] == [(0.7, 4, 0.0, False), (0.3, 5, 10_000.0, False)]
    assert world.P[0][LEFT] == [(1.0, 0, 5.0, False)]
    assert world.P[0][RIGHT] == [(0.7, 0, 0.0, False), (0.3, 1, 0.0, False)]
    assert {world.reset(seed=seed)[0] for seed in range(20)} == {1, 2}
    assert RiverSwim(2).reset(seed=0)[0] == 1
    with pytest.raises(ValueError, match="states must be at least 2, got 1"):
        RiverSwim(1)


@pytest.mark.parametrize("mapping_seed", [None, 0, 7])
def test_the_sea_has_one_way_to_the_treasure(mapping_seed):
    size = 7
    env = DeepSea(size, mapping_seed=mapping_seed)
    assert optimal(env.transitions, 1.0)[0] == pytest.approx(0.99)
    random = evaluate(env.transitions, uniform(env.transitions), 1.0)[0]
    assert random == pytest.approx(2.0**-size - 0.005, abs=1e-12)
    obs, _ = env.reset(seed=0)
    for depth in range(size):
        assert obs == depth * size + depth
        rights = [action for action in (0, 1) if env.P[obs][action][0][2] < 0 or env.P[obs][action][0][2] > 0.5]
        (right,) = rights
        assert mapping_seed is not None or right == RIGHT
        obs, _, terminated, _, _ = env.step(right)
    assert terminated


def test_the_mapping_of_the_sea_has_a_seed():
    models = [DeepSea(8, mapping_seed=seed).transitions for seed in (1, 1, 2)]
    assert np.array_equal(models[0].rewards, models[1].rewards)
    assert not np.array_equal(models[0].rewards, models[2].rewards)
    with pytest.raises(ValueError, match="size must be at least 1"):
        DeepSea(0)
    with pytest.raises(ValueError, match="mapping_seed must not be negative, got -1"):
        DeepSea(2, mapping_seed=-1)


def test_the_rooms_of_the_six_arms():
    world = SixArms()
    for arm, (probability, pay) in enumerate(zip(SixArms.OPENS, SixArms.PAYS, strict=True)):
        opened, *closed = world.P[0][arm]
        assert opened == (probability, arm + 1, 0.0, False)
        assert closed == ([(1.0 - probability, 0, 0.0, False)] if arm else [])
        stays = [a for a in range(6) if world.P[arm + 1][a] == [(1.0, arm + 1, pay, False)]]
        leads_back = [a for a in range(6) if world.P[arm + 1][a] == [(1.0, 0, 0.0, False)]]
        assert stays == ([0, 1, 2, 3, 5] if arm == 0 else [arm])
        assert sorted(stays + leads_back) == list(range(6))
    assert world.reset(seed=0)[0] == 0


@pytest.mark.parametrize("gamma", [0.9, 0.95, 0.99])
def test_best_values_of_the_six_arms(gamma):
    """Opening room a + 1 takes a geometric time; a room is worth staying in, or leaving for the best arm."""
    opens, rooms = np.array(SixArms.OPENS), np.array(SixArms.PAYS) / (1 - gamma)
    start = (gamma * opens * rooms / (1 - gamma * (1 - opens))).max()
    expected = [start, *np.maximum(rooms, gamma * start)]
    assert optimal(SixArms().transitions, gamma) == pytest.approx(expected, rel=1e-9)
    if gamma == 0.95:
        assert start == pytest.approx(19159.66, abs=0.005)


def test_the_six_arms_within_5000_steps():
    """The best policy pulls the rarest arm until its room is open: 6000 per step from then on."""
    going_on, rewards, _ = dense(SixArms().transitions)
    values = np.zeros(7)
    for _ in range(5000):
        values = (rewards + going_on @ values).max(axis=1)
    late = 0.99 ** np.arange(5000)
    waiting = 6000.0 * (5000 - late.sum())
    assert values[0] == pytest.approx(waiting, rel=1e-6)


@pytest.mark.parametrize(
    ("right", "value"), [(2 - 2**0.5, -(6 + 4 * 2**0.5)), (0.05, -82.10526316), (0.95, -44.21052632)]
)
def test_values_of_the_short_corridor(right, value):
    policy = np.array([[1 - right, right]] * 3 + [[0.0, 0.0]])
    assert evaluate(ShortCorridor().transitions, policy, 1.0)[0] == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(("aliased", "observations"), [(True, [0, 0, 0]), (False, [1, 0, 0])])
def test_the_states_of_the_corridor_look_the_same(aliased, observations):
    env = ShortCorridor(aliased=aliased)
    assert env.reset(seed=0)[0] == 0
    assert [env.step(action)[0] for action in (RIGHT, RIGHT, LEFT)] == observations
    assert env.state == 0
    assert env.observation_space.n == (1 if aliased else 4)


def test_left_looks_better_than_it_is():
    env = MaximizationBias()
    assert optimal(env.transitions, 1.0)[:2] == pytest.approx([0.0, -0.1])
    rewards = np.array([reward for _, _, reward, _ in env.P[1][3]])
    assert rewards.mean() == pytest.approx(-0.1)
    assert rewards.std() == pytest.approx(1.0)
    assert np.mean(np.abs(rewards + 0.1) < 1.0) == pytest.approx(0.6827, abs=0.01)
    assert env.reset(seed=0)[1]["action_mask"].tolist() == [1, 1] + [0] * 8
    assert env.step(1)[4]["action_mask"].tolist() == [1] * 10


@pytest.mark.parametrize("wrong", [{"actions": 1}, {"outcomes": 1}])
def test_too_small_a_bias_is_rejected(wrong):
    with pytest.raises(ValueError, match="actions and outcomes must be at least 2"):
        MaximizationBias(**wrong)


def test_advantages_of_key_moves_are_what_they_are_worth():
    """If a policy plays 1 with probability p, move 1 adds worth (1 - p) and move 0 loses worth p."""
    p = 0.3
    mdp = MDP.from_gymnasium(KeyMoves(6, keys=(2, 5), worth=(0.3, 0.5), luck=0.1))
    policy = np.tile([1 - p, p], (mdp.states, 1))
    found = advantages(mdp, policy, gamma=1.0)
    assert expected_return(mdp, policy, gamma=1.0) == pytest.approx(0.1 + p * 0.8)
    for move in range(1, 7):
        worth = {2: 0.3, 5: 0.5}.get(move, 0.0)
        reached = range((move - 1) * 4, move * 4) if move > 5 else [(move - 1) * 4]
        for state in reached:
            assert found[state] == pytest.approx([-worth * p, worth * (1 - p)])


def test_a_game_is_won_as_often_as_its_key_moves_say():
    env = KeyMoves(3, keys=(2,), worth=(0.6,), luck=0.2)
    for right, probability in ((0, 0.2), (1, 0.8)):
        env.reset(seed=right)
        wins = 0.0
        for _ in range(2000):
            env.reset()
            results = [env.step(action)[1:3] for action in (1, right, 0)]
            assert [terminated for _, terminated in results] == [False, False, True]
            wins += results[-1][0]
        assert wins / 2000 == pytest.approx(probability, abs=0.035)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keys": (0, 3)}, r"rising numbers of moves from 1 to 40, got \[0, 3\]"),
        ({"keys": (37, 12)}, "rising numbers"),
        ({"worth": (0.5,)}, r"one number for each of 2 key moves, .* got \[0.5\] and 0.1"),
        ({"luck": 0.3}, "at most 1 together"),
        ({"moves": 0, "keys": (), "worth": ()}, "moves must be at least 1, got 0"),
    ],
)
def test_wrong_games_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        KeyMoves(**wrong)
