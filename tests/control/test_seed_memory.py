import gymnasium
import numpy as np
import pytest
import torch

import operant
from operant import catalog
from operant.control import PPOConfig, SACConfig, assemble, factory, seed_memory
from operant.control.seed_memory import MANY_SEEDS, UNCERTAIN, size_of
from operant.envs import make
from operant.runtime.settings import Settings

CPU = torch.device("cpu")
MEGABYTES = 4
SMALL = PPOConfig(num_envs=2, num_steps=8, num_minibatches=2, num_epochs=1, hidden_sizes=(4,))


class Large(gymnasium.Env):
    """Environment that holds some megabytes from its first episode on."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.held = np.ones(MEGABYTES * 2**20, dtype=np.uint8)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


@pytest.fixture
def large():
    gymnasium.register("OperantLarge-v0", Large)
    yield "OperantLarge-v0"
    del gymnasium.registry["OperantLarge-v0"]


@pytest.fixture
def required(monkeypatch):
    """Record the bytes of memory that are required."""
    sizes = []
    monkeypatch.setattr(seed_memory, "require_memory", lambda size, device, **texts: sizes.append(size))
    return sizes


def assembled(name, config, task, count, **settings):
    made = assemble(
        catalog.find(name), Settings(name, task, seeds=tuple(range(count)), **settings), config, device="cpu"
    )
    made.close()


def test_few_seeds_are_not_checked(required):
    assembled("ppo", SMALL, "CartPole-v1", MANY_SEEDS)
    assert required == []


def test_the_size_of_a_learner_by_hand():
    env = make("CartPole-v1", 2, (0,), device=CPU)
    state = {"parameters": torch.zeros(1, 10), "optimizer": {"moments": torch.zeros(2, 10), "steps": 3}}
    assert size_of(state, env, num_steps=0) == 4 * 30
    assert size_of(state, env, num_steps=8) == 4 * 30 + 8 * 2 * 2 * 4 * 4, "8 steps of 2 environments, 2 observations"


def test_networks_and_environments_of_all_seeds_are_counted(required, large):
    assembled("ppo", SMALL, large, MANY_SEEDS + 1, evaluate_episodes=5)
    held = (MANY_SEEDS + 1) * (2 + 5) * MEGABYTES * 2**20
    assert held <= required[0] < 1.2 * held


def test_networks_alone_are_counted(required):
    assembled("sac", SACConfig(hidden_sizes=(64,)), "Pendulum-v1", MANY_SEEDS + 1)
    one = assemble(catalog.find("sac"), Settings("sac", "Pendulum-v1"), SACConfig(hidden_sizes=(64,)), device="cpu")
    parameters = sum(part.nbytes for part in one.learner.parameters.values())
    assert (MANY_SEEDS + 1) * parameters * 2 < required[0] < (MANY_SEEDS + 1) * (parameters * 3 + UNCERTAIN)


def test_too_many_seeds_are_rejected_before_a_folder_is_created(large, tmp_path, monkeypatch):
    monkeypatch.setattr(seed_memory, "available", lambda device: 10**9)
    monkeypatch.setattr("operant.runtime.available_memory.available", lambda device: 10**9)
    monkeypatch.setattr(factory, "EVALUATION_ROWS", 2)
    message = (
        r"environments, networks and rollouts of 1000 seeds need at least \S+ GiB, but 954 MiB are available on cpu: "
        r"train at most \d\d seeds together; --seeds is their number, and --seed 1000 --seeds 1 trains seed 1000 alone"
    )
    with pytest.raises(ValueError, match=message):
        operant.train("ppo", large, seeds=1000, budget=16, run=tmp_path / "run", config=SMALL)
    assert not (tmp_path / "run").exists()


def test_many_seeds_that_fit_are_trained(tmp_path):
    trained = operant.train(
        "ppo", "CartPole-v1", seeds=100, budget=16, run=tmp_path / "run", config=SMALL, evaluate_episodes=1
    )
    assert len(trained.outcome.evaluation.scores) == 100
