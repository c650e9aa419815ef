import contextlib
import importlib.util
import re
import sys
from functools import partial
from multiprocessing.reduction import ForkingPickler

import gymnasium
import numpy as np
import pytest
import torch

from operant import doors
from operant.envs import CartPole, GymnasiumEnv, WorkerPool, make, maker_like, making, only_here
from operant.streams import row_seeds


def test_auto_takes_the_tensor_environment_where_there_is_one():
    env = make("CartPole-v1", 4, [0, 1])
    assert isinstance(env, CartPole)
    assert env.rows == 8
    assert torch.equal(env.reset(), CartPole(row_seeds([0, 1], 4, "environment")).reset())
    assert make("Pendulum-v1", 1, [0], dtype=torch.float64).reset().dtype == torch.float64


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_a_row_depends_only_on_its_seed_its_place_and_the_purpose(backend):
    def first(rows, seeds, **kwargs):
        return make("CartPole-v1", rows, seeds, backend=backend, **kwargs).reset()

    obs = first(3, [7, 8])
    assert torch.equal(first(2, [8]), obs[3:5])
    assert len(obs[:, 0].unique()) == 6
    assert not torch.isin(first(3, [7, 8], purpose="evaluation"), obs).any()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_gymnasium_backend_can_be_saved_and_restored(vectorization):
    env = make("Acrobot-v1", 2, [3], backend="gymnasium", vectorization=vectorization)
    assert isinstance(env, GymnasiumEnv)
    assert env.task == "Acrobot-v1"
    assert env.always_valid
    env.reset()
    for _ in range(5):
        obs = env.step(torch.tensor([0, 2])).obs
    other = make("Acrobot-v1", 2, [3], backend="gymnasium", vectorization=vectorization)
    assert torch.equal(other.load_state_dict(env.state_dict()), obs)
    env.close()
    other.close()


def test_auto_falls_back_to_gymnasium_and_observations_may_be_discrete():
    env = make("FrozenLake-v1", 2, [0])
    assert isinstance(env, GymnasiumEnv)
    assert env.reset().tolist() == [0, 0]
    assert env.reset().dtype == torch.int64


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("CartPol-v1", "did you mean .*CartPole-v1"),
        ("cartpole-v1", "did you mean CartPole-v1"),
        ("CartPole", "did you mean CartPole-v1"),
        ("CartPole-v9", "did you mean CartPole-v1"),
        ("CartPole-v0", "out of date: use 'CartPole-v1'"),
        ("LunarLander-v2", "did you mean LunarLander-v3"),
        ("HalfCheetah-v4", "out of date: use 'HalfCheetah-v5'"),
        ("Pong-v5", "names such as 'ALE/Pong-v5'"),
        ("zzzzzz", "'zzzzzz' is not a registered environment. Use 'module:Name-v0'"),
    ],
)
def test_unknown_and_old_names_suggest_others(task, message):
    with pytest.raises(ValueError, match=message):
        make(task, 1, [0])


def test_an_old_version_of_a_custom_environment_is_used_with_a_warning(monkeypatch, caplog):
    for version in (0, 1):
        spec = gymnasium.envs.registration.EnvSpec(f"OperantTestOwn-v{version}", OwnVersion)
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    make("OperantTestOwn-v0", 1, [0]).close()
    assert "OperantTestOwn-v0 is an old version" in caplog.text


class OwnVersion(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("task", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "atari"),
    ],
)
def test_missing_packages_name_the_extra(task, module, extra):
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "operant\[{extra}\]"'):
        make(task, 1, [0])


