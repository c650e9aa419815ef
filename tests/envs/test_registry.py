import sys
import textwrap

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from operant.envs import EnvError, GymnasiumEnv, make, maker_like
from operant.envs.registry import drawn, from_object, make_single, own_files, render_modes, specified

DRAWING = "step: -1\n\nS..\n.#.\n..G\n"


class Field(gymnasium.Env):
    """Environment of any size."""

    action_space = spaces.Discrete(2)

    def __init__(self, size, *, slippery=True, render_mode=None):
        if size < 0:
            raise ValueError(f"size must not be negative, got {size}")
        if size > 100:
            raise RuntimeError("too large to plough")
        self.observation_space = spaces.Box(-1, 1, (size,))
        self.slippery = slippery

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


@pytest.fixture(autouse=True)
def field():
    gymnasium.register("OperantTestField-v0", Field)
    yield
    gymnasium.registry.pop("OperantTestField-v0", None)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_parameters_reach_the_constructor(vectorization):
    env = make("OperantTestField-v0", 2, [0], env_kwargs={"size": 3}, vectorization=vectorization)
    assert env.observation_space.shape == (3,)
    assert isinstance(env, GymnasiumEnv)
    assert env.env_kwargs == {"size": 3}
    other = maker_like(env, 1)(5)
    assert other.observation_space.shape == (3,)
    env.close()
    assert gymnasium.registry["OperantTestField-v0"].kwargs == {}


def test_the_time_limit_is_a_parameter_of_every_environment():
    env = make("CartPole-v1", 1, [0], env_kwargs={"max_episode_steps": 3})
    env.reset()
    assert [bool(env.step(torch.tensor([t % 2])).truncated) for t in range(4)] == [False, False, True, False]


def test_environments_without_end_are_cut_where_that_is_asked_for():
    for own, longest, expected in ((None, 3, 3), (2, 3, 2), (9, 3, 3)):
        limit = {} if own is None else {"max_episode_steps": own}
        env = make("OperantTestField-v0", 1, [0], env_kwargs={"size": 1, **limit}, max_steps=longest)
        env.reset()
        ends = [bool(env.step(torch.tensor([0])).truncated) for _ in range(expected)]
        assert ends == [False] * (expected - 1) + [True]


@pytest.mark.parametrize(
    ("task", "env_kwargs", "message"),
    [
        (
            "OperantTestField-v0",
            {"siz": 3},
            "no parameter 'siz': its .* size, slippery, max_episode_steps; did you mean",
        ),
        (
            "OperantTestField-v0",
            {},
            "OperantTestField-v0 needs size: pass --env-kwargs size=..., in Python env_kwargs=",
        ),
        (
            "OperantTestField-v0",
            {"size": -1},
            r"constructor of .* raised ValueError: size must not be .* got -1 \(.*line",
        ),
        ("OperantTestField-v0", {"size": "x"}, "constructor of .* raised TypeError"),
        ("operant/Grid-v0", {}, "operant/Grid-v0 needs drawing"),
        ("operant/Grid-v0", {"drawing": "S?G"}, "line 1, column 2: .* is not a cell"),
        ("FrozenLake-v1", {"is_slipery": False}, "did you mean is_slippery"),
        ("FrozenLake-v1", {"is_slippery": "no"}, "is_slippery of FrozenLake-v1 must be true or false, got 'no'"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "constructor of FrozenLake-v1 raised KeyError: '9x9'"),
    ],
)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_parameters_that_do_not_fit_are_rejected(task, env_kwargs, message, vectorization):
    with pytest.raises(ValueError, match=message):
        make(task, 1, [0], env_kwargs=env_kwargs, vectorization=vectorization)


@pytest.mark.parametrize("backend", ["tensor", "envpool"])
def test_only_environments_of_gymnasium_have_parameters(backend):
    with pytest.raises(ValueError, match=f"env_backend is '{backend}'.*env_kwargs=.'max_episode_steps': 3"):
        make("CartPole-v1", 1, [0], env_kwargs={"max_episode_steps": 3}, backend=backend)


def test_another_mistake_of_a_constructor_names_it_and_its_line():
    message = (
        r"the constructor of OperantTestField-v0 raised RuntimeError: too large to plough \(.*test_registry.py, line"
    )
    with pytest.raises(EnvError, match=message):
        make_single(specified("OperantTestField-v0", {"size": 101}))


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
def test_an_environment_without_a_space_names_it(missing, tmp_path):
    there = {"observation_space", "action_space"} - {missing}
    text = f"""
        import gymnasium
        class Mine(gymnasium.Env):
            {there.pop()} = gymnasium.spaces.Discrete(2)
    """
    (tmp_path / "spaceless.py").write_text(textwrap.dedent(text))
    with pytest.raises(ValueError, match=f"Mine has no {missing}: set it"):
        make(f"{tmp_path / 'spaceless.py'}:Mine", 1, [0])


class Wrapped(gymnasium.Wrapper):
    """Its attribute `metadata` is a property."""


class Odd(gymnasium.Env):
    metadata = {"render_modes": None}  # noqa: RUF012 - as in Gymnasium's own environments


def test_the_render_modes_of_a_task_are_known_without_creating_it():
    assert "rgb_array" in (render_modes(specified("CartPole-v1")) or ())
    assert render_modes(specified("operant/TwoArms-v0")) == ("ansi",)
    assert render_modes(specified("OperantTestField-v0", {"size": 101})) == ()
    assert render_modes(EnvSpec("Made-v0", entry_point=lambda **_: Field(3))) is None
    assert render_modes(EnvSpec("Wrapped-v0", entry_point=Wrapped)) is None
    assert render_modes(EnvSpec("Odd-v0", entry_point=Odd)) == ()


