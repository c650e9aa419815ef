"""A cell runs one command in a process on a node, and runs again if the node is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host_here import HostHere
from operant.scale.cell import CellActor, RemoteCell


def alive(number):
    """Return whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


ENVIRONMENT = {"PYTHONPATH": os.environ.get("PYTHONPATH")}


def started(folder, *words):
    return CellActor(words, str(folder), str(folder / "log"), ENVIRONMENT)


def test_a_command_gives_its_status_and_its_output(tmp_path):
    assert started(tmp_path, "list", "--json").wait() == 0
    assert '"ppo"' in (tmp_path / "log").read_text(encoding="utf-8")
    assert started(tmp_path, "train", "unknown", "CartPole-v1").wait() == 2
    assert "unknown" in (tmp_path / "log").read_text(encoding="utf-8")


PARENT = """
import os, sys
from pathlib import Path
from operant.scale.cell import CellActor

words = ["train", "q-learning", "FrozenLake-v1", "--budget", "900000000", "--run", "run"]
actor = CellActor(words, sys.argv[1], sys.argv[1] + "/log", {})
print(actor._process.pid, flush=True)
actor.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_cell_ends_with_its_node(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    number = int(parent.stdout.readline())
    end = time.monotonic() + 120
    while not (tmp_path / "run" / "config.toml").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert (tmp_path / "run" / "config.toml").exists()
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 20
    while alive(number) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(number)


def test_a_remote_cell_is_used_like_a_process(tmp_path):
    host = HostHere()
    cell = RemoteCell(host, ["list", "--json"], tmp_path / "log")
    assert cell.wait() == 0
    assert cell.poll() == 0
    assert host.actors[0].lost, "it is not needed anymore"


def test_a_lost_cell_is_to_be_continued(tmp_path):
    host = HostHere()
    words = ["train", "q-learning", "FrozenLake-v1", "--budget", "900000000", "--run", str(tmp_path / "run")]
    cell = RemoteCell(host, words, tmp_path / "log")
    assert host.actors[0].made.result()
    assert cell.poll() is None
    host.actors[0].kill()
    assert cell.poll() == 75
    process = host.actors[0].made.result()._process
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_stopped_cell_saves_and_one_that_has_not_begun_never_does(tmp_path):
    host = HostHere()
    words = ["train", "q-learning", "FrozenLake-v1", "--budget", "900000000", "--run", str(tmp_path / "run")]
    cell = RemoteCell(host, words, tmp_path / "log")
    end = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.1)
    cell.terminate()
    assert cell.wait() == 75
    assert "interrupted and saved" in (tmp_path / "log").read_text(encoding="utf-8")


class Waiting(HostHere):
    """Host without a free node."""

    def actor(self, kind, *args, threads=1):
        return super().actor(time.sleep, 1.0, threads=threads)


def test_a_cell_that_has_not_begun_is_dropped(tmp_path):
    cell = RemoteCell(Waiting(), ["list"], tmp_path / "log")
    cell.terminate()
    assert cell.poll() == 75
