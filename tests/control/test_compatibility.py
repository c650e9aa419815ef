"""Advice is correct: every algorithm is constructed with every pair of spaces, and advised only if that succeeds."""

import importlib
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from operant import catalog
from operant.control.compatibility import actions_of, require_same_spaces, require_suitable, suitable
from operant.envs import Wrapper, make, wrapped
from operant.runtime.settings import Settings

BYTES = spaces.Box(0, 255, (9, 9), np.uint8)
SEEN = {
    "vector": spaces.Box(-1, 1, (2,)),
    "number": spaces.Box(-1, 1, ()),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3)),
    "image": BYTES,
    "finite": spaces.Discrete(3),
    "counted from 2": spaces.Discrete(3, start=2),
    "several": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
    "too many": spaces.MultiBinary(30),
    "dictionary": spaces.Dict(seen=spaces.Box(-1, 1, (2,)), name=spaces.Discrete(2)),
    "finite dictionary": spaces.Dict(bits=spaces.MultiBinary(2), name=spaces.Discrete(2)),
    "masked": spaces.Dict(seen=spaces.Box(-1, 1, (2,)), action_mask=spaces.MultiBinary(2)),
    "masked and finite": spaces.Dict(name=spaces.Discrete(2), action_mask=spaces.MultiBinary(2)),
    "wrongly masked": spaces.Dict(name=spaces.Discrete(2), action_mask=spaces.MultiBinary(5)),
    "four masked": spaces.Dict(seen=spaces.Box(-1, 1, (2,)), action_mask=spaces.MultiBinary(4)),
    "mask alone": spaces.Dict(action_mask=spaces.MultiBinary(2)),
    "dictionary with image": spaces.Dict(seen=BYTES, name=spaces.Discrete(2)),
}
ACTIONS = {
    "discrete": spaces.Discrete(2),
    "counted from 3": spaces.Discrete(2, start=3),
    "bounded": spaces.Box(-2, 2, (2,)),
    "half bounded": spaces.Box(np.float32(0), np.float32(np.inf), (1,)),
    "as good as unbounded": spaces.Box(-3e38, 3e38, (1,)),
    "integers": spaces.Box(0, 9, (2,), np.int64),
    "number": spaces.Box(-1, 1, ()),
    "matrix": spaces.Box(-1, 1, (2, 2)),
    "several": spaces.MultiDiscrete([2, 2], start=[0, 1]),
    "square": spaces.MultiDiscrete([[2], [3]]),
    "bits": spaces.MultiBinary(2),
}
LEARNERS = [entry for entry in catalog.TABULAR + catalog.CONTROL if entry.family != "bandit"]
QUICK = {
    "hidden_sizes": (4,),
    "buffer_size": 100,
    "num_minibatches": 1,
    "critic_minibatches": 1,
    "num_envs": 1,
    "num_steps": 4,
    "train_freq": 4,
}
TASK = "OperantTestSpaces-v0"
NOTHING_ELSE = (
    "no algorithm supports its actions and observations",
    "TransformAction",
    "FlattenObservation",
)


class Spaces(gymnasium.Env):
    """Environment with any pair of spaces."""

    def __init__(self, seen, actions):
        self.observation_space, self.action_space = seen, actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        return self.seen(), 0.0, True, False, {}

    def seen(self):
        """Return a random observation that allows every action."""
        obs = self.observation_space.sample()
        return (
            obs | {"action_mask": np.ones_like(obs["action_mask"])}
            if isinstance(obs, dict) and "action_mask" in obs
            else obs
        )


@pytest.fixture
def task(request):
    """Return the name of a task with the spaces that the parameters of a test name."""
    seen, actions = (request.getfixturevalue(name) for name in ("seen", "actions"))
    gymnasium.register(TASK, Spaces, kwargs={"seen": SEEN[seen], "actions": ACTIONS[actions]})
    yield TASK
    gymnasium.registry.pop(TASK)


def construction_error(entry, task):
    """Return the error of an algorithm of the catalog in a task, or None if it can be constructed."""
    known = getattr(importlib.import_module(entry.module), entry.config).__dataclass_fields__
    values = {name: value for name, value in QUICK.items() if name in known and name not in dict(entry.values)}
    package = importlib.import_module(f"operant.{entry.package}")
    try:
        config = package.configuration(entry, task, **values)
        package.assemble(entry, Settings(entry.name, task), config, device="cpu").close()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("seen", SEEN)
def test_advice_lists_exactly_the_algorithms_that_can_be_constructed(task, seen, actions):
    env = make(task, 1, [0])
    advised = suitable(env)
    for entry in LEARNERS:
        if entry.package == "tabular" and (seen == "too many" or "mask" in seen):
            assert entry.name not in advised, "the table would be too large or too sparse"
            continue
        found = construction_error(entry, task)
        assert (found is None) == (entry.name in advised), f"{entry.name}: {found}"
        if found is not None and entry.package == "control":
            assert found.startswith(f"{entry.name} "), found
            assert TASK in found
            assert found.endswith(f": {', '.join(advised)}" if advised else NOTHING_ELSE), found
    env.close()


