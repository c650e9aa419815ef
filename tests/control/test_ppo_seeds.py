"""Guarantees of PPO for each seed: independence of other seeds, exact resume, and NaN in one seed alone."""

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from control.learners import TASKS, Changed, learner, same
from control.probes import Constant
from operant.envs import GymnasiumEnv
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.training import train
from operant.streams import row_seeds

# Independence of seeds


def transplant(block, alone, k):
    """Copy the state of seed k among several to a learner of one seed, except the environments."""
    for name in ("first", "second", "steps", "skipped"):
        getattr(alone.optimizer, name).copy_(getattr(block.optimizer, name)[k : k + 1])
    alone.agent.parameters.copy_(block.agent.parameters[k : k + 1])
    alone.batch_streams[0].set_state(block.batch_streams[k].get_state())


@TASKS
@pytest.mark.parametrize("minibatches", [1, 4])
def test_one_update_is_the_same_alone_and_among_other_seeds(task, minibatches):
    config = {"num_minibatches": minibatches, "ent_coef": 0.01, "target_kl": 0.02}
    block, alone = learner(task, (3, 5, 8), **config), learner(task, (5,), **config)
    for _ in range(2):
        block.iterate()
    batch = block.estimate_advantages(block.agent.collect(16))
    transplant(block, alone, 1)
    before = alone.agent.parameters.clone()
    block.update(batch, 0.9)
    alone.update(batch.map(lambda tensor: tensor[1:2]), 0.9)
    assert not torch.equal(alone.agent.parameters, before)
    torch.testing.assert_close(block.agent.parameters[1:2], alone.agent.parameters, rtol=1e-5, atol=1e-7)


@TASKS
@pytest.mark.parametrize("target_kl", [None, 0.001])
def test_a_seed_learns_the_same_in_any_company(task, target_kl):
    config = {"normalize_obs": True, "normalize_reward": True, "target_kl": target_kl, "learning_rate": 3e-3}
    learners = [learner(task, seeds, num_epochs=4, **config) for seeds in [(3, 5, 8), (5,), (5, 3)]]
    for _ in range(5):
        for ppo in learners:
            ppo.iterate()
    block, alone, pair = learners
    torch.testing.assert_close(block.agent.parameters[1], alone.agent.parameters[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(block.agent.parameters[[1, 0]], pair.agent.parameters, rtol=1e-3, atol=1e-5)
    steps = block.optimizer.steps.unique()
    assert len(steps) == 1 if target_kl is None else len(steps) > 1, "the test must stop seeds at different times"


# Resume


@TASKS
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
@pytest.mark.parametrize("normalize", [False, True])
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, backend, normalize, tmp_path):
    config = {
        "normalize_obs": normalize,
        "normalize_reward": normalize,
        "lr_schedule": "linear",
        "clip_range_schedule": "linear",
        "target_kl": 0.05,
    }
    whole, first, second = (learner(task, backend=backend, **config) for _ in range(3))
    for _ in range(3):
        whole.iterate()
        first.iterate()
    saved = first.state_dict()
    folder = Checkpoints(tmp_path / "checkpoints").save(saved, first.consumed)
    first.iterate()  # must not change the saved state
    second.load_state_dict(load_checkpoint(folder))
    assert second.consumed == 3 * 64
    assert same(second.state_dict(), saved)
    for _ in range(3):
        expected, got = whole.iterate(), second.iterate()
        assert expected.keys() == got.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                torch.as_tensor(got[name]), torch.as_tensor(value), rtol=0, atol=0, equal_nan=True
            )
    assert same(whole.state_dict(), second.state_dict())


def test_the_statistics_of_the_normalizer_are_part_of_the_state():
    first = learner("Pendulum-v1", normalize_obs=True, normalize_reward=True)
    first.iterate()
    second = learner("Pendulum-v1", normalize_obs=True, normalize_reward=True)
    obs = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(first.agent.normalizer.normalize(obs), second.agent.normalizer.normalize(obs))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.agent.normalizer.normalize(obs), second.agent.normalizer.normalize(obs))


