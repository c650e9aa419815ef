import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import operant
from operant.tabular import enumerated, learner_for
from operant.tabular.enumeration import actions_of, member, number, require_possible, size

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


@pytest.mark.parametrize("space", SPACES[:6], ids=str)
def test_members_are_found_by_their_numbers(space):
    found = [member(space, index) for index in range(size(space))]
    assert [number(space, one) for one in found] == list(range(size(space)))
    assert all(space.contains(one) for one in found)
    with pytest.raises(ValueError, match=f"{size(space)} is not the number of a member"):
        member(space, size(space))


class Lock(gymnasium.Env):
    """Pays 1 for the combination (1, 2) only."""

    def __init__(self, actions=(2, 3), states=(2,)):
        self.observation_space, self.action_space = spaces.MultiDiscrete(states), spaces.MultiDiscrete(actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(len(self.observation_space.nvec), np.int64), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.reset()[0], float(tuple(action) == (1, 2)), True, False, {}


def test_actions_of_several_parts_are_numbered(tmp_path):
    trained = operant.train("q-learning", Lock, run=tmp_path / "lock", budget=300, progress="silent")
    assert trained.q.shape == (1, 2, 6)
    assert trained.evaluate(2, backend="gymnasium").mean == 1.0
    assert trained.predict(np.array([0]))[0].tolist() == [1, 2]
    assert trained.predict(np.array([[0], [0]]))[0].tolist() == [[1, 2], [1, 2]]
    env = enumerated(Lock, [0])
    assert env.action_space == actions_of(Lock().action_space).space == spaces.Discrete(6)
    env.close()


def test_tables_that_do_not_fit_into_memory_are_rejected(monkeypatch):
    monkeypatch.setattr("operant.runtime.available_memory.available", lambda _: 10**6)
    message = r"table of Large, 1,000 states with 20 actions each, for each of 4 seeds needs 1\.22 MiB, but 977 KiB are"
    with pytest.raises(ValueError, match=message + r" available on cpu: train fewer seeds, or use an algorithm"):
        require_possible(1000, 20, "Large", seeds=4)
    with pytest.raises(ValueError, match=r"available on cpu: use an algorithm with networks"):
        require_possible(1000, 80, "Large", seeds=1)
    require_possible(1000, 20, "Large", seeds=3)
    with pytest.raises(ValueError, match=r"a table of the model, 48 states with 4 actions each, for each of 400 seeds"):
        operant.train("q-learning", "CliffWalking-v1", seeds=400, budget=10)


def test_tables_that_no_memory_holds_are_rejected():
    with pytest.raises(ValueError, match=r"about 10\^15 states with 6 actions each, too many to store: use"):
        enumerated(Lock, [0], env_kwargs={"states": [1000] * 5})
    with pytest.raises(ValueError, match=r"operant.tabular.enumerated\(task, seeds\); others"):
        learner_for("q-learning", operant.envs.make("Pendulum-v1", 1, [0]), seeds=[0])
    with pytest.raises(ValueError, match="is not a task: pass the name"):
        enumerated(Lock(), [0])
