"""Cores that this process may use."""

import os


def allowed_cores() -> int:
    """Return the number of cores that this process may use, which a scheduler or `taskset` may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
