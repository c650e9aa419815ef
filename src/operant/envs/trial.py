"""Trials of a user's wrappers in separate environments, before a run is created: `try_wrappers`, `trial_of`."""

import contextlib
import logging
from collections.abc import Callable, Generator, Sequence

import torch

from operant import doors
from operant.envs.base import BatchEnv
from operant.envs.conformance import ContractError, try_once
from operant.envs.wrapper import wrappers

logger = logging.getLogger(__name__)


def try_wrappers(make: Callable[[], BatchEnv], seeds: Sequence[int]) -> None:
    """Take one step in wrapped environments, if a wrapper is the user's, without changing random streams.

    Tensors that the step changes and `STATE` does not name cause a warning.

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
            changed = try_once(env, seeds)
        except ContractError as error:
            names = ", ".join(kind.__name__ for kind in own)
            raise ValueError(f"the wrapper {names} does not fit {env.task}: {error}") from error
        for wrapper, name in changed:
            saving = (vars(kind) for kind in type(wrapper).__mro__ if not doors.is_built_in(kind))
            if type(wrapper) in own and not any("state_dict" in methods for methods in saving):
                logger.warning(
                    "steps change %s of the wrapper %s, which a resumed run begins without: name it in STATE if later "
                    "steps depend on it",
                    *(name, type(wrapper).__name__),
                )


@contextlib.contextmanager
def trial_of(make: Callable[[], BatchEnv]) -> Generator[BatchEnv]:
    """Create environments for a trial and close them, leaving the global generator of torch as it was."""
    fork = torch.random.fork_rng  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    with fork(devices=[]), contextlib.closing(make()) as env:
        yield env