def test_the_render_modes_of_all_own_tasks_can_be_asked_for():
    for task, spec in gymnasium.registry.items():
        if task.startswith("operant/"):
            assert isinstance(render_modes(spec), tuple | None)


def test_the_files_of_custom_environments(tmp_path, monkeypatch):
    (tmp_path / "operant_test_base.py").write_text("import gymnasium\nclass Base(gymnasium.Env): ...\n")
    (tmp_path / "operant_test_own.py").write_text(
        "import gymnasium, operant_test_base\n"
        "class Own(operant_test_base.Base): ...\n"
        "gymnasium.register('OperantTestOwn-v0', 'operant_test_own:Own')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        found = own_files("operant_test_own:OperantTestOwn-v0")
        assert [file.name for file in found] == ["operant_test_own.py", "operant_test_base.py"]
        assert own_files("OperantTestOwn-v0") == found
    finally:
        del gymnasium.registry["OperantTestOwn-v0"]
    assert [str(file) for file in own_files("OperantTestField-v0")] == [__file__]
    for task in ("CartPole-v1", "operant/Grid-v0", "no_such_module:Own-v0", "NoSuchTask-v0"):
        assert own_files(task) == []


def test_a_file_with_a_drawing_is_a_task(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(DRAWING)
    assert drawn(str(file), {"slip": 0.2}) == ("operant/Grid-v0", {"slip": 0.2, "drawing": DRAWING})
    assert drawn("CartPole-v1", {"a": 1}) == ("CartPole-v1", {"a": 1})
    with pytest.raises(ValueError, match="remove one"):
        drawn(str(file), {"drawing": ""})
    with pytest.raises(ValueError, match=r"the drawing .*no.txt cannot be read: No such file"):
        drawn(str(tmp_path / "no.txt"), {})


def test_a_missing_package_of_a_namespace_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    message = r"'dm_control/cartpole-swingup-v0' needs the module 'dm_control.suite', .*\"operant\[dm-control\]\""
    with pytest.raises(ModuleNotFoundError, match=message):
        specified("dm_control/cartpole-swingup-v0")


def test_the_control_suite_is_stepped_to_its_time_limit():
    pytest.importorskip("dm_control.suite")
    pytest.importorskip("shimmy")
    env = make("dm_control/cartpole-swingup-v0", 1, [3])
    obs = env.reset([3])
    assert {name: tuple(part.shape) for name, part in obs.items()} == {"position": (1, 3), "velocity": (1, 2)}
    for _ in range(999):
        step = env.step(torch.zeros(1, 1))
        assert not (step.terminated | step.truncated).any()
    last = env.step(torch.zeros(1, 1))
    assert last.truncated.all()
    assert not last.terminated.any()
    env.close()


def test_an_environment_is_only_a_name_with_arguments():
    assert from_object(gymnasium.make("CartPole-v1", render_mode="rgb_array"), {}) == ("CartPole-v1", {})
    limited = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 7)
    assert from_object(limited, {}) == ("CartPole-v1", {"max_episode_steps": 7})
    lake = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert from_object(lake, {"map_name": "8x8"}) == ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False})


def test_an_environment_with_wrappers_that_its_name_does_not_create_is_rejected(monkeypatch):
    env = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: -reward)
    for task in (env, gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1).spec):
        with pytest.raises(ValueError, match=r"has the wrappers (TransformReward|RescaleAction).*env=lambda: "):
            from_object(task, {})
    registered = gymnasium.wrappers.FlattenObservation(gymnasium.make("CartPole-v1")).spec
    registered.id = "OperantTestFlat-v0"
    monkeypatch.setitem(gymnasium.registry, registered.id, registered)
    assert from_object(gymnasium.make(registered.id), {}) == (registered.id, {})
    with pytest.raises(ValueError, match=r"has the wrappers none, .* with the wrappers FlattenObservation"):
        from_object(gymnasium.make(registered.id).env, {})


@pytest.mark.parametrize(
    ("task", "name", "value", "expected"),
    [
        ("operant/KeyDoor-v0", "size", 8.5, "a whole number"),
        ("operant/KeyDoor-v0", "size", None, "a whole number"),
        ("operant/DeepSea-v0", "mapping_seed", "big", "a whole number"),
        ("operant/BitFlip-v0", "bits", True, "a whole number"),
        ("operant/MNK-v0", "connect", 2.5, "a whole number"),
        ("operant/Reach-v0", "tolerance", "small", "a finite number"),
        ("operant/RandomWalk5-v0", "left", float("nan"), "a finite number"),
        ("operant/CartPoleSwingUp-v0", "length", "long", "a finite number"),
        ("operant/ShortCorridor-v0", "aliased", 2, "true or false"),
    ],
)
def test_parameters_of_own_environments_have_the_types_of_their_annotations(task, name, value, expected):
    with pytest.raises(ValueError, match=rf"^{name} of {task} must be {expected}, got "):
        make(task, 1, [0], env_kwargs={name: value})


def test_absent_numbers_and_those_of_other_environments_are_not_checked():
    assert make("operant/DeepSea-v0", 1, [0], env_kwargs={"mapping_seed": None, "size": np.int64(3)}).rows == 1
    with pytest.raises(ValueError, match="raised TypeError"):
        make("OperantTestField-v0", 1, [0], env_kwargs={"size": "big"})
