"""Physics, delays and sensors that vary from episode to episode."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scipy import stats

from operant.envs import GymnasiumEnv, Randomize, Wrapper, check_batch_env, make, randomizer, start, wrapped
from operant.envs.randomize import Distribution
from operant.state import clone

SEEDS = (3, 5)


def randomized(task="CartPole-v1", rows=2, seeds=SEEDS, backend="auto", **given):
    env = Randomize(make(task, rows, seeds, backend=backend), **given)
    start(env, seeds)
    env.reset()
    return env


@pytest.mark.parametrize(
    ("given", "law"),
    [
        ({"uniform": [2.0, 5.0]}, stats.uniform(2.0, 3.0)),
        ({"normal": [1.0, 0.2]}, stats.norm(1.0, 0.2)),
        ({"log-uniform": [0.5, 2.0]}, stats.loguniform(0.5, 2.0)),
    ],
)
def test_draws_follow_their_distributions(given, law):
    """Quantiles equal SciPy's, and the draws of 400 rows pass a test against the distribution."""
    unit = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    np.testing.assert_allclose(Distribution.of("m", given).quantile(unit), law.ppf(unit), rtol=1e-6)
    env = randomized("Pendulum-v1", rows=200, parameters={"m": given})
    assert stats.kstest(env.physics.env.parameters["m"].numpy(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("task", "backend", "given"),
    [
        (
            "CartPole-v1",
            "tensor",
            {"parameters": {"length": {"log-uniform": [0.25, 1.0]}, "masspole": 0.2}, "delay": {"uniform": [0, 3]}},
        ),
        ("CartPole-v1", "gymnasium", {"noise": 0.02, "bias": {"normal": [0, 0.1]}, "delay": 1}),
        ("Pendulum-v1", "tensor", {"posterior": {"names": ["l"], "mean": [0.0], "covariance": [[0.01]]}, "delay": 2}),
        ("MountainCar-v0", "tensor", {"success": -200.0, "episodes": 1, "noise": 0.1}),
    ],
)
def test_the_contract_holds(task, backend, given):
    check_batch_env(lambda: Randomize(make(task, 2, SEEDS, backend=backend), **given), steps=250)


def test_each_episode_has_its_own_physics_and_no_row_depends_on_others():
    few = randomized(rows=2, parameters={"masspole": {"uniform": [0.05, 0.5]}})
    many = randomized(rows=4, parameters={"masspole": {"uniform": [0.05, 0.5]}})
    seen = [few.physics.env.parameters["masspole"].clone()]
    assert torch.equal(seen[0].view(2, 2), many.physics.env.parameters["masspole"].view(2, 4)[:, :2])
    for _ in range(60):
        step = few.step(torch.ones(4, dtype=torch.int64))
        now = few.physics.env.parameters["masspole"].clone()
        assert torch.equal(now != seen[-1], step.terminated | step.truncated)
        seen.append(now)
    assert len(set(torch.stack(seen)[:, 0].tolist())) > 3


def test_late_actions_are_those_of_before():
    """With a delay of two steps, the plain environment reaches the same state from the actions of two steps before."""
    late, plain = randomized("Pendulum-v1", delay=2), make("Pendulum-v1", 2, SEEDS)
    plain.reset()
    actions = torch.linspace(-2, 2, 4 * 12).view(12, 4, 1)
    given = [actions[0], actions[0], *actions]
    for chosen, acting in zip(actions, given, strict=False):
        step, expected = late.step(chosen), plain.step(acting)
        assert torch.equal(step.obs, expected.obs)
        assert torch.equal(step.reward, expected.reward)


def test_a_reset_begins_the_first_episode_again():
    env = randomized("Pendulum-v1", delay=2, parameters={"m": {"uniform": [0.5, 1.5]}})
    masses = env.physics.env.parameters["m"].clone()
    for _ in range(203):
        env.step(torch.ones(4, 1))
    assert not torch.equal(env.physics.env.parameters["m"], masses)
    before = env.reset()
    assert torch.equal(env.physics.env.parameters["m"], masses)
    plain = make("Pendulum-v1", 2, SEEDS)
    plain.set_parameters(m=masses.double())
    plain.load_state_dict(env.physics.env.state_dict())
    torch.testing.assert_close(env.step(torch.full((4, 1), -2.0)).obs, plain.step(torch.full((4, 1), -2.0)).obs)
    assert before.shape == (4, 3)


def test_sensors_err_by_noise_and_bias_and_the_physics_does_not_know():
    env, plain = randomized(rows=50, noise=0.5, bias={"uniform": [3.0, 5.0]}), make("CartPole-v1", 50, SEEDS)
    plain.reset()
    errors = []
    for t in range(8):  # shorter than any episode
        step, expected = (each.step(torch.full((100,), t % 2)) for each in (env, plain))
        errors.append(step.obs - expected.obs)
        assert torch.equal(step.reward, expected.reward)
    error = torch.stack(errors)
    assert ((error.mean(0) > 2) & (error.mean(0) < 6)).all()
    assert error.var(0).mean().sqrt().item() == pytest.approx(0.5, rel=0.1)


def test_ranges_widen_while_the_policy_succeeds():
    ranges = {"force_mag": {"uniform": [10.0, 20.0]}}
    env = randomized(rows=4, parameters=ranges, success=1.0, episodes=4, step=0.25)
    assert (env.physics.env.parameters["force_mag"] == 10.0).all()
    widths = []
    for _ in range(80):
        env.step(torch.ones(8, dtype=torch.int64))
        widths.append(env.width.clone())
        assert (env.physics.env.parameters["force_mag"] <= 10.0 + 10.0 * env.width.max()).all()
    assert widths[-1].tolist() == [1.0, 1.0]
    steps = torch.stack(widths).diff(dim=0)
    assert set(steps.unique().tolist()) == {0.0, 0.25}
    assert env.metrics()["randomize/width"].tolist() == [1.0, 1.0]
    hopeless = randomized(rows=4, parameters=ranges, success=1e6, episodes=4)
    for _ in range(80):
        hopeless.step(torch.ones(8, dtype=torch.int64))
    assert hopeless.width.tolist() == [0.0, 0.0]


def test_an_evaluation_has_the_full_ranges():
    full = "operant.envs:Randomize(parameters={'force_mag': {'uniform': [20.0, 30.0]}}"
    played = []
    for name in (f"{full})", f"{full}, success=1.0, episodes=1)"):
        env = wrapped(make("CartPole-v1", 8, SEEDS), [name], training=False)
        start(env, SEEDS)
        env.reset()
        steps = [env.step(torch.ones(16, dtype=torch.int64)) for _ in range(30)]
        played.append(torch.stack([step.obs for step in steps]))
        assert env.metrics() == {}
    assert torch.equal(*played)


def test_ranges_widen_by_whole_episodes_only():
    class Losing(Wrapper):
        steps = 0

        def step(self, actions):
            self.steps += 1
            lost = torch.full((2,), self.steps % 5 == 0)
            step = super().step(actions)
            return step._replace(truncated=step.truncated | lost, valid=~lost)

    inner = Losing(make("Pendulum-v1", 2, [0]))
    inner.always_valid = False
    env = Randomize(inner, parameters={"m": {"uniform": [0.5, 2.0]}}, success=-1e9, episodes=2)
    start(env, [0])
    env.reset()
    for _ in range(50):
        env.step(torch.zeros(2, 1))
    assert env.width.item() == 0


def test_a_posterior_is_drawn_with_its_correlation():
    covariance = [[0.04, 0.03], [0.03, 0.04]]
    posterior = {"names": ["m", "l"], "mean": [0.0, math.log(2.0)], "covariance": covariance}
    env = randomized("Pendulum-v1", rows=2000, posterior=posterior)
    logs = torch.stack([env.physics.env.parameters[name].log() for name in ("m", "l")])
    np.testing.assert_allclose(logs.mean(1), [0.0, math.log(2.0)], atol=0.015)
    np.testing.assert_allclose(logs.cov(), covariance, atol=0.004)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parameters": {"mass": 1.0}}, "CartPole-v1 has no parameter 'mass'; it has force_mag"),
        ({"parameters": {"length": {"beta": [1, 2]}}}, "length must be a number or one of uniform"),
        ({"parameters": {"length": {"uniform": [2, 1]}}}, "the first number of a range must be the lower one"),
        ({"parameters": {"length": {"log-uniform": [0, 1]}}}, "numbers of log-uniform must be positive"),
        ({"parameters": {"length": {"normal": [1, 0.5]}}}, "length of CartPole-v1 must be positive, but normal goes"),
        ({"parameters": {"length": 0.0}}, "length of CartPole-v1 must be positive, but uniform goes down to 0"),
        ({"delay": 0.5}, "delay must be a number of steps"),
        ({"delay": {"normal": [1, 1]}}, "delay must be a number of steps"),
        ({"noise": -0.1}, "noise is a standard deviation"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"posterior": {"names": ["length"], "mean": [0.0], "covariance": [[-1.0]]}}, "positive definite"),
    ],
)
def test_invalid_distributions_are_rejected(given, message):
    with pytest.raises(ValueError, match=message):
        Randomize(make("CartPole-v1", 1, [0]), **given)


