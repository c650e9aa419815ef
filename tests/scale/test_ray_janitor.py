"""When a driver ends, its folder and the processes that use it are removed, and others stay."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from operant.scale import ray_janitor

SLEEP = "import sys, time; print('up', flush=True); time.sleep(600)"
DRIVER = f"""
import os, subprocess, sys, time
folder = sys.argv[1]
open(folder + "/log", "w").close()
janitor = subprocess.Popen([sys.executable, {ray_janitor.__file__!r}, folder], stdin=subprocess.PIPE)
marked = {{**os.environ, {ray_janitor.MARK!r}: folder}}
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [
    subprocess.Popen(sleep, env=marked, start_new_session=True),
    subprocess.Popen([*sleep, folder], start_new_session=True),
]
with open(folder + "/log") as log:
    holder = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    holder += "stdin=0, start_new_session=True)"
    subprocess.run([sys.executable, "-c", holder], stdin=log, check=True)  # its child has another parent
time.sleep(0.3)
print(janitor.pid, *(child.pid for child in children), flush=True)
time.sleep(600)
"""


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


def test_a_killed_driver_leaves_nothing(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    other = subprocess.Popen([sys.executable, "-c", SLEEP, str(tmp_path)], stdout=subprocess.PIPE)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE, text=True)
    numbers = list(map(int, driver.stdout.readline().split()))
    using = ray_janitor.processes(str(folder), driver.pid)
    assert set(numbers[1:]) < set(using)
    assert len(using) == 4, "the janitor, two children, and one with an open file"
    driver.kill()
    driver.communicate()
    end = time.monotonic() + 20
    while (folder.exists() or any(map(alive, using))) and time.monotonic() < end:
        time.sleep(0.1)
    assert not folder.exists()
    assert not any(map(alive, using))
    assert other.poll() is None
    other.kill()
    other.communicate()


def test_processes_that_the_driver_has_forked_are_not_those_of_the_cluster(tmp_path):
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen([sys.executable, "-c", SLEEP], stdin=log, stdout=subprocess.PIPE)
        child.stdout.readline()
        assert child.pid not in ray_janitor.processes(str(tmp_path), os.getpid())
        assert child.pid in ray_janitor.processes(str(tmp_path), 1)
        child.kill()
        child.communicate()
