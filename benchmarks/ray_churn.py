"""Runs with workers on Ray, of which something is killed all the time, and starts and stops of Ray.

`python benchmarks/ray_churn.py` trains PPO with environments, IMPALA with actors and GRPO with reward functions on a
cluster of four nodes on this machine, while actors are killed and stopped, and nodes removed and added; compares the
final checkpoints with those of undisturbed runs without Ray; and lists what is left behind. `--starts 50` starts and
stops a cluster 50 times.
Needs the extra `scale`, and /proc.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import leftovers

NODES = 4
SLOW = '''
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Slow(gymnasium.Env):
    """Observes noise, takes a hundredth of a second, and ends at random."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        time.sleep(0.01)
        obs = self.np_random.normal(size=2).astype(np.float32)
        return obs, float(action), bool(self.np_random.random() < 0.1), False, {}


def shaped(completions, answer, **_):
    time.sleep(0.2)
    return [float(len(text)) / 7 + (text.strip() == str(gold)) for text, gold in zip(completions, answer)]
'''
COMMON = ["--seeds", "1", "--progress", "silent", "--checkpoint-seconds", "2"]
PPO = ["--num-envs", "4", "--num-steps", "32", "--num-minibatches", "2", "--evaluate-episodes", "2"]
IMPALA = ["--num-actors", "4", "--num-envs", "1", "--num-steps", "32", "--evaluate-episodes", "2"]
WORKERS = {
    "ppo": ["--vectorization", "async", "--num-workers", "2", "--lost-workers", "replay"],
    "impala": ["--workers", "2"],
    "grpo": [],
}
GRPO = ["--reward-workers", "2", "--prompts-per-batch", "8", "--num-generations", "4", "--held-out", "8"]
GRPO += ["--train-examples", "32", "--max-completion-length", "4"]


def commands(folder, budget):
    """Return the commands; flags of workers apart."""
    file = folder / "own.py"
    file.write_text(SLOW, encoding="utf-8")
    return {
        "ppo": ["train", "ppo", f"{file}:Slow", *COMMON, *PPO, "--budget", str(32 * budget)],
        "impala": ["train", "impala", f"{file}:Slow", *COMMON, *IMPALA, "--budget", str(32 * budget)],
        "grpo": ["train", "grpo", "arithmetic", "--rewards", f"{file}:shaped", *COMMON, *GRPO, "--budget", str(budget)],
    }


def operant(words):
    """Start the command line, with its output in a file."""
    command = [sys.executable, "-m", "operant", *map(str, words)]
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    process.log = log
    return process


def text_of(process):
    """Wait for a process and return its output."""
    process.wait()
    process.log.seek(0)
    return process.log.read()


def digests(run):
    """Return the SHA-256 of the files of the last checkpoint."""
    manifest = json.loads((sorted((run / "checkpoints").glob("step_*"))[-1] / "manifest.json").read_bytes())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


def left():
    """Return what commands and clusters leave: processes, ports, shared memory, and temporary folders."""
    mark = os.environ[leftovers.MARK]
    processes = leftovers.marked(mark)
    return {
        "processes": {(number, command[:60]) for number, command in processes.items()},
        "ports": leftovers.ports(processes),
        "shm": leftovers.shared(mark),
        "folders": {str(path) for path in Path(tempfile.gettempdir()).glob("operant-ray-*")},
    }


def new(before, seconds=20.0):
    """Return what there is since `before` for longer than some seconds."""
    end = time.monotonic() + seconds
    while True:
        found = {name: sorted(now - before[name]) for name, now in left().items()}
        if not any(found.values()) or time.monotonic() > end:
            return found
        time.sleep(0.2)


def actors(kind, folder):
    """Return the processes of the actors of a cluster with a class."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"ray::{kind}".encode() in (place / "cmdline").read_bytes() and _uses(place, folder):
                found.append(int(place.name))
    return sorted(found)


def _uses(place, folder):
    for link in (place / "fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(f"{folder}/"):
                return True
    return False


@contextlib.contextmanager
def nodes(count):
    """Give a cluster of several nodes on this machine, with a token, and its folder."""
    from operant.scale import ray_cluster, ray_janitor

    with ray_cluster._folder() as folder:
        (folder / "ray").mkdir()
        values = {**ray_cluster._LOCAL, ray_janitor.MARK: str(folder), "RAY_TMPDIR": str(folder)}
        with ray_cluster._environment(values, without="RAY_ADDRESS"):
            from ray.cluster_utils import Cluster

            options = {"num_cpus": 1, "object_store_memory": 80 << 20, "temp_dir": str(folder / "ray")}
            cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
            cluster.add = lambda: cluster.add_node(**options)
            cluster.others = [cluster.add() for _ in range(count - 1)]
            try:
                yield cluster, folder
            finally:
                cluster.shutdown()


def disturb(process, cluster, folder, *, run, kind, generator, pause):
    """Kill, stop and remove at random until a process ends, and return what was done.

    Training makes progress in between: a worker that is lost again and again ends it.
    """
    done, size = {"actor killed": 0, "actor stopped for a while": 0, "node removed": 0}, 0
    records = run / "metrics.jsonl"
    while process.poll() is None:
        time.sleep(pause)
        found = actors(kind, folder)
        grown = records.stat().st_size if records.exists() else 0
        if not found or grown == size or process.poll() is not None:
            continue
        size = grown
        what = generator.choice(list(done))
        with contextlib.suppress(ProcessLookupError):
            if what == "actor killed":
                os.kill(generator.choice(found), signal.SIGKILL)
            elif what == "actor stopped for a while":
                slow = generator.choice(found)
                os.kill(slow, signal.SIGSTOP)
                time.sleep(1.0)
                os.kill(slow, signal.SIGCONT)
            else:
                node = cluster.others.pop(generator.randrange(len(cluster.others)))
                cluster.remove_node(node, allow_graceful=False)
                cluster.others.append(cluster.add())
            done[what] += 1
    return done


def churn(budget, pause, seed):
    """Train undisturbed without Ray and disturbed with it, compare, and return whether all is well."""
    before, generator, well = left(), random.Random(seed), True
    with tempfile.TemporaryDirectory(prefix="operant-churn-") as place:
        words = commands(Path(place), budget)
        kinds = {"ppo": "Groups", "impala": "RolloutWorker", "grpo": "SandboxWorker"}
        for name in words:
            plain = operant([*words[name], "--run", f"{place}/{name}-plain"])
            assert plain.wait() == 0, text_of(plain)
        for name in words:
            begin = time.perf_counter()
            with nodes(NODES) as (cluster, folder):
                call = [*words[name], *WORKERS[name], "--run", f"{place}/{name}-ray", "--ray-address", cluster.address]
                process = operant(call)
                chances = {"generator": generator, "pause": pause}
                done = disturb(process, cluster, folder, run=Path(place, f"{name}-ray"), kind=kinds[name], **chances)
                text = text_of(process)
            same = process.returncode == 0 and digests(Path(place, f"{name}-plain")) == digests(
                Path(place, f"{name}-ray")
            )
            seconds, well = time.perf_counter() - begin, well and same
            events = ", ".join(f"{count} x {what}" for what, count in done.items())
            print(
                f"{name}: status {process.returncode}, {'equal' if same else 'OTHER'} bytes; {events}; {seconds:.0f} s"
            )
            if not same:
                print(text)
        well &= killed_driver(words["ppo"], Path(place))
    return report(before) and well


def killed_driver(words, place):
    """Kill a driver with a cluster of its own, continue without Ray, and compare."""
    run = place / "ppo-killed"
    driver = operant([*words, *WORKERS["ppo"], "--run", run, "--ray"])
    while driver.poll() is None and not list((run / "checkpoints").glob("step_*")):
        time.sleep(0.2)
    time.sleep(3.0)
    driver.kill()
    driver.wait()
    resumed = operant(["resume", run, "--progress", "silent"])
    text = text_of(resumed)
    same = resumed.returncode == 0 and digests(run) == digests(place / "ppo-plain")
    print(f"ppo, its driver killed, resumed without Ray: {'equal' if same else 'OTHER'} bytes")
    if not same:
        print(text)
    return same


def starts(count):
    """Start and stop a cluster many times, with an actor each, and return whether nothing is left."""
    from collections import Counter

    from operant.scale.ray_cluster import cluster

    before, seconds = left(), []
    for _ in range(count):
        begin = time.perf_counter()
        with cluster() as host:
            assert host.actor(Counter, "hello").call("most_common", 1).result(60) == [("l", 2)]
            now = left()
            assert all(now[name] for name in ("processes", "ports", "folders")), "they are found while they run"
        seconds.append(time.perf_counter() - begin)
    print(f"{count} starts and stops, median {sorted(seconds)[count // 2]:.1f} s")
    return report(before)


def report(before):
    """Print what is left, and return whether it is nothing."""
    found = new(before)
    print(f"left behind: {({name: items for name, items in found.items() if items}) or 'nothing'}")
    return not any(found.values())


def main():
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=0, help="start and stop a cluster this often, and nothing else")
    parser.add_argument(
        "--budget", type=int, default=128, help="prompts of GRPO; PPO and IMPALA take 32 steps for each"
    )
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two disturbances")
    parser.add_argument("--seed", type=int, default=0, help="of the disturbances")
    options = parser.parse_args()
    os.environ[leftovers.MARK] = str(os.getpid())  # of everything that is started
    if importlib.util.find_spec("ray") is None:
        print('Ray is not installed: pip install "operant[scale]"')
        return 0
    return int(not (starts(options.starts) if options.starts else churn(options.budget, options.pause, options.seed)))


if __name__ == "__main__":
    sys.exit(main())
