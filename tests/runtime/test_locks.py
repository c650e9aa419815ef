import os
import signal
import subprocess
import sys
import threading

import pytest

from operant.runtime.locks import HeldError, held, is_held

HOLD = """
import os, sys, time
from operant.runtime.locks import held
from pathlib import Path
with held(Path(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_a_busy_worker_of_a_killed_process_holds_nothing(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    try:
        with pytest.raises(HeldError, match=f"process {process.pid} on "), held(tmp_path):
            pass
        process.kill()
        process.wait()
        os.kill(worker, 0)  # the file still exists
        with held(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        process.communicate()


def test_a_process_that_was_forked_off_does_not_release_it_when_it_ends(tmp_path):
    with held(tmp_path):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        with pytest.raises(HeldError), held(tmp_path):
            pass


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(OSError, match="No such file"), held(tmp_path / "missing"):
        pass


def test_a_lock_that_is_held_for_an_instant_is_waited_for(tmp_path):
    """As by a process that lists runs while another one resumes one of them."""
    listing = held(tmp_path)
    listing.__enter__()
    threading.Timer(0.2, listing.__exit__, (None, None, None)).start()
    with pytest.raises(HeldError), held(tmp_path):
        pass
    with held(tmp_path, patience=30.0):
        pass


def test_whether_a_lock_is_held_is_found_without_writing(tmp_path):
    assert not is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path):
        assert is_held(tmp_path)
        assert is_held(tmp_path)
    before = [(path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()]
    folder = tmp_path.stat().st_mtime_ns
    assert not is_held(tmp_path)
    assert [(path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()] == before
    assert tmp_path.stat().st_mtime_ns == folder, "no file was created and removed"
