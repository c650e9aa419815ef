"""Cart and pole with a continuous force, against the equations of motion solved as a linear system in float64."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import cartpole

from operant.envs import check_batch_env, make
from operant.envs.tensor import CART_POLES, CartPoleSwingUp, ContinuousCartPole

ROWS, STEPS = 12, 200
BALANCE, SWING_UP = ContinuousCartPole.task, CartPoleSwingUp.task


def accelerations(state, force, p):
    """Solve Lagrange's equations of the frictionless cart and pole, whose mass matrix is written out."""
    _, _, theta, speed = state
    m, half = p["masspole"], p["length"]
    coupling = m * half * math.cos(theta)
    mass = np.array([[p["masscart"] + m, coupling], [coupling, 4 / 3 * m * half**2]])
    forces = np.array([force + m * half * speed**2 * math.sin(theta), m * p["gravity"] * half * math.sin(theta)])
    return np.linalg.solve(mass, forces)


def balanced(state, action, p):
    """Return state, reward and termination after one explicit Euler step."""
    x_acc, theta_acc = accelerations(state, p["force_mag"] * np.clip(action, -1, 1), p)
    after = state + p["tau"] * np.array([state[1], x_acc, state[3], theta_acc])
    lost = abs(after[0]) > p["x_threshold"] or abs(after[2]) > p["theta_threshold_radians"]
    return after, 1.0, lost


def tolerance(value, margin):
    """Return DeepMind Control's Gaussian tolerance around 0, which is a tenth at the margin."""
    return math.exp(-0.5 * (abs(value) / margin * math.sqrt(-2 * math.log(0.1))) ** 2)


def swung(state, action, p):
    """Return state, reward and termination after two semi-implicit Euler steps with inelastic walls."""
    x, x_dot, theta, theta_dot = state
    share, dt = np.clip(action, -1, 1), p["tau"] / 2
    for _ in range(2):
        x_acc, theta_acc = accelerations((x, x_dot, theta, theta_dot), p["force_mag"] * share, p)
        x_dot, theta_dot = x_dot + dt * x_acc, theta_dot + dt * theta_acc
        x, theta = x + dt * x_dot, theta + dt * theta_dot
        if abs(x) > p["x_threshold"]:
            m, half = p["masspole"], p["length"]
            momentum = m * half * math.cos(theta) * x_dot + 4 / 3 * m * half**2 * theta_dot
            x, x_dot, theta_dot = math.copysign(p["x_threshold"], x), 0.0, momentum / (4 / 3 * m * half**2)
    upright, centered = (math.cos(theta) + 1) / 2, (1 + tolerance(x, 2)) / 2
    gentle, slow = (4 + (1 - share**2)) / 5, (1 + tolerance(theta_dot, 5)) / 2
    return np.array([x, x_dot, theta, theta_dot]), upright * centered * gentle * slow, False


REFERENCES = {BALANCE: (balanced, [3.0, 3.0, 0.25, 3.0]), SWING_UP: (swung, [1.9, 8.0, 7.0, 12.0])}


@pytest.mark.parametrize("task", CART_POLES)
def test_every_step_equals_an_independent_solution(task):
    rng = np.random.default_rng(0)
    reference, scale = REFERENCES[task]
    env = CART_POLES[task](range(ROWS), dtype=torch.float64)
    values = {name: float(value) for name, value in env.parameters.items()}
    ends = walls = 0
    for step in range(STEPS):
        if step % 20 == 10:
            saved = env.state_dict()
            saved["state"] = torch.tensor(rng.uniform(-1, 1, (4, ROWS)) * np.array(scale)[:, None])
            saved["state"][0].clamp_(-values["x_threshold"], values["x_threshold"])
            env.load_state_dict(saved)
        before = env.state_dict()["state"].numpy()
        actions = rng.uniform(-1.5, 1.5, ROWS)
        ours = env.step(torch.tensor(actions)[:, None])
        for row in range(ROWS):
            after, reward, terminated = reference(before[:, row], actions[row], values)
            expected = env.observations(torch.tensor(after)[:, None])[0]
            torch.testing.assert_close(ours.final_obs[row], expected, rtol=0, atol=1e-9)
            assert ours.reward[row].item() == pytest.approx(reward, abs=1e-12)
            assert bool(ours.terminated[row]) == terminated
            ends += terminated
            walls += abs(after[0]) == values["x_threshold"]
    assert (ends if task == BALANCE else walls) > 0


