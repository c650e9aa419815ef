"""Check the shapes of all calls of `operant.ops`, use one thread, and provide fixtures for several packages."""

import gc
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

import graphs

install_import_hook("operant.ops", "beartype.beartype")
torch.set_num_threads(1)
# On a busy machine a single draw or example may take a second, which is no fault of the test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
# Shells ignore SIGINT in background processes, which tests of Ctrl-C would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tokenizers that were used before a fork warn about it, and videos and workers use forked processes.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Files that take a minute or more: Ray, torchrun and browsers start, programs are compiled. Those that start many
# processes alternate with others, since two of them at the same time take several times as long, and so do those that
# begin while the continuous integration runs the type checker.
LONGEST = (
    "control/test_compiled.py",
    "browser/test_accessibility.py",
    "scale/test_ray_nodes.py",
    "language/test_presets.py",
    "scale/test_ray_cluster.py",
    "control/test_fields.py",
    "scale/test_processes.py",
    "faults/test_web.py",
    "scale/test_recipes.py",
    "test_api.py",
    "faults/test_languages.py",
    "scale/test_sharded_states.py",
    "browser/test_explorables.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Free no cycles while tests are collected, and leave out what is imported and collected from then on.

    With all tests, that is a million objects, which would be looked through again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item):
    """Skip tests of CUDA devices on a machine without one."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def pytest_collection_modifyitems(config, items):
    """Begin with the longest files if several processes share the tests, so that none starts a long one at the end."""
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.fixture
def unprivileged(tmp_path):
    """Let the test run as a user without privileges, for whom file permissions apply."""
    for folder in tmp_path.parents:
        if folder.name.startswith(("pytest-", "popen-")):  # created by pytest; parallel tests have one more level
            folder.chmod(0o755)
    if os.geteuid() != 0:
        yield
        return
    tmp_path.chmod(tmp_path.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def torch_library(monkeypatch):
    """Return a function that creates environments which compute on the CPU as on other devices."""
    from operant.envs.tensor import core

    class Device(core.Library):
        def __init__(self, device, dtype):
            super().__init__(torch.device("meta"), dtype)
            self.empty = partial(torch.empty, dtype=dtype)

    def make(kind, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(core, "Library", Device)
            return kind(*args, **kwargs)

    return make


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def graph_device(request, monkeypatch):
    """Return the CPU, where the recording of CUDA graphs is emulated, and a CUDA device."""
    if request.param == "cpu":
        graphs.emulate(monkeypatch)
    return torch.device(request.param)
