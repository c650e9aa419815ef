"""PETS: plans in a known world, their returns by hand, and a run that is resumed and evaluated."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import operant
from control.off_policy import assert_random_actions_are_divided
from operant import streams
from operant.envs import Wrapper, make
from operant.runtime.acting import draw_noise
from operant.state import clone
from operant.worlds.ensemble import Prediction
from operant.worlds.pets import PETS, PETSConfig

SMALL = PETSConfig(
    ensemble_size=2,
    model_hidden_sizes=(8,),
    model_batch_size=16,
    model_gradient_steps=3,
    model_train_freq=4,
    learning_starts=6,
    horizon=3,
    population_size=6,
    num_elites=2,
    planning_iterations=2,
)


def learner(config=SMALL, seeds=(3, 5)):
    env = make("Pendulum-v1", config.num_envs, seeds)
    return PETS(config, env, seeds=seeds, budget=1000)


def walk(end=False):
    """Return a model of `x' = x + a`: the reward is minus the squared distance of the first number from 1."""

    def predict(obs, actions, noise):
        after = obs + actions
        continues = (after[..., 0] < 0.5).float() if end else torch.ones_like(after[..., 0])
        return Prediction(after, -(after[..., 0] - 1).square(), continues)

    return predict


def test_returns_of_plans_by_hand():
    """From 0 by steps of 0.5, 0.5 and 0: -¼, 0, 0. If 0.5 is terminal, only the first step counts."""
    found = learner()
    plans = torch.tensor([0.5, 0.5, 0.0]).view(1, 1, 1, 3, 1).expand(2, 1, 1, 3, 1)
    chance = torch.zeros(3, 2, 1, 4)
    found.model.predict = walk()
    assert_close(found.evaluate_plans(torch.zeros(2, 1, 3), plans, chance), torch.full((2, 1, 1), -0.25))
    found.model.predict = walk(end=True)
    started = plans.clone()
    started[..., 1, 0] = -0.5  # without the end, the way back would cost 1 and 1
    assert_close(found.evaluate_plans(torch.zeros(2, 1, 3), started, chance), torch.full((2, 1, 1), -0.25))
    found.config = replace(SMALL, gamma=0.5)
    found.model.predict = walk()
    assert_close(found.evaluate_plans(torch.zeros(2, 1, 3), started, chance), torch.full((2, 1, 1), -0.25 - 0.5 - 0.25))


def test_members_are_averaged_and_rows_kept_apart():
    """Each network adds its own number to the reward; each row starts in its own state."""
    found = learner(replace(SMALL, num_envs=2, buffer_size=100))
    own = torch.tensor([1.0, 3.0, 10.0, 30.0]).view(4, 1)  # two networks of each of two seeds

    def predict(obs, actions, noise):
        return Prediction(obs, obs[..., 0] + own, torch.ones_like(obs[..., 0]))

    found.model.predict = predict
    obs = torch.tensor([[0.0, 100.0], [200.0, 300.0]]).unsqueeze(-1).expand(2, 2, 3)
    found_returns = found.evaluate_plans(obs, torch.zeros(2, 2, 1, 1, 1), torch.zeros(1, 4, 1, 4))
    assert found_returns[..., 0].tolist() == [[2.0, 102.0], [220.0, 320.0]]


@pytest.mark.parametrize("planner", ["cem", "mppi"])
def test_plans_reach_what_is_best_in_a_known_world(planner):
    config = replace(
        SMALL, planner=planner, population_size=200, num_elites=20, planning_iterations=8, planning_temperature=0.2
    )
    found = learner(config)
    found.model.predict = walk()
    stream = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    mean, _ = found.improve(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3, 1), found._draws(1, stream))
    assert_close(mean[..., 0].sum(-1), torch.ones(2, 1), atol=0.1, rtol=0)
    assert (mean[:, :, 0] > 0.9).all(), "the first step is as large as possible"


def test_worthless_plans_are_those_without_a_number():
    found = learner()
    found.model.predict = lambda obs, actions, noise: Prediction(
        obs, torch.where(actions[..., 0] > 0, torch.nan, 1.0), torch.ones_like(obs[..., 0])
    )
    plans = torch.tensor([1.0, -1.0]).view(1, 1, 2, 1, 1).expand(2, 1, 2, 3, 1)
    returns = found.evaluate_plans(torch.zeros(2, 1, 3), plans, torch.zeros(3, 2, 1, 4))
    assert returns[0, 0].tolist() == [-torch.inf, 3.0]


@pytest.mark.parametrize("planner", ["cem", "mppi"])
def test_worthless_plans_do_not_hide_the_good_ones(planner):
    """The best first action is 0.5, and beyond 0.9 everything is NaN."""
    config = replace(SMALL, planner=planner, population_size=100, num_elites=10, planning_iterations=8, horizon=1)
    found = learner(replace(config, planning_temperature=0.2))
    found.model.predict = lambda obs, actions, noise: Prediction(
        obs,
        torch.where(actions[..., 0] > 0.9, torch.nan, -(actions[..., 0] - 0.5).square()),
        torch.ones_like(obs[..., 0]),
    )
    stream = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    mean, _ = found.improve(torch.zeros(2, 1, 3), torch.zeros(2, 1, 1, 1), found._draws(1, stream))
    assert_close(mean.flatten(), torch.full((2,), 0.5), atol=0.05, rtol=0)


def test_resume_is_bit_for_bit():
    whole, half = learner(), learner()
    for _ in range(2):
        whole.iterate()
        half.iterate()
    again = learner()
    again.load_state_dict(clone(half.state_dict()))
    for _ in range(2):
        whole.iterate()
        again.iterate()
    assert whole.consumed == again.consumed == 6 + 3 * 4
    assert all(torch.equal(tensor, again.learned[name]) for name, tensor in whole.learned.items())
    assert torch.equal(whole.plan, again.plan)


def test_training_can_stop_amid_random_actions(monkeypatch):
    assert_random_actions_are_divided(learner, monkeypatch, 4, [4, 6, 10])


def test_a_seed_learns_the_same_next_to_another():
    both, alone = learner(), learner(seeds=(5,))
    for _ in range(2):
        both.iterate()
        alone.iterate()
    assert_close(both.model.parameters[1:], alone.model.parameters, atol=1e-4, rtol=1e-3)


def test_a_plan_is_forgotten_with_its_episode():
    found = learner()
    found.iterate()
    found.plan.fill_(0.7)
    begun = []
    found.improve = lambda obs, plan, draws: begun.append(plan.clone()) or (plan, plan)
    found.act_by_plan(found.experience.collector.obs, 0, slice(None))
    assert (begun[0] == 0.7).all()
    result = found.experience.collector.result
    found.experience.collector.result = result._replace(truncated=torch.tensor([True, False]))
    found.plan.fill_(0.7)
    found.act_by_plan(found.experience.collector.obs, 1, slice(None))
    assert (begun[1][0] == 0).all()
    assert (begun[1][1] == 0.7).all()


def test_a_plan_is_forgotten_after_a_dummy_step():
    """With NEXT_STEP, the step after the end of an episode is a dummy, whose plan is for nothing."""
    found = learner()
    found.iterate()
    result = found.experience.collector.result
    found.experience.collector.result = result._replace(valid=torch.tensor([True, False]))
    found.plan.fill_(0.7)
    found._forget_ended()
    assert (found.plan[0] == 0.7).all()
    assert (found.plan[1] == 0).all()


class Anew(Wrapper):
    begins_anew = True


def test_a_plan_is_forgotten_where_environments_begin_anew():
    whole, again = (PETS(SMALL, Anew(make("Pendulum-v1", 1, (3, 5))), seeds=(3, 5), budget=1000) for _ in range(2))
    whole.iterate()
    whole.plan.fill_(0.7)
    again.load_state_dict(clone(whole.state_dict()))
    assert (again.plan == 0).all()


def test_greedy_actions_depend_on_nothing_but_observation_and_plan():
    found = learner()
    found.iterate()
    obs = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    first, plan = found.act(obs, None, None)
    again, same = found.act(obs, None, None)
    assert first.shape == (2, 4, 1)
    assert torch.equal(first, again)
    assert torch.equal(plan, same)
    assert (plan[:, :, -1] == 0).all()
    sampled, _ = found.act(obs, None, draw_noise(found, 4, streams.of_seeds(found.seeds, "test")))
    assert not torch.equal(sampled, first)
    assert (sampled.abs() <= 2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_elites": 49}, "num_elites must be at most population_size, which is 48, got 49"),
        ({"learning_starts": 0}, "learning_starts must be at least 1 to fit the model, got 0"),
        ({"num_envs": 8, "buffer_size": 4}, "buffer_size must hold one step of all 8 environments"),
    ],
)
def test_an_invalid_configuration_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        PETSConfig(**options)


def test_elites_do_not_limit_the_plans_of_path_integrals():
    assert PETSConfig(planner="mppi", population_size=4).num_elites == 6


def test_discrete_actions_are_rejected():
    with pytest.raises(ValueError, match="pets"):
        operant.train("pets", "CartPole-v1", budget=1000, progress="silent")


def test_a_run_is_trained_resumed_and_evaluated(tmp_path):
    small = {name: getattr(SMALL, name) for name in ("horizon", "population_size", "num_elites", "learning_starts")}
    trained = operant.train(
        "pets",
        "Pendulum-v1",
        seeds=[0, 1],
        budget=20,
        model_gradient_steps=2,
        model_train_freq=5,
        model_hidden_sizes=(8,),
        ensemble_size=2,
        planning_iterations=1,
        run=tmp_path / "run",
        evaluate_episodes=1,
        progress="silent",
        **small,
    )
    scores = trained.evaluate(2).scores
    assert operant.load(tmp_path / "run").evaluate(2).scores == scores
