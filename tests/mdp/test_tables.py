import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from chains import Chain
from operant import mdp
from operant.envs.grid import GridWorld
from operant.mdp import MDP, tables


class Coin(gymnasium.Env):
    """One state for each side; the action is ignored."""

    P = {s: {0: [(0.5, 0, 1.0, False), (0.5, 1, 0.0, True)]} for s in range(2)}  # noqa: RUF012
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(1)
    initial_state_distrib = np.array([1.0, 0.0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        side = int(self.np_random.random() < 0.5)
        return side, 1.0 - side, side == 1, False, {}


class OtherReward(Coin):
    def step(self, action):
        side, reward, *rest = super().step(action)
        return side, reward - 0.1, *rest


class Unending(Coin):
    def step(self, action):
        side, reward, _, *rest = super().step(action)
        return side, reward, False, *rest


class Limited(Coin):
    def step(self, action):
        side, reward, terminated, _, info = super().step(action)
        return side, reward, terminated, True, info


class OtherStart(Coin):
    def reset(self, *, seed=None, options=None):
        return 1, super().reset(seed=seed)[1]


class Wide(Coin):
    observation_space = gymnasium.spaces.Discrete(3)


class Failing(Coin):
    def step(self, action):
        raise RuntimeError("no coin")


class SlowLake(FrozenLakeEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward - 0.1, *rest


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (Coin(), None),
        (OtherReward(), r"step\(0\) in state 0 returns the state, reward and termination .* expected an outcome of P"),
        (Unending(), r"step\(0\) in state 0 returns"),
        (Limited(), r"step\(0\) in state 0 truncates the episode"),
        (OtherStart(), r"reset\(\) returns state 1, which has probability 0"),
        (Wide(), r"its observation space is Discrete\(3\), but the table has 2 states"),
        (Failing(), r"its reset\(\) or step\(\) raised RuntimeError: no coin"),
        (SlowLake(), "returns the state, reward and termination"),
        (gymnasium.make("Taxi-v4", fickle_passenger=True), "its fickle_passenger changes the destination"),
    ],
)
def test_steps_are_compared_with_the_table(env, reason):
    if reason is None:
        assert tables.fault(env) is None
        assert MDP.from_gymnasium(env).states == 2
        return
    with pytest.raises(ValueError, match=f"does not behave as its transition table.*{reason}"):
        MDP.from_gymnasium(env)


def test_the_state_in_which_all_resets_start_is_the_start(caplog):
    env = Chain()
    model = MDP.from_gymnasium(env)
    assert model.start.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert mdp.expected_return(model, [0] * 5, gamma=1.0) == -4.0
    assert tables.start_fault(env) is None
    assert not caplog.text
    assert not hasattr(env, "state")  # a copy is reset


def test_several_starts_without_probabilities_cause_a_warning(caplog):
    env = Chain()
    env.first = (0, 0, 0, 2)
    model = MDP.from_gymnasium(env)
    assert model.start.tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]
    assert "several states (0, 2) with unknown probabilities; define initial_state_distrib" in caplog.text
    assert mdp.solve(model, gamma=1.0).values.tolist() == [-4.0, -3.0, -2.0, -1.0, 0.0]
    caplog.clear()
    env.initial_state_distrib = np.array([0.75, 0.0, 0.25, 0.0, 0.0])
    assert MDP.from_gymnasium(env).start.tolist() == [0.75, 0.0, 0.25, 0.0, 0.0]
    assert not caplog.text


def test_a_state_in_which_resets_start_is_not_terminal_although_episodes_end_there():
    class Pair(Chain):
        """States 0 and 1 end in each other."""

        P = {s: {0: [(1.0, 1 - s, 1.0, True)]} for s in range(2)}  # noqa: RUF012
        observation_space = gymnasium.spaces.Discrete(2)
        first = (0, 1)

        def step(self, action):
            return 1 - self.state, 1.0, True, False, {}

    assert MDP.from_gymnasium(Pair()).terminal.tolist() == [False, False]
    one = Pair()
    one.first = (1,)
    model = MDP.from_gymnasium(one)
    assert (model.terminal.tolist(), model.start.tolist()) == ([True, False], [0.0, 1.0])


def test_a_start_of_single_precision_is_accepted():
    env = Chain()
    env.initial_state_distrib = np.array([1 / 3, 1 / 3, 1 / 3, 0, 0], np.float32)
    np.testing.assert_allclose(MDP.from_gymnasium(env).start, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-12)


def test_sampling_leaves_an_environment_as_it_was():
    env = Coin()
    env.reset(seed=3)
    state = env.np_random.bit_generator.state
    assert tables.fault(env) is None
    assert env.np_random.bit_generator.state == state


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda env: wrappers.TransformReward(env, lambda r: r - 0.1), "TransformReward"),
        (lambda env: wrappers.TransformAction(env, lambda a: 3 - a, env.action_space), "TransformAction"),
        (lambda env: wrappers.TransformObservation(env, lambda o: o // 2, env.observation_space), "TransformObs"),
        (lambda env: wrappers.TimeLimit(wrappers.StickyAction(env, 0.5), 10), "StickyAction"),
    ],
)
def test_a_wrapper_that_may_change_the_model_is_named(wrap, name):
    for inner in (gymnasium.make("FrozenLake-v1"), GridWorld("S.\n.G")):
        with pytest.raises(ValueError, match=f"the wrapper {name}"):
            mdp.MDP.from_gymnasium(wrap(inner))


def test_the_smallest_step_limit_of_all_wrappers_is_read():
    lake = wrappers.RecordEpisodeStatistics(gymnasium.make("FrozenLake-v1"))
    assert MDP.from_gymnasium(lake).max_steps == 100
    assert MDP.from_gymnasium(wrappers.TimeLimit(lake, 7)).max_steps == 7
    assert MDP.from_gymnasium(wrappers.TimeLimit(lake, 700)).max_steps == 100
    assert MDP.from_gymnasium(wrappers.TimeLimit(GridWorld("S.\n.G"), 7)).max_steps == 7


@pytest.mark.parametrize("table", [0.9, "P", np.ones((2, 2)), None, [1.0, 2.0]])
def test_an_attribute_that_is_no_table_is_named(table):
    env = Coin()
    env.P = table
    assert not tables.has_table(env)
    with pytest.raises(ValueError, match=r"has no transition table \(env\.unwrapped\.P\)"):
        MDP.from_gymnasium(env)
