"""Distributed commands: several processes that train together, or workers on Ray: `in_processes`."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from operant.cli.arguments import Training


def in_processes(
    command: Sequence[str], options: "Training", work: Callable[[], int], *, shards: int | None = None
) -> int:
    """Run a command in several processes, or with workers on Ray, and return its exit status.

    Args:
        command: arguments after `operant`, for the processes to start.
        options: options of the command: number of processes (set by torchrun if that started this process), sharding
            and Ray.
        work: function that runs the command in this process, or in the process of rank 0.
        shards: number of shards of the run, if known, to be checked before processes start.
    """
    processes, ray = options.processes, options.ray or bool(options.ray_address)
    if processes < 1:
        raise ValueError(f"--processes must be at least 1, got {processes}")
    if options.ray_unauthenticated and not options.ray_address:
        raise ValueError("--ray-unauthenticated is for an existing cluster: add --ray-address, or leave it out")
    several = False
    if "WORLD_SIZE" in os.environ:  # also set by others than torchrun
        from operant import scale

        several = scale.started()
    if ray and (processes > 1 or several):
        raise ValueError("several processes have their own workers: leave out --ray or --processes")
    if ray:
        from operant.scale.ray_cluster import cluster

        with cluster(options.ray_address, unauthenticated=options.ray_unauthenticated):
            return work()
    if processes == 1 and not several:
        if options.fsdp:
            raise ValueError("--fsdp needs several processes: add --processes 2, or leave it out")
        return work()
    from operant import scale

    if not several:
        if shards is not None and not options.fsdp:
            from operant.runtime.shards import require_shards

            require_shards(shards, processes)
        return scale.launch(command, processes)
    status = 0
    with scale.joined(sharded=options.fsdp) as group:
        if group is None or group.rank == 0:
            status = work()
        else:
            scale.follow(group)
    return status
