import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch

from operant import envs
from operant.envs.finite import FiniteEnv
from operant.envs.worlds.registration import OLD_IDS, WORLDS, register_worlds

COMPLETE = [name for name in WORLDS if name != "operant/Grid-v0"]


@pytest.mark.parametrize("name", COMPLETE)
def test_every_world_can_be_made_and_played(name):
    env = gymnasium.make(name)
    obs, info = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(50):
        assert env.observation_space.contains(obs)
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample(info.get("action_mask")))
        assert np.isfinite(reward)
        if terminated or truncated:
            obs, info = env.reset()
    env.close()


@pytest.mark.parametrize(("old", "new"), OLD_IDS.items())
def test_old_ids_make_the_same_world(old, new):
    assert type(gymnasium.make(old).unwrapped) is type(gymnasium.make(new).unwrapped)


@pytest.mark.parametrize("name", COMPLETE)
def test_every_finite_world_shows_its_model(name):
    env = gymnasium.make(name).unwrapped
    if not isinstance(env, FiniteEnv):
        return
    model = env.transitions
    assert model.start.sum() == pytest.approx(1.0)
    assert model.feasible()[model.start > 0].any(axis=1).all(), "every initial state has a feasible action"
    assert len(model.successors) == model.indptr[-1] == len(model.probabilities) == len(model.rewards)
    assert (model.probabilities > 0).all()
    assert model.successors.max() < model.states
    rows = np.repeat(np.arange(model.states * model.actions), np.diff(model.indptr))
    sums = np.bincount(rows, model.probabilities, minlength=model.states * model.actions)
    assert sums == pytest.approx(model.feasible().ravel().astype(float), abs=1e-12)
    followed = model.successors[~model.terminates]
    assert model.feasible().any(axis=1)[followed].all(), "every state of an episode has a feasible action"


def test_a_custom_drawing():
    env = gymnasium.make("operant/Grid-v0", drawing="S.G", step=-1.0, max_episode_steps=3)
    env.reset(seed=0)
    assert [env.step(action)[1] for action in (1, 1)] == [-1.0, 1.0]
    with pytest.raises(envs.DrawingError, match="line 1, column 2: 'x' is not a cell"):
        gymnasium.make("operant/Grid-v0", drawing="Sx")


def test_time_limits():
    env = gymnasium.make("operant/Goal4x4-v0")
    env.reset(seed=0)
    flags = [env.step(0)[2:4] for _ in range(200)]
    assert flags[-1] == (False, True)
    assert set(flags[:-1]) == {(False, False)}


def test_options_reach_the_world():
    assert gymnasium.make("operant/DeepSea-v0", size=4).observation_space.n == 17
    assert gymnasium.make("operant/Cliff-v0", slip=0.5).unwrapped.grid.rules.slip == 0.5


def test_the_batched_contract_takes_the_worlds():
    env = envs.make("operant/Cliff-v0", rows=2, seeds=[0, 1])
    assert env.reset().tolist() == [36] * 4
    step = env.step(torch.tensor([0, 1, 2, 3]))
    assert step.obs.tolist() == [24, 36, 36, 36]
    assert step.reward.tolist() == [-1.0, -100.0, -1.0, -1.0]
    env.close()


def test_registering_twice_does_no_harm():
    before = dict(gymnasium.registry)
    register_worlds()
    assert gymnasium.registry == before


def test_importing_the_environments_registers_the_worlds():
    code = "import gymnasium, operant.envs; print(gymnasium.make('operant/RiverSwim-v0').spec.max_episode_steps)"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "5000\n"


@pytest.mark.parametrize(("task", "kwargs"), [("operant/KeyDoor-v0", {"size": 5}), ("operant/BitFlip-v0", {"bits": 3})])
@pytest.mark.parametrize("limit", [2, 300])
def test_a_time_limit_replaces_that_of_the_environment(task, kwargs, limit):
    env = envs.make(task, 1, [0], env_kwargs={**kwargs, "max_episode_steps": limit})
    env.reset([0])
    ends = [bool(env.step(torch.tensor([0])).truncated) for _ in range(limit)]
    assert ends == [False] * (limit - 1) + [True]
