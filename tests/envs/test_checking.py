import logging
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from operant.envs.checking import check_users_environment, is_users


class Broken(gymnasium.Env):
    """Environment that returns a state outside its space."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 7, {}

    def step(self, action):
        return 7, 0.0, True, False, {}


class Vague(gymnasium.Env):
    """Environment whose rewards are arrays, about which Gymnasium warns."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, np.array([1.0]), False, False, {}


class Sized(Broken):
    """Environment that needs to know its number of states."""

    def __init__(self, states):
        self.observation_space = spaces.Discrete(states)


@pytest.fixture
def tasks():
    made = {"OperantTestBroken-v0": Broken, "OperantTestVague-v0": Vague, "OperantTestSized-v0": Sized}
    for name, kind in made.items():
        gymnasium.register(name, kind)
    yield list(made)
    for name in made:
        gymnasium.registry.pop(name)


def test_only_environments_of_users_are_checked(tasks, caplog):
    assert [is_users(task) for task in tasks] == [True] * 3
    for task in ("FrozenLake-v1", "operant/Cliff-v0", "CartPole-v1"):
        assert not is_users(task)
        assert check_users_environment(task) == []
    assert not caplog.records


def test_every_finding_is_one_line_without_colors(tasks, caplog):
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        (failure,) = check_users_environment(tasks[0])
        assert "not within the observation space" in failure
        findings = check_users_environment(tasks[1])
    assert any("reward" in finding for finding in findings)
    assert len(caplog.records) == 1 + len(findings)
    for record in caplog.records:
        message = record.getMessage()
        assert message.startswith("OperantTest")
        assert "\n" not in message
        assert "\x1b" not in message


def test_the_environment_with_its_keyword_arguments_is_checked(tasks):
    assert check_users_environment(tasks[2], {"states": 8}) == []
    (failure,) = check_users_environment(tasks[2], {"states": 5})
    assert "not within the observation space" in failure
