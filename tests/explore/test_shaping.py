"""Shaping: optimal actions stay optimal on exact models, rewards follow the equation, runs resume."""

import numpy as np
import pytest
import torch

from operant import api
from operant.control import DQNConfig, PPOConfig
from operant.envs import make, wrapped
from operant.explore import Shaping, shaped
from operant.explore.shaping import is_shaping
from operant.mdp import MDP, action_values, solve
from operant.mdp.examples import random_model
from operant.runtime.checkpoints import load

QUICK = {"num_envs": 4, "num_steps": 32, "num_minibatches": 1, "num_epochs": 1, "progress": "silent"}


class Height(Shaping):
    """Potential that is the height of MountainCar's road."""

    def potential(self, obs):
        return torch.sin(3 * obs[:, 0])


def optimal(mdp, gamma):
    """Return the action values of a model, and the actions that are optimal up to rounding."""
    q = action_values(mdp, solve(mdp, gamma=gamma, tolerance=1e-11).values, gamma=gamma)
    best = q.max(axis=1, keepdims=True)
    return q, mdp.feasible & (q > best - 1e-8)


def models(count):
    rng = np.random.default_rng(0)
    for seed in range(count):
        sizes = int(rng.integers(2, 8)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
        mdp = random_model(*sizes, seed=seed, termination=float(rng.choice([0.0, 0.3])), infeasible=0.2)
        yield mdp, 3 * rng.normal(size=mdp.states), float(rng.choice([0.3, 0.9, 0.95]))


def test_no_optimal_action_of_a_thousand_models_changes():
    """Every action value of a state changes by the potential of that state, so their order stays."""
    changed = 0
    for mdp, potential, gamma in models(1000):
        before, best = optimal(mdp, gamma)
        after, still = optimal(shaped(mdp, potential, gamma=gamma), gamma)
        np.testing.assert_allclose(after[mdp.feasible], (before - potential[:, None])[mdp.feasible], atol=1e-7)
        np.testing.assert_array_equal(still, best)
        # The same numbers as a bonus for arriving, and not for the difference, are no potential.
        bonus = mdp.__class__(**{**vars_of(mdp), "rewards": mdp.rewards + potential[mdp.successors]})
        changed += not np.array_equal(optimal(bonus, gamma)[1], best)
    assert changed > 300


def vars_of(mdp):
    names = ("states", "actions", "indptr", "successors", "probabilities", "terminates", "start", "max_steps")
    return {name: getattr(mdp, name) for name in names}


def walk(bonus):
    """Return start, middle, goal: action 0 moves forward, action 1 back; the goal gives 1, the middle `bonus`."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, 0, 1] = transitions[0, 1, 0] = transitions[1, 0, 2] = transitions[1, 1, 0] = 1.0
    rewards = np.zeros((3, 2, 3))
    rewards[1, 0, 2], rewards[0, 0, 1] = 1.0, bonus
    return MDP.from_arrays(transitions, rewards, terminal=np.array([False, False, True]))


def test_a_bonus_that_is_no_potential_makes_circles_pay():
    """By hand, in the middle: 1 for the goal, or 0.9 * 0.5 / (1 - 0.81) = 2.37 for going to and fro without end."""
    assert optimal(walk(0.0), 0.9)[1][1].tolist() == [True, False]
    assert optimal(walk(0.5), 0.9)[1][1].tolist() == [False, True]
    assert optimal(shaped(walk(0.0), [0.0, 0.5, 9.0], gamma=0.9), 0.9)[1][1].tolist() == [True, False]


def test_rewards_are_those_of_the_equation_and_scores_stay():
    """Compare with a loop over rows; episodes of 7 steps are truncated, and the last observation has its potential."""
    plain = make("MountainCar-v0", 3, [0, 1], env_kwargs={"max_episode_steps": 7})
    own = Height(make("MountainCar-v0", 3, [0, 1], env_kwargs={"max_episode_steps": 7}), gamma=0.9, scale=2.0)
    before, same = plain.reset(range(6)), own.reset(range(6))
    assert torch.equal(before, same)
    for n in range(20):
        actions = torch.full((plain.rows,), n % 3)
        one, other = plain.step(actions), own.step(actions)
        for row in range(plain.rows):
            after = 0.0 if one.terminated[row] else 2 * torch.sin(3 * one.final_obs[row, 0])
            expected = one.reward[row] + 0.9 * after - 2 * torch.sin(3 * before[row, 0])
            assert float(other.reward[row]) == pytest.approx(float(expected), abs=1e-6)
        assert torch.equal(one.score, other.score)
        before = one.obs
        assert one.truncated.any() == ((n + 1) % 7 == 0)


def test_a_run_resumes_bit_for_bit(tmp_path):
    options = {"wrappers": [Height], "seeds": 2, "budget": 512, **QUICK}
    whole = api.train("ppo", "MountainCar-v0", run=tmp_path / "whole", **options)
    stops = iter([False])
    api.train("ppo", "MountainCar-v0", run=tmp_path / "part", interrupted=lambda: next(stops, True), **options)
    resumed = api.resume(tmp_path / "part", progress="silent")
    one, other = (load(t.run.checkpoints.latest()[0]) for t in (whole, resumed))
    assert one.keys() == other.keys()
    assert torch.equal(whole.experiment.learner.agent.parameters, resumed.experiment.learner.agent.parameters)


@pytest.mark.parametrize(("gamma", "said"), [(0.9, True), (0.99, False)])
def test_a_discount_that_is_not_that_of_the_algorithm_is_named(gamma, said, tmp_path, caplog):
    options = {"wrappers": [Height], "seeds": 1, "budget": 128, "evaluate_episodes": 1, **QUICK}
    api.train("ppo", "MountainCar-v0", run=tmp_path / "run", gamma=gamma, **options).close()
    message = f"gamma of the wrapper Height is 0.99, but that of the algorithm is {gamma}"
    assert (message in caplog.text) == said


@pytest.mark.parametrize(("gamma", "channel", "said"), [(0.99, 0.9, True), (0.9, 0.99, False)])
def test_the_discount_is_that_of_the_channel_of_the_reward(gamma, channel, said, caplog):
    config = PPOConfig(gamma=gamma, reward_channels={"reward": {"gamma": channel}})
    Height(make("MountainCar-v0", 3, [0])).check_config(config)
    assert ("gamma of the wrapper Height is 0.99, but that of the algorithm is 0.9" in caplog.text) == said


def test_shaping_with_hindsight_causes_a_warning(caplog):
    Height(make("MountainCar-v0", 3, [0])).check_config(DQNConfig(hindsight="future"))
    assert "relabeled transitions of hindsight lack the reward of the wrapper Height" in caplog.text


def test_names_of_shaping_wrappers():
    assert is_shaping(f"{__file__}:Height(gamma=0.9)")
    assert not is_shaping(f"{__file__}:walk")


class Flat(Shaping):
    def potential(self, obs):
        return obs


class Unfinished(Shaping):
    pass


def test_bad_input_is_rejected():
    env = make("MountainCar-v0", 3, [0])
    with pytest.raises(TypeError, match=r"abstract class Unfinished .*potential"):
        Unfinished(env)
    with pytest.raises(ValueError, match=r"cannot wrap MountainCar-v0: .*abstract class Unfinished"):
        wrapped(env, [f"{__file__}:Unfinished"])
    with pytest.raises(ValueError, match=r"gamma of Height is 2, expected that of the algorithm"):
        Height(env, gamma=2)
    with pytest.raises(ValueError, match=r"Flat.potential returned numbers of shape \[3, 2\], expected a tensor \[3\]"):
        Flat(env).reset(range(3))
    for wrong in (1.5, np.zeros(3)):
        env_of_numbers = type("Numbers", (Shaping,), {"potential": lambda self, obs, wrong=wrong: wrong})(env)
        with pytest.raises(ValueError, match=r"Numbers.potential returned .*, expected a tensor \[3\]"):
            env_of_numbers.reset(range(3))
    for wrong in ([1.0], [1.0, np.nan, 0.0]):
        with pytest.raises(ValueError, match="potential must be 3 finite numbers, one per state"):
            shaped(walk(0.0), wrong, gamma=0.9)
