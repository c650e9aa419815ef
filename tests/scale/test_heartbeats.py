"""Processes of a group that no longer respond."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

CODE = """
import os, signal, sys, time
import torch
from operant.scale import heartbeats, joined
heartbeats.INTERVAL, heartbeats.SILENCE = 0.2, 8.0
with joined() as processes:
    time.sleep(10)  # longer than the silence that is allowed: a busy process gives signs of life
    processes.gather_tensors(torch.zeros(1, 1), processes.size)
    print("alive", flush=True)
    if processes.rank == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGSTOP)
    processes.gather_tensors(torch.zeros(1, 1), processes.size)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGSTOP is of POSIX")
@pytest.mark.parametrize(
    ("stopped", "named"),
    [
        (0, ["from the key-value store of the processes, 127.0.0.1:{port}"]),  # it belongs to process 0
        (1, ["from process 1 of 3", ""]),
    ],
)
def test_the_others_end_and_name_a_process_that_is_stopped(stopped, named):
    size = 1 + len(named)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    values = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(stopped)],
            env={**values, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        assert [process.stdout.readline() for process in processes] == ["alive\n"] * size
        began = time.monotonic()
        told = [process.communicate(timeout=100)[1] for i, process in enumerate(processes) if i != stopped]
        assert time.monotonic() - began > 3
        assert [process.poll() for process in processes] == [None if i == stopped else 1 for i in range(size)]
        for text, expected in zip(told, named, strict=True):
            assert expected.format(port=port) in text
            assert text.count("`operant resume RUN` continues") == bool(expected)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
