"""Every module imports without errors, and the light modules stay light."""

import json
import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, operant

def fail(name):
    raise

for module in pkgutil.walk_packages(operant.__path__, "operant.", onerror=fail):
    if not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""

RUN_CLI = """
import json, sys
from operant.cli import main

sys.argv = ["operant", *json.loads(sys.argv[1])]
try:
    code = main()
except SystemExit as exit:
    code = exit.code
print(json.dumps([code or 0, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


def python(*arguments):
    return subprocess.run([sys.executable, "-W", "error", *arguments], capture_output=True, text=True, check=False)


def test_every_module_imports_without_a_warning(sources):
    result = python("-c", IMPORT_ALL)
    assert result.returncode == 0, result.stderr
    modules = {source.module for source in sources if not source.module.endswith("__main__")}
    assert set(result.stdout.split()) == modules - {"operant"}


def test_importing_the_package_imports_neither_torch_nor_numba():
    result = python("-c", "import operant, sys; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    assert {"torch", "numba"}.isdisjoint(result.stdout.split())


@pytest.mark.parametrize("arguments", [["--help"], ["list"]])
def test_commands_that_compute_nothing_import_neither_torch_nor_numba(arguments):
    result = python("-c", RUN_CLI, json.dumps(arguments))
    assert result.returncode == 0, result.stderr
    code, packages = json.loads(result.stderr.splitlines()[-1])
    assert code == 0
    assert result.stdout.strip()
    assert {"torch", "numba"}.isdisjoint(packages)
