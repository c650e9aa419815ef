import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

from operant.cli import COMMANDS
from operant.envs import EndlessError, EnvError, RestoreError, WorkerError
from operant.runtime.checkpoints import NonFiniteError

HEAVY = {"torch", "numba", "numpy", "scipy", "tyro", "gymnasium", "rich"}
IMPORTS = "import json, sys; from operant.cli import main; main(json.loads(sys.argv[1])); print(*sys.modules)"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["list"], ["list", "--json"], ["tran"]])
def test_commands_without_computation_import_nothing_heavy(arguments):
    command = [sys.executable, "-c", IMPORTS, json.dumps(arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(result.stdout.splitlines()[-1].split())


WARN = """
import sys, warnings
from operant import cli
def warn(arguments):
    warnings.warn_explicit("no answer", RuntimeWarning, cli.__file__, 1)
    warnings.warn_explicit("own code", RuntimeWarning, "mine.py", 1)
    return 0
cli._run = warn
cli.main(sys.argv[1:])
warnings.warn_explicit("later", RuntimeWarning, cli.__file__, 1)
"""


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_warnings_of_operant_have_no_line_of_code(debug):
    environment = {name: value for name, value in os.environ.items() if name != "OPERANT_DEBUG"}
    command = [sys.executable, "-c", WARN, "train", *debug]
    error = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr
    assert ("\nno answer\n" in f"\n{error}") != bool(debug)
    assert "mine.py:1: RuntimeWarning: own code" in error
    assert "__init__.py:1: RuntimeWarning: later" in error


def test_help_names_every_command(cli):
    status, out, _ = cli("--help")
    assert status == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(name, cli):
    status, out, err = cli(name, "--help")
    assert status == 0, err
    assert f"operant {name}" in out
    assert err == ""


def test_help_of_a_command(cli):
    assert cli("help", "copy") == cli("copy", "--help")
    assert cli("help", "nothing")[0] == 2


def test_an_unknown_command(cli):
    assert cli("tran") == (2, "", "operant: error: there is no command 'tran'; did you mean train?\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("a\n  b"), 2),
        (ModuleNotFoundError("a b"), 2),
        (FileNotFoundError("a b"), 2),
        (IsADirectoryError("a b"), 2),
        (NonFiniteError("a b"), 1),
        (RestoreError("a b"), 1),
        (EndlessError("a b"), 1),
        (EnvError("a b"), 1),
        (WorkerError("a b"), 1),
        (OSError("a b"), 1),
        (BrokenPipeError("a b"), 1),  # of a simulator: standard output is no closed pipe
    ],
)
def test_a_known_error_is_one_line(error, status, cli, monkeypatch):
    monkeypatch.setattr("operant.cli.listing.list_algorithms", Mock(side_effect=error))
    monkeypatch.setenv("OPERANT_DEBUG", "0")
    assert cli("list") == (status, "", "operant: error: a b\n")
    monkeypatch.setenv("OPERANT_DEBUG", "1")
    with pytest.raises(type(error)):
        cli("list")


def test_an_unknown_error_is_one_line_and_raised_with_debug(cli, monkeypatch):
    monkeypatch.setattr("operant.cli.listing.list_algorithms", tomllib.loads)  # called with a list
    status, out, err = cli("list")
    assert (status, out) == (1, "")
    assert "unexpected error: " in err
    assert "run again with --debug for the traceback" in err
    assert err.count("\n") == 1
    with pytest.raises((AttributeError, TypeError), match=r"list|str"):
        cli("list", "--debug")


PIPES = """import os, sys
from operant import cli


def lose_a_pipe(arguments):
    read, write = os.pipe()
    os.close(read)
    os.write(write, b"command of a simulator")


cli._run = lose_a_pipe
sys.exit(cli.main([]))
"""


def test_a_closed_pipe_of_the_program_is_an_error():
    process = subprocess.run([sys.executable, "-c", PIPES], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == "operant: error: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize("buffering", [[], ["-u"]])
@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["train", "ppo", "--help"]])
def test_a_reader_that_has_seen_enough(arguments, buffering):
    command = [sys.executable, *buffering, "-m", "operant", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_of_standard_output_is_named(unbuffered):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = subprocess.run(
            [sys.executable, "-m", "operant", "list", "ppo"],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "operant: error: standard output: No space left on device\n"
    assert (process.returncode, process.stderr) == (1, said)


@pytest.mark.parametrize(
    ("command", "status", "err"),
    [
        ("list ppo --json >&-", 0, ""),
        ("runs . >&-", 0, ""),
        ("nothing 2>&-", 2, ""),
        ("runs delete RUN <&-", 2, "There is no terminal for confirmation"),
    ],
)
def test_closed_standard_streams(command, status, err, run, tmp_path):
    shell = f"exec {shlex.quote(sys.executable)} -m operant {command.replace('RUN', shlex.quote(str(run)))}"
    process = subprocess.run(["/bin/sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (status, "")
    assert err in process.stderr if err else not process.stderr


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_sleep_unless_configured_otherwise(given, expected):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    code = "import operant.cli, os; print(os.environ['OMP_WAIT_POLICY'])"
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == expected
