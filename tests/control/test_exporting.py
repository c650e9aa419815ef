from contextlib import closing
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import operant
from operant.control.exporting import module_of_policy, network_of, of_choices
from operant.envs import Wrapper
from operant.runtime.exported_policy import Policy
from operant.runtime.exporting import write_policy

ON_POLICY = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "hidden_sizes": (8, 8)}
OFF_POLICY = {"hidden_sizes": (8, 8), "learning_starts": 20, "batch_size": 8}


class Switches(gymnasium.Env):
    """Environment with two choices that start at 3 and -1, and discrete observations; or with boxes of other shapes."""

    def __init__(self, box=False):
        self.observation_space = spaces.MultiDiscrete([4, 3])
        self.action_space = spaces.MultiDiscrete([2, 5], start=[3, -1])
        if box:
            self.observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
            self.action_space = spaces.Box(np.array([[-2.0, 0.0]]), np.array([[1.0, np.inf]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.left -= 1
        return self._seen(), float(np.sum(action)), self.left == 0, False, {}

    def _seen(self):
        if isinstance(self.observation_space, spaces.Box):
            return self.np_random.normal(3.0, 10.0, size=(2, 3))
        return self.np_random.integers(0, [4, 3])


@pytest.fixture(autouse=True, scope="module")
def switches():
    gymnasium.register("Switches-v0", Switches)
    yield
    del gymnasium.registry["Switches-v0"]


@pytest.mark.parametrize(
    ("algorithm", "task", "env_kwargs", "options"),
    [
        ("ppo", "Switches-v0", {}, ON_POLICY),
        ("ppo", "Switches-v0", {"box": True}, {**ON_POLICY, "normalize_obs": True}),
        ("sac", "Pendulum-v1", {}, OFF_POLICY),
        ("td3", "Pendulum-v1", {}, {**OFF_POLICY, "normalize_obs": True}),
        ("sac-discrete", "CartPole-v1", {}, {**OFF_POLICY, "normalize_obs": True}),
        ("dueling-dqn", "CartPole-v1", {}, {**OFF_POLICY, "scale_obs": True}),
    ],
)
def test_an_exported_policy_acts_as_predict(algorithm, task, env_kwargs, options, tmp_path):
    common = {"seeds": 2, "budget": 64, "evaluate_episodes": 1, "evaluate_every": 64, "progress": "silent"}
    trained = operant.train(algorithm, task, env_kwargs=env_kwargs, run=tmp_path / "run", **common, **options)
    space = gymnasium.make(task, **env_kwargs).observation_space
    rng = np.random.default_rng(1)
    if isinstance(space, spaces.Box):
        observations = rng.normal(0.0, 20.0, size=(1000, *space.shape)).astype(space.dtype)
    else:
        observations = rng.integers(0, space.nvec, size=(1000, 2))
    for index, seed in enumerate(trained.run.settings.seeds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        write_policy(trained.run.settings, seed, network_of(trained.experiment, index), folder)
        found, expected = Policy(folder).predict(observations), trained.predict(observations, seed_index=index)[0]
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert np.allclose(found, expected, rtol=0, atol=1e-5)
        one = Policy(folder).predict(observations[7])
        assert np.allclose(one, found[7], rtol=0, atol=1e-5)
        assert np.shape(one) == np.shape(trained.predict(observations[7])[0])
        with pytest.raises(ValueError, match=r"observations must have shape .*; got \(1, 1, 1, 1, 1\)"):
            Policy(folder).predict(np.zeros((1, 1, 1, 1, 1)))
    trained.close()


class Doubled(Wrapper):
    """Wrapper that doubles observations."""

    def observation(self, obs):
        return 2 * obs


def test_a_policy_trained_in_a_wrapper_is_rejected(tmp_path):
    common = {"seeds": 1, "budget": 32, "evaluate_episodes": 1, "evaluate_every": 32, "progress": "silent"}
    trained = operant.train("ppo", "CartPole-v1", run=tmp_path / "run", **common, **ON_POLICY)
    experiment = SimpleNamespace(learner=trained.experiment.learner, env=Doubled(trained.experiment.env))
    with closing(trained), pytest.raises(ValueError, match="depends on the wrappers Doubled"):
        network_of(experiment, 0)


def test_a_learner_without_an_agent_is_named():
    with pytest.raises(ValueError, match=r"got SimpleNamespace, which has no such agent: use `operant\.load\(run\)"):
        network_of(SimpleNamespace(learner=SimpleNamespace(), env=None), 0)


def test_a_learner_that_describes_its_policy_is_exported_as_a_graph():
    own = torch.nn.Linear(3, 2), of_choices([2]), {}
    learner = SimpleNamespace(policy_module=lambda index: own)
    assert module_of_policy(SimpleNamespace(learner=learner, env=None), 0) == own
    with pytest.raises(ValueError, match="got SimpleNamespace: use --format onnx or torchscript"):
        network_of(SimpleNamespace(learner=learner, env=None), 0)


def test_a_recurrent_policy_is_rejected(tmp_path):
    common = {"seeds": 1, "budget": 64, "evaluate_episodes": 1, "evaluate_every": 64, "progress": "silent"}
    small = {"num_envs": 2, "num_steps": 16, "num_minibatches": 1, "num_epochs": 1}
    trained = operant.train("recurrent-ppo", "CartPole-v1", run=tmp_path / "run", **common, **small)
    with (
        closing(trained),
        pytest.raises(ValueError, match="perceptrons of one vector, got StackedGRU"),
    ):
        network_of(trained.experiment, 0)


def test_a_vote_of_several_networks_is_rejected(tmp_path):
    common = {"seeds": 1, "budget": 64, "evaluate_episodes": 1, "evaluate_every": 64, "progress": "silent"}
    trained = operant.train("bootstrapped-dqn", "CartPole-v1", run=tmp_path / "run", **common, **OFF_POLICY)
    with closing(trained), pytest.raises(ValueError, match="that of BootstrappedDQN is a vote of several"):
        network_of(trained.experiment, 0)


def test_files_with_other_actions_than_the_policy_are_rejected(tmp_path):
    common = {"seeds": 1, "budget": 32, "evaluate_episodes": 1, "evaluate_every": 32, "progress": "silent"}
    trained = operant.train("ppo", "CartPole-v1", run=tmp_path / "run", **common, **ON_POLICY)
    network = network_of(trained.experiment, 0)

    def predict(observations):
        return trained.predict(observations)[0]

    with closing(trained):
        write_policy(trained.run.settings, 0, network, tmp_path, predict=predict)
        with pytest.raises(ValueError, match="the exported policy gives other actions than the policy: "):
            write_policy(trained.run.settings, 0, network, tmp_path, predict=lambda given: 1 - predict(given))
