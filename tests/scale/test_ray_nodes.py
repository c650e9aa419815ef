"""A Ray cluster of four nodes on this machine, with losses during training: all bits are equal, no process is left."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from operant.cli import main
from operant.scale import ray_cluster, ray_janitor

pytestmark = pytest.mark.skipif(find_spec("ray") is None or not Path("/proc").exists(), reason="needs Ray and /proc")

NODES = """
import os, signal, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster

options = {"num_cpus": 1, "object_store_memory": 80 << 20, "temp_dir": os.environ["RAY_TMPDIR"] + "/ray"}
cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
others = [cluster.add_node(**options) for _ in range(3)]


def actors(node, kind):
    (raylet,) = node.all_processes["raylet"]
    children = Path(f"/proc/{raylet.process.pid}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    return [pid for pid in pids if f"ray::{kind}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


print(cluster.address, flush=True)
for what, kind in map(str.split, sys.stdin):
    while not (used := [node for node in others if actors(node, kind)]):
        time.sleep(0.1)
    (pid, *_) = actors(used[0], kind)
    if what == "kill":
        os.kill(pid, signal.SIGKILL)
    elif what == "slow":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(pid, signal.SIGCONT)
    else:
        others.remove(used[0])
        cluster.remove_node(used[0], allow_graceful=False)
        others.append(cluster.add_node(**options))
    print(what, flush=True)
cluster.shutdown()
"""

OWN = '''
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

RUN, DONE = Path({run!r}), Path({done!r})


def wait():
    """Do not let a run on Ray end before everything was lost that is to be lost."""
    if os.environ.get("RAY_RAYLET_PID") and (RUN / "metrics.jsonl").exists():
        end = time.monotonic() + 30
        while len((RUN / "metrics.jsonl").read_bytes().splitlines()) > 6 and not DONE.exists():
            time.sleep(0.05)
            if time.monotonic() > end:
                break


class Noise(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype(np.float32), {{}}

    def step(self, action):
        wait()
        obs = self.np_random.normal(size=2).astype(np.float32)
        return obs, float(action), bool(self.np_random.random() < 0.1), False, {{}}


def shaped(completions, answer, **_):
    wait()
    return [float(len(text)) / 7 + (text.strip() == str(gold)) for text, gold in zip(completions, answer)]
'''
COMMON = ["--seeds", "1", "--progress", "silent", "--checkpoint-seconds", "0"]
CONTROL = ["--evaluate-episodes", "2", "--hidden-sizes", "8", "--budget", "1280", "--num-steps", "16"]
GRPO = ["--prompts-per-batch", "4", "--num-generations", "2", "--held-out", "4", "--train-examples", "32"]
CASES = {
    "ppo": (["--num-envs", "4", "--num-minibatches", "2", *CONTROL], "Groups"),
    "impala": (["--num-actors", "4", "--num-envs", "1", *CONTROL], "RolloutWorker"),
    "grpo": ([*GRPO, "--max-completion-length", "4", "--budget", "80", "--reward-workers", "2"], "SandboxWorker"),
}
WORKERS = {
    "ppo": ["--vectorization", "async", "--num-workers", "2", "--lost-workers", "replay"],
    "impala": ["--workers", "2"],
    "grpo": [],
}


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a cluster of four nodes, and a function that makes a fault happen to an actor of a kind."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    (folder / "ray").mkdir()
    own = {**os.environ, **ray_cluster._LOCAL, ray_janitor.MARK: str(folder), "RAY_TMPDIR": str(folder)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    nodes = subprocess.Popen([sys.executable, "-c", NODES], env=own, **pipes)

    def happen(what, kind):
        print(what, kind, file=nodes.stdin, flush=True)
        assert nodes.stdout.readline().strip() == what

    try:
        yield nodes.stdout.readline().strip(), happen, own
    finally:
        nodes.communicate()
        left = ray_janitor.processes(str(folder), os.getpid())
        ray_janitor.clean(str(folder), os.getpid())
    assert nodes.returncode == 0
    assert not left, "runs must leave no actors, since these keep their nodes"


def operant(environment, *words):
    command = [sys.executable, "-m", "operant", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process):
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, out + err


def digests(run):
    checkpoint = sorted((run / "checkpoints").glob("step_*"))[-1]
    files = json.loads((checkpoint / "manifest.json").read_bytes())["files"]
    return checkpoint.name, {name: file["sha256"] for name, file in files.items()}


def progress(process, path, size):
    """Wait until a file or folder has more than `size` bytes or entries, and return how many."""
    end = time.monotonic() + 400
    while True:
        now = len(list(path.iterdir())) if path.is_dir() else path.stat().st_size if path.exists() else 0
        if now > size:
            return now
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.timeout(1200)  # of four runs, on a cluster of four nodes
@pytest.mark.parametrize("name", CASES)
def test_a_run_with_workers_on_four_nodes_has_the_bytes_of_one_process(name, cluster, tmp_path):
    """An actor is killed, one is slow, a node is removed; then the driver of another run is killed."""
    address, happen, environment = cluster
    own, here, there, killed = (tmp_path / part for part in ("own.py", "here", "there", "killed"))
    own.write_text(OWN.format(run=str(there), done=str(tmp_path / "done")), encoding="utf-8")
    task = ["arithmetic", "--rewards", f"{own}:shaped"] if name == "grpo" else [f"{own}:Noise"]
    words, kind = ["train", name, *task, *COMMON, *CASES[name][0]], CASES[name][1]
    on_ray = [*WORKERS[name], "--ray-address", address]
    assert main([*map(str, words), "--run", str(here)]) == 0

    process, size = operant(environment, *words, *on_ray, "--run", there), 0
    for what in ("kill", "slow", "remove"):
        size = progress(process, there / "metrics.jsonl", size)
        happen(what, kind)
    (tmp_path / "done").touch()
    finished(process)
    assert digests(there) == digests(here)

    driver = operant(environment, *words, *on_ray, "--run", killed)
    progress(driver, killed / "checkpoints", 0)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert main(["resume", str(killed), "--progress", "silent"]) == 0
    assert digests(killed) == digests(here)
