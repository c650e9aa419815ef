import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def start():
    """Return a function that starts a module of the tests in a process, which is killed after the test."""
    processes = []

    def begin(module, *arguments, **options):
        command = [sys.executable, "-m", module, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        process = subprocess.Popen(command, env=environment, **(pipes | options))
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
