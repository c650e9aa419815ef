import importlib.util
import sys
from pathlib import Path

import numba
import pytest

from operant.runtime.kernel_cache import digest_of, keyed_by_sources

HELPER = """
from numba import njit
@njit
def formula(x):
    return x + {}
"""
KERNEL = """
from helper import formula
@compiled
def kernel(x):
    return formula(x)
"""


def load(name, folder, **names):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call_kernel(tmp_path, monkeypatch):
    """Return a function that calls a kernel as in a new process, and returns its result and its cache hits."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def ask():
        digest_of.cache_clear()
        load("helper", tmp_path)
        kernel = load("kernel", tmp_path, compiled=keyed_by_sources(numba.njit(cache=True), tmp_path)).kernel
        return kernel(1), sum(kernel.stats.cache_hits.values())

    yield ask
    for name in ("helper", "kernel"):
        sys.modules.pop(name, None)


def test_a_kernel_is_compiled_again_after_an_edit_of_what_it_calls(tmp_path, call_kernel):
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    assert call_kernel() == (2, 0)
    assert call_kernel() == (2, 1)
    (tmp_path / "helper.py").write_text(HELPER.format(5))
    assert call_kernel() == (6, 0)
    assert call_kernel() == (6, 1)


def test_machine_code_of_other_sources_is_removed(tmp_path, call_kernel):
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    (tmp_path / "kernel.py").write_text(KERNEL)
    call_kernel()
    before = set((tmp_path / "__pycache__").glob("*.nb?"))
    (tmp_path / "kernel.py").write_text(f"# a line more\n{KERNEL}")
    call_kernel()
    after = set((tmp_path / "__pycache__").glob("*.nb?"))
    assert before
    assert len(after) == len(before)
    assert not before & after


def test_functions_elsewhere_are_cached_where_they_stand(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kernel.py").write_text("@compiled\ndef kernel(x):\n    return x\n")
    kernel = load("kernel", elsewhere, compiled=keyed_by_sources(numba.njit(cache=True), tmp_path)).kernel
    assert kernel(2) == 2
    assert not (elsewhere / "__pycache__" / "kernels.sha256").exists()
    sys.modules.pop("kernel")


OUTSIDE = """
from typing import NamedTuple
class Pair(NamedTuple):
    x: int
"""
PAIRS = """
@compiled
def kernel(pair):
    return pair.x + 1
"""


def test_types_of_a_removed_file_leave_the_cache_readable(tmp_path):
    """A copy of an algorithm passes its own named tuples to our functions; then its file is removed."""
    (tmp_path / "kernel.py").write_text(PAIRS)
    decorator = keyed_by_sources(numba.njit(cache=True), tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine.py").write_text(OUTSIDE)
    for name in ("operant.doors.mine", "mine"):  # one that is registered as an outside module, and one that is not
        spec = importlib.util.spec_from_file_location(name, tmp_path / "outside" / "mine.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = load("kernel", tmp_path, compiled=decorator).kernel
        assert kernel(module.Pair(3)) == 4
        index = kernel._cache._cache_file
        assert len(index._load_index()) == (name == "mine")
        del sys.modules[name]
    assert index._load_index() == {}
    kernel = load("kernel", tmp_path, compiled=decorator).kernel
    del sys.modules["kernel"]
    assert index._load_index() == {}


def test_without_a_folder_for_machine_code_a_temporary_one_is_used(tmp_path, call_kernel, monkeypatch, caplog):
    """As in a container whose installation and home folder belong to another user."""
    from numba.core import caching

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    for name in ("InTreeCacheLocator", "UserWideCacheLocator"):  # with an underscore in earlier versions of numba
        locator = getattr(caching, name, None) or getattr(caching, f"_{name}")
        monkeypatch.setattr(locator, "from_function", lambda function, file: None)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    assert call_kernel() == (2, 0)
    assert call_kernel() == (2, 1), "the same process finds it again"
    assert Path(numba.config.CACHE_DIR).stat().st_mode & 0o777 == 0o700
    assert [record.getMessage() for record in caplog.records if "NUMBA_CACHE_DIR" in record.getMessage()] != []
