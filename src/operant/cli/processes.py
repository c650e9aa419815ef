"""Commands in several processes that train together, or with workers on Ray: `in_processes`."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from operant.cli.arguments import Training


def in_processes(command: Sequence[str], options: "Training", work: Callable[[], int]) -> int:
    """Run a command in several processes, or with workers on Ray, and return its exit status.

    Args:
        command: arguments after `operant`, for the started processes.
        options: of the command: the number of processes, under torchrun its own number, and whether they share a model;
            and where workers run.
        work: the command, in this process or in the leading one.
    """
    processes, ray = options.processes, options.ray or bool(options.ray_address)
    if processes < 1:
        raise ValueError(f"--processes must be at least 1, got {processes}")
    if options.ray_unauthenticated and not options.ray_address:
        raise ValueError("--ray-unauthenticated is for an existing cluster: name its --ray-address, or leave it out")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if ray and (processes > 1 or several):
        raise ValueError("several processes have their own workers: leave out --ray or --processes")
    if ray:
        from operant.scale.ray_cluster import cluster

        with cluster(options.ray_address, unauthenticated=options.ray_unauthenticated):
            return work()
    if processes == 1 and not several:
        if options.shard:
            raise ValueError("--shard divides a model among several processes: add --processes 2, or leave out --shard")
        return work()
    from operant import scale

    if not several:
        return scale.launch(command, processes)
    status = 0
    with scale.joined(sharded=options.shard) as group:
        if group is None or group.rank == 0:
            status = work()
        else:
            scale.follow(group)
    return status