@pytest.mark.parametrize(
    ("algorithm", "seen", "actions", "message"),
    [
        (
            "sac",
            "dictionary",
            "discrete",
            r"needs actions of a Box of float, .* Discrete\(2\); .* ppo,",
        ),
        ("dueling-dqn", "vector", "integers", "needs actions of Discrete, .*; turn them into Discrete, .*Action$"),
        (
            "vpg",
            "vector",
            "integers",
            "needs actions of Discrete or MultiDiscrete or a Box of float, .*; turn them .*TransformAction$",
        ),
        ("dqn", "vector", "bits", r"needs actions of Discrete, but those of .* MultiBinary\(2\); .* ppo,"),
        (
            "alphazero",
            "image",
            "discrete",
            "needs the rules of a board game, .*/ConnectFour-v0, .* own rules; these .*, dreamer",
        ),
        (
            "alphazero",
            "vector",
            "bounded",
            "needs the rules of a board game, .*/ConnectFour-v0, .* own rules; these .*: pets, ",
        ),
        (
            "dqn",
            "dictionary with image",
            "discrete",
            "does not support an image in a dictionary, .*FilterObservation; .* ppo,",
        ),
        ("a2c", "masked", "bits", "does not support the observations of .*: .* each of 4 alternatives of 2 choices"),
        (
            "ddpg",
            "vector",
            "half bounded",
            "needs actions with finite bounds, .*TransformAction; these support .* ppo,",
        ),
        ("recurrent-ppo", "image", "bounded", "needs vectors, .* are images, .*FlattenObservation; .* ppo,"),
        ("sac-discrete", "masked", "discrete", "does not support action masks, .*FilterObservation; .* ppo,"),
        ("a2c", "wrongly masked", "discrete", "does not support the observations of .*: 'action_mask' must be"),
        ("dqn", "finite", "bounded", "needs actions of Discrete, .*; these support its actions and observations: pets"),
    ],
)
def test_an_error_names_algorithm_task_and_a_fix(task, algorithm, seen, actions, message):
    env = make(task, 1, [0])
    with pytest.raises(ValueError, match=f"^{algorithm} {message}") as info:
        require_suitable(env, algorithm)
    assert TASK in str(info.value)
    env.close()


def test_suitable_environments_pass():
    require_suitable(make("CartPole-v1", 1, [0]), "dqn")
    require_suitable(make("Pendulum-v1", 1, [0]), "sac")


@pytest.mark.parametrize(("seen", "actions"), [("vector", "bits")])
def test_the_space_of_actions_is_that_of_the_environment_or_of_a_wrapper(task, seen, actions):
    env = make(task, 1, [0])
    assert env.action_space == spaces.MultiDiscrete([2, 2])
    assert actions_of(env) == actions_of(Wrapper(env)) == spaces.MultiBinary(2)
    wrapper = Wrapper(env)
    wrapper.action_space = spaces.Discrete(4)
    assert actions_of(wrapper) == spaces.Discrete(4)
    assert actions_of(make("CartPole-v1", 1, [0], backend="tensor")) == spaces.Discrete(2)
    env.close()


def test_a_wrapper_of_a_board_game_is_named_as_the_obstacle():
    env = wrapped(make("operant/TicTacToe-v0", 1, (0,)), ["operant.explore:HashedCounts(bits=4)"])
    with pytest.raises(ValueError, match="have HashedCounts; leave out --bonus and --wrapper") as raised:
        require_suitable(env, "alphazero")
    assert "choose one of" not in str(raised.value)
    env.close()


WRAPPED_GAME = """
import gymnasium
from operant.envs import BoardGameEnv

def short():
    return gymnasium.wrappers.TimeLimit(BoardGameEnv("tic-tac-toe"), 3)
"""


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_wrapper_within_an_own_board_game_is_named_as_the_obstacle(vectorization, tmp_path):
    (tmp_path / "own.py").write_text(WRAPPED_GAME)
    env = make(f"{tmp_path / 'own.py'}:short", 1, (0,), vectorization=vectorization)
    with pytest.raises(ValueError, match="have TimeLimit; change the rules instead, in a subclass of BoardGame"):
        require_suitable(env, "alphazero")
    env.close()


@pytest.mark.parametrize(
    ("seen", "actions", "message"),
    [
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(2), ""),
        (spaces.Box(-9, 9, (2,)), spaces.Discrete(2), ""),
        (spaces.Box(-1, 1, (3,)), spaces.Discrete(2), "the observations of Other-v0 are Box.* instead of Box"),
        (spaces.Discrete(2), spaces.Discrete(2), r"the observations of Other-v0 are Discrete\(2\) instead of Box"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(3), r"the actions of Other-v0 are Discrete\(3\) instead of Disc"),
    ],
)
def test_policies_act_where_observations_and_actions_are_those_of_training(seen, actions, message):
    trained, other = (
        SimpleNamespace(task="Other-v0", observation_space=one, action_space=two)
        for one, two in ((spaces.Box(-1, 1, (2,)), spaces.Discrete(2)), (seen, actions))
    )
    if not message:
        require_same_spaces(other, trained)
        return
    with pytest.raises(ValueError, match=message):
        require_same_spaces(other, trained)
