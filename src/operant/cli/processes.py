"""Commands in several processes that train together: `in_processes`."""

import os
from collections.abc import Callable, Sequence


def in_processes(command: Sequence[str], processes: int, work: Callable[[], int]) -> int:
    """Run a command in several processes, and return its exit status.

    Args:
        command: arguments after `operant`, for the started processes.
        processes: number of processes; under torchrun, its own number.
        work: the command, in this process or in the leading one.
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
