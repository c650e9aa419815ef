"""Guarantees of DQN for each seed: independence of other seeds, exact resume, and NaN in one seed alone."""

import pytest
import torch

from control.learners import (
    assert_a_refused_state_changes_nothing,
    assert_learns_alone_as_in_company,
    assert_resumes_exactly,
    next_step,
    poison,
)
from control.probes import Constant
from control.test_dqn import VARIANTS, learner, shaken, transitions
from operant.runtime.training import train


@VARIANTS
def test_one_update_is_the_same_alone_and_among_other_seeds(variant):
    block, alone = shaken(seeds=(3, 5, 8), **variant), shaken(seeds=(5,), **variant)
    alone.parameters.copy_(block.parameters[1:2])
    alone.target_parameters.copy_(block.target_parameters[1:2])
    batch = transitions(seeds=3)
    single = batch.__class__(*(None if x is None else x[1:2] for x in vars(batch).values()))
    for dqn, part in ((block, batch), (alone, single)):
        before = dqn.parameters.clone()
        dqn.update(part, dqn.target(part.next_obs), None, 1e-2)
        assert not torch.equal(dqn.parameters, before)
    torch.testing.assert_close(block.parameters[1:2], alone.parameters, rtol=1e-5, atol=1e-6)


@VARIANTS
def test_a_seed_learns_the_same_in_any_company(variant):
    assert_learns_alone_as_in_company(lambda seeds: learner(seeds=seeds, **variant), iterations=6)


@VARIANTS
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_training_resumes_bit_for_bit_from_a_checkpoint(variant, backend, tmp_path):
    assert_resumes_exactly(lambda: learner(backend=backend, lr_schedule="linear", **variant), tmp_path, iterations=4)


def test_a_memory_that_is_full_is_resumed_too(tmp_path):
    assert_resumes_exactly(lambda: learner(buffer_size=44, n_step=3, per_alpha=0.5), tmp_path, iterations=5)


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_a_rejected_state_leaves_the_learner_unchanged(backend):
    assert_a_refused_state_changes_nothing(lambda: learner(backend=backend, per_alpha=0.5, learning_starts=16))


def test_a_state_of_another_configuration_is_rejected():
    with pytest.raises(ValueError, match=r"'parameters' has shape .* saved by a different configuration"):
        learner(hidden_sizes=(4,)).load_state_dict(learner().state_dict())


@VARIANTS
def test_a_reward_that_is_not_a_number_is_left_out_and_harms_no_other_seed(variant):
    clean, hit = learner(**variant), learner(wrap=poison(row=5, when=9), **variant)
    dropped = []
    for _ in range(6):
        clean.iterate()
        metrics = hit.iterate()
        dropped.append(metrics["health/dropped_transitions"].tolist())
        assert "losses/value" not in metrics or metrics["losses/value"].isfinite().all()
    assert dropped == [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    torch.testing.assert_close(hit.parameters[0], clean.parameters[0], rtol=1e-5, atol=1e-6)
    assert hit.parameters.isfinite().all()
    assert not hit.optimizer.skipped.any()


def test_a_gradient_that_overflows_is_skipped_for_its_seed_alone():
    def huge(env):
        def change(step, time):
            reward = step.reward.clone()
            reward[5] = 3e38
            return step._replace(reward=reward) if time < 3 else step

        from control.learners import Changed

        return Changed(env, change)

    clean, hit = (learner(wrap=wrap, huber_delta=float("inf"), learning_starts=16) for wrap in (None, huge))
    for _ in range(4):
        clean.iterate()
        hit.iterate()
    assert hit.optimizer.skipped[0] == 0
    assert hit.optimizer.skipped[1] > 0
    assert torch.equal(hit.parameters[0], clean.parameters[0])
    assert hit.parameters.isfinite().all()


@VARIANTS
def test_invalid_transitions_take_no_part(variant):
    def run(junk):
        dqn = learner(wrap=next_step(junk), **variant)
        return [dqn.iterate() for _ in range(8)], dqn

    expected, calm = run(0.0)
    got, wild = run(1e6)
    assert torch.equal(calm.parameters, wild.parameters)
    for one, other in zip(expected, got, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(torch.as_tensor(other[name]), torch.as_tensor(value), equal_nan=True)
    assert sum(int(metrics["rollout/episodes"].sum()) for metrics in expected) > 8


def test_invalid_transitions_are_never_drawn_by_priority():
    dqn = learner(wrap=next_step(1e6), per_alpha=0.6)
    for _ in range(8):
        dqn.iterate()
    replay = dqn.experience.replay
    places = replay.newest(replay.length)
    valid, priorities = replay.valid(places), dqn.priorities.levels[0][:, places]
    assert (~valid).sum() > 4
    assert (priorities[~valid] == 0).all()
    assert (priorities[valid] > 0).all()


def test_a_training_ends_where_its_budget_does():
    dqn = learner(Constant, budget=320)
    assert train(dqn, budget=320, seeds=2, progress="silent").consumed == 320
