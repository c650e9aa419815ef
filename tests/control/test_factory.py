import dataclasses
import multiprocessing
import re
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import operant
from operant import catalog
from operant.control import PPOConfig, assemble, configuration, ppo
from operant.envs import Atari, Wrapper, make
from operant.experimental.a3c import A3CConfig
from operant.runtime.evaluation import StoppedError, evaluate_policy
from operant.runtime.settings import Settings

ENTRY = catalog.find("ppo")
SMALL = PPOConfig(num_envs=2, num_steps=8, num_minibatches=2, num_epochs=1, hidden_sizes=(4,))


def experiment(task="CartPole-v1", config=SMALL, **settings):
    return assemble(ENTRY, Settings("ppo", task, seeds=(3, 5), **settings), config, device="cpu")


@pytest.fixture
def presets(monkeypatch):
    monkeypatch.setattr(ppo, "PRESETS", {"CartPole-v1": {"gamma": 0.9, "gae_lambda": 0.8}, "quick": {"gamma": 0.5}})


@pytest.fixture
def closed():
    """Register tasks named OperantTest<kind of action>-v0; return the list of their environments that were closed."""
    listed = []

    class Recorded(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))

        def __init__(self, action_space):
            self.action_space = action_space

        def reset(self, **_):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, True, False, {}

        def close(self):
            listed.append(self)

    spaces = [gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(0, 9, (2,), np.int64)]
    names = [f"OperantTest{type(space).__name__}-v0" for space in spaces]
    for name, space in zip(names, spaces, strict=True):
        gymnasium.register(name, Recorded, kwargs={"action_space": space})
    yield listed
    for name in names:
        gymnasium.registry.pop(name)


def test_a_task_without_a_preset_gets_the_defaults(presets):
    assert configuration(ENTRY, "Pendulum-v1") == PPOConfig()


def test_a_task_selects_its_preset(presets):
    assert configuration(ENTRY, "CartPole-v1") == PPOConfig(gamma=0.9, gae_lambda=0.8)


def test_a_task_selects_the_longest_pattern_that_its_id_matches(monkeypatch):
    patterns = {"Rooms-*": {"gamma": 0.9}, "Rooms-Large-*": {"gamma": 0.8}, "Rooms-Large-3-v0": {"gamma": 0.7}}
    monkeypatch.setattr(ppo, "PRESETS", {**patterns, "*": {"gamma": 0.5}})
    found = {
        "Houses-v0": 0.5,
        "Rooms-Small-v0": 0.9,
        "houses:Rooms-Small-v0": 0.9,
        "Rooms-Large-2-v0": 0.8,
        "Rooms-Large-3-v0": 0.7,
    }
    for task, gamma in found.items():
        assert configuration(ENTRY, task) == PPOConfig(gamma=gamma)


def test_a_named_preset_replaces_that_of_the_task(presets):
    assert configuration(ENTRY, "CartPole-v1", "quick") == PPOConfig(gamma=0.5)
    assert configuration(ENTRY, "Pendulum-v1", "CartPole-v1") == PPOConfig(gamma=0.9, gae_lambda=0.8)


def test_the_preset_of_the_paper_is_the_defaults_whatever_the_task(presets):
    assert configuration(ENTRY, "CartPole-v1", "paper") == PPOConfig()


def test_single_values_win(presets):
    assert configuration(ENTRY, "CartPole-v1", gamma=0.7) == PPOConfig(gamma=0.7, gae_lambda=0.8)
    assert configuration(ENTRY, "CartPole-v1", "quick", gae_lambda=0.1) == PPOConfig(gamma=0.5, gae_lambda=0.1)


@pytest.mark.parametrize("name", ppo.PRESETS)
def test_every_preset_is_a_configuration(name):
    config = configuration(ENTRY, "no such task", name)
    assert {key: getattr(config, key) for key in ppo.PRESETS[name]} == ppo.PRESETS[name]


def test_an_unknown_preset_is_rejected_with_the_choices(presets):
    with pytest.raises(ValueError, match=r"ppo has no preset 'fast'; presets: paper, zoo, CartPole-v1, quick"):
        configuration(ENTRY, "CartPole-v1", "fast")


def test_a_misspelt_parameter_is_rejected_with_the_nearest():
    with pytest.raises(ValueError, match=r"ppo.learning_rat: there is no such key; did you mean learning_rate"):
        configuration(ENTRY, "CartPole-v1", learning_rat=1e-3)


def test_an_unknown_parameter_is_rejected_with_the_choices():
    with pytest.raises(ValueError, match=r"ppo.xyz: there is no such key; known are: .*gamma.*num_epochs"):
        configuration(ENTRY, "CartPole-v1", xyz=1)


