import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from operant.envs.finite import FiniteEnv, Transitions, uniform

# State 0 leads to 1 or back to itself; its second action and state 2 are special: only state 1 can take action 1.
OUTCOMES = [
    (1, 1, (1.0, 2, 5.0, True)),
    (0, 0, (0.25, 0, -1.0, False)),
    (0, 0, (0.75, 1, 2.0, False)),
    (1, 0, (1.0, 0, 0.0, False)),
]


@pytest.fixture
def model():
    return Transitions.of(3, 2, OUTCOMES, [0, 1])


@pytest.fixture
def env(model):
    return FiniteEnv(model)


def test_the_rows_are_sorted(model):
    assert model.indptr.tolist() == [0, 2, 2, 3, 4, 4, 4]
    assert model.successors.tolist() == [0, 1, 0, 2]
    assert model.probabilities.tolist() == [0.25, 0.75, 1.0, 1.0]
    assert model.rewards.tolist() == [-1.0, 2.0, 0.0, 5.0]
    assert model.terminates.tolist() == [False, False, False, True]
    assert model.start.tolist() == [0.5, 0.5, 0.0]
    assert model.feasible().tolist() == [[True, False], [True, True], [False, False]]


def test_the_model_as_gymnasium_shows_it(env):
    assert env.P[0] == {0: [(0.25, 0, -1.0, False), (0.75, 1, 2.0, False)], 1: []}
    assert env.P[1] == {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 2, 5.0, True)]}
    assert env.P[2] == {a: [(1.0, 2, 0.0, True)] for a in range(2)}
    assert env.initial_state_distrib.tolist() == [0.5, 0.5, 0.0]


def test_steps_follow_the_probabilities(env):
    env.reset(seed=0)
    draws = 4000
    stayed = 0
    for _ in range(draws):
        env.state = 0
        obs, reward, terminated, truncated, info = env.step(0)
        assert (obs, reward, info["prob"]) in [(0, -1.0, 0.25), (1, 2.0, 0.75)]
        assert not terminated
        assert not truncated
        stayed += obs == 0
    assert abs(stayed / draws - 0.25) < 4 * np.sqrt(0.25 * 0.75 / draws)


def test_an_episode_ends_where_the_model_terminates(env):
    obs, info = env.reset(seed=0, options={"state": 1})
    assert obs == env.state == 1
    assert info["action_mask"].tolist() == [1, 1]
    obs, reward, terminated, truncated, info = env.step(1)
    assert (obs, reward, terminated, truncated) == (2, 5.0, True, False)
    assert info["action_mask"].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"state 2 is terminal: call reset\(\)"):
        env.step(0)


def test_starts_follow_their_distribution(env):
    starts = [env.reset(seed=seed)[0] for seed in range(2000)]
    assert set(starts) == {0, 1}
    assert abs(np.mean(starts) - 0.5) < 4 * 0.5 / np.sqrt(2000)


def test_equal_seeds_give_equal_episodes(model):
    def states(seed):
        env = FiniteEnv(model)
        env.reset(seed=seed, options={"state": 0})
        return [env.step(0)[0] for _ in range(200) if env.state in (0, 1)]

    assert states(1) == states(1)
    assert states(1) != states(2)


def test_an_action_that_is_not_feasible_is_rejected(env):
    env.reset(options={"state": 0})
    with pytest.raises(ValueError, match=r"action 1 is not feasible in state 0, but these are: \[0\]"):
        env.step(1)
    with pytest.raises(ValueError, match="action 2 is not feasible"):
        env.step(2)
    with pytest.raises(ValueError, match="action -1 is not feasible"):
        env.step(-1)
    assert env.state == 0


@pytest.mark.parametrize("state", [-1, 3, 0.5, "0"])
def test_a_start_that_does_not_exist_is_rejected(env, state):
    with pytest.raises(ValueError, match=r"options\['state'\] is .*, but the states are 0 to 2"):
        env.reset(options={"state": state})


def test_a_step_needs_an_episode(env):
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(0)


def test_no_mask_where_every_action_is_feasible():
    env = FiniteEnv(Transitions.of(2, 1, [(0, 0, (1.0, 1, 0.0, True))], [0]))
    assert "action_mask" not in env.reset()[1]
    assert "action_mask" not in env.step(0)[-1]


def test_render(model):
    env = FiniteEnv(model, render_mode="ansi")
    env.reset(options={"state": 1})
    assert env.render() == "state 1 of 3\n"
    with pytest.raises(ValueError, match="render_mode must be None or one of ansi, got 'human'"):
        FiniteEnv(model, render_mode="human")
    with pytest.warns(UserWarning, match="render_mode"):
        assert FiniteEnv(model).render() is None


def test_a_changed_mask_is_not_that_of_the_environment(env):
    env.reset(options={"state": 1})[1]["action_mask"][:] = 0
    assert env.reset(options={"state": 1})[1]["action_mask"].tolist() == [1, 1]


def test_gymnasium_finds_nothing_wrong():
    both = [(s, a, (1.0, (s + a) % 3, 1.0, s == 2)) for s in range(3) for a in range(2)]
    check_env(FiniteEnv(Transitions.of(3, 2, both, [0])), skip_render_check=True)


def test_it_works_in_vector_environments(model):
    envs = gymnasium.vector.SyncVectorEnv([lambda: FiniteEnv(model)] * 3)
    obs, _ = envs.reset(seed=0)
    assert obs.shape == (3,)
    assert obs.max() < 3
    envs.close()


def test_uniform():
    assert uniform(4, [1, 3]).tolist() == [0.0, 0.5, 0.0, 0.5]


def test_observations_are_the_states_unless_a_subclass_changes_them(env, model):
    class Hidden(FiniteEnv):
        def _observation(self):
            return 0

    assert env.shows_states
    assert not Hidden(model).shows_states
