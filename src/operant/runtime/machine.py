"""CPU cores and devices of this machine."""

import os

import torch

from operant.cores import allowed_cores
from operant.runtime.settings import require_device


def cores() -> int:
    """Return the number of cores for this process: `OMP_NUM_THREADS`, or all that are allowed."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return allowed_cores()


def threads_sleep() -> bool:
    """Return whether waiting OpenMP threads sleep and release their core, which operant sets when it is imported.

    They spin if torch was imported first. Two threads are then much slower than one on a busy machine.
    """
    return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


def chosen_device(device: str, *, large: bool = True) -> str:
    """Return the device; for `auto` a GPU if available and the networks are large, else the CPU.

    Raises:
        ValueError: there is no such device on this machine.
    """
    require_device(device)
    if device == "auto":
        return "cuda" if large and torch.cuda.is_available() else "cpu"
    if not present(device):
        raise ValueError(f"device {device!r} is not on this machine; `operant doctor` lists those that are")
    return device


def present(device: str) -> bool:
    """Return whether this machine has a device, such as `cuda:1`."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return True
    backend = getattr(torch, kind)
    return bool(backend.is_available()) and int(index or 0) < backend.device_count()
