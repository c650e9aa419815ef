import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import operant
from operant import configure
from operant.catalog import find
from operant.control import assemble
from operant.envs import EnvPool, Normalize, begins_anew, make
from operant.envs.envpool import _unbounded
from operant.runtime.checkpoints import Checkpoints, load
from operant.runtime.rollouts import Collector
from operant.runtime.settings import Settings

pytest.importorskip("envpool", reason="needs EnvPool: run `make test-envpool`")


def pool(task="CartPole-v1", rows=3, seeds=(3, 5), **options):
    return make(task, rows, seeds, backend="envpool", **options)


def actions(env, generator):
    if isinstance(env.action_space, spaces.Discrete):
        return torch.randint(int(env.action_space.n), (env.rows,), generator=generator)
    return 4.0 * torch.rand(env.rows, 1, generator=generator) - 2.0


def of_gymnasium(env, obs, action):
    """Return the successor of an observation in Gymnasium's own environment, and whether it is terminal."""
    if env.spec.id == "CartPole-v1":
        env.unwrapped.state = obs.double().numpy()
        env.unwrapped.steps_beyond_terminated = None
        successor, reward, terminated, *_ = env.unwrapped.step(int(action))
    else:
        env.unwrapped.state = np.array([np.arctan2(*obs[[1, 0]].numpy()), float(obs[2])])
        successor, reward, terminated, *_ = env.unwrapped.step(action.numpy())
    return torch.from_numpy(successor), float(reward), terminated


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_steps_are_those_of_gymnasium_and_the_successor_of_a_last_action_is_the_true_one(task):
    env, twin = pool(task), gymnasium.make(task)
    twin.reset()
    assert isinstance(env, EnvPool)
    assert env.rows == 6
    assert not env.always_valid
    obs, generator, ended = env.reset(), torch.Generator().manual_seed(0), 0
    for _ in range(60):
        chosen = actions(env, generator)
        step = env.step(chosen)
        for row in step.valid.nonzero().flatten().tolist():
            successor, reward, terminated = of_gymnasium(twin, obs[row], chosen[row])
            if task == "CartPole-v1" or successor[2].abs() < 8.0:
                torch.testing.assert_close(step.final_obs[row], successor, atol=2e-5, rtol=1e-4)
            else:  # EnvPool moves the angle by the speed before it is limited
                torch.testing.assert_close(step.final_obs[row, 2], successor[2], atol=2e-5, rtol=1e-4)
            assert float(step.reward[row]) == pytest.approx(reward, abs=1e-3)
            assert bool(step.terminated[row]) == terminated
            ended += terminated
        assert not step.truncated.any()
        obs = step.obs
    assert ended == 0 if task == "Pendulum-v1" else ended >= 6
    env.close()
    env.close()


def test_the_step_after_an_episode_is_the_reset_and_nothing_to_learn_from():
    env = pool()
    env.reset()
    over = torch.zeros(6, dtype=torch.bool)
    seen = 0
    for _ in range(40):
        step = env.step(torch.ones(6, dtype=torch.int64))
        assert torch.equal(step.valid, ~over)
        assert (step.reward == step.valid).all()
        assert (step.obs[over].abs() <= 0.05).all(), "the first observation of an episode"
        assert not (step.terminated | step.truncated)[over].any()
        assert (step.obs[step.terminated, 2].abs() > 0.2095).all()
        seen += int(over.sum())
        over = step.terminated
    assert seen >= 12
    env.close()


def test_a_time_limit_truncates_and_does_not_terminate():
    env = pool("Pendulum-v1")
    env.reset()
    for t in range(1, 402):
        step = env.step(torch.zeros(6, 1))
        assert not step.terminated.any()
        assert (step.truncated == (t in {200, 401})).all()
        assert (step.valid == (t != 201)).all()
    env.close()


def test_a_row_depends_only_on_its_seed_its_place_and_the_purpose():
    def played(rows, seeds, **options):
        env, seen = pool(rows=rows, seeds=seeds, **options), []
        seen.append(env.reset())
        for t in range(30):
            seen.append(env.step(torch.full((env.rows,), t % 2)).obs)
        env.close()
        return torch.stack(seen)

    whole = played(3, [7, 8])
    assert torch.equal(played(2, [8]), whole[:, 3:5])
    assert len(whole[0, :, 0].unique()) == 6
    assert not torch.isin(played(3, [7, 8], purpose="evaluation")[0], whole[0]).any()


def test_a_reset_begins_the_same_episodes_again_unless_it_gets_other_seeds():
    env = pool()
    first = env.reset()
    env.step(torch.zeros(6, dtype=torch.int64))
    assert torch.equal(env.reset(), first)
    other = env.reset([9] * 6)
    assert not torch.isin(other, first).any()
    assert (other == other[0]).all()
    env.close()


