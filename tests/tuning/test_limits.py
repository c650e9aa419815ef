import pytest

import operant
from operant.runtime.metrics import read_records
from operant.tuning import space_of
from operant.tuning.limits import conflict, fits, planned_steps


@pytest.mark.parametrize(
    ("algorithm", "task", "values", "budget", "steps"),
    [
        ("ppo", "CartPole-v1", {"num_envs": 4, "num_steps": 64, "num_minibatches": 4}, 1000, 1024),
        ("dqn", "CartPole-v1", {"num_envs": 2, "train_freq": 16, "learning_starts": 10}, 100, 128),
        ("sac", "Pendulum-v1", {"num_envs": 2, "train_freq": 8, "learning_starts": 101}, 150, 902),
        ("pets", "Pendulum-v1", {"num_envs": 1}, 1000, 1000),
        ("mbpo", "Pendulum-v1", {}, 1000, 1000),
        ("mrq", "Pendulum-v1", {"num_envs": 2, "learning_starts": 101, "rounds_per_iteration": 10}, 150, 162),
        ("impala", "CartPole-v1", {"num_envs": 2, "num_steps": 4, "num_actors": 3, "rollouts_per_batch": 3}, 40, 48),
        ("a3c", "CartPole-v1", {}, 1001, 1001),
        ("trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512}, 1000, 1024),
        ("trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512, "sampling": "vine"}, 1000, 1000),
        ("muzero", "CartPole-v1", {"num_envs": 4, "num_steps": 64}, 1000, 1024),
        ("q-learning", "CliffWalking-v1", {}, 1000, 1000),
    ],
)
def test_training_uses_complete_rollouts(algorithm, task, values, budget, steps):
    assert planned_steps(operant.configure(algorithm, task, **values), budget) == steps


def test_training_uses_the_planned_steps(tmp_path):
    for number, (algorithm, task, values) in enumerate(
        [
            ("ppo", "CartPole-v1", {"num_envs": 3, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}),
            ("sac", "Pendulum-v1", {"num_envs": 2, "learning_starts": 21, "rounds_per_iteration": 5}),
            ("dqn", "CartPole-v1", {"num_envs": 2, "train_freq": 16, "learning_starts": 10}),
            ("impala", "CartPole-v1", {"num_envs": 2, "num_steps": 4, "num_actors": 3, "rollouts_per_batch": 3}),
        ]
    ):
        config = operant.configure(algorithm, task, **values)
        options = {"budget": 40, "seeds": 1, "evaluate_episodes": 1, "progress": "silent"}
        trained = operant.train(algorithm, task, config=config, run=tmp_path / str(number), **options)
        trained.close()
        (*_, last) = read_records(trained.run.evaluations_path)
        assert last["consumed"] == planned_steps(config, 40)


def test_reasons_why_a_budget_excludes_a_configuration():
    ppo = operant.configure("ppo", "CartPole-v1", num_envs=64, num_steps=1024)
    assert conflict(ppo, 4000) == "it would use 65536 of a budget of 4000"
    dqn = operant.configure("dqn", "CartPole-v1", learning_starts=5000)
    assert conflict(dqn, 5000) == "learning_starts is 5000, not less than the budget of 5000"
    assert not conflict(dqn, 6000)
    assert not fits(dqn, {"hindsight": "future", "n_step": 3}, None)


def test_the_budget_and_the_configuration_exclude_choices():
    dqn = operant.configure("dqn", "operant/BitFlip-v0", hindsight="future")
    space = space_of(dqn, budget=1600)
    assert "n_step" not in space  # hindsight relabels single transitions
    assert space["learning_starts"].choices == (100, 1000)
    assert "n_step" in space_of(operant.configure("dqn", "CartPole-v1"))
    ppo = operant.configure("ppo", "CartPole-v1", num_envs=64, num_steps=16, num_minibatches=8)
    assert space_of(ppo, budget=4000)["num_steps"].choices == (16, 32, 64)
    assert space_of(ppo)["num_steps"].choices == (16, 32, 64, 128, 256, 512, 1024)
    assert space_of(ppo)["num_minibatches"].choices == (1, 2, 4, 8, 16, 32)
    assert space_of(ppo, own={"num_steps": {"choices": [16, 512]}}, budget=4000)["num_steps"].choices == (16, 512)
