"""Trial of a user's learner in separate environments, before a run is created: `try_learner`."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from operant import doors
from operant.envs import BatchEnv
from operant.envs.trial import trial_of
from operant.runtime.acting import try_policy
from operant.runtime.learner import METHODS


def acts_built_in(learner_class: type) -> bool:
    """Return whether a learner acts by the methods of a built-in one, which need no trial."""
    kinds = learner_class.__mro__
    first = next((i for i, kind in enumerate(kinds) if doors.is_built_in(kind) and hasattr(kind, "iterate")), None)
    return first is not None and not any(name in vars(kind) for kind in kinds[:first] for name in ("act", "noise"))


def try_learner(learner: Callable[[BatchEnv], Any], make: Callable[[], BatchEnv], seeds: Sequence[int]) -> None:
    """Check that a learner has all methods, and let it act, without changing random streams.

    Args:
        learner: function that creates a learner in environments.
        make: function that creates environments for the trial.
        seeds: seeds of the trial.

    Raises:
        ValueError: if a method is missing, or `act` returns something else than actions.
    """
    with trial_of(make) as env:
        tried = learner(env)
        name = type(tried).__name__
        missing = [method for method in METHODS if not callable(getattr(tried, method, None))]
        if missing:
            raise ValueError(
                f"{name} lacks the method{'s' * (len(missing) > 1)} {', '.join(missing)}: see "
                "operant.runtime.learner.ControlLearner"
            )
        if type(consumed := getattr(tried, "consumed", None)) is not int:
            raise ValueError(f"{name}.consumed must be an integer, the steps that each seed has used, got {consumed!r}")
        with contextlib.closing(tried):
            try_policy(tried, env, len(seeds), name)
