"""Ray for one command alone: closed to others, gone with it however it ends, and without influence on any bit."""

import json
import os
import shutil
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

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

FACTS = """
import json, os, signal, stat, subprocess, sys, threading
from collections import Counter
from pathlib import Path
from operant import hosts
from operant.runtime.signals import Interruption
from operant.scale import ray_cluster, ray_janitor

assert "ray" not in sys.modules
facts, variables = {}, dict(os.environ)
with Interruption() as interrupted, ray_cluster.cluster() as host:
    assert hosts.current() is host
    folder = os.environ[ray_janitor.MARK]
    facts["mode"] = stat.S_IMODE(os.stat(folder).st_mode)
    numbers = ray_janitor.processes(folder, os.getpid()) + [os.getpid()]
    sockets = set()
    for number in numbers:
        for link in Path(f"/proc/{number}/fd").iterdir():
            try:
                sockets.add(os.readlink(link))
            except OSError:
                pass
    facts["addresses"] = sorted({
        words[1].split(":")[0]
        for table in ("tcp", "tcp6")
        for words in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets
    })
    stranger = subprocess.run(
        [sys.executable, "-c", ray_cluster._PROBE, host.address],
        env={**variables, "RAY_AUTH_MODE": "disabled"}, capture_output=True, text=True,
    )
    facts["stranger"] = ray_cluster.REJECTED in stranger.stderr and stranger.returncode
    actor = host.actor(Counter, "hello")
    facts["result"] = actor.call("most_common", 1).result(100)
    try:
        actor.call("total_of", 1).result(100)
    except AttributeError:
        facts["mistake"] = True
    try:
        actor.call("update", [[]]).result(100)
    except TypeError as error:
        facts["unhashable"] = str(error)
    from operant.language import verifiers
    functions = [verifiers.find(f"{sys.argv[1]}:shaped", workers=2)]
    given = {"completions": ["1", "23", "4 ", ""] * 3, "answer": [1, 2, 4, 3] * 3}
    with hosts.within(None):
        functions.append(verifiers.find(f"{sys.argv[1]}:shaped", workers=2))
    rewards = [function(**given) for function in functions]
    facts["rewards"] = rewards[0] == rewards[1] and len(set(rewards[0])) == 4
    before = actor.call("total").result(100)
    actor.call("update", [bytes(ray_cluster.OBJECT_STORE + 1)]).result(100)
    facts["large"] = actor.call("total").result(100) - before
    actor.kill()
    try:
        actor.call("most_common", 1).result(100)
    except ConnectionError as error:
        facts["lost"] = str(error)
    busy = host.actor(threading.Event)
    busy.call("is_set").result(100)
    reply = busy.call("wait")
    facts["done"] = reply.done()
    try:
        reply.result(0.2)
    except TimeoutError:
        facts["late"] = True
    os.kill(os.getpid(), signal.SIGTERM)
    facts["interrupted"] = interrupted()
    try:
        with ray_cluster.cluster():
            pass
    except RuntimeError as error:
        facts["twice"] = str(error)
try:
    busy.call("is_set").result(1)
except ConnectionError as error:
    facts["ended"] = str(error)
facts["left"] = [Path(folder).exists(), ray_janitor.processes(folder, os.getpid())]
own = [*ray_cluster._LOCAL, ray_janitor.MARK]
facts["environment"] = all(os.environ.get(name) == variables.get(name) for name in own) and hosts.current() is None
print(json.dumps(facts))
"""


def alone(program, *arguments):
    """Start a Python program."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_ray
def test_a_cluster_for_one_block(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    program = alone(FACTS, tmp_path / "own.py")
    out, err = program.communicate(timeout=200)
    assert program.returncode == 0, err
    facts = json.loads(out.splitlines()[-1])
    assert facts["mode"] == 0o700
    assert set(facts["addresses"]) <= {"0100007F", "0000000000000000FFFF00000100007F"}, "the loopback interface alone"
    assert len(facts["addresses"]) == 2
    assert facts["stranger"] == 1
    assert facts["result"] == [["l", 2]]
    assert facts["mistake"]
    assert facts["rewards"], "of functions on Ray and on this machine"
    assert "unhashable" in facts["unhashable"]
    assert facts["large"] == 1, "a message that is larger than the shared memory arrives"
    assert "an actor on Ray is lost" in facts["lost"]
    assert not facts["done"]
    assert facts["late"]
    assert facts["interrupted"], "the handler of SIGTERM is that of before"
    assert "already connected" in facts["twice"]
    assert "ended with its cluster" in facts["ended"]
    assert facts["left"] == [False, []]
    assert facts["environment"]


KILLED = """
import os, time
from operant.scale import ray_cluster, ray_janitor
from collections import Counter

with ray_cluster.cluster() as host:
    host.actor(Counter, "hello").call("most_common", 1).result(100)
    folder = os.environ[ray_janitor.MARK]
    print(folder, *ray_janitor.processes(folder, os.getpid()), flush=True)
    time.sleep(600)
