import os
import pty
import signal
import subprocess
import sys

import pytest

from faults.conftest import TESTS
from faults.trainer import go_on, make


def working(process):
    assert process.stdout.readline() == "working\n", process.communicate()
    return process


def newest(run):
    path, consumed = run.checkpoints.latest()
    return consumed, {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_saves_and_asks_to_be_run_again(number, tmp_path, start):
    run = make(tmp_path / "run")
    process = working(start("faults.trainer", run.path, "--pause", 0.3))
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 75, error
    assert error == ""
    assert newest(run)[0] == 110
    go_on(run)
    whole = make(tmp_path / "whole")
    go_on(whole)
    assert newest(run) == newest(whole)


def test_a_second_interrupt_aborts_immediately(tmp_path, start):
    run = make(tmp_path / "run")
    process = working(start("faults.trainer", run.path, "--pause", 60))
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    assert newest(run)[0] == 100


def test_two_trainers(tmp_path, start):
    run = make(tmp_path / "run")
    first = working(start("faults.trainer", run.path, "--pause", 60))
    second = start("faults.trainer", run.path)
    _, error = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"is being trained by process {first.pid} on {os.uname().nodename}" in error
    first.kill()
    first.wait()
    third = start("faults.trainer", run.path)
    assert third.wait(timeout=60) == 0
    assert newest(run)[0] == 1500


def test_a_terminal_that_went_away_does_not_stop_training(tmp_path, start):
    run = make(tmp_path / "run")
    reader, writer = os.pipe()
    os.close(reader)
    process = start("faults.trainer", run.path, "--progress", "plain", stderr=writer)
    os.close(writer)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert newest(run)[0] == 1500


def test_a_terminal_that_is_closed_saves_the_run(tmp_path):
    run = make(tmp_path / "run")
    terminal, theirs = pty.openpty()
    code = (
        "import os, sys; from faults.trainer import main; from operant.cli.output import say;"
        "os.open(os.ttyname(0), os.O_RDWR);"  # now it is the terminal of this session
        f"sys.argv = ['trainer', {str(run.path)!r}, '--pause', '0.3', '--progress', 'plain'];"
        "status = main(); say('saved'); sys.exit(status)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    while b"working" not in said:
        said += os.read(terminal, 1024)
    os.close(terminal)
    assert process.wait(timeout=60) == 75
    assert newest(run)[0] == 110
