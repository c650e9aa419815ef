import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from operant.tabular import enumerated, learner_for
from operant.tabular.enumeration import number, size

SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 2], [1, 3]]),
    spaces.MultiDiscrete([2, 2], start=[5, -1]),
    spaces.MultiBinary(3),
    spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2), spaces.Discrete(3, start=1)]),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3)])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_member_has_its_own_number(space):
    space.seed(0)
    samples = [space.sample() for _ in range(60 * size(space))]
    numbers = {number(space, sample) for sample in samples}
    assert numbers == set(range(size(space)))
    assert size(space) == len({str(spaces.flatten(space, sample)) for sample in samples})


def test_spaces_without_end_are_rejected():
    for space in (spaces.Box(0, 1), spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])):
        with pytest.raises(ValueError, match="a table needs finite spaces"):
            size(space)
    with pytest.raises(ValueError, match="a table needs finite spaces, but Box"):
        enumerated("CartPole-v1", (0,))


def test_blackjack_is_learned():
    """Random play loses 0.39 per hand, the best 0.05; its observations are tuples."""
    env = enumerated("Blackjack-v1", (0, 1))
    assert env.observation_space == spaces.Discrete(32 * 11 * 2)
    learner = learner_for(
        "q-learning", env, seeds=(0, 1), steps_per_iteration=500, exploration_initial_eps=0.0, initial_value=1.0
    )
    report = learner.iterate()
    assert (report["rollout/episode_return"] > -0.6).all()
    assert np.unique(np.nonzero(learner.agent.table.visits)[1]).size > 50
    learner.close()


def test_tasks_without_a_limit_are_truncated_at_the_configured_step():
    env = enumerated("CliffWalking-v1", (0,), longest=7)
    env.reset()
    import torch

    truncated = [bool(env.step(torch.tensor([3])).truncated[0]) for _ in range(14)]
    assert truncated == [False] * 6 + [True] + [False] * 6 + [True]
    env.close()
    assert gymnasium.spec("FrozenLake-v1").max_episode_steps == 100


@pytest.mark.parametrize(("longest", "expected"), [(7, 7), (150, 100)])
def test_the_lower_limit_truncates(longest, expected):
    import torch

    env = enumerated("FrozenLake-v1", (0,), longest=longest, env_kwargs={"is_slippery": False})
    env.reset()
    truncated = [bool(env.step(torch.tensor([0])).truncated[0]) for _ in range(expected)]
    assert truncated == [False] * (expected - 1) + [True]
    env.close()


@pytest.mark.parametrize(
    ("space", "member"),
    [
        (spaces.Discrete(4), 4),
        (spaces.Discrete(4), -1),
        (spaces.Discrete(3, start=-1), 2),
        (spaces.MultiDiscrete([2, 3]), [1, 3]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), (2, 0)),
    ],
    ids=str,
)
def test_values_outside_the_space_have_no_number(space, member):
    with pytest.raises(ValueError, match="is not in"):
        number(space, member)


@pytest.mark.parametrize(
    ("space", "member"),
    [
        (spaces.Discrete(4), 0.6),
        (spaces.Discrete(4), np.nan),
        (spaces.Discrete(4), np.array([1, 2])),
        (spaces.Discrete(4), "1"),
        (spaces.MultiDiscrete([2, 3]), np.array([0.5, 1.0])),
        (spaces.MultiBinary(2), np.array([0.6, 1.0])),
    ],
)
def test_what_is_not_a_whole_number_is_no_member(space, member):
    with pytest.raises(ValueError, match="is not in"):
        number(space, member)


def test_members_of_one_element_and_whole_floats_are_numbered():
    assert number(spaces.Discrete(4, start=1), np.array([2])) == 1
    assert number(spaces.Discrete(4), np.float32(3.0)) == 3
