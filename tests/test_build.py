import json
import shutil
from pathlib import Path

import pytest
import torch

import operant
from operant import build, doors
from operant.control.dqn import DQNConfig
from operant.runtime.checkpoints import load
from operant.runtime.encoding import flatten
from operant.runtime.run import Run

SPEAKING = {"train_examples": 48, "held_out": 6, "max_completion_length": 6, "budget": 64, "evaluate_every": 32}
SPEAKING |= {"progress": "silent", "checkpoint_seconds": 0}
EARLIER = sorted(path for path in (Path(__file__).parent / "earlier_runs").iterdir() if path.is_dir())
"""Hand-made runs without metrics: every future version must read them."""


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.name)
def test_a_run_of_an_earlier_version_resumes(path):
    folder = Run.open(path)
    newest, consumed = folder.checkpoints.latest()
    state = load(newest)
    experiment = build.reassemble(folder, remote_code=False)
    try:
        learner = experiment.learner
        learner.load_state_dict(state)
        assert learner.consumed == consumed
        (was, tensors), (now, others) = flatten(state), flatten(learner.state_dict())
        assert json.dumps(now) == json.dumps(was), "the content of checkpoints and its order"
        assert list(others) == list(tensors)
        for name, tensor in tensors.items():
            assert (name, others[name].dtype) == (name, tensor.dtype)
            assert torch.equal(others[name], tensor), name
        learner.iterate()
        assert learner.consumed > consumed
    finally:
        experiment.close()


def test_dqn_of_an_earlier_version_trains_as_often_as_it_did(tmp_path):
    path = Path(shutil.copytree(next(path for path in EARLIER if path.name == "prioritized-dqn"), tmp_path / "run"))
    folder = Run.open(path)
    config = folder.config(DQNConfig)
    assert (config.num_envs, config.train_freq) == (2, 4), "8 steps of both environments are 4 of each"
    folder.keep_settings()
    assert Run.open(path).config(DQNConfig) == config


@pytest.mark.parametrize(("algorithm", "task"), [("ppo", "CartPole-v1"), ("q-learning", "FrozenLake-v1")])
def test_wrappers_check_the_configuration_of_new_runs(algorithm, task, tmp_path, monkeypatch):
    (tmp_path / "strict.py").write_text(
        "from operant.envs import Wrapper\n\n\nclass Strict(Wrapper):\n    checked, in_evaluation = [], False\n\n"
        "    def check_config(self, config):\n        self.checked.append(config.gamma)\n"
        "        if config.gamma == 0.5:\n            raise ValueError('gamma must not be 0.5')\n"
    )
    monkeypatch.chdir(tmp_path)
    options = {"wrappers": ["strict.py:Strict"], "seeds": 1, "budget": 16, "evaluate_episodes": 1}
    options |= {"num_envs": 1, "num_steps": 8, "num_minibatches": 1} if algorithm == "ppo" else {}
    with pytest.raises(ValueError, match=r"gamma must not be 0.5"):
        operant.train(algorithm, task, run="refused", gamma=0.5, progress="silent", **options)
    assert not Path("refused").exists()
    operant.train(algorithm, task, run="run", gamma=0.8, progress="silent", **options).close()
    operant.load("run").close()
    operant.resume("run", budget=32, progress="silent").close()
    assert doors.load("strict.py:Strict", expected="a class").checked == [0.5, 0.8]


def test_the_language_extra_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: None if name == "peft" else name)
    with pytest.raises(ModuleNotFoundError, match=r'sft needs peft: pip install "operant\[language\]"'):
        operant.train("sft", "arithmetic", run=tmp_path / "run", **SPEAKING)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cores", "waiting", "small"), [(1, "PASSIVE", 1), (2, "passive", 2), (8, "PASSIVE", 2), (8, "", 1)]
)
def test_pretrained_models_get_all_cores_and_built_in_ones_two_that_sleep(cores, waiting, small, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", waiting)
    quick = {**SPEAKING, "budget": 16, "batch_size": 16}
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    tiny = operant.train("sft", "arithmetic", run=tmp_path / "run", **quick)
    assert tiny.run.resolved() == {"device": "cpu", "threads": small, "precision": "highest", "compile": False}
    tiny.experiment.learner.learners[0].model.save(tmp_path / "model")
    large = operant.train("sft", "arithmetic", run=tmp_path / "large", model=str(tmp_path / "model"), **quick)
    assert large.run.resolved()["threads"] == cores
    assert {small, cores} <= set(used)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"stoch": 4, "classes": 16}, "stoch is 8 in that run, but 4 in this one"),
        ({"prior_layers": 3}, {"layers": 2}, "layers is 1 in that run, but 2 in this one"),
    ],
)
def test_weights_of_another_layout_of_the_same_size_are_refused(tmp_path, before, now, message):
    small = {"num_envs": 1, "num_steps": 4, "sequence_length": 4, "imagined_frames": 1, "learning_starts": 0}
    small |= {"units": 4, "deter": 4, "budget": 4, "train_ratio": 1.0, "evaluate_episodes": 1, "progress": "silent"}
    operant.train("dreamer", "CartPole-v1", run=tmp_path / "first", **small, **before)
    with pytest.raises(ValueError, match=message):
        operant.train("dreamer", "CartPole-v1", run=tmp_path / "second", init=tmp_path / "first", **small, **now)


def test_weights_of_a_model_with_another_activation_are_refused(tmp_path):
    small = {"learning_starts": 1, "model_gradient_steps": 1, "model_train_freq": 1, "horizon": 1, "progress": "silent"}
    small |= {"population_size": 2, "num_elites": 1, "budget": 2, "evaluate_episodes": 1}
    operant.train("pets", "Pendulum-v1", run=tmp_path / "first", **small)
    with pytest.raises(ValueError, match="model_activation is relu in that run, but tanh in this one"):
        operant.train(
            "pets", "Pendulum-v1", run=tmp_path / "second", init=tmp_path / "first", model_activation="tanh", **small
        )