"""


def gone(number):
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@needs_ray
def test_a_killed_driver_leaves_nothing():
    driver = alone(KILLED)
    folder, *numbers = driver.stdout.readline().split()
    assert len(numbers) > 3
    driver.kill()
    driver.communicate()
    end = time.monotonic() + 60
    while (Path(folder).exists() or not all(map(gone, numbers))) and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(folder).exists()
    assert all(map(gone, numbers))


OWN = """
import contextlib
import os
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Noise(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, folder):
        self.folder, self.steps = Path(folder), 0
        (self.folder / str(os.getpid())).touch()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 40 and os.environ.get("RAY_RAYLET_PID"):
            with contextlib.suppress(FileExistsError):
                (self.folder / "killed").touch(exist_ok=False)  # one actor alone
                os._exit(9)
        return self.np_random.normal(size=2).astype(np.float32), float(action), self.np_random.random() < 0.1, False, {}


def shaped(completions, answer, **_):
    return [float(len(text)) / 7 + (text.strip() == str(gold)) for text, gold in zip(completions, answer)]
"""


def digests(run):
    checkpoint = sorted((run / "checkpoints").glob("step_*"))[-1]
    return {n: f["sha256"] for n, f in json.loads((checkpoint / "manifest.json").read_bytes())["files"].items()}


def operant(*words):
    command = [sys.executable, "-m", "operant", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@needs_ray
def test_ppo_with_environments_on_ray_has_the_bytes_of_one_process_though_an_actor_dies(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    words = ["train", "ppo", f"{tmp_path}/own.py:Noise", "--seeds", 1, "--num-envs", 4, "--num-steps", 16]
    words += ["--num-minibatches", 2, "--budget", 320, "--evaluate-episodes", 2, "--progress", "silent"]
    words += ["--env-kwargs", f"folder={tmp_path}", "--vectorization", "async", "--num-workers", 2]
    words += ["--lost-workers", "replay", "--run"]
    assert main([*map(str, words), str(tmp_path / "here")]) == 0
    processes = len(list(tmp_path.glob("[0-9]*")))
    done = operant(*words, tmp_path / "ray", "--ray")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert len(list(tmp_path.glob("[0-9]*"))) == processes + 3, "two actors, and another one"
    assert "replayed their episodes (replacement 1 in" in done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "here")
    config = [(tmp_path / name / "config.toml").read_text(encoding="utf-8") for name in ("here", "ray")]
    assert config[0] == config[1], "where workers run is no part of a run"


@needs_ray
def test_impala_with_actors_on_ray_has_the_bytes_of_one_process_though_one_dies(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    words = ["train", "impala", f"{tmp_path}/own.py:Noise", "--seeds", 2, "--num-actors", 3, "--num-envs", 1]
    words += ["--num-steps", 16, "--rollouts-per-batch", 3, "--hidden-sizes", 8, "--budget", 480]
    words += ["--progress", "silent", "--evaluate-episodes", 2, "--env-kwargs", f"folder={tmp_path}"]
    assert main([*map(str, words), "--run", str(tmp_path / "here")]) == 0
    done = operant(*words, "--workers", 2, "--run", tmp_path / "ray", "--ray")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert "is lost (an actor on Ray is lost" in done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "here")
    done = operant(*words, "--workers", 3, "--max-staleness", 1, "--run", tmp_path / "stale", "--ray")
    assert done.returncode == 0, done.stderr
    records = (tmp_path / "stale" / "metrics.jsonl").read_text(encoding="utf-8")
    staleness = [json.loads(line)["staleness/most"] for line in records.splitlines()]
    assert max(staleness) <= 1
    assert digests(tmp_path / "stale") != digests(tmp_path / "here")


GRID = """
algorithm = "q-learning"
task = "FrozenLake-v1"
seeds = 1
budget = 400

[grid]
step_size = [0.1, 0.5]

