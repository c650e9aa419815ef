"""Checks of observations and rewards of every batch: `ObservationCheck`, `RewardCheck`."""

import contextlib
import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from operant.envs.features import MASK
from operant.envs.spaces import is_box, is_dict, is_multi_discrete
from operant.envs.workers import EnvError

logger = logging.getLogger(__name__)

_REPEATING = (logger, logging.getLogger("operant.envs.registry"), logging.getLogger("operant.envs.spaces"))
"""Loggers whose warnings are repeated whenever the same environments are created."""

_said: ContextVar[set[tuple[Any, ...]] | None] = ContextVar("said", default=None)

_TRUSTED = ("gymnasium.", "operant.", "ale_py.")
"""Prefixes of entry points that are not checked: those of Gymnasium and operant."""

Where = Callable[[int], str]
"""Function from the index of an environment to its description, for messages."""

_Check = Callable[[NDArray[Any], Where], None]


def needs_check(spec: EnvSpec) -> bool:
    """Return whether an environment is custom, so that it may violate its spaces."""
    return not str(spec.entry_point).startswith(_TRUSTED)


@contextlib.contextmanager
def saying_once(*more: logging.Logger) -> Generator[None]:
    """Return a context that logs each finding once, across the environments of training and evaluations.

    Args:
        *more: loggers of other findings. A message and its first two arguments are one finding.
    """
    said: set[tuple[Any, ...]] = set()

    def is_new(record: logging.LogRecord) -> bool:
        if (own := _said.get()) is not None and own is not said:
            return True  # of another run in this process
        finding = (record.msg, *record.args[:2]) if isinstance(record.args, tuple) else (record.msg,)
        new = finding not in said
        said.add(finding)
        return new

    for repeating in (*_REPEATING, *more):
        repeating.addFilter(is_new)
    token = _said.set(said)
    try:
        yield
    finally:
        _said.reset(token)
        for repeating in (*_REPEATING, *more):
            repeating.removeFilter(is_new)


class ObservationCheck:
    """Checks observations `[B, ...]` of a vector environment.

    - A number outside its box, or NaN, causes a warning, once per part of the observation.
    - A value outside a discrete space is an error, since networks and tables have no entry for it.
    - A mask that allows no action is an error, unless the episode has ended.

    Args:
        task: name of the environment in messages.
        space: space of one observation.
        actions: action space of the learner, `operant.envs.spaces.GymnasiumActions.space`.
        whole: whether to check all parts, or only masks.
    """

    def __init__(self, task: str, space: gymnasium.Space[Any], actions: gymnasium.Space[Any], *, whole: bool) -> None:
        self._task = task
        self._checks: dict[tuple[str, ...], _Check] = {}
        self._masked = actions if is_dict(space) and MASK in space.spaces else None
        if whole:
            self._add((), space)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to check."""
        return self._masked is None and not self._checks

    def __call__(self, obs: Any, where: Where, final: NDArray[np.bool_] | None = None) -> None:
        """Check a batch of observations.

        Args:
            obs: the observations.
            where: description of an environment.
            final: `[B]`, true for the last observations of episodes, whose masks may allow no action; None: no one.

        Raises:
            EnvError: an observation cannot be used for learning.
        """
        if self._masked is not None:
            self._check_masks(np.asarray(obs[MASK]), self._masked, where, final)
        for path in list(self._checks):
            part = obs
            for key in path:
                part = part[key]
            self._checks[path](np.asarray(part), where)

    def _add(self, path: tuple[str, ...], space: gymnasium.Space[Any]) -> None:
        if is_dict(space):
            for key, part in space.spaces.items():
                self._add((*path, key), part)
        elif path == (MASK,):
            return
        elif is_box(space) and np.issubdtype(space.dtype, np.floating):
            self._checks[path] = self._box_check(path, space, space.low, space.high)
        elif isinstance(space, spaces.Discrete) or is_multi_discrete(space):
            self._checks[path] = self._discrete_check(path, space)

    def _box_check(self, path: tuple[str, ...], space: spaces.Box, low: Any, high: Any) -> _Check:
        def check(obs: NDArray[Any], where: Where) -> None:
            inside = (obs >= low) & (obs <= high)
            if inside.all():
                return
            nan = np.isnan(obs)
            row, *place = (int(index) for index in np.argwhere(nan if nan.any() else ~inside)[0])
            named = f"{_named(path)}{place if place else ''}"
            if nan.any():
                del self._checks[path]
                logger.warning("%s: %s is nan (%s); this warning appears once", self._task, named, where(row))
                return
            self._checks[path] = self._box_check(path, space, -np.inf, np.inf)
            logger.warning(
                "%s: %s is %g, but its space is [%g, %g] (%s); this warning appears once",
                self._task,
                named,
                float(obs[row, *place]),
                *(float(bound[tuple(place)]) for bound in (space.low, space.high)),
                where(row),
            )

        return check

    def _discrete_check(self, path: tuple[str, ...], space: spaces.Discrete | spaces.MultiDiscrete) -> _Check:
        first = space.start
        end = first + (space.n if isinstance(space, spaces.Discrete) else space.nvec)

        def check(obs: NDArray[Any], where: Where) -> None:
            inside = (obs >= first) & (obs < end)
            if not inside.all():
                row, *place = (int(index) for index in np.argwhere(~inside)[0])
                raise EnvError(
                    f"{self._task}: {_named(path)}{place if place else ''} is {obs[row, *place]}, not a member "
                    f"of {space} ({where(row)}): fix the environment, or its observation_space"
                )

        return check

    def _check_masks(
        self, masks: NDArray[Any], actions: gymnasium.Space[Any], where: Where, final: NDArray[np.bool_] | None
    ) -> None:
        blocked = [row for row in blocked_rows(masks, actions) if final is None or not final[row]]
        if blocked:
            raise EnvError(
                f"{self._task}: {MASK!r} allows no action ({where(blocked[0])}): end the episode instead, or allow "
                "an action that does nothing"
            )


class RewardCheck:
    """Warns once about rewards `[B]` that are NaN or Inf.

    Args:
        task: name of the environment in messages.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._said = False

    def __call__(self, rewards: NDArray[np.floating[Any]], where: Where) -> None:
        """Check a batch of rewards."""
        # A finite sum has only finite terms. Python's takes a fifth of the time of NumPy's test of each, and overflows
        # without a warning.
        if self._said or math.isfinite(sum(np.asarray(rewards).tolist())) or np.isfinite(rewards).all():
            return
        self._said = True
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        value = f"{rewards[row]:g}"  # as text, since NaN differs from itself in `saying_once`
        logger.warning("%s: the reward is %s (%s); this warning appears once", self._task, value, where(row))


