import gymnasium
import numpy as np
import pytest
import torch

from operant.envs import make
from operant.runtime.acting import require_actions, split, try_policy


@pytest.fixture
def discrete():
    return make("CartPole-v1", 3, [0, 1])


@pytest.fixture
def continuous():
    return make("Pendulum-v1", 2, [0])


def test_observations_are_split_by_seed(discrete):
    assert split({"a": discrete.reset()}, 2)["a"].shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (gymnasium.spaces.Discrete(2, start=3), 4, 2),
        (gymnasium.spaces.MultiDiscrete([3, 2], start=[1, 2]), [3, 3], [4, 3]),
        (gymnasium.spaces.MultiBinary(3), [1, 0, 1], [2, 0, 1]),
    ],
)
def test_discrete_actions_have_bounds(space, inside, outside, discrete):
    discrete.action_space = space
    require_actions((torch.tensor(inside).expand(2, 3, *space.shape), None), discrete, 2, "Mine")
    with pytest.raises(ValueError, match=r"returned the action \d, not in"):
        require_actions((torch.tensor(outside).expand(2, 3, *space.shape), None), discrete, 2, "Mine")


def test_actions_within_the_space_are_accepted(discrete, continuous):
    require_actions((torch.ones(2, 3, dtype=torch.int64), None), discrete, 2, "Mine")
    require_actions((torch.full((1, 2, 1), 2.0), None), continuous, 1, "Mine")
    continuous.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    require_actions((torch.full((1, 2, 1), 1e9), None), continuous, 1, "Mine")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (torch.ones(2, 3), r"Mine\.act must return a pair"),
        ((np.ones((2, 3)), None), r"Mine\.act must return a pair"),
        ((torch.ones(6, dtype=torch.int64), None), r"shape \(2, 3\), seeds and environments, got \(6,\)"),
        ((torch.ones(2, 3), None), r"Mine\.act: actions have dtype torch\.float32"),
        ((torch.full((2, 3), -1), None), r"returned the action -1, not in Discrete\(2\)"),
    ],
)
def test_wrong_actions_are_named(returned, said, discrete):
    with pytest.raises(ValueError, match=said):
        require_actions(returned, discrete, 2, "Mine")


@pytest.mark.parametrize("action", [2.1, float("nan")])
def test_continuous_actions_have_bounds(action, continuous):
    with pytest.raises(ValueError, match=r"returned the action (2\.\d+|nan), not in Box"):
        require_actions((torch.full((1, 2, 1), action), None), continuous, 1, "Mine")


def test_a_policy_is_tried_greedily_and_with_noise(discrete):
    asked = []

    class Mine:
        def noise(self, rows, generator):
            return torch.rand(rows, generator=generator)

        def act(self, obs, hidden_state, noise):
            asked.append(noise is not None)
            return torch.zeros(obs.shape[:2], dtype=torch.int64), hidden_state

    try_policy(Mine(), discrete, 2, "Mine")
    assert asked == [False, True]
