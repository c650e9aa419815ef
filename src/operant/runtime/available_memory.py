"""Available memory, and that of this process: `available`, `resident`, `require_memory`."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from operant.runtime.sizes import readable

_GROUP, _TABLE = Path("/sys/fs/cgroup"), Path("/proc/meminfo")


def available(device: torch.device) -> int | None:
    """Return the available memory of a device, in bytes; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu":
        return None
    found = [] if (left := left_to_group(_GROUP)) is None else [left]
    counts = _counts(_TABLE, ":") if _TABLE.exists() else {}
    if (free := counts.get("MemAvailable")) is not None:  # some systems, such as WSL 1, do not tell it
        found.append(free * 1024)
    return max(0, min(found)) if found else None


def resident() -> int:
    """Return the memory of this process that is not swapped out, in bytes; 0 if unknown."""
    table = Path("/proc/self/statm")
    return int(table.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if table.exists() else 0


def left_to_group(folder: Path) -> int | None:
    """Return the remaining memory of a cgroup (version 2) in bytes, possibly negative; None without a limit."""
    limit = folder / "memory.max"
    if not limit.exists() or (most := limit.read_text().strip()) == "max":
        return None
    counts = _counts(folder / "memory.stat", " ")
    files = counts.get("active_file", 0) + counts.get("inactive_file", 0)  # page cache, which is reclaimed when needed
    return int(most) - int((folder / "memory.current").read_text()) + files


def _counts(file: Path, separator: str) -> dict[str, int]:
    lines = (line.split(separator, 1) for line in file.read_text().splitlines())
    return {name: int(rest.split()[0]) for name, rest in lines}


def require_memory(needed: float, device: torch.device, *, what: str, remedy: Callable[[int], str]) -> None:
    """Check that an allocation fits into memory.

    Args:
        needed: size of the allocation in bytes.
        device: device of the allocation.
        what: subject and verb of the error message.
        remedy: function from the available bytes to a fix, for the error message.

    Raises:
        ValueError: the device has less memory available.
    """
    free = available(device)
    if free is not None and needed > free:
        raise ValueError(f"{what} {readable(needed)}, but {readable(free)} are available on {device}: {remedy(free)}")
