"""Cores and devices available to a run."""

import os

import torch


def cores() -> int:
    """Return the number of cores for this process: `OMP_NUM_THREADS`, or all that it may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_sleep() -> bool:
    """Return whether waiting threads sleep and release the core: operant sets this when imported.

    They spin if torch was imported first. Two are then far slower than one on a busy machine.
    """
    return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


def chosen_device(device: str) -> str:
    """Return a device; for `auto` the GPU if there is one, else the CPU."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def present(device: str) -> bool:
    """Return whether this machine has a device, such as `cuda:1`."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return True
    backend = getattr(torch, kind)
    return bool(backend.is_available()) and int(index or 0) < backend.device_count()
