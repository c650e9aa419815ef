import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch

from operant.scale.processes import decoded, encoded, started

RUN = (
    *("ppo", "CartPole-v1", "--seeds", "1", "--num-envs", "4", "--num-steps", "16", "--num-epochs", "1"),
    *("--num-minibatches", "2", "--hidden-sizes", "8", "--evaluate-episodes", "1", "--progress", "silent"),
)


def test_a_message_holds_what_a_checkpoint_holds():
    shared = torch.arange(3)
    state = {"tensors": [shared, shared[:2]], "nothing": None, "nan": float("nan"), "big": 2**80, "flag": True}
    found = decoded(encoded(state))
    assert torch.equal(found["tensors"][0], shared)
    assert torch.equal(found["tensors"][1], shared[:2])
    assert found["nan"] != found["nan"]
    assert {name: found[name] for name in ("nothing", "big", "flag")} == {"nothing": None, "big": 2**80, "flag": True}


def test_a_message_without_tensors_is_one():
    assert decoded(encoded({"call": "end", "args": []})) == {"call": "end", "args": []}


def test_one_process_is_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not started()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not started()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert started()


def digests(run):
    (checkpoint,) = sorted((run / "checkpoints").glob("step_*"))[-1:]
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    return checkpoint.name, {name: file["sha256"] for name, file in manifest["files"].items()}


@contextmanager
def operant(*arguments):
    command = [sys.executable, "-m", "operant", *map(str, arguments)]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished(*arguments):
    with operant(*arguments) as process:
        told = "".join(process.communicate(timeout=240))
        assert process.returncode == 0, told


def workers(process):
    """Return the ids of the processes that train under a launcher."""
    children = [line.split() for line in _listed("-eo", "pid,ppid,args") if "-m operant" in line]
    return [int(pid) for pid, parent, *_ in children if int(parent) == process.pid]


def _listed(*options):
    return subprocess.run(["ps", *options], check=True, text=True, capture_output=True).stdout.splitlines()


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_killed_on_two_processes_and_resumed_on_one_it_ends_in_the_same_bytes(tmp_path):
    """Slow, as each of three commands imports torch in every process: the one proof with real processes."""
    finished("train", *RUN, "--budget", "4096", "--shards", "2", "--run", tmp_path / "whole")
    killed = tmp_path / "killed"
    divided = (*RUN, "--budget", "4096", "--shards", "2", "--processes", "2", "--checkpoint-seconds", "0")
    with operant("train", *divided, "--run", killed) as process:
        deadline = time.monotonic() + 200
        while not list((killed / "checkpoints").glob("step_*/manifest.json")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(workers(process)[-1], signal.SIGKILL)
        _, told = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "resume" in told
    assert digests(killed) != digests(tmp_path / "whole")
    finished("resume", killed, "--progress", "silent")
    assert digests(killed) == digests(tmp_path / "whole")
