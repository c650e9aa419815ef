"""Trials of a user's wrappers in separate environments, before a run is created: `try_wrappers`, `trial_of`."""

import contextlib
from collections.abc import Callable, Generator, Sequence

import torch

from operant import doors
from operant.envs.base import BatchEnv
from operant.envs.conformance import ContractError, try_once
from operant.envs.wrapper import wrappers


def try_wrappers(make: Callable[[], BatchEnv], seeds: Sequence[int]) -> None:
    """Take one step in wrapped environments, if a wrapper is the user's, without changing random streams.

    Args:
        make: function that creates environments for the trial.
        seeds: seeds of the trial.

    Raises:
        ValueError: the wrappers break the contract of `operant.envs.Wrapper`.
    """
    with trial_of(make) as env:
        own = [type(wrapper) for wrapper in wrappers(env) if not doors.is_built_in(type(wrapper))]
        if not own:
            return
        try:
            try_once(env, seeds)
        except ContractError as error:
            names = ", ".join(kind.__name__ for kind in own)
            raise ValueError(f"the wrapper {names} does not fit {env.task}: {error}") from error


@contextlib.contextmanager
def trial_of(make: Callable[[], BatchEnv]) -> Generator[BatchEnv]:
    """Create environments for a trial and close them, leaving the global generator of torch as it was."""
    fork = torch.random.fork_rng  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    with fork(devices=[]), contextlib.closing(make()) as env:
        yield env
