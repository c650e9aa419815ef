"""Estimates of parameters from trajectories, and their confidence regions."""

import numpy as np
import pytest
import torch

from operant.envs import make
from operant.explore import Posterior, Trajectories, identify

CART = {"length": 0.7, "force_mag": 12.0}
PENDULUM = {"m": 1.4, "l": 0.8}


def record(task, seed, *, episodes=20, steps=40, noise=0.01, **parameters):
    """Play at random, and observe through noisy sensors."""
    env = make(task, episodes, [seed])
    env.set_parameters(**parameters)
    draw = torch.Generator().manual_seed(seed)
    seen, done, alive = [env.reset()], [], torch.ones(episodes, dtype=torch.bool)
    lengths = torch.zeros(episodes, dtype=torch.int64)
    for _ in range(steps):
        if task == "CartPole-v1":
            actions = torch.randint(0, 2, (episodes,), generator=draw)
        else:
            actions = torch.rand(episodes, 1, generator=draw) * 4 - 2
        step = env.step(actions)
        seen.append(step.final_obs)
        done.append(actions)
        lengths += alive
        alive &= ~(step.terminated | step.truncated)
    exact = torch.stack(seen, 1).double()
    noisy = exact + noise * torch.randn(exact.shape, generator=draw, dtype=torch.float64)
    return Trajectories(noisy, torch.stack(done, 1), lengths)


@pytest.mark.parametrize(("task", "true"), [("CartPole-v1", CART), ("Pendulum-v1", PENDULUM)])
def test_twenty_trajectories_are_enough(task, true):
    found = identify(task, record(task, 1000, **true), list(true))
    for name, value in true.items():
        assert found.estimate[name] == pytest.approx(value, rel=0.05)
        low, high = found.interval()[name]
        assert low < found.estimate[name] < high
    np.testing.assert_allclose(found.noise, 0.01, rtol=0.15)
    assert not found.contains(found.nominal)


@pytest.mark.parametrize(("task", "true"), [("CartPole-v1", CART), ("Pendulum-v1", PENDULUM)])
def test_the_region_covers_the_truth_at_its_level(task, true):
    """Of 40 regions of 80 %, 32 should cover: fewer than 24 or all of them have a probability below 1 in 1000."""
    hits = sum(identify(task, record(task, seed, **true), list(true)).contains(true, 0.8) for seed in range(40))
    assert 24 <= hits < 40


def test_without_noise_the_parameters_are_exact():
    found = identify("Pendulum-v1", record("Pendulum-v1", 3, episodes=3, noise=0.0, **PENDULUM), list(PENDULUM))
    for name, value in PENDULUM.items():
        assert found.estimate[name] == pytest.approx(value, rel=1e-5)  # observations are in float32


def test_long_windows_begin_from_the_solution_of_short_ones(caplog):
    """Alone, a fit of whole episodes of 199 steps stops in a local minimum at 1.19."""
    recorded = record("Pendulum-v1", 0, episodes=5, steps=199, m=1.3)
    found = identify("Pendulum-v1", recorded, ["m"], window=199)
    assert found.estimate["m"] == pytest.approx(1.3, rel=2e-3)
    np.testing.assert_allclose(found.noise, 0.01, rtol=0.15)
    assert "local minimum" not in caplog.text


def test_windows_are_not_longer_than_the_longest_episode():
    recorded = record("Pendulum-v1", 0, episodes=3, steps=15, m=1.3)
    recorded.lengths.copy_(torch.tensor([12, 9, 11]))
    whole, longer = (identify("Pendulum-v1", recorded, ["m"], window=window) for window in (12, 1000))
    assert longer.estimate == whole.estimate
    assert longer.interval() == whole.interval()


def test_a_fit_that_has_not_converged_causes_a_warning(monkeypatch, caplog):
    recorded = record("Pendulum-v1", 0, episodes=5, steps=30, m=1.3)
    identify("Pendulum-v1", recorded, ["m"], window=8)
    assert not caplog.records
    monkeypatch.setitem(identify.__globals__, "MOST_ROUNDS", 1)
    identify("Pendulum-v1", recorded, ["m"], window=8)
    assert "the fit of windows of 8 actions has not converged after 1 rounds" in caplog.text
    assert "choose a smaller window (--window)" in caplog.text
    caplog.clear()
    identify("Pendulum-v1", recorded, ["m"], window=1)
    assert "are not reliable: choose fewer parameters, or more trajectories" in caplog.text


def test_levels_are_between_0_and_1():
    one = torch.ones(1, dtype=torch.float64)
    found = Posterior("Pendulum-v1", ("m",), 0 * one, one.view(1, 1), one, 10, {"m": 1.0})
    assert found.interval(0.5)["m"][0] < 1.0 < found.interval(0.5)["m"][1]
    for level in (0.0, 1.0, 95, -0.5, float("nan")):
        with pytest.raises(ValueError, match=rf"level must be between 0 and 1, such as 0.95, got {level}"):
            found.interval(level)
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            found.contains({"m": 1.0}, level)


