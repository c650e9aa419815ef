"""The scripts of the documentation, with the commands of SLURM replaced, on two processes of this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from operant.scale import ray_cluster, ray_janitor
from operant.scale.sweep import Sweep

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
FAKES = {
    "scontrol": '[ "$1" = requeue ] && echo "$2" >> "$REQUEUED" || echo localhost',
    "srun": 'while [[ "$1" == -* ]]; do [ "$1" != -w ] || shift; shift; done; exec "$@"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    "operant": f'exec "{sys.executable}" -m operant "$@"',
    "ray": f'exec "{sys.executable}" -m ray.scripts.scripts "$@"',
}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scripts of bash")


@pytest.fixture
def environment(tmp_path):
    """Return the environment of the scripts."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, line in FAKES.items():
        (tools / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    values = {"PATH": f"{tools}:{os.environ['PATH']}", "REQUEUED": str(tmp_path / "requeued")}
    return {**os.environ, **values}


def script(words):
    """Return the only script of the page that contains some words."""
    (found,) = [
        part for part in PAGE.read_text(encoding="utf-8").split("```bash\n") if words in part.partition("```")[0]
    ]
    return found.partition("```")[0]


@pytest.fixture
def job(tmp_path, environment):
    """Return a function that runs the script for one run on several nodes."""
    small = (
        f"--seeds 1 --budget 24 --batch-size 6 --train-examples 64 --held-out 8 --progress silent --run {tmp_path}/one"
    )
    changes = {
        "/shared/runs/one": f"{tmp_path}/one",
        '--model small --run "$run"': small,
        "--nproc-per-node 8": "--nproc-per-node 2",
        ":29400": ":0",
    }
    text = script("srun torchrun")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)

    def run(**variables):
        values = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node", "SLURM_JOB_NUM_NODES": "1", **variables}
        return subprocess.run(
            ["bash", "-c", text],
            env={**environment, **values},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    return run


def test_torchrun_lets_the_processes_save_before_slurm_ends_the_job():
    """It kills processes 30 seconds after a signal by default."""
    page = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^(?:srun )?torchrun .*", page, re.MULTILINE)
    assert len(commands) == 2
    timeouts = [int(re.search(r"--shutdown-timeout (\d+)", command)[1]) for command in commands]
    assert max(timeouts) < int(re.search(r"--signal=TERM@(\d+)", script("srun torchrun"))[1])
    assert min(timeouts) > 60


def test_a_job_of_slurm_trains_and_is_queued_again_after_a_failure(job, tmp_path):
    done = job()
    assert (tmp_path / "one" / "run.json").exists(), done.stderr
    assert not (tmp_path / "requeued").exists(), done.stderr
    assert (tmp_path / "one" / "checkpoints" / f"step_{24:012d}").exists()
    (tmp_path / "one" / "run.json").write_text("damaged", encoding="utf-8")
    job()
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "7\n"
    (tmp_path / "tools" / "torchrun").write_text("#!/bin/bash\nexit 1\n", encoding="utf-8")
    job(SLURM_RESTART_COUNT="20")
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "7\n", "not without end"


def test_a_job_of_an_array_is_queued_again_if_its_cell_was_stopped_and_not_if_it_fails(tmp_path, environment):
    grid = {"algorithm": "ppo", "task": "CartPole-v1", "seeds": 1, "budget": 10**8, "grid": {"gamma": [0.9, 0.99]}}
    sweep = Sweep(tmp_path / "sweep", {**grid, "config": {"num_envs": 4, "num_steps": 16, "hidden_sizes": [8]}})
    sweep.write()
    text = script("SLURM_ARRAY_TASK_ID")
    assert "/shared/sweep" in text

    def started(cell):
        values = {**environment, "SLURM_ARRAY_TASK_ID": str(cell), "SLURM_ARRAY_JOB_ID": "7"}
        return subprocess.Popen(["bash", "-c", text.replace("/shared/sweep", str(sweep.path))], env=values)

    process, run, deadline = started(1), sweep.cells[1].path, time.monotonic() + 200
    while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)  # to the script alone, as of --signal=B:TERM
    process.wait(timeout=200)
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "7_1\n"
    session = json.loads((run / "run.json").read_text(encoding="utf-8"))["sessions"][-1]
    assert session["outcome"] == "interrupted"
    assert not sweep.cells[0].path.exists()
    started(2).wait(timeout=200)
    assert (tmp_path / "requeued").read_text(encoding="utf-8") == "7_1\n", "there is no such cell"


def test_a_job_of_skypilot_begins_a_run_and_then_continues_it(tmp_path, environment):
    (text,) = re.findall(r"^run: \|\n((?:  .*\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    values = {**environment, "SKYPILOT_NUM_GPUS_PER_NODE": "2"}
    small = "--seeds 1 --budget 24 --batch-size 6 --train-examples 64 --held-out 8"
    text = textwrap.dedent(text).replace("--model small", small).replace("/runs/one", f"{tmp_path}/one")
    for sessions in (1, 2):
        done = subprocess.run(
            ["bash", "-ec", text], env=values, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "one" / "run.json").read_text(encoding="utf-8"))
        assert len(found["sessions"]) == sessions
        assert found["sessions"][-1]["outcome"] == "finished"


@pytest.fixture
def nodes():
    """Return the environment of Ray's nodes on this machine, which end with the test."""
    values = {"RAY_AUTH_TOKEN": ray_cluster._TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    with ray_cluster._folder() as folder:
        (folder / "ray").mkdir()
        yield {**values, "RAY_TMPDIR": str(folder), ray_janitor.MARK: str(folder)}


@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_a_job_of_slurm_trains_the_cells_of_a_sweep_on_two_nodes_of_ray(tmp_path, environment, nodes):
    text = script("srun --nodes=1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for old, new in {"6379": port, "--block": "--block --num-cpus=1 --object-store-memory=80000000"}.items():
        assert old in text
        text = text.replace(old, new)
    config = "num_envs = 4\nnum_steps = 16\nhidden_sizes = [8]\n"
    grid = 'algorithm = "ppo"\ntask = "CartPole-v1"\nseeds = 1\nbudget = 128\n'
    (tmp_path / "grid.toml").write_text(f"{grid}[grid]\ngamma = [0.9, 0.99]\n[config]\n{config}", encoding="utf-8")
    values = {**environment, **nodes, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node", "SLURM_JOB_NUM_NODES": "2"}
    with (tmp_path / "told").open("w") as told:  # no pipe: the nodes, which SLURM would end, would keep it open
        subprocess.run(
            ["bash", "-c", text], env=values, cwd=tmp_path, stdout=told, stderr=told, timeout=500, check=True
        )
    runs = [json.loads((path / "run.json").read_text(encoding="utf-8")) for path in (tmp_path / "sweep/runs").iterdir()]
    assert [run["sessions"][-1]["outcome"] for run in runs] == ["finished"] * 2
    assert not (tmp_path / "requeued").exists()