def warn_of_seeding(task: str) -> None:
    """Log a warning that an environment is not deterministic given its reset seed."""
    logger.warning(
        "%s: two calls of reset with the same seed gave different observations, so runs cannot be repeated or resumed "
        "exactly: let it draw random numbers only from self.np_random, which super().reset(seed=seed) seeds",
        task,
    )


def blocked_rows(mask: NDArray[Any], actions: gymnasium.Space[Any]) -> Sequence[int]:
    """Return the rows of masks `[B, M]` that allow no action, or no value of a component of a MultiDiscrete.

    Args:
        mask: true for allowed actions.
        actions: Discrete, or MultiDiscrete, whose components are concatenated.
    """
    allowed = mask.astype(np.bool_)
    if is_multi_discrete(actions):
        starts = np.concatenate([[0], np.cumsum(actions.nvec)[:-1]])
        allowed = np.logical_or.reduceat(allowed, starts, axis=1).all(axis=1)
    else:
        allowed = allowed.any(axis=1)
    return [] if allowed.all() else np.flatnonzero(~allowed).tolist()


def first_problem(space: gymnasium.Space[Any], obs: Any, path: tuple[str, ...] = ()) -> str | None:
    """Return a description of how the structure of an observation differs from its space; None if it does not."""
    if is_dict(space):
        return _problem_of_parts(space, obs, path)
    array, shape = np.asarray(obs), space.shape
    if shape is not None and array.shape != shape:
        return f"{_named(path)} has shape {list(array.shape)}, but its space has {list(shape)}"
    if array.dtype.kind in "fc" and space.dtype is not None and space.dtype.kind in "biu":
        return f"{_named(path)} has dtype {array.dtype}, but its space has {space.dtype}, so fractions would be lost"
    return None


def problem_of_result(reward: Any, terminated: Any, truncated: Any) -> str | None:
    """Return a description of a result of `step` that NumPy would convert silently; None if there is none."""
    if not _is_number(reward):
        return f"the reward is {reward!r:.80}, expected a number,"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not _is_number(flag):
            return f"{name} is {flag!r:.80}, expected True or False,"
    return None


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "biuf" and array.ndim == 0


def _problem_of_parts(space: spaces.Dict, obs: Any, path: tuple[str, ...]) -> str | None:
    if not isinstance(obs, Mapping):
        return f"{_named(path)} is a {type(obs).__name__}, but its space is a dictionary"
    missing = [key for key in space.spaces if key not in obs]
    if missing:
        return f"{_named(path)} has no part {missing[0]!r}, which its space has"
    found = (first_problem(part, obs[key], (*path, key)) for key, part in space.spaces.items())
    return next((problem for problem in found if problem), None)


def _named(path: tuple[str, ...]) -> str:
    return f"observation {'.'.join(path)}" if path else "observation"
