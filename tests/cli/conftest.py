"""Fixtures for tests of the command line: trained runs, and functions that call commands."""

import json
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest

from operant.cli import main

TINY = ["--seeds", "2", "--num-envs", "4", "--num-steps", "32", "--num-minibatches", "2", "--num-epochs", "2"]
TINY += ["--evaluate-episodes", "4", "--progress", "silent"]


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return the folder of a run; tests must not change it, except by the files that evaluate and watch add."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    assert main(["train", "ppo", "CartPole-v1", *TINY, "--budget", "1024", "--run", str(path)]) == 0
    return path


SPEAKING = [
    "--train-examples",
    "64",
    "--held-out",
    "12",
    "--batch-size",
    "16",
    "--max-completion-length",
    "6",
    "--progress",
    "silent",
]


@pytest.fixture(scope="session")
def spoken(tmp_path_factory):
    """Return the folder of a run of a language model; tests must not change it, as that of `run`."""
    path = tmp_path_factory.mktemp("runs") / "spoken"
    flags = [*SPEAKING, "--budget", "64", "--evaluate-every", "32", "--run", str(path)]
    assert main(["train", "sft", "arithmetic", *flags]) == 0
    return path


@pytest.fixture
def small_files():
    """Return a context manager in which files cannot be larger than some bytes, as on a full disk."""

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def cli(capfd):
    """Return a function that runs a command in this process and returns exit status, output and errors."""

    def call(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def answer(cli):
    """Return a function that runs a command with --json and returns its result."""

    def call(*arguments):
        status, out, _ = cli(*arguments, "--json")
        assert status == 0
        (line,) = out.splitlines()
        return json.loads(line)

    return call


@pytest.fixture
def start():
    """Return a function that starts a command in a separate process, which is killed after the test."""
    processes = []

    def call(*arguments):
        command = [sys.executable, "-m", "operant", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()
