"""Check, before a run is created, that the memory of many seeds is available: `require_memory_of_seeds`."""

import contextlib
import ctypes
import gc
import math
from collections.abc import Callable, Sequence

import torch

from operant.envs import BatchEnv, Features
from operant.runtime.available_memory import available, require_memory, resident
from operant.runtime.encoding import size_in_bytes
from operant.runtime.settings import too_many_seeds
from operant.state import State

MANY_SEEDS = 16
"""Maximum number of seeds that are created without this check, which creates one seed twice."""

UNCERTAIN = 2**20
"""Growth of a process, in bytes, up to which it is attributed to other causes than the new environments."""


def require_memory_of_seeds(
    seeds: Sequence[int],
    size_of_one: Callable[[], int],
    make_env: Callable[[int], BatchEnv],
    *,
    envs: int,
    evaluation_envs: int,
    device: torch.device,
) -> None:
    """Check that the environments and networks of all seeds fit into memory, by creating those of the first seed.

    The estimate is a lower bound: `size_of`, and the growth of this process from environments. Gradients, activations
    and the replay buffer come on top; the latter is checked when it is allocated.

    Args:
        seeds: seeds of the run.
        size_of_one: creates a learner of the first seed, and returns its `size_of`.
        make_env: creates that many environments in this process.
        envs: number of training environments per seed.
        evaluation_envs: number of environments per seed in evaluations.
        device: device of the networks.

    Raises:
        ValueError: if less memory is available.
    """
    if len(seeds) <= MANY_SEEDS or available(device) is None:
        return
    environments = round(_size_of_envs(make_env, evaluation_envs) / evaluation_envs * (envs + evaluation_envs))
    for place, size, what in _by_device(device, size_of_one(), environments):
        require_memory(
            len(seeds) * size,
            place,
            what=f"{what} of {len(seeds)} seeds need at least",
            remedy=lambda free, size=size: too_many_seeds(seeds, free // size),
        )


def size_of(state: State, env: BatchEnv, *, num_steps: int) -> int:
    """Return the bytes of a learner's networks, their targets and optimizers, and of the observations of a rollout.

    Args:
        state: state of the learner.
        env: its environments.
        num_steps: steps of each environment in a rollout; 0 if there are no rollouts.
    """
    networks = size_in_bytes(state)
    if not num_steps:
        return networks
    shape = Features.of(env.observation_space, env.action_space).shape
    transition = 2 * math.prod(shape) * (1 if len(shape) == 3 else 4)  # images have uint8, vectors float32
    return networks + num_steps * env.rows * transition


def _by_device(device: torch.device, learner: int, environments: int) -> list[tuple[torch.device, int, str]]:
    host = torch.device("cpu")
    if device.type == "cpu":
        return [(host, learner + environments, "environments, networks and rollouts")]
    return [(device, learner, "networks and rollouts"), (host, environments, "environments")]


def _release() -> None:
    """Return unused memory of this process to the system, which new environments would use without growth."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _size_of_envs(make_env: Callable[[int], BatchEnv], count: int) -> int:
    """Return the growth of this process from `count` environments that start an episode, in bytes."""
    first = make_env(1)  # imports what such environments need
    try:
        first.reset()
        _release()
        before = resident()
        envs = make_env(count)
        try:
            envs.reset()
            _release()
            growth = resident() - before
        finally:
            envs.close()
    finally:
        first.close()
    return growth if growth > UNCERTAIN else 0
