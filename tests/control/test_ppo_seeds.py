"""Guarantees of PPO for each seed: independence of other seeds, exact resume, and NaN in one seed alone."""

import pytest
import torch

from control.learners import (
    TASKS,
    assert_a_bad_reward_is_dropped,
    assert_equal_metrics,
    assert_learns_alone_as_in_company,
    assert_resumes_exactly,
    learner,
    next_step,
    poison,
    same,
)
from control.probes import Constant
from operant.runtime.training import train

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
    block, *_ = assert_learns_alone_as_in_company(
        lambda seeds: learner(task, seeds, num_epochs=4, **config), iterations=5
    )
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
    assert_resumes_exactly(lambda: learner(task, backend=backend, **config), tmp_path)


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


def test_a_reward_that_is_not_a_number_is_dropped_and_harms_no_other_seed():
    config = {"normalize_advantage": "batch", "num_minibatches": 1}
    clean, hit = learner(**config), learner(wrap=poison(row=5, when=20), **config)
    assert_a_bad_reward_is_dropped(clean, hit)


def test_one_bad_reward_does_not_end_a_training():
    ppo = learner(wrap=poison(row=0, when=5))
    assert train(ppo, budget=20 * 64, seeds=2, progress="silent").consumed == 20 * 64


def test_returns_that_are_all_equal_do_not_end_a_training():
    ppo = learner(Constant)
    assert train(ppo, budget=20 * 64, seeds=2, progress="silent").consumed == 20 * 64


def test_invalid_transitions_take_no_part():
    def run(junk):
        ppo = learner(wrap=next_step(junk), target_kl=0.1, ent_coef=0.01)
        return [ppo.iterate() for _ in range(4)], ppo

    (expected, calm), (got, wild) = run(0.0), run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    for one, other in zip(expected, got, strict=True):
        assert_equal_metrics(one, other)
    assert sum(int(metrics["rollout/episodes"].sum()) for metrics in expected) > 8
    lengths = torch.stack([metrics["rollout/episode_length"] for metrics in expected])
    assert lengths.max() <= 9, "the invalid transitions do not count as steps"