def test_the_weights_of_the_components_do_not_depend_on_an_early_stop():
    found = identify("Pendulum-v1", record("Pendulum-v1", 0, episodes=20, steps=200, m=1.3), ["m"])
    np.testing.assert_allclose(found.noise, 0.01, rtol=0.15)


def test_long_windows_of_a_system_with_process_noise_cause_a_warning(caplog):
    recorded = record("Pendulum-v1", 0, episodes=3, steps=40, m=1.3)
    draw = torch.Generator().manual_seed(0)
    recorded.actions.add_(torch.randn(recorded.actions.shape, generator=draw))  # as if recorded without the noise
    identify("Pendulum-v1", recorded, ["m"], window=40)
    assert "the residuals of windows of 40 actions are up to" in caplog.text


def test_a_single_window_is_enough():
    found = identify("Pendulum-v1", record("Pendulum-v1", 3, episodes=1, steps=10, m=1.3), ["m"])
    assert found.contains({"m": 1.3})


def test_the_covariance_is_that_of_the_linear_problem():
    """By hand: the force on a car on flat ground acts linearly, so the variance is σ² over a sum of squares.

    Positions and velocities of a window are s + F c_t with known c_t; the two numbers of the start are eliminated.
    """
    steps, sigma = 6, 1e-4
    car = make("MountainCarContinuous-v0", 50, [0])
    car.set_parameters(gravity=1e-12)
    recorded = record("MountainCarContinuous-v0", 5, episodes=50, steps=steps, noise=sigma, gravity=1e-12)
    throttle = recorded.actions.double()[..., 0].clamp(-1, 1)
    velocity = torch.cat([torch.zeros(50, 1, dtype=torch.float64), throttle.cumsum(1)], 1)
    position = torch.cat([torch.zeros(50, 1, dtype=torch.float64), velocity[:, 1:].cumsum(1)], 1)
    time = torch.arange(steps + 1, dtype=torch.float64)
    total = 0.0
    for x, v in zip(position, velocity, strict=True):
        by_force = torch.cat([x, v])
        ones, zeros = torch.ones(steps + 1, dtype=torch.float64), torch.zeros(steps + 1, dtype=torch.float64)
        by_start = torch.stack([torch.cat([ones, zeros]), torch.cat([time, ones])], 1)
        rest = by_force - by_start @ torch.linalg.lstsq(by_start, by_force.unsqueeze(1)).solution.squeeze(1)
        total += float(rest @ rest)
    expected = sigma / total**0.5 / 0.0015  # in the logarithm of the force
    found = _identified_on_flat_ground(recorded)
    assert found.covariance.item() ** 0.5 == pytest.approx(expected, rel=0.1)


def _identified_on_flat_ground(recorded):
    from operant.envs.tensor import classic

    defaults = dict(classic.MountainCarContinuous.DEFAULTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classic.MountainCarContinuous, "DEFAULTS", {**defaults, "gravity": 1e-12})
        return identify("MountainCarContinuous-v0", recorded, ["force"])


def test_unidentifiable_parameters_are_named():
    recorded = record("CartPole-v1", 0)
    with pytest.raises(ValueError, match="do not distinguish masscart and force_mag"):
        identify("CartPole-v1", recorded, ["masscart", "masspole", "force_mag"])
    with pytest.raises(ValueError, match="do not distinguish x_threshold, or contain no information"):
        identify("CartPole-v1", recorded, ["x_threshold"])


def test_wrong_questions_are_rejected():
    recorded = record("CartPole-v1", 0, episodes=2)
    for task, names, message in (
        ("FrozenLake-v1", ["p"], "has no tensor environment"),
        ("operant/DeepSea-v0", ["p"], "has no parameters"),
        ("CartPole-v1", ["mass"], "has no parameter 'mass'"),
        ("CartPole-v1", [], "names different"),
        ("Pendulum-v1", ["m"], "observations of Pendulum-v1 have 3 components, got 4"),
        ("MountainCar-v0", ["goal_velocity"], "observations of MountainCar-v0 have 2"),
    ):
        with pytest.raises(ValueError, match=message):
            identify(task, recorded, names)
    pairs = Trajectories(recorded.observations, torch.zeros(*recorded.actions.shape, 2), recorded.lengths)
    with pytest.raises(ValueError, match=r"actions of CartPole-v1 have the shape \[\], got \[2\]"):
        identify("CartPole-v1", pairs, ["length"])
    for wrong in (2, 0.5):
        other = Trajectories(recorded.observations, torch.full(recorded.actions.shape, wrong), recorded.lengths)
        with pytest.raises(ValueError, match=f"actions of CartPole-v1 are whole numbers from 0 to 1, got {wrong}"):
            identify("CartPole-v1", other, ["length"])