@pytest.mark.parametrize(("name", "value"), [("num_envs", "2"), ("num_envs", 2.5), ("lr_schedule", 1)])
def test_a_value_of_the_wrong_type_is_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=f"ppo.{name}: {value!r} is not"):
        configuration(ENTRY, "CartPole-v1", **{name: value})


def test_a_list_and_none_are_values():
    config = configuration(ENTRY, "CartPole-v1", hidden_sizes=[8, 4], clip_range_high=None)
    assert config.hidden_sizes == (8, 4)
    assert config.clip_range_high is None


def test_a_value_out_of_range_is_rejected():
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got 2"):
        configuration(ENTRY, "CartPole-v1", gamma=2)


def test_the_parts_of_an_experiment_fit():
    made = experiment(budget=77)
    assert made.learner.config is SMALL
    assert made.learner.seeds == [3, 5]
    assert made.learner.budget == 77
    env = made.learner.agent.collector.env
    assert (env.task, env.rows, env.device.type) == ("CartPole-v1", 4, "cpu")
    made.close()


@pytest.mark.parametrize(
    ("backend", "kind"), [("tensor", "CartPole"), ("auto", "CartPole"), ("gymnasium", "GymnasiumEnv")]
)
def test_the_backend_is_that_of_the_settings(backend, kind):
    made = experiment(env_backend=backend)
    assert type(made.learner.agent.collector.env).__name__ == kind
    made.close()


def test_a_configuration_of_another_kind_is_rejected():
    with pytest.raises(TypeError, match=r"ppo needs a configuration of PPOConfig, got \{'gamma': 0.9\}"):
        experiment(config={"gamma": 0.9})


def test_environments_are_closed_if_the_learner_rejects_them(closed):
    with pytest.raises(ValueError, match="ppo needs actions of Discrete or Multi"):
        experiment("OperantTestBox-v0")
    assert len(closed) == 4


@pytest.mark.parametrize("normalize", [False, True])
def test_closing_an_experiment_closes_its_environments_once(normalize, closed):
    made = experiment("OperantTestDiscrete-v0", dataclasses.replace(SMALL, normalize_obs=normalize))
    made.learner.iterate()
    made.evaluate(2)
    assert len(closed) == 2 * 2, "the environments of the evaluation are closed"
    made.close()
    made.close()
    assert len(closed) == 2 * 2 + 4


def test_an_evaluation_that_is_asked_to_stop_closes_its_environments(closed):
    made = experiment("OperantTestDiscrete-v0")
    with pytest.raises(StoppedError):
        made.evaluate(2, interrupted=lambda: True)
    assert len(closed) == 2 * 2
    made.close()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_evaluation_gives_the_same_numbers_twice_and_changes_nothing(backend, normalize):
    made = experiment(config=dataclasses.replace(SMALL, normalize_obs=normalize), env_backend=backend)
    again = experiment(config=dataclasses.replace(SMALL, normalize_obs=normalize), env_backend=backend)
    made.learner.iterate()
    again.learner.iterate()
    first = made.evaluate(10)
    assert made.evaluate(10) == first
    assert first.episodes == 10
    assert len(first.scores) == 2
    made.learner.iterate()
    again.learner.iterate()
    assert torch.equal(made.learner.agent.parameters, again.learner.agent.parameters)
    made.close()
    again.close()


