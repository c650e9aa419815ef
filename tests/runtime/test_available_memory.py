import subprocess
import sys

import pytest
import torch

from operant.runtime import available_memory
from operant.runtime.available_memory import available, left_to_group, require_memory


def test_available_memory_is_reported():
    free = available(torch.device("cpu"))
    assert free is None or free >= 0
    assert available(torch.device("meta")) is None
    if sys.platform == "linux":
        assert free is not None


GROWTH = """
import torch
from operant.runtime.available_memory import resident
before = resident()
held = torch.ones(2**25)
print((resident() - before) / held.nbytes)
"""


def test_the_memory_of_a_process_grows_by_what_it_holds():
    """A new process measures: idle memory of an old one may be swapped out meanwhile."""
    found = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(found.stdout) >= 0.9 or sys.platform != "linux"


def test_too_large_an_allocation_is_rejected_with_a_fix():
    cpu, free = torch.device("cpu"), available(torch.device("cpu"))
    require_memory(1.0, cpu, what="a thing needs", remedy=str)
    if free is not None:
        with pytest.raises(ValueError, match=r"a thing needs .* TiB, but .* are available on cpu: less than \d+ bytes"):
            require_memory(1e18, cpu, what="a thing needs", remedy=lambda most: f"less than {most} bytes")


def test_a_control_group_leaves_less(tmp_path):
    assert left_to_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert left_to_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\nshmem 100\nactive_file 30\ninactive_file 70\n")
    assert left_to_group(tmp_path) == 200, "the page cache can be freed"


def test_a_system_that_does_not_tell_what_is_available(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 50 kB\n", encoding="utf-8")
    monkeypatch.setattr(available_memory, "_TABLE", tmp_path / "meminfo")
    monkeypatch.setattr(available_memory, "_GROUP", tmp_path / "none")
    assert available(torch.device("cpu")) is None
