"""MBPO: imagined transitions in a known world, the mixture of real and imagined ones, and bit-for-bit resume."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import operant
from control.off_policy import assert_random_actions_are_divided
from operant.envs import make
from operant.state import clone
from operant.worlds.ensemble import Prediction
from operant.worlds.mbpo import MBPO, MBPOConfig

SMALL = MBPOConfig(
    ensemble_size=2,
    model_hidden_sizes=(8,),
    model_batch_size=16,
    model_gradient_steps=3,
    model_train_freq=4,
    learning_starts=6,
    train_freq=2,
    gradient_steps=2,
    batch_size=20,
    buffer_size=100,
    hidden_sizes=(8,),
    rollout_batch_size=4,
    rollout_length=2,
    rollout_length_final=4,
    model_buffer_size=40,
    real_ratio=0.25,
)


def learner(config=SMALL, seeds=(3, 5), budget=100):
    env = make("Pendulum-v1", config.num_envs, seeds)
    return MBPO(config, env, seeds=seeds, budget=budget)


def known(obs, actions, noise):
    """Predict the state plus the action; each of two networks adds its number; the episode ends beyond 100."""
    member = torch.arange(len(obs)).remainder(2).view(-1, 1, 1) * 10.0
    after = obs + actions + member
    return Prediction(after, 2 * obs[..., 0], (after[..., 0] < 100).float())


def test_rollouts_begin_in_real_states_and_follow_the_policy():
    found = learner()
    found.iterate()
    found.model.predict = known
    found.imagine(3)
    fields = found.imagined.fields
    real = found.experience.replay.fields["obs"][: found.experience.replay.filled, :, 0]
    for seed in range(2):
        assert all((real[:, seed] == start).all(-1).any() for start in fields["obs"][0, seed])
    for t in range(3):
        added = torch.tensor([0.0, 0.0, 10.0, 10.0]) if t % 2 == 0 else torch.tensor([10.0, 10.0, 0.0, 0.0])
        expected = fields["obs"][t] + fields["actions"][t] + added.view(1, 4, 1)
        assert_close(fields["next_obs"][t], expected)  # each row alternates between the networks
        assert_close(fields["rewards"][t], 2 * fields["obs"][t, ..., 0])
        if t:
            assert_close(fields["obs"][t], fields["next_obs"][t - 1])
    assert (fields["actions"][:3].abs() <= 1).all()
    assert not fields["terminated"][:3].any()


def test_nothing_is_imagined_after_the_end():
    found = learner()
    found.iterate()
    found.model.predict = lambda obs, actions, noise: known(obs + 95, actions, noise)  # the second network ends it
    found.imagine(3)
    fields = found.imagined.fields
    ended, valid = fields["terminated"][:3], fields["valid"][:3]
    assert valid[0].all()
    assert ended[0, :, 2:].all()
    for t in range(2):
        assert not (valid[t + 1] & (ended[: t + 1] & valid[: t + 1]).any(0)).any()


def test_no_rollout_begins_in_a_dropped_transition():
    found = learner()
    step = found.experience.collector.env.step
    found.experience.collector.env.step = lambda actions: spoiled(step(actions))

    def spoiled(result):
        every_second = torch.arange(len(result.reward)) % 2 == 0
        return result._replace(reward=result.reward.masked_fill(every_second, torch.nan))

    found.iterate()
    found.model.predict = known
    found.imagine(2)
    fields = found.imagined.fields
    real = fields["obs"][0].abs().sum(-1) > 0
    assert real.any()
    assert not real.all(), "dropped transitions are stored as zeros"
    assert torch.equal(fields["valid"][0], real)
    assert not fields["valid"][1][~real].any()


def test_a_batch_has_its_share_of_real_transitions():
    found = learner()
    found.iterate()
    found.model.predict = known
    found.imagine(2)
    batch = found.sample()
    assert batch.obs.shape == (2, 20, 3)
    real = found.experience.replay.fields["obs"][:6, :, 0]
    for seed in range(2):
        is_real = [(real[:, seed] == one).all(-1).any() for one in batch.obs[seed, :5]]
        assert all(is_real)
    assert (batch.rewards[:, 5:] == 2 * batch.obs[:, 5:, 0]).all()
    assert batch.discounts.eq(0.99).all()


def test_steps_after_an_end_are_not_sampled():
    found = learner()
    found.iterate()
    found.model.predict = lambda obs, actions, noise: known(obs + 95, actions, noise)
    found.imagine(3)
    assert not found.imagined.fields["valid"][:3].all()
    batch = found.sample()
    assert batch.weights is not None
    assert (batch.weights == 1).all()


def test_ends_are_as_frequent_as_they_are_likely():
    found = learner(replace(SMALL, rollout_batch_size=2000, model_buffer_size=8000))
    found.iterate()
    found.model.predict = lambda obs, actions, noise: Prediction(obs, obs[..., 0], torch.full_like(obs[..., 0], 0.7))
    found.imagine(1)
    ended = found.imagined.fields["terminated"][0]
    assert_close(ended.float().mean(1), torch.full((2,), 0.3), atol=0.04, rtol=0)


def test_rollouts_grow_linearly_over_the_budget():
    found = learner()
    lengths = []
    for consumed in (0, 25, 50, 75, 100, 200):
        found.consumed = consumed
        lengths.append(found.rollout_length)
    assert lengths == [2, 2, 3, 4, 4, 4]


def test_resume_is_bit_for_bit():
    whole, half = learner(), learner()
    for _ in range(3):
        whole.iterate()
        half.iterate()
    again = learner()
    again.load_state_dict(clone(half.state_dict()))
    for _ in range(2):
        whole.iterate()
        again.iterate()
    assert whole.consumed == again.consumed == 6 + 4 * 4
    assert all(torch.equal(tensor, again.learned[name]) for name, tensor in whole.learned.items())
    assert torch.equal(whole.model.parameters, again.model.parameters)
    assert all(torch.equal(held, again.imagined.fields[name]) for name, held in whole.imagined.fields.items())


def test_training_can_stop_amid_random_actions(monkeypatch):
    assert_random_actions_are_divided(learner, monkeypatch, 4, [4, 6, 10])


def test_a_seed_learns_the_same_next_to_another():
    both, alone = learner(), learner(seeds=(5,))
    for _ in range(2):
        both.iterate()
        alone.iterate()
    assert_close(both.parameters["actor"][1:], alone.parameters["actor"], atol=1e-4, rtol=1e-3)


def test_it_takes_the_configured_number_of_gradient_steps():
    found = learner(budget=30)
    while found.consumed < 30:
        found.iterate()
    assert found.optimizers["actor"].counts[0].tolist() == [found.gradient_steps] * 2 == [24, 24]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollout_batch_size": 7}, "rollout_batch_size must be a multiple of ensemble_size, which is 2, got 7"),
        ({"model_buffer_size": 15}, "model_buffer_size must hold all steps of 4 rollouts, 16, got 15"),
        ({"hindsight": "future"}, "hindsight must be 'none'"),
        ({"normalize_obs": True}, "normalize_obs must be off"),
        ({"learning_starts": 0}, "learning_starts must be at least 1 to fit the model, got 0"),
        ({"real_ratio": 1.0}, r"real_ratio must be in \(0, 1\), got 1"),
        ({"batch_size": 1}, "batch_size must be at least 2, a real and an imagined transition, got 1"),
    ],
)
def test_an_invalid_configuration_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **options)


def test_a_run_is_trained_and_evaluated(tmp_path):
    trained = operant.train(
        "mbpo",
        "Pendulum-v1",
        seeds=[0, 1],
        budget=60,
        learning_starts=20,
        model_gradient_steps=2,
        model_hidden_sizes=(8,),
        hidden_sizes=(8,),
        gradient_steps=1,
        rollout_batch_size=10,
        batch_size=16,
        run=tmp_path / "run",
        evaluate_episodes=1,
        progress="silent",
    )
    assert operant.load(tmp_path / "run").evaluate(2).scores == trained.evaluate(2).scores


@pytest.mark.parametrize(("first", "second"), [("sac", "mbpo"), ("mbpo", "sac")])
def test_actor_and_critics_are_those_of_sac(tmp_path, first, second):
    shared = {"learning_starts": 10, "hidden_sizes": (4,), "batch_size": 8, "gradient_steps": 1, "seeds": 1}
    own = {
        "sac": {"rounds_per_iteration": 5, "train_freq": 1},
        "mbpo": {"ensemble_size": 2, "model_gradient_steps": 1, "model_train_freq": 5, "rollout_batch_size": 4},
    }
    options = {"budget": 20, "evaluate_episodes": 1, "progress": "silent"}
    before = operant.train(first, "Pendulum-v1", run=tmp_path / "first", **shared, **own[first], **options)
    begun = operant.train(
        second,
        "Pendulum-v1",
        run=tmp_path / "second",
        init=tmp_path / "first",
        interrupted=lambda: True,
        **shared,
        **own[second],
        **options,
    )
    kept, learned = before.experiment.learner.learned, begun.experiment.learner.learned
    assert all(torch.equal(learned[name], kept[name]) for name in kept)
