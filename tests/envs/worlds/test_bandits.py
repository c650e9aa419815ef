import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from operant.envs.worlds.bandits import Bandit, BernoulliBandit, Testbed


def test_arms_of_the_testbed_are_drawn_at_every_reset():
    env = Testbed()
    problems = []
    for seed in range(400):
        env.reset(seed=seed)
        problems.append(env.means.copy())
    table = np.array(problems)
    assert table.shape == (400, 10)
    assert len(np.unique(table)) == 4000
    assert abs(table.mean()) < 4 / np.sqrt(4000)
    assert abs(table.var() - 1.0) < 4 * np.sqrt(2 / 4000)
    assert table.max(axis=1).mean() == pytest.approx(1.5388, abs=4 * 0.587 / np.sqrt(400))
    env.reset(seed=7)
    assert np.array_equal(env.means, problems[7])


def test_rewards_of_the_testbed():
    env = Testbed(3, center=4.0, spread=0.0, noise=2.0)
    env.reset(seed=1)
    assert env.means.tolist() == [4.0] * 3
    rewards = np.array([env.step(2)[1] for _ in range(3000)])
    assert abs(rewards.mean() - 4.0) < 4 * 2 / np.sqrt(3000)
    assert abs(rewards.var() - 4.0) < 4 * 4 * np.sqrt(2 / 3000)


def test_regret_is_the_gap_to_the_best_arm():
    env = BernoulliBandit((0.9, 0.8, 0.5))
    assert env.reset(seed=0) == (0, {})
    assert [env.step(arm)[4]["regret"] for arm in range(3)] == pytest.approx([0.0, 0.1, 0.4])
    obs, reward, terminated, truncated, _ = env.step(0)
    assert obs == 0
    assert reward in (0.0, 1.0)
    assert not terminated
    assert not truncated


def test_fixed_probabilities():
    env = BernoulliBandit([0.2, 0.7])
    env.reset(seed=3)
    rewards = [env.step(1)[1] for _ in range(2000)]
    assert abs(np.mean(rewards) - 0.7) < 4 * np.sqrt(0.21 / 2000)
    assert env.P == {
        0: {0: [(0.2, 0, 1.0, False), (0.8, 0, 0.0, False)], 1: [(0.7, 0, 1.0, False), (1 - 0.7, 0, 0.0, False)]}
    }


def test_drawn_probabilities():
    env = BernoulliBandit(arms=4)
    env.reset(seed=0)
    first = env.means.copy()
    assert ((first > 0) & (first < 1)).all()
    env.reset(seed=1)
    assert not np.array_equal(env.means, first)
    assert [env.P[0][arm][0][0] for arm in range(4)] == env.means.tolist()


@pytest.mark.parametrize("probabilities", [[0.5, 1.5], [-0.1], [float("nan")], [[0.5, 0.5]]])
def test_invalid_probabilities_are_rejected(probabilities):
    with pytest.raises(ValueError, match="probabilities must be a list of numbers between 0 and 1"):
        BernoulliBandit(probabilities)


def test_other_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="arms must be at least 1, got 0"):
        Testbed(0)
    with pytest.raises(ValueError, match="arms must be at least 1, got 0"):
        BernoulliBandit([])
    with pytest.raises(ValueError, match="standard deviations must not be negative"):
        Testbed(noise=-1.0)
    with pytest.raises(ValueError, match="render_mode must be None or 'ansi'"):
        Testbed(render_mode="human")
    env = Testbed(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="arm 2 does not exist: the arms are 0 to 1"):
        env.step(2)


def test_a_bandit_without_rewards_is_abstract():
    class Unfinished(Bandit):
        def _draw_means(self, random):
            return np.zeros(2)

    with pytest.raises(TypeError, match=r"abstract class Unfinished .*_draw_reward"):
        Unfinished(2)


def test_render():
    env = BernoulliBandit([0.25, 0.5], render_mode="ansi")
    env.reset()
    assert env.render() == "0.250 0.500\n"
    with pytest.warns(UserWarning, match="render_mode"):
        assert Testbed().render() is None


@pytest.mark.parametrize("env", [Testbed(), BernoulliBandit()])
def test_gymnasium_finds_nothing_wrong(env):
    check_env(env, skip_render_check=True)
