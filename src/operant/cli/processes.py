"""A command in several processes that train as one: `in_processes`."""

import os
from collections.abc import Callable, Sequence


def in_processes(command: Sequence[str], processes: int, work: Callable[[], int]) -> int:
    """Do the work of a command in as many processes as are wanted, and return its exit status.

    Args:
        command: what follows `operant`, for the processes that are to be started.
        processes: how many; those that torchrun has started are as many as they are.
        work: what the command does, in this process or in the leading one.
    """
    if processes < 1:
        raise ValueError(f"--processes must be at least 1, got {processes}")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if processes == 1 and not several:
        return work()
    from operant import scale

    if not several:
        return scale.launch(command, processes)
    with scale.joined() as group:
        if group is None or group.rank == 0:
            return work()
        scale.follow(group)
    return 0
