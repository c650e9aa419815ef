"""Training beyond one process: torchrun's processes as one run; and custom training loops on four verbs."""

from operant.scale.launch import launch
from operant.scale.processes import LostError, Processes, follow, joined, leave, started

__all__ = ["LostError", "Processes", "follow", "joined", "launch", "leave", "started"]
