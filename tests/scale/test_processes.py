import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from operant.cli import main
from operant.runtime.checkpoints import load
from operant.runtime.shards import group
from operant.scale.processes import LostError, decoded, encoded, joined, started

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


@pytest.mark.parametrize("sharded", [False, True])
def test_a_group_is_left_after_an_error(sharded, monkeypatch):
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("operant.scale.processes.started", lambda: True)

    def fail(error):
        with joined(sharded=sharded) as processes:
            assert group() is processes
            raise error

    memory = dist.DistBackendError("NCCL error in: NCCLUtils.cpp:94, unhandled cuda error: 'out of memory'")
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:911: Connection reset by peer")
    for error, raised in (
        (ZeroDivisionError(), ZeroDivisionError),
        (RuntimeError("other"), RuntimeError),
        (memory, dist.DistBackendError),
        (torch.OutOfMemoryError("CUDA out of memory within NCCL"), torch.OutOfMemoryError),
        (lost, LostError),
    ):
        with pytest.raises(raised, match="`operant resume RUN` continues" if error is lost else None):
            fail(error)
        assert not dist.is_initialized()
        assert group().size == 1
    with joined(sharded=sharded):
        assert dist.is_initialized()
    assert not dist.is_initialized()


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
    """Run a command in this process, where torch is imported already."""
    assert main([*map(str, arguments)]) == 0


def workers(process):
    """Return the ids of the processes that train under a launcher."""
    children = [line.split() for line in _listed("-eo", "pid,ppid,args") if "-m operant" in line]
    return [int(pid) for pid, parent, *_ in children if int(parent) == process.pid]


def _listed(*options):
    return subprocess.run(["ps", *options], check=True, text=True, capture_output=True).stdout.splitlines()


def first_checkpoint(process, run):
    """Wait until a run has saved a checkpoint since the call."""
    before, deadline = set((run / "checkpoints").glob("step_*/manifest.json")), time.monotonic() + 200
    while not set((run / "checkpoints").glob("step_*/manifest.json")) - before:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_killed_on_two_processes_and_resumed_on_one_it_ends_in_the_same_bytes(tmp_path):
    """Test real processes, although it is slow: each imports torch."""
    finished("train", *RUN, "--budget", "4096", "--shards", "2", "--run", tmp_path / "whole")
    killed = tmp_path / "killed"
    divided = (*RUN, "--budget", "4096", "--shards", "2", "--processes", "2", "--checkpoint-seconds", "0")
    with operant("train", *divided, "--run", killed) as process:
        first_checkpoint(process, killed)
        os.kill(workers(process)[-1], signal.SIGKILL)
        _, told = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "resume" in told
    assert digests(killed) != digests(tmp_path / "whole")
    finished("resume", killed, "--progress", "silent")
    assert digests(killed) == digests(tmp_path / "whole")


SHARED = ("--batch-size", "6", "--train-examples", "64", "--held-out", "8", "--micro-batch-tokens", "64")


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_processes_that_share_a_model_are_killed_one_after_another_and_the_run_is_resumed_by_two_and_by_one(tmp_path):
    """The whole run is equal up to rounding: gradients of two processes are added in another order."""
    common = ("sft", "arithmetic", "--seeds", "1", "--budget", "120", "--threads", "1", "--progress", "silent", *SHARED)
    finished("train", *common, "--run", tmp_path / "whole")
    killed, shared = tmp_path / "killed", ("--processes", "2", "--fsdp")
    calls = ("train", *common, "--checkpoint-seconds", "0", "--run", killed), ("resume", killed, "--progress", "silent")
    for place, call in zip((-1, 0), calls, strict=True):
        with operant(*call, *shared) as process:
            first_checkpoint(process, killed)
            os.kill(workers(process)[place], signal.SIGKILL)
            _, told = process.communicate(timeout=200)
        assert process.returncode == 1
        assert "processes these have died" in told
        assert "`operant resume RUN` continues from the latest checkpoint, on any number of processes" in told
        assert "Traceback" not in told
    assert digests(killed)[0] < digests(tmp_path / "whole")[0]
    finished("resume", killed, "--progress", "silent")
    assert digests(killed)[0] == digests(tmp_path / "whole")[0]
    one, two = (load(sorted((run / "checkpoints").glob("step_*"))[-1]) for run in (tmp_path / "whole", killed))
    one, two = (state["learners"][0]["model"] for state in (one, two))
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_the_processes_of_a_killed_launcher_save_and_end(tmp_path):
    run = tmp_path / "run"
    words = (*RUN, "--budget", "100000000", "--shards", "2", "--processes", "2", "--checkpoint-seconds", "0")
    with operant("train", *words, "--run", run) as process:
        first_checkpoint(process, run)
        trainers = workers(process)
        assert len(trainers) == 2
        process.kill()
    deadline = time.monotonic() + 200
    while not all(map(ended, trainers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    session = json.loads((run / "run.json").read_text(encoding="utf-8"))["sessions"][-1]
    assert session["outcome"] == "interrupted"


@pytest.mark.skipif(os.name != "posix", reason="the parent of a process is of POSIX")
def test_a_process_whose_launcher_was_killed_does_not_look_for_the_others():
    code = """
from operant.runtime.signals import Interruption
from operant.scale import joined
with Interruption(), joined():
    pass
"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    values = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    other = {"TORCHELASTIC_RUN_ID": "operant-1-0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **values, **other}, check=False, timeout=200)
    assert done.returncode == 1


def ended(pid):
    """Return whether a process has ended, also if no parent has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