def test_full_pushes_are_those_of_gymnasium(monkeypatch):
    monkeypatch.setattr(cartpole.np, "float32", np.float64)
    single = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    single.reset(seed=0)
    env = ContinuousCartPole([0], dtype=torch.float64)
    saved = env.state_dict()
    saved["state"] = torch.tensor(single.state)[:, None]
    env.load_state_dict(saved)
    for action in (0, 1, 1, 0, 1):
        ours, theirs = env.step(torch.tensor([[2.0 * action - 1]]).double()), single.step(action)[0]
        np.testing.assert_allclose(ours.final_obs[0].numpy(), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("theta", "expected"), [(0.0, 1.0), (math.pi / 2, 0.5), (math.pi, 0.0)])
def test_reward_is_the_height_of_a_resting_pole_in_the_middle(theta, expected):
    env = CartPoleSwingUp([0], dtype=torch.float64, tau=1e-9)
    saved = env.state_dict()
    saved["state"] = torch.tensor([[0.0], [0.0], [theta], [0.0]], dtype=torch.float64)
    env.load_state_dict(saved)
    assert env.step(torch.zeros(1, 1, dtype=torch.float64)).reward.item() == pytest.approx(expected, abs=1e-6)


def test_a_free_pole_keeps_its_energy_to_the_order_of_the_step():
    drifts = []
    for tau in (0.02, 0.01):
        env = CartPoleSwingUp([0], dtype=torch.float64, tau=tau, x_threshold=100.0)
        saved = env.state_dict()
        saved["state"] = torch.tensor([[0.0], [0.5], [2.0], [1.0]], dtype=torch.float64)
        env.load_state_dict(saved)
        energies = []
        for _ in range(round(2 / tau)):
            _, x_dot, theta, theta_dot = env.state_dict()["state"][:, 0].tolist()
            m, half = 0.1, 0.5
            kinetic = (
                0.55 * x_dot**2 + m * half * math.cos(theta) * x_dot * theta_dot + 2 / 3 * m * half**2 * theta_dot**2
            )
            energies.append(kinetic + m * 9.81 * half * math.cos(theta))
            env.step(torch.zeros(1, 1, dtype=torch.float64))
        drifts.append(max(energies) - min(energies))
    assert drifts[0] < 0.1
    assert drifts[1] == pytest.approx(drifts[0] / 2, rel=0.2)


@pytest.mark.parametrize("task", CART_POLES)
def test_they_keep_the_contract_and_end_after_500_steps(task):
    check_batch_env(lambda: make(task, 2, (3, 5)), seeds=(3, 5), steps=40)
    env = make(task, 1, [0])
    assert env.max_episode_steps == 500
    assert task == env.task
    if task == SWING_UP:
        steps = [env.step(torch.ones(1, 1)) for _ in range(500)]
        assert [bool(step.truncated) for step in steps] == [False] * 499 + [True]
        assert not any(step.terminated for step in steps)


def test_parameters_change_the_physics_of_their_own_row():
    env = CartPoleSwingUp([5, 5], length=torch.tensor([0.5, 1.0]))
    after = env.step(torch.ones(2, 1)).final_obs
    assert (after[0] != after[1]).any()
    with pytest.raises(ValueError, match="no parameter 'theta_threshold_radians'"):
        CartPoleSwingUp([0], theta_threshold_radians=1.0)


@pytest.mark.parametrize("task", CART_POLES)
def test_states_invert_observations(task):
    env = CART_POLES[task]([0], dtype=torch.float64)
    states = torch.tensor(np.random.default_rng(0).uniform(-1, 1, (4, 50)) * [[1.8], [5], [3.1], [9]])
    torch.testing.assert_close(env.states(env.observations(states)), states, rtol=0, atol=1e-12)