class Slow(gymnasium.Env):
    """Environment that hangs at the end of its first episode."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.fresh = True

    def reset(self, **_):
        if not self.fresh:
            time.sleep(600)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.fresh = False
        return np.zeros(1, np.float32), 0.0, True, False, {}


@pytest.fixture
def slow():
    gymnasium.register("OperantTestSlow-v0", Slow)
    yield "OperantTestSlow-v0"
    gymnasium.registry.pop("OperantTestSlow-v0")


def test_environments_are_evaluated_in_worker_processes_under_the_deadline_of_the_run(slow):
    made = experiment(slow, vectorization="async", worker_seconds=1.0)
    with pytest.raises(
        RuntimeError, match=r"OperantTestSlow-v0: the worker processes of environments 0, 1 have not replied"
    ):
        made.evaluate(1, backend="gymnasium")
    made.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("backend", ["auto", "tensor", "envpool"])
def test_environments_that_are_not_gymnasiums_have_no_worker_processes(backend):
    with pytest.raises(ValueError, match=r"vectorization='async' is .*CartPole-v1.*use env_backend='gymnasium'"):
        experiment(vectorization="async", env_backend=backend)


@pytest.mark.parametrize("config", [SMALL, A3CConfig(workers=1, hidden_sizes=(4,))], ids=["ppo", "a3c"])
def test_games_are_made_as_the_settings_say(config):
    pytest.importorskip("ale_py")
    name = "ppo" if config is SMALL else "a3c"
    settings = Settings(name, "ALE/Qbert-v5", seeds=(3,), clip_rewards=False, episodic_life=True)
    made = assemble(catalog.find(name), settings, config, device="cpu")
    env = made.learner.make_env(0) if name == "a3c" else made.learner.agent.collector.env
    assert isinstance(env, Atari)
    assert (env.clip_rewards, env.episodic_life) == (False, True)
    env.close()
    made.close()


def test_whole_games_are_scored_whatever_training_makes_of_lives_and_rewards():
    pytest.importorskip("ale_py")
    changes = [{}, {"clip_rewards": False, "episodic_life": True}]
    plain, changed = (experiment("ALE/Qbert-v5", **change) for change in changes)
    score = plain.evaluate(1)
    assert changed.evaluate(1) == score
    assert max(score.scores) > 25.0, "rewards are multiples of 25"
    plain.close()
    changed.close()


def test_evaluation_plays_separate_episodes_that_depend_on_the_seed():
    made = experiment()
    own, training = (make("CartPole-v1", 20, (3, 5), purpose=purpose) for purpose in ("evaluation", "environment"))
    score = made.evaluate(20)
    assert score == evaluate_policy(made.learner, own, seeds=2, episodes=20)
    assert score != evaluate_policy(made.learner, training, seeds=2, episodes=20)


def test_evaluation_of_one_seed_does_not_depend_on_its_neighbors():
    together = experiment()
    alone = assemble(ENTRY, Settings("ppo", "CartPole-v1", seeds=(5,)), SMALL, device="cpu")
    assert together.evaluate(10).episode_scores[1] == alone.evaluate(10).episode_scores[0]
    sampled = [made.evaluate(10, sample=True).episode_scores for made in (together, alone)]
    assert sampled[0][1] == sampled[1][0]
    assert len({*sampled[1][0]}) > 1


@pytest.mark.parametrize("episodes", [1, 7, 20, 23, 40])
def test_any_number_of_episodes_may_be_asked_for(episodes):
    assert experiment().evaluate(episodes).episodes == episodes


def test_the_number_of_episodes_defaults_to_the_settings():
    assert experiment(evaluate_episodes=6).evaluate().episodes == 6


def test_a_policy_can_be_evaluated_in_either_backend():
    made = experiment()
    assert made.evaluate(4, backend="gymnasium").episodes == 4
    with pytest.raises(ValueError, match="backend must be 'auto', 'tensor', 'gymnasium' or 'envpool', got 'jax'"):
        made.evaluate(4, backend="jax")


@pytest.mark.parametrize("episodes", [0, -5])
def test_zero_episodes_are_rejected(episodes):
    with pytest.raises(ValueError, match=f"episodes must be a positive multiple .*, got {episodes}"):
        experiment().evaluate(episodes)


def test_environments_that_exceed_the_memory_are_rejected_immediately():
    algorithm = catalog.find("ppo")
    settings = Settings(algorithm="ppo", task="CartPole-v1", seeds=(0, 1))
    config = configuration(algorithm, "CartPole-v1", num_envs=10**9, num_minibatches=1)
    message = r"num_envs=1000000000 environments for each of 2 seeds, .* are available on cpu: reduce num_envs"
    with pytest.raises(ValueError, match=message):
        assemble(algorithm, settings, config, device="cpu")


def test_evaluations_are_played_in_the_wrappers_that_hold_there():
    played = []

    class Mirrored(Wrapper):
        """Wrapper that negates observations."""

        def step(self, actions):
            played.append(self.training)
            step = self.env.step(actions)
            return step._replace(obs=self.observation(step.obs), final_obs=self.observation(step.final_obs))

        def observation(self, obs):
            return -obs

    class Training(Wrapper):
        in_evaluation = False

        def step(self, actions):
            raise AssertionError("an evaluation was played in what holds in training alone")

    plain = experiment()
    wrapped = dataclasses.replace(plain, env=Training(Mirrored(make("CartPole-v1", 1, (3, 5)))))
    scores = plain.evaluate(4).scores
    assert wrapped.evaluate(4).scores != scores
    assert played
    assert not any(played)
    act = plain.learner.act

    class Same:
        """Policy that negates observations again."""

        device, consumed = plain.learner.device, 0

        def act(self, obs, hidden_state, noise):
            return act(-obs, hidden_state, noise)

    assert dataclasses.replace(wrapped, learner=Same()).evaluate(4).scores == scores


@pytest.fixture
def net(tmp_path, monkeypatch):
    """Write the module of the documentation into a file of the working folder."""
    page = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
    section = page[page.index("## A network of your own") :]
    (tmp_path / "net.py").write_text(re.search(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[1])
    monkeypatch.chdir(tmp_path)
    return "net.py:Net"


REPLAYED = {"num_envs": 2, "learning_starts": 16, "batch_size": 8, "buffer_size": 100, "rounds_per_iteration": 8}
ENCODED = {
    "ppo": {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2},
    "a2c": {"num_envs": 4, "num_steps": 8},
    "dqn": {"num_envs": 2, "train_freq": 8, "learning_starts": 32, "batch_size": 8, "buffer_size": 100},
    **dict.fromkeys(("sac", "td3", "ddpg", "sac-discrete"), REPLAYED),
}


@pytest.mark.parametrize("algorithm", ENCODED)
def test_a_network_of_the_users_own_trains_and_resumes_exactly(algorithm, net):
    task = "Pendulum-v1" if algorithm in ("sac", "td3", "ddpg") else "CartPole-v1"
    options = {"seeds": 2, "budget": 128, "encoder": net, "evaluate_every": 1000, "progress": "silent"}
    options |= {"hidden_sizes": (8,) if algorithm == "dqn" else (), **ENCODED[algorithm]}
    whole = operant.train(algorithm, task, run="whole", **options)
    stops = iter([False, False])
    part = operant.train(algorithm, task, run="part", interrupted=lambda: next(stops, True), **options)
    assert part.experiment.learner.consumed < 128
    resumed = operant.resume("part", progress="silent")
    for name, tensor in whole.experiment.learner.learned.items():
        assert torch.equal(resumed.experiment.learner.learned[name], tensor), name
    space = gymnasium.spec(task).make()
    action, _ = resumed.predict(np.zeros(space.observation_space.shape, np.float32))
    assert space.action_space.contains(action)


QUICK = {"rounds_per_iteration": 2, "learning_starts": 8}
SHORT = {"ppo": {"num_steps": 8}, "sac": QUICK, "td3": QUICK}


@pytest.mark.parametrize(
    ("algorithm", "task"), [("sac", "Pendulum-v1"), ("td3", "Pendulum-v1"), ("ppo", "CartPole-v1")]
)
def test_a_network_of_the_users_own_keeps_the_contract_of_learners(algorithm, task, net):
    operant.check_learner(algorithm, task, encoder=net, hidden_sizes=(8,), **(ENCODED[algorithm] | SHORT[algorithm]))


def test_invalid_networks_are_rejected(net):
    with pytest.raises(ValueError, match=r"encoder must be auto, nature, .* path/to/file.py:Name, got 'natur'"):
        PPOConfig(encoder="natur")
    with pytest.raises(ValueError, match=r"net.py"):
        experiment(config=dataclasses.replace(SMALL, encoder="net.py:Missing"))
    with pytest.raises(ValueError, match="recurrent networks support no custom encoders"):
        operant.train("recurrent-ppo", "CartPole-v1", encoder=net, budget=100, progress="silent")


def test_a_changing_task_is_evaluated_as_it_is_at_this_point_of_training():
    made = experiment("operant/BlockingMaze-v0")
    made.learner.consumed = 1998
    assert made.evaluation_kwargs == {"frozen_at": 999}, "each of the two environments has taken half of the steps"
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("operant.control.factory.evaluate_policy", lambda _, env, **__: found.update(env=grids(env)))
        made.evaluate(2)
        assert found["env"] == ["before", "before"] * 2
        made.learner.consumed = 2000
        made.evaluate(2)
        assert found["env"] == ["after", "after"] * 2
    made.close()
    assert experiment("CartPole-v1").evaluation_kwargs == {}


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [
        ("impala", {"num_actors": 3, "rollouts_per_batch": 1, "num_envs": 2}),
        ("a3c", {"workers": 3, "num_envs": 2}),
    ],
)
def test_a_changing_task_counts_the_environments_of_all_actors(algorithm, values):
    config = operant.configure(algorithm, "operant/BlockingMaze-v0", **values)
    settings = Settings(algorithm, "operant/BlockingMaze-v0", seeds=(3,))
    made = assemble(catalog.find(algorithm), settings, config, device="cpu")
    try:
        assert made.evaluation_kwargs_at(6000) == {"frozen_at": 1000}
    finally:
        made.close()


def grids(env):
    """Return which grids the mazes have after their first steps."""
    env.reset()
    mazes = [one.unwrapped for one in env.singles]
    return ["before" if one.grid is one.before else "after" for one in mazes]