# Unfinished episodes


def test_a_loaded_state_leads_to_the_same_new_episodes():
    one, two = pool(), pool()
    first = one.reset()
    assert begins_anew(one)
    for _ in range(3):
        one.step(torch.zeros(6, dtype=torch.int64))
    state = one.state_dict()
    after = one.load_state_dict(state)
    assert not torch.isin(after, first).any()
    assert torch.equal(two.load_state_dict(state), after)
    again = two.load_state_dict(two.state_dict())
    assert not torch.isin(again, torch.cat((first, after))).any()
    with pytest.raises(ValueError, match="the state is of 'CartPole-v1', but this environment is 'Pendulum-v1' of"):
        pool("Pendulum-v1").load_state_dict(state)
    with pytest.raises(ValueError, match="9 non-negative seeds are needed"):
        pool(rows=9, seeds=[1]).load_state_dict(state)


@pytest.mark.parametrize("normalized", [False, True])
def test_returns_of_unfinished_episodes_are_forgotten_with_them(normalized):
    def fresh():
        env = pool()
        return Collector(Normalize(env, seeds=2, gamma=0.9) if normalized else env, seeds=2)

    def act(obs, _):
        return (), torch.zeros(obs.shape[:2], dtype=torch.int64)

    first, second = fresh(), fresh()
    first.collect(5, act)
    state = first.state_dict()
    second.load_state_dict(state)
    metrics = second.collect(20, act).metrics
    assert (metrics["rollout/episode_length"] <= 11).all(), "no step comes before"
    if normalized:
        assert state["env"]["returns"].all()
        again = fresh()
        again.load_state_dict(state)
        assert not again.env.state_dict()["returns"].any()


SMALL = {
    "ppo": {"num_envs": 4, "num_steps": 16, "num_minibatches": 4, "hidden_sizes": (8,)},
    "recurrent-ppo": {"num_envs": 4, "num_steps": 16, "num_minibatches": 4, "hidden_sizes": (8,), "rnn_hidden_size": 6},
    "dqn": {
        "num_envs": 4,
        "train_freq": 4,
        "gradient_steps": 2,
        "learning_starts": 32,
        "hidden_sizes": (8,),
        "n_step": 3,
    },
    "a3c": {"num_envs": 2, "workers": 2, "num_steps": 8, "steps_per_iteration": 128, "hidden_sizes": (8,)},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_learner_resumes_its_weights_with_new_episodes(name, tmp_path):
    def fresh():
        settings = Settings(name, "CartPole-v1", seeds=(3,), budget=4096, env_backend="envpool")
        config = configure(name, "CartPole-v1", preset="paper", **SMALL[name])
        return assemble(find(name), settings, config, device="cpu").learner

    first, second = fresh(), fresh()
    try:
        for _ in range(4):
            assert all(v.isfinite().all() for k, v in first.iterate().items() if k.startswith("losses/"))
        saved = first.state_dict()
        second.load_state_dict(load(Checkpoints(tmp_path / "checkpoints").save(saved, first.consumed)))
        assert second.consumed == first.consumed
        if name == "recurrent-ppo":
            assert second.agent.starts.all()
            assert not second.agent.memory.any()
        second.iterate()
        assert second.consumed > first.consumed
    finally:
        first.close()
        second.close()


def test_ppo_learns_in_it_what_counts_in_gymnasium(tmp_path):
    options = {"seeds": 2, "budget": 20_000, "env_backend": "envpool", "progress": "silent"}
    trained = operant.train("ppo", "CartPole-v1", run=tmp_path / "run", **options)
    assert min(trained.evaluate(20, backend="gymnasium").scores) > 150, "random actions score 22"


# Errors and bounds


def test_a_task_that_envpool_does_not_have_is_rejected():
    with pytest.raises(ValueError, match=r"EnvPool has no 'operant/.*'; use env_backend='gymnasium'"):
        pool("operant/HiddenCartPole-v0")
    with pytest.raises(ValueError, match="'CartPol-v1' is not a registered environment; did you mean CartPole-v1"):
        pool("CartPol-v1")


def test_bounds_that_are_the_limits_of_the_numbers_are_none():
    limits = np.finfo(np.float32)
    box = spaces.Box(
        np.array([limits.tiny, limits.min, -1], np.float32), np.array([limits.max, limits.max, 2], np.float32)
    )
    low, high = np.array([-np.inf, -np.inf, -1], np.float32), np.array([np.inf, np.inf, 2], np.float32)
    assert _unbounded(box) == spaces.Box(low, high)
    assert _unbounded(spaces.Discrete(3)) == spaces.Discrete(3)
