"""Beyond one process: the processes that torchrun starts, as one run. Only the command line imports this."""

from operant.scale.launch import launch
from operant.scale.processes import LostError, Processes, follow, joined, started

__all__ = ["LostError", "Processes", "follow", "joined", "launch", "started"]