[settings]
evaluate_episodes = 2
"""


@needs_ray
def test_a_sweep_on_ray_has_the_bytes_of_one_process(tmp_path, capsys):
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    words = ["sweep", str(grid), "--json", "--out"]
    assert main([*words, str(tmp_path / "inline"), "--executor", "inline"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    done = operant(*words, tmp_path / "ray", "--executor", "ray")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    for run in (tmp_path / "ray" / "runs").iterdir():
        assert digests(run) == digests(tmp_path / "inline" / "runs" / run.name)


@needs_ray
def test_a_stopped_sweep_saves_its_cell_and_leaves_nothing(tmp_path):
    grid, out = tmp_path / "grid.toml", tmp_path / "sweep"
    grid.write_text(GRID.replace("budget = 400", "budget = 900_000_000"), encoding="utf-8")
    temporary = Path(tempfile.mkdtemp(prefix="r"))  # a short path, as for a socket; other tests may use Ray, too
    command = [sys.executable, "-m", "operant", "sweep", grid, "--out", out, "--executor", "ray", "--workers", "1"]
    own = {**os.environ, "TMPDIR": str(temporary)}
    sweep = subprocess.Popen(list(map(str, command)), env=own, stderr=subprocess.PIPE, text=True)
    first = out / "runs" / "q-learning-FrozenLake-v1-step_size-0.1"
    end = time.monotonic() + 150
    while not (first / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.1)
    folders = list(temporary.glob("operant-ray-*"))
    sweep.send_signal(signal.SIGTERM)
    assert "interrupted; continue with" in sweep.communicate(timeout=150)[1]
    assert sweep.returncode == 75
    assert json.loads((first / "run.json").read_text(encoding="utf-8"))["sessions"][-1]["outcome"] == "interrupted"
    (folder,) = folders
    assert not folder.exists()
    assert not ray_janitor.processes(str(folder), sweep.pid)
    shutil.rmtree(temporary)


OPEN = """
import os, sys
from ray.cluster_utils import Cluster
node = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "object_store_memory": 80 << 20, "temp_dir": os.environ["RAY_TMPDIR"] + "/ray",
    "include_dashboard": False,
})
print(node.address, flush=True)
sys.stdin.read()
node.shutdown()
"""


@needs_ray
def test_an_existing_cluster_that_lets_in_everybody_is_used_on_request_alone(tmp_path, capfd):
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    (folder / "ray").mkdir()
    environment = {**os.environ, "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled", ray_janitor.MARK: str(folder)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    head = subprocess.Popen([sys.executable, "-c", OPEN], env=environment, **pipes)
    try:
        address = head.stdout.readline().strip()
        assert not ray_cluster._is_loopback(address)
        with pytest.raises(ValueError, match=f"{address} allows any client to run code"):
            ray_cluster._require_authentication(address)
        script = "import sys; from operant.scale.ray_cluster import cluster\nwith cluster(sys.argv[1], "
        script += "unauthenticated=True) as host: print(host.address, host.cpus)"
        done = subprocess.run(
            [sys.executable, "-c", script, address], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == [address, "1"], done.stderr
    finally:
        head.communicate()
        ray_janitor.clean(str(folder), os.getpid())


UNSTARTED = """
import os, sys
from operant.scale import ray_cluster, ray_janitor
folders, folder = [], ray_cluster._folder
def kept():
    folders.append(made := folder())
    return made
ray_cluster._folder = kept
if sys.argv[1:]:
    import ray
try:
    with ray_cluster.cluster():
        pass
except (ConnectionError, RuntimeError) as error:
    print(len(folders), type(error).__name__, error)
print("ray.init" if "ray" in sys.modules and sys.modules["ray"].is_initialized() else "not connected")
"""


@needs_ray
def test_a_cluster_that_does_not_start_in_time_is_started_again_and_then_an_error(monkeypatch):
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "0")
    out, err = alone(UNSTARTED).communicate(timeout=200)
    assert out.startswith("3 _StartError Ray could not be started: "), out + err
    assert out.endswith("not connected\n")


@needs_ray
def test_ray_must_not_be_imported_before_its_cluster_is_started():
    out, err = alone(UNSTARTED, "import").communicate(timeout=200)
    assert out.startswith("1 RuntimeError Ray would listen beyond the loopback interface: "), out + err


def test_importing_operant_does_not_import_ray():
    code = (
        "import sys, operant, operant.api, operant.cli, operant.scale, operant.scale.sweep, operant.scale.ray_cluster; "
    )
    program = alone(code + "print('ray' in sys.modules)")
    assert program.communicate()[0] == "False\n"


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "head", "head:"])
def test_other_addresses_are_refused(address):
    with pytest.raises(ValueError, match="expected HOST:PORT or auto"), ray_cluster.cluster(address):
        pass


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .operant\[scale\]"), ray_cluster.cluster():
        pass


def test_an_old_ray_is_refused(monkeypatch):
    class Old:
        __version__ = "2.53.1"

    monkeypatch.setitem(sys.modules, "ray", Old)
    with (
        pytest.raises(ModuleNotFoundError, match=r"2\.54 or later, got 2\.53\.1: pip install"),
        ray_cluster.cluster("127.0.0.1:1"),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:6379", True), ("localhost:1", True), ("[::1]:6379", True), ("192.0.2.7:6379", False), ("auto", False)],
)
def test_the_loopback_interface(address, expected):
    assert ray_cluster._is_loopback(address) == expected


def test_ray_needs_workers(capfd):
    assert main(["train", "ppo", "CartPole-v1", "--ray"]) == 2
    assert "add --vectorization async" in capfd.readouterr().err
    for algorithm in ("grpo", "sft"):
        assert main(["train", algorithm, "arithmetic", "--ray"]) == 2
        assert f"this run of {algorithm} has none: leave out --ray" in capfd.readouterr().err
    assert main(["train", "impala", "CartPole-v1", "--ray", "--num-actors", "6"]) == 2
    assert "add --workers 6" in capfd.readouterr().err
    assert main(["sweep", "grid.toml", "--ray-address", "auto"]) == 2
    assert "need --executor ray" in capfd.readouterr().err
