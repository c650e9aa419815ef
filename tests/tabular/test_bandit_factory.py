import json
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from operant import api, catalog, streams
from operant.cli import main
from operant.envs import GymnasiumEnv
from operant.envs.worlds.bandits import Bandit
from operant.runtime.acting import draw_noise
from operant.runtime.settings import Settings
from operant.streams import row_seeds
from operant.tabular import Arms, BanditExperiment, arms_of, assemble, configuration, learner_for

from .models import corridor

TASKS = ("operant/Testbed-v0", "operant/BernoulliBandit-v0")
BANDITS = [entry.name for entry in catalog.ALGORITHMS if entry.family == "bandit"]


class Unknown(Bandit):
    """Bandit whose rewards have an unknown distribution."""

    def __init__(self, **options):
        super().__init__(3, **options)

    def _draw_means(self, random):
        return np.zeros(3)

    def _draw_reward(self, mean, random):
        return 0.0


def experiment(algorithm, task, device="cpu", **settings):
    entry = catalog.find(algorithm)
    chosen = Settings(algorithm, task, **{"seeds": (3, 5), **settings})
    return assemble(entry, chosen, configuration(entry, task, steps_per_iteration=50), device=device)


@pytest.mark.parametrize("task", TASKS)
def test_the_arms_are_those_of_the_first_episode_in_gymnasium(task):
    arms = arms_of(task, (3, 5))
    vector = SyncVectorEnv([partial(gymnasium.make, task)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env = GymnasiumEnv(vector, row_seeds((3, 5), 1, "environment"))
    env.reset()
    found = [bandit.unwrapped.means for bandit in vector.envs]
    np.testing.assert_array_equal(arms.means, found)
    np.testing.assert_array_equal(arms.best, np.max(found, axis=1))
    assert arms.bernoulli == (task == TASKS[1])
    np.testing.assert_array_equal(arms_of(task, (5,)).means[0], arms.means[1])
    env.close()


def test_fixed_arms():
    arms = arms_of("operant/TwoArms-v0", range(3))
    assert arms.means.tolist() == [[0.9, 0.8]] * 3


@pytest.mark.parametrize("algorithm", BANDITS)
def test_the_score_is_what_the_greedy_arm_pays(algorithm):
    made = experiment(algorithm, "operant/BernoulliBandit-v0")
    assert isinstance(made, BanditExperiment)
    assert made.learner.seeds == [3, 5]
    for _ in range(40):
        made.learner.iterate()
    scored = made.evaluate(4)
    greedy = made.learner.policy()[:, 0].argmax(axis=1)
    assert scored.scores == pytest.approx(made.learner.arms.means[[0, 1], greedy], abs=1e-15)
    assert scored.episodes == 4
    assert scored.lengths == (1.0, 1.0)
    assert made.evaluate(4) == scored == made.evaluate(4, backend="tensor")
    sampled = made.evaluate(2000, backend="gymnasium")
    assert sampled == made.evaluate(2000, backend="gymnasium")
    assert {pay for row in sampled.episode_scores for pay in row} == {0.0, 1.0}
    assert sampled.scores == pytest.approx(scored.scores, abs=4 * np.sqrt(0.25 / 2000))
    made.close()


def test_tied_arms_share_the_score():
    made = experiment("epsilon-greedy", "operant/TwoArms-v0")
    assert made.evaluate(1).scores == pytest.approx((0.85, 0.85))
    actions, hidden_state = made.learner.act(torch.zeros(2, 4000, dtype=torch.int64), None, None)
    assert hidden_state is None
    assert actions.double().mean(dim=1).tolist() == pytest.approx([0.5, 0.5], abs=0.04)
    noise = draw_noise(made.learner, 2, streams.of_seeds(made.learner.seeds, "test"))
    assert torch.equal(made.learner.act(torch.zeros(2, 2), None, noise)[0], (noise >= 0.5).long())


def test_unsuitable_tasks_and_options_are_rejected():
    with pytest.raises(
        ValueError, match=r"CliffWalking-v1 has observations Discrete\(48\), so more than one state: use"
    ):
        experiment("ucb1", "CliffWalking-v1")
    with pytest.raises(ValueError, match=r"CartPole-v1 has observations Box.* so more than one state"):
        experiment("ucb1", "CartPole-v1")
    with pytest.raises(ValueError, match="ShortCorridor-v0 is not one of them, so its arms are unknown"):
        experiment("ucb1", "operant/ShortCorridor-v0")
    with pytest.raises(ValueError, match="did you mean operant/Testbed-v0"):
        experiment("ucb1", "operant/Testbet-v0")
    with pytest.raises(ValueError, match="leave env_backend at 'auto' for training"):
        experiment("ucb1", TASKS[0], env_backend="gymnasium")
    with pytest.raises(ValueError, match="runs only on the CPU"):
        experiment("ucb1", TASKS[0], device="cuda")
    with pytest.raises(ValueError, match="kl-ucb is for Bernoulli rewards"):
        experiment("kl-ucb", TASKS[0])
    made = experiment("ucb1", TASKS[0])
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        made.evaluate(0)
    with pytest.raises(ValueError, match="backend must be 'auto', 'tensor' or 'gymnasium', got 'jax'"):
        made.evaluate(1, backend="jax")
    with pytest.raises(ValueError, match="ucb1 needs Arms as its source, got MDP"):
        learner_for("ucb1", corridor(), seeds=(0,))
    with pytest.raises(ValueError, match="q-learning needs an MDP or a BatchEnv as its source, got Arms"):
        learner_for("q-learning", Arms.normal([1.0]), seeds=(0,))


def test_a_custom_bandit_with_an_unknown_distribution_is_rejected():
    gymnasium.register("Unknown-v0", entry_point=Unknown)
    try:
        with pytest.raises(ValueError, match="Unknown-v0 is not one of them, so its arms are unknown"):
            arms_of("Unknown-v0", (0,))
    finally:
        del gymnasium.registry["Unknown-v0"]


@pytest.mark.parametrize("algorithm", BANDITS)
def test_a_run_is_trained_resumed_and_loaded(algorithm, tmp_path):
    task = "operant/BernoulliBandit-v0"
    values = {"seeds": 3, "budget": 900, "progress": "silent", "steps_per_iteration": 100}
    whole = api.train(algorithm, task, run=tmp_path / "whole", **values)
    asked = []
    stop = lambda: len(asked) > 4 or asked.append(0)  # noqa: E731 - it is asked once an iteration
    assert api.train(algorithm, task, run=tmp_path / "part", interrupted=stop, **values).outcome.interrupted
    resumed = api.resume(tmp_path / "part", progress="silent")
    for left, right in zip(resumed.experiment.learner.pulls, whole.experiment.learner.pulls, strict=True):
        np.testing.assert_array_equal(left, right)
    assert api.load(tmp_path / "whole").evaluate(5) == whole.evaluate(5)


def test_the_command_line(tmp_path, capsys):
    def answer(*arguments):
        assert main([str(argument) for argument in (*arguments, "--json")]) == 0
        return json.loads(capsys.readouterr().out)

    path = tmp_path / "run"
    flags = ("--seeds", 100, "--budget", 1000, "--run", path, "--progress", "silent")
    trained = answer("train", "ucb1", "operant/Testbed-v0", *flags)
    arms = arms_of("operant/Testbed-v0", range(100))
    assert np.max(arms.best - trained["per_seed_scores"]) < 1.5
    assert trained["mean"] == pytest.approx(arms.best.mean(), abs=0.1)
    again = answer("evaluate", path, "--env-backend", "auto")
    assert again["per_seed_scores"] == pytest.approx(trained["per_seed_scores"], rel=1e-12)
    sampled = answer("evaluate", path, "--episodes", 50)
    assert sampled["mean"] == pytest.approx(trained["mean"], abs=4 / np.sqrt(5000))
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert {"bandit/regret", "bandit/best_arm"} <= {name for record in records for name in record} | {
        name for record in records for name in record.get("metrics", {})
    }
    assert answer("resume", path, "--progress", "silent")["per_seed_scores"] == trained["per_seed_scores"]
    assert main(["train", "ucb1", "CliffWalking-v1", "--run", str(tmp_path / "other")]) == 2
    assert "use an algorithm such as q-learning" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