def test_a_state_of_another_configuration_is_rejected():
    with pytest.raises(ValueError, match=r"'agent\.parameters' has shape .* saved by a different configuration"):
        learner(hidden_sizes=(4,)).load_state_dict(learner().state_dict())


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
@pytest.mark.parametrize("part", ["optimizer", "beta", "batch_streams", "consumed"])
def test_a_rejected_state_leaves_the_learner_unchanged(backend, part):
    ppo, twin, other = (learner(backend=backend, normalize_obs=True) for _ in range(3))
    for _ in range(2):
        other.iterate()
    for each in (ppo, twin):
        each.iterate()
    state = other.state_dict()
    match part:
        case "optimizer":
            state["optimizer"]["second"] = torch.zeros(2, 3)
        case "beta":
            state["beta"] = torch.ones(3)
        case "batch_streams":
            state["batch_streams"].pop()
        case "consumed":
            del state["consumed"]
    with pytest.raises((ValueError, KeyError)):
        ppo.load_state_dict(state)
    assert same(ppo.state_dict(), twin.state_dict())
    ppo.iterate()
    twin.iterate()
    assert same(ppo.state_dict(), twin.state_dict())


# Early stopping and invalid numbers


def test_target_kl_stops_single_seeds():
    ppo = learner(normalize_advantage="none", target_kl=1e-3, learning_rate=1e-2, num_epochs=5)
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    batch.advantages[0] = 0.0  # no policy gradient for this seed
    ppo.update(batch, 1.0)
    assert ppo.optimizer.steps[0] == 5 * 4
    assert 0 < ppo.optimizer.steps[1] < 5 * 4


def poison(row, when):
    """Return a wrapper that makes the reward and the score of one environment NaN at one step."""

    def change(step, time):
        bad = step.reward.clone()
        bad[row] = torch.nan
        return step._replace(reward=bad, score=bad) if time == when else step

    return lambda env: Changed(env, change)


def test_a_reward_that_is_not_a_number_harms_its_own_seed_alone_and_for_one_update():
    config = {"normalize_advantage": "batch", "num_minibatches": 1}
    clean, hit = learner(**config), learner(wrap=poison(row=5, when=20), **config)
    skipped, due = [], []
    for iteration in range(4):
        before = hit.agent.parameters[1].clone()
        clean.iterate()
        metrics = hit.iterate()
        skipped.append(metrics["health/skipped_updates"].tolist())
        due.append(metrics["health/updates"].tolist())
        assert torch.equal(hit.agent.parameters[1], before) is (iteration == 1)
    assert skipped == [[0, 0], [0, 2], [0, 0], [0, 0]]
    assert due == [[2, 2]] * 4
    assert torch.equal(hit.agent.parameters[0], clean.agent.parameters[0])
    assert hit.agent.parameters.isfinite().all()


def test_one_bad_reward_does_not_end_a_training():
    ppo = learner(wrap=poison(row=0, when=5))
    assert train(ppo, budget=20 * 64, seeds=2, progress="silent").consumed == 20 * 64


def test_returns_that_are_all_equal_do_not_end_a_training():
    ppo = learner(Constant)
    assert train(ppo, budget=20 * 64, seeds=2, progress="silent").consumed == 20 * 64


def test_invalid_transitions_take_no_part():
    def run(junk):
        def change(step, _):
            over = (step.terminated | step.truncated).unsqueeze(1)  # the next transition is invalid
            invalid = ~step.valid
            return step._replace(
                obs=torch.where(over, junk * torch.ones_like(step.obs), step.obs),
                reward=step.reward.masked_fill(invalid, junk),
                score=step.score.masked_fill(invalid, junk * junk),
                final_obs=torch.where(invalid.unsqueeze(1), junk * torch.ones_like(step.obs), step.final_obs),
            )

        def short():
            return gymnasium.make("CartPole-v1", max_episode_steps=9)

        def next_step(_):
            vector = SyncVectorEnv([short] * 8, autoreset_mode=AutoresetMode.NEXT_STEP)
            return Changed(GymnasiumEnv(vector, row_seeds((3, 5), 4, "environment")), change)

        ppo = learner(wrap=next_step, target_kl=0.1, ent_coef=0.01)
        return [ppo.iterate() for _ in range(4)], ppo

    expected, calm = run(0.0)
    got, wild = run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    for one, other in zip(expected, got, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(torch.as_tensor(other[name]), torch.as_tensor(value), equal_nan=True)
    assert sum(int(metrics["rollout/episodes"].sum()) for metrics in expected) > 8
    lengths = torch.stack([metrics["rollout/episode_length"] for metrics in expected])
    assert lengths.max() <= 9, "the invalid transitions do not count as steps"
