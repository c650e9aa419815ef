"""Beyond one process: the processes that torchrun starts, as one run; and training loops on four verbs."""

from operant.scale.launch import launch
from operant.scale.processes import LostError, Processes, follow, joined, started

__all__ = ["LostError", "Processes", "follow", "joined", "launch", "started"]
