"""Factors of MuJoCo's models from recorded trajectories, and the sampler of their posterior."""

import math
import tomllib

import gymnasium
import numpy as np
import pytest
import torch

from operant.envs import Randomize, make, start
from operant.envs.randomize import MuJoCoPhysics
from operant.explore import Trajectories, identify
from operant.explore.identify_mujoco import FEWEST, importance_sampling, mujoco_task

TRUE = {"masses": 1.3, "gear": 0.8}


def record(task, seed, true, *, episodes=20, steps=20, noise=0.01):
    """Play at random with other factors, and observe through noisy sensors."""
    env = gymnasium.make(task)
    physics = MuJoCoPhysics([env.unwrapped.model], list(true), task)
    physics.apply({name: torch.tensor([value]) for name, value in true.items()})
    return Trajectories.record(env, episodes=episodes, steps=steps, noise=noise, seed=seed)


def draws(seed=0):
    return np.random.default_rng(seed)


def test_twenty_trajectories_are_enough_for_mass_and_gear():
    pytest.importorskip("mujoco")
    found = identify("InvertedPendulum-v5", record("InvertedPendulum-v5", 3, TRUE), list(TRUE))
    for name, value in TRUE.items():
        assert found.estimate[name] == pytest.approx(value, rel=0.05)
        assert found.nominal[name] == 1.0
    np.testing.assert_allclose(found.noise, 0.01, rtol=0.15)
    assert found.contains(TRUE)
    assert not found.contains(found.nominal)


def test_without_noise_the_factor_is_exact():
    pytest.importorskip("mujoco")
    recorded = record("InvertedPendulum-v5", 0, {"gear": 0.8}, episodes=4, noise=0.0)
    found = identify("InvertedPendulum-v5", recorded, ["gear"])
    assert found.estimate["gear"] == pytest.approx(0.8, rel=1e-5)
    again = identify("InvertedPendulum-v5", recorded, ["gear"])  # sums of BLAS depend on the alignment of memory
    assert again.estimate["gear"] == pytest.approx(found.estimate["gear"], rel=1e-13)
    env = Randomize(make("InvertedPendulum-v5", 2, [0]), **tomllib.loads(found.toml()))
    start(env, [0])
    gears = [single.unwrapped.model.actuator_gear[0, 0] for single in env.env.singles]
    original = make("InvertedPendulum-v5", 1, [0]).singles[0].unwrapped.model.actuator_gear[0, 0]
    np.testing.assert_allclose(gears, 0.8 * original, rtol=1e-5)


def test_contacts_and_positions_that_observations_leave_out():
    pytest.importorskip("mujoco")
    recorded = record("Hopper-v5", 0, {"gear": 0.7}, episodes=2, steps=12, noise=0.0)
    found = identify("Hopper-v5", recorded, ["gear"], window=3)
    assert found.estimate["gear"] == pytest.approx(0.7, rel=0.01)
    assert len(found.noise) == 11


def test_start_states_beyond_contacts_are_found():
    """Half of the first steps lead beyond a contact; without shorter ones the noise of velocities would be 0.1."""
    pytest.importorskip("mujoco")
    recorded = record("Hopper-v5", 4, {"gear": 0.8}, episodes=6, steps=10)
    found = identify("Hopper-v5", recorded, ["gear"])
    assert max(found.noise) < 0.03
    assert found.contains({"gear": 0.8})


def test_wrong_questions_are_rejected():
    pytest.importorskip("mujoco")
    recorded = record("InvertedPendulum-v5", 0, {}, episodes=2, steps=5)
    for task, names, message in (
        ("Reacher-v5", ["gear"], "lacks observation_structure"),
        ("InvertedPendulum-v5", ["length"], "masses, damping, friction, gear can be randomized, got 'length'"),
        ("InvertedPendulum-v5", ["friction"], "do not distinguish friction"),
        ("Hopper-v5", ["gear"], "observations of Hopper-v5 have 11 components, got 4"),
        ("HalfCheetah-v5", ["gear"], "observations of HalfCheetah-v5 have 17 components"),
    ):
        with pytest.raises(ValueError, match=message):
            identify(task, recorded, names)
    wider = Trajectories(recorded.observations, recorded.actions.expand(-1, -1, 2), recorded.lengths)
    with pytest.raises(ValueError, match=r"actions of InvertedPendulum-v5 have the shape \[1\], got \[2\]"):
        identify("InvertedPendulum-v5", wider, ["gear"])


def test_tasks_without_parameters_are_not_offered():
    with pytest.raises(ValueError, match="MuJoCo does not simulate it") as caught:
        mujoco_task(make("FrozenLake-v1", 1, [0]))
    assert "Pendulum-v1" in str(caught.value)
    assert "DeepSea" not in str(caught.value)


@pytest.mark.parametrize("start", [0.3, 3.0])
def test_moments_are_those_of_the_density(start):
    """Of the logarithm of a gamma variable with shape a: mean ψ(a), variance ψ'(a), here with a rough surface."""
    shape, found = 6.0, []
    for seed in range(20):
        mean, covariance = importance_sampling(
            lambda x: float(x.exp() - shape * x + 0.02 * torch.sin(1e4 * x)),
            torch.tensor([start], dtype=torch.float64),
            torch.tensor([[0.5]], dtype=torch.float64),
            draws(seed),
        )
        found.append((mean.item(), covariance.item()))
    mean, variance = np.mean(found, 0)
    exact = torch.tensor(shape, dtype=torch.float64)
    assert mean == pytest.approx(torch.digamma(exact).item(), abs=0.05)
    assert variance == pytest.approx(torch.polygamma(1, exact).item(), rel=0.1)


def test_correlated_normal_distributions_are_found():
    true = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    precision = true.inverse()
    results = [
        importance_sampling(
            lambda x: 0.5 * float(x @ precision @ x),
            torch.tensor([0.5, -0.5], dtype=torch.float64),
            torch.eye(2, dtype=torch.float64),
            draws(seed),
        )
        for seed in range(20)
    ]
    mean, covariance = (torch.stack(part).mean(0) for part in zip(*results, strict=True))
    np.testing.assert_allclose(mean, 0.0, atol=0.1)
    np.testing.assert_allclose(covariance, true, atol=0.15)


def test_a_far_start_widens_rather_than_narrows():
    """A density 1e-3 wide, 1 away from a proposal 0.1 wide: no interval may exclude it."""
    assert 0 < FEWEST < 1
    for seed in range(5):
        mean, covariance = importance_sampling(
            lambda x: 0.5 * float((x - 1) / 1e-3) ** 2,
            torch.zeros(1, dtype=torch.float64),
            torch.full((1, 1), 0.1, dtype=torch.float64),
            draws(seed),
        )
        assert abs(mean.item() - 1) < 4 * math.sqrt(covariance.item())