def test_a_module_is_imported_for_the_environments_it_registers(tmp_path, monkeypatch):
    (tmp_path / "shop_of_envs.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('shop/Lake-v0', 'gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make("shop_of_envs:shop/Lake-v0", 1, [0])
    assert env.task == "shop/Lake-v0"
    del sys.modules["shop_of_envs"], gymnasium.registry["shop/Lake-v0"]


@pytest.mark.parametrize("module", ["no_such_shop", "no_such_shop.lakes"])
def test_a_module_that_is_not_there_is_named_with_where_it_is_looked_for(module):
    message = f"needs the module '{module}', which is not installed; .*working folder .*python -m operant"
    with pytest.raises(ModuleNotFoundError, match=message):
        make(f"{module}:Lake-v0", 1, [0])


def test_a_missing_import_of_a_module_is_named_instead_of_the_module(tmp_path, monkeypatch):
    (tmp_path / "half_a_shop.py").write_text("import no_such_supplier\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="cannot be imported: No module named 'no_such_supplier'"):
        make("half_a_shop:Lake-v0", 1, [0])


class Peculiar(gymnasium.Env):
    """Environment with infos that no vector environment can merge; it asserts that options are None."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        assert options is None
        self.steps = 0
        return np.zeros(1, np.float32), {"way": np.zeros(0)}

    def step(self, action):
        self.steps += 1
        told = {"way": np.zeros(self.steps), "kind": self.steps if action else "none"}
        return np.ones(1, np.float32), 1.0, self.steps == 3 + action, False, told


@pytest.fixture
def peculiar():
    gymnasium.register("OperantTestPeculiar-v0", Peculiar)
    yield "OperantTestPeculiar-v0"
    gymnasium.registry.pop("OperantTestPeculiar-v0", None)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_infos_are_not_merged_and_no_options_are_none(peculiar, vectorization):
    env = make(peculiar, 2, [0], vectorization=vectorization)
    env.reset()
    ends = [env.step(torch.tensor([0, 1])).terminated.tolist() for _ in range(8)]
    env.close()
    assert ends[2:4] == [[True, False], [False, True]]


def test_a_task_whose_class_lies_in_a_module_can_be_made_where_nothing_has_registered_it(peculiar):
    env = make(peculiar, 2, [0])
    again = maker_like(env, 3)
    del gymnasium.registry[peculiar]
    made = ForkingPickler.loads(ForkingPickler.dumps(again))(7)
    assert (made.task, made.rows) == (peculiar, 3)
    assert gymnasium.registry[peculiar].entry_point == f"{__name__}:Peculiar"


def test_a_task_that_only_a_function_can_make_must_be_registered_again():
    gymnasium.register("OperantTestLocal-v0", partial(Peculiar))
    again = maker_like(make("OperantTestLocal-v0", 2, [0]), 3)
    assert again(7).rows == 3
    del gymnasium.registry["OperantTestLocal-v0"]
    with pytest.raises(ValueError, match="not a registered environment"):
        again(7)


def test_a_task_in_a_file_is_made_by_its_name_and_registers_nothing(tmp_path):
    (tmp_path / "own.py").write_text(f"from {__name__} import Peculiar\nclass Mine(Peculiar): pass\n", encoding="utf-8")
    env = make(f"{tmp_path}/own.py:Mine", 2, [0])
    known = set(gymnasium.registry)
    made = ForkingPickler.loads(ForkingPickler.dumps(maker_like(env, 3)))(7, 8, first_row=3)
    assert (made.task, made.rows) == (env.task, 6)
    assert set(gymnasium.registry) == known
    assert not only_here(env)
    local = make(doors.hold(lambda: Peculiar()), 1, [0])  # noqa: PLW0108 - a class could be found again
    assert only_here(local)


@pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="mujoco is not installed")
def test_warnings_of_mujoco_are_reported_once_and_leave_no_file(tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.chdir(tmp_path)
    make("HalfCheetah-v5", 3, [0]).close()
    assert [record.getMessage()[:8] for record in caplog.records] in ([], ["MuJoCo: "])
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "rows=0"),
        ({"seeds": []}, r"seeds=\[\]"),
        ({"seeds": [-1]}, "non-negative"),
        ({"backend": "jax"}, "'jax'"),
        ({"vectorization": "threads"}, "'threads'"),
        ({"task": "FrozenLake-v1", "backend": "tensor"}, r"no tensor environment; .*Acrobot-v1, CartPole-v1"),
        ({"backend": "gymnasium", "dtype": torch.float64}, "float64"),
        ({"episodic_life": True}, r"only Atari games .*'CartPole-v1' with 'tensor': remove .*episodic_life=True"),
        (
            {"task": "FrozenLake-v1", "clip_rewards": False},
            r"only Atari games .*'FrozenLake-v1' .*remove clip_rewards=F",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**{"task": "CartPole-v1", "rows": 1, "seeds": [0], **arguments})


def test_envpool_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)  # the same as without it
    with pytest.raises(
        ModuleNotFoundError, match=r"'envpool', which is not installed: pip install .operant\[envpool\]"
    ):
        make("CartPole-v1", 1, [0], backend="envpool")


def test_longer_episodes_are_truncated_by_every_backend():
    for backend in ("tensor", "gymnasium"):
        env = make("Pendulum-v1", 2, [0], backend=backend, max_steps=5)
        env.reset()
        truncated = [env.step(torch.zeros(2, 1)).truncated.tolist() for _ in range(10)]
        assert truncated == [[t % 5 == 4] * 2 for t in range(10)]
    assert make("Pendulum-v1", 1, [0], max_steps=10_000).max_episode_steps == 200


@pytest.mark.parametrize(("wrapper", "option"), [("NormalizeObservation", "obs"), ("NormalizeReward", "reward")])
def test_wrappers_with_statistics_of_their_own_are_rejected(monkeypatch, wrapper, option):
    def create():
        return getattr(gymnasium.wrappers, wrapper)(gymnasium.make("CartPole-v1"))

    spec = gymnasium.envs.registration.EnvSpec("OperantTestNormal-v0", entry_point=create)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    with pytest.raises(ValueError, match=f"has the wrapper {wrapper}.*use --normalize-{option}"):
        make(spec.id, 1, [0])
    vector = gymnasium.vector.SyncVectorEnv([create], autoreset_mode="Disabled")
    assert GymnasiumEnv(vector, [0]).reset().shape == (1, 4)


class Masked(gymnasium.Env):
    """Environment with masks of actions outside its observations, or also in them."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seen):
        mask = gymnasium.spaces.MultiBinary(2)
        self.observation_space = gymnasium.spaces.Dict(action_mask=mask, x=mask) if seen else mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        obs = np.ones(2, np.int8)
        return {"action_mask": obs, "x": obs} if isinstance(self.observation_space, gymnasium.spaces.Dict) else obs, {
            "action_mask": obs
        }

    def action_masks(self):
        return np.ones(2, np.bool_)


@pytest.mark.parametrize("seen", [False, True])
def test_masks_outside_observations_are_named_once(monkeypatch, caplog, seen):
    task = f"OperantTestMasked{seen}-v0"
    spec = gymnasium.envs.registration.EnvSpec(task, lambda: Masked(seen), max_episode_steps=3)
    monkeypatch.setitem(gymnasium.registry, task, spec)
    for _ in range(2):
        make(task, 2, [0]).reset()
    said = [record.getMessage() for record in caplog.records if "masks of actions" in record.getMessage()]
    assert len(said) == (0 if seen else 2)
    assert seen or ("action_masks()" in said[0] and "info['action_mask'], which are ignored" in said[1])


class Drawing(gymnasium.Env):
    """Environment that observes a number of the global generator of NumPy, or of its own."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, own=False):
        self.own = own

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (self.np_random if self.own else np.random).random(1), {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {}


class Unclosable(Drawing):
    """Environment whose `close` raises an error."""

    def close(self):
        raise RuntimeError("the socket was closed")


class Growing(Drawing):
    """Environment whose observation space differs between instances."""

    count = 0

    def __init__(self, own=False):
        super().__init__(own)
        type(self).count += 1
        self.observation_space = gymnasium.spaces.Box(0, type(self).count, (1,), np.float64)


ONE = Drawing(own=True)


def always_the_same():
    return ONE


@pytest.fixture
def custom(caplog):
    """Return a function that creates environments of a class of this file."""
    made = []

    def create(kind, rows=2, **options):
        made.append(make(f"{__file__}:{kind.__name__}", rows, [0], **options))
        return made[-1]

    yield create
    for env in made:
        env.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_environments_that_ignore_their_seed_are_named(custom, caplog, vectorization):
    custom(Drawing, vectorization=vectorization).reset()
    assert "two calls of reset with the same seed gave different observations" in caplog.text
    caplog.clear()
    first = custom(Drawing, vectorization=vectorization, env_kwargs={"own": True}).reset()
    assert not caplog.records
    assert torch.equal(custom(Drawing, vectorization=vectorization, env_kwargs={"own": True}).reset(), first)


def test_worker_processes_have_global_generators_of_their_own(custom):
    with contextlib.closing(WorkerPool(workers=2)) as pool:
        obs = custom(Drawing, rows=4, vectorization="async", pool=pool).reset()
    assert len(obs.unique()) == 4


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_errors_of_close_are_warnings(custom, caplog, vectorization):
    env = custom(Unclosable, vectorization=vectorization, env_kwargs={"own": True})
    env.reset()
    making._warn_of_close.cache_clear()
    env.close()
    if vectorization == "sync":
        assert re.search(
            r"close\(\) raised RuntimeError: the socket was closed \(.*test_making.py, line \d+\)", caplog.text
        )


def test_environments_with_different_spaces_are_rejected(custom):
    with pytest.raises(
        ValueError, match=r"different observation_spaces, Box\(0.0, \d.* and Box\(0.0, \d.*make them eq"
    ):
        custom(Growing, env_kwargs={"own": True})


def test_an_object_that_is_open_cannot_be_another_environment(custom):
    with pytest.raises(ValueError, match="returned the same object twice"):
        custom(always_the_same)
    first = custom(always_the_same, rows=1)
    with pytest.raises(ValueError, match="returned the same object twice"):
        custom(always_the_same, rows=1)
    first.close()
    custom(always_the_same, rows=1)
