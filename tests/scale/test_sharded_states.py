import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.scale.shared_models import CASES, REWARD, trained

import operant
from operant.runtime.checkpoints import load
from operant.runtime.encoding import flatten
from operant.scale.sharded_states import divide, receive

EXACT = 1e-5
"""Largest difference to a single process in losses, gradients and states, in 32-bit numbers: relative above 1."""
HALF = 12
STOP = f"""
import operant

class Stop(operant.Callback):
    asked = 0

    def should_stop(self, consumed):
        self.asked += 1
        return consumed == {HALF} and self.asked > 1
"""
SEVERAL = {"rlhf": {}, "iterative-grpo": {"ref_reset_interval": 1}}
"""Algorithms with several models, with hyperparameters of their runs."""
THIRD = 4


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Return the settings of a run that stops at half of its budget, once."""
    path = tmp_path_factory.mktemp("callback") / "stop.py"
    path.write_text(STOP)
    return {
        **{"seeds": 1, "budget": 2 * HALF, "batch_size": 6, "train_examples": 64, "held_out": 8, "threads": 1},
        **{"micro_batch_tokens": 64, "callbacks": [f"{path}:Stop"], "progress": "silent"},
    }


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """Return the state of a run of one process that did not stop."""
    run = tmp_path_factory.mktemp("whole") / "run"
    operant.train("sft", "arithmetic", run=run, **settings | {"callbacks": []})
    return _state(run, 2 * HALF)


@pytest.fixture(scope="module")
def reward(settings, tmp_path_factory):
    """Return a run of a reward model."""
    run = tmp_path_factory.mktemp("shared") / REWARD
    operant.train("reward-model", "preference", run=run, **settings | {"callbacks": []})
    return run


@pytest.fixture(scope="module")
def shared(settings, reward):
    """Return the results of every case in two processes, and a run of one process that they have continued."""
    folder = reward.parent
    operant.train("sft", "arithmetic", run=folder / "run", **settings)
    _state(folder / "run", HALF)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    _run(*launcher, str(Path(__file__).with_name("shared_models.py")), str(folder), str(folder / "run"))
    return {name: load_file(folder / f"{number}.safetensors") for number, name in enumerate(CASES)}, folder / "run"


def _run(*command):
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "terminate called" not in done.stderr


def _learner(run, consumed):
    """Return the learner's state of the last checkpoint of a run, which must have used `consumed` of its budget."""
    latest = sorted((run / "checkpoints").glob("step_*"))[-1]
    assert latest.name == f"step_{consumed:012d}"
    return load(latest)["learners"][0]


def _state(run, consumed):
    """Return the model, and its best state, of the last checkpoint of a run."""
    state = _learner(run, consumed)
    return {**state["model"], **{f"best {name}": value for name, value in state["best"].items()}}


def _away(one, two):
    """Return the largest difference, relative above 1."""
    if one.numel() == 0:
        return 0.0
    return float(((one.double() - two.double()).abs() / one.double().abs().clamp(min=1)).nan_to_num().max())


def _apart(one, two):
    """Return the root mean square of the differences."""
    return float((one.double() - two.double()).nan_to_num().square().mean().sqrt()) if one.numel() else 0.0


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_that_share_a_model_compute_what_one_does(shared, name):
    one, two = trained(name, shared[1].parent), shared[0][name]
    assert one.keys() == two.keys()
    half = two.pop("bytes") / one.pop("bytes")
    assert half <= 0.52
    assert {"gradient", "metric", "state"} == {key.split()[0] for key in one}
    tolerance = 2e-2 if "16 bits" in name else EXACT
    worst = max((_away(value, two[key]), key) for key, value in one.items())
    assert worst[0] <= tolerance, worst


def test_a_run_of_one_process_is_continued_by_two(shared, whole):
    found = _state(shared[1], 2 * HALF)
    assert found.keys() == whole.keys()
    assert max(_away(value, found[key]) for key, value in whole.items()) <= EXACT


def test_a_run_of_two_processes_is_continued_by_one(settings, whole, tmp_path):
    flags = settings | {"callback": settings["callbacks"][0], "processes": 2, "run": tmp_path / "run"}
    named = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if name != "callbacks"]
    _run(sys.executable, "-m", "operant", "train", "sft", "arithmetic", "--fsdp", *named)
    _state(tmp_path / "run", HALF)
    operant.resume(tmp_path / "run", progress="silent")
    found = _state(tmp_path / "run", 2 * HALF)
    assert found.keys() == whole.keys()
    assert max(_away(value, found[key]) for key, value in whole.items()) <= EXACT


@pytest.mark.parametrize("algorithm", SEVERAL)
def test_a_run_of_several_models_is_continued_by_two_processes_and_then_by_one(algorithm, settings, reward, tmp_path):
    stop = tmp_path / "stop.py"
    stop.write_text(STOP.replace(f"== {HALF}", f"in ({THIRD}, {2 * THIRD})"))
    values = {"prompts_per_batch": 2, "num_generations": 2, "max_completion_length": 8, "num_minibatches": 1}
    values |= {"learning_rate": 1e-4, "reward_model": str(reward), **SEVERAL[algorithm]}
    values |= {name: value for name, value in settings.items() if name != "batch_size"} | {"budget": 3 * THIRD}
    operant.train(algorithm, "preference", run=tmp_path / "run", **values | {"callbacks": [f"{stop}:Stop"]})
    _learner(tmp_path / "run", THIRD)
    two = ("--processes", "2", "--fsdp", "--progress", "silent")
    _run(sys.executable, "-m", "operant", "resume", str(tmp_path / "run"), *two)
    _learner(tmp_path / "run", 2 * THIRD)
    operant.resume(tmp_path / "run", progress="silent")
    operant.train(algorithm, "preference", run=tmp_path / "whole", **values | {"callbacks": []})
    (same, one), (found, two) = (flatten(_learner(tmp_path / run, 3 * THIRD)) for run in ("whole", "run"))
    assert one.keys() == two.keys()
    assert same.keys() == found.keys()
    # Adam divides gradients by their size: of an element whose gradient is near 0, rounding decides the step.
    assert max(_away(value, two[key]) for key, value in one.items()) <= values["learning_rate"]
    assert max(_apart(value, two[key]) for key, value in one.items()) <= EXACT / 10


class Model:
    def named(self):
        return {"layer": torch.zeros(3, 2)}


def test_a_message_leaves_out_the_tensors_of_sharded_parameters():
    weight, step = torch.arange(6.0).view(3, 2), torch.tensor(1.0)
    state = {"moments": {"layer": {"exp_avg": weight, "step": step}}, "other": weight, "list": [{"layer": weight}]}
    marked, taken = divide(state, [Model()])
    mark = {"sharded tensor": ["float32", [3, 2]]}
    assert marked == {"moments": {"layer": {"exp_avg": mark, "step": step}}, "other": weight, "list": [{"layer": mark}]}
    assert [value is weight for value in taken] == [True, True]


def test_a_message_leaves_out_the_tensors_of_a_sharded_critic():
    weight = torch.arange(6.0).view(3, 2)
    marked, taken = divide({"critic": {"trunk.layer": weight, "head.layer": weight, "trunk": weight}}, [Model()])
    assert marked["critic"] == {
        **dict.fromkeys(["head.layer", "trunk"], weight),
        "trunk.layer": {"sharded tensor": ["float32", [3, 2]]},
    }
    assert [value is weight for value in taken] == [True]


def test_a_state_without_marks_is_received_as_it_is():
    assert receive({"consumed": 3, "losses": [1.0, None]}, [], None) == {"consumed": 3, "losses": [1.0, None]}
