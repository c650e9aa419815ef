"""What of the machine a run may use."""

import os

import torch


def cores() -> int:
    """Return how many cores this process may use: as `OMP_NUM_THREADS` says, or all that it may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_sleep() -> bool:
    """Whether threads that wait for each other sleep, and leave the core to others: operant asks for it when imported.

    They spin where torch was imported before it. Two of them are then far slower than one on a busy machine.
    """
    return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


def chosen_device(device: str) -> str:
    """Return a device; of `auto` the GPU if there is one, else the CPU."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def present(device: str) -> bool:
    """Whether a device, such as `cuda:1`, is on this machine."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return True
    backend = getattr(torch, kind)
    return bool(backend.is_available()) and int(index or 0) < backend.device_count()