def test_inaccessible_physics_is_rejected():
    with pytest.raises(ValueError, match="use --env-backend tensor"):
        Randomize(make("CartPole-v1", 1, [0], backend="gymnasium"), parameters={"length": 1.0})
    with pytest.raises(ValueError, match="need Box observations of floats"):
        Randomize(make("FrozenLake-v1", 1, [0]), noise=0.1)


def test_a_file_becomes_a_wrapper_of_the_run(tmp_path):
    path = tmp_path / "randomize.toml"
    path.write_text("delay = 1\n[parameters]\nlength = { uniform = [0.25, 1.0] }\n", encoding="utf-8")
    env = wrapped(make("CartPole-v1", 1, [0]), [randomizer(path)])
    assert isinstance(env, Randomize)
    assert env.parameters["length"] == Distribution("uniform", 0.25, 1.0)
    path.write_text("lenght = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has 'lenght'; allowed keys: parameters"):
        randomizer(path)
    path.write_text("delay 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"randomize\.toml is not TOML: Expected '='"):
        randomizer(path)
    path.write_bytes(b"# \xff")
    with pytest.raises(ValueError, match=r"--randomize .*randomize\.toml is not UTF-8: byte 2 is 0xff"):
        randomizer(path)
    path.write_bytes(b"\xef\xbb\xbfdelay = 2\n")
    assert randomizer(path).endswith(":Randomize(delay=2)")
    with pytest.raises(ValueError, match=r"missing\.toml cannot be read: No such file or directory$"):
        randomizer(tmp_path / "missing.toml")


def test_masses_of_mujoco_are_multiplied():
    pytest.importorskip("mujoco")
    env = randomized("InvertedPendulum-v5", parameters={"masses": {"uniform": [2.0, 3.0]}, "gear": 0.5})
    original = make("InvertedPendulum-v5", 1, [0]).singles[0].unwrapped.model
    for single in env.env.singles:
        model = single.unwrapped.model
        factor = model.body_mass[1:] / original.body_mass[1:]
        assert ((factor >= 2.0) & (factor <= 3.0)).all()
        np.testing.assert_allclose(model.body_subtreemass[0], model.body_mass.sum())
        np.testing.assert_allclose(model.actuator_gear, original.actuator_gear * 0.5)
    state = clone(env.state_dict())
    other = randomized("InvertedPendulum-v5", parameters={"masses": {"uniform": [2.0, 3.0]}, "gear": 0.5})
    other.load_state_dict(state)
    actions = torch.zeros(4, 1)
    for _ in range(5):
        assert torch.equal(env.step(actions).obs, other.step(actions).obs)


def test_the_first_observation_of_an_episode_of_mujoco_has_its_own_physics():
    pytest.importorskip("mujoco")
    given = {"parameters": {"masses": {"uniform": [0.5, 2.0]}}}
    check_batch_env(lambda: Randomize(make("Humanoid-v5", 2, SEEDS), **given), steps=97)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_ranges_widen_after_a_reward_that_is_no_number(reward):
    class Diverging(Wrapper):
        steps = 0

        def step(self, actions):
            self.steps += 1
            step = super().step(actions)
            score = step.score.clone()
            score[0] = reward if self.steps == 5 else score[0]
            return step._replace(score=score)

    inner = Diverging(make("Pendulum-v1", 2, [0]))
    env = Randomize(inner, parameters={"m": {"uniform": [0.5, 2.0]}}, success=-1e9, episodes=2)
    start(env, [0])
    env.reset()
    for _ in range(600):
        env.step(torch.zeros(2, 1))
    assert env.width.item() == pytest.approx(0.2), "five of six episodes have a return"


def test_the_ignored_action_of_a_reset_is_not_delayed_into_the_next_episode():
    seen = []

    class Told(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(9)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.age = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.age += 1
            seen.append(int(action))
            return np.zeros(1, np.float32), 0.0, self.age == 3, False, {}

    vector = SyncVectorEnv([Told], autoreset_mode=AutoresetMode.NEXT_STEP)
    env = Randomize(GymnasiumEnv(vector, [0], task="told"), delay=2)
    start(env, [0])
    env.reset()
    for action in (1, 2, 3, 0, 4, 5, 6):
        env.step(torch.tensor([action]))
    assert seen == [1, 1, 1, 4, 4, 4], "0 is ignored"
