"""Whether the transition table of an environment describes what its `reset` and `step` do."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from inspect import signature
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers
from numpy.typing import NDArray

SAMPLED_STEPS = 200
"""Steps that are compared with the table of an environment of an unknown class."""

RESETS = 100
"""Resets, each with its own seed, that show where the episodes of an environment start."""

_TRANSPARENT = (
    wrappers.TimeLimit,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    wrappers.RecordVideo,
    wrappers.RenderCollection,
    wrappers.HumanRendering,
)
"""Wrappers that change neither observations nor actions, rewards or ends, except for the step limit."""
_TRUSTED = ("gymnasium.envs.toy_text.", "operant.envs.")
"""Prefixes of the modules of environments that sample from their table."""


def has_table(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether `env.unwrapped.P` has the form of Gymnasium's tables: a list or dictionary of choices."""
    return is_table(getattr(env.unwrapped, "P", None))


def is_table(table: object) -> bool:
    """Return whether an object has the form of Gymnasium's tables: a list or dictionary of choices."""
    if not isinstance(table, Mapping | Sequence) or isinstance(table, str | bytes):
        return False
    listed = cast(Mapping[object, object] | Sequence[object], table)
    rows = listed.values() if isinstance(listed, Mapping) else listed
    return all(isinstance(row, Mapping | Sequence) and not isinstance(row, str) for row in rows)


def is_trusted(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether the class of an environment, without wrappers, is Gymnasium's or operant's own."""
    return type(env.unwrapped).__module__.startswith(_TRUSTED)


def foreign_wrapper(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return the name of the outermost wrapper that may change the model of an environment, or None."""
    while env is not env.unwrapped:
        if type(env) not in _TRANSPARENT:
            return type(env).__name__
        env = cast(gymnasium.Wrapper[Any, Any, Any, Any], env).env
    return None


def step_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the smallest step limit of an environment's spec and its TimeLimit wrappers, or None."""
    limits = [] if env.spec is None else [env.spec.max_episode_steps]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrappers.TimeLimit):
            limits.append(env._max_episode_steps)  # pyright: ignore[reportPrivateUsage]
        env = env.env
    return min((limit for limit in limits if limit is not None), default=None)


def fault(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return why the table of an environment is not its model, or None if no reason is known.

    Steps of an environment of an unknown class are sampled from a copy, or from the environment itself if it cannot be
    copied.

    Args:
        env: an environment with a table, or a world of operant.
    """
    wrapper = foreign_wrapper(env)
    if wrapper is not None:
        return f"the wrapper {wrapper} may change the observations, actions, rewards or ends of the table"
    inner: Any = env.unwrapped
    if getattr(inner, "fickle_passenger", False):
        return "its fickle_passenger changes the destination, which the table leaves out"
    return None if is_trusted(env) else _disagreement(inner)


def changes(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether an environment changes with the number of steps: its `frozen_at` is None.

    This is `operant.envs.registry.changes` for an instance, without importing torch.
    """
    inner: Any = env.unwrapped
    given = {} if env.spec is None else env.spec.kwargs
    has_parameter = "frozen_at" in signature(type(inner).__init__).parameters
    return has_parameter and getattr(inner, "frozen_at", given.get("frozen_at")) is None


def first_states(env: gymnasium.Env[Any, Any]) -> list[int]:
    """Return the states in which episodes of an environment are observed to start, in order.

    A copy is reset, or the environment itself if it cannot be copied. The list is empty for a table without a `step`.

    Args:
        env: an environment that behaves as its table (see `fault`).
    """
    inner: Any = env.unwrapped
    if _has_no_step(inner):
        return []
    inner = _copy(inner)
    return sorted({int(cast(tuple[Any, Any], inner.reset(seed=seed))[0]) for seed in range(RESETS)})


def start_fault(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return why the distribution of an environment's first state is unknown, or None if it is known.

    Args:
        env: an environment that behaves as its table (see `fault`).
    """
    if getattr(env.unwrapped, "initial_state_distrib", None) is not None:
        return None
    states = first_states(env)
    if len(states) < 2:
        return None
    listed = ", ".join(map(str, states[:5])) + (", ..." if len(states) > 5 else "")
    return (
        f"its episodes start in several states ({listed}) with unknown probabilities; define initial_state_distrib, an "
        "array of the probability of each state"
    )


def _has_no_step(env: Any) -> bool:
    return getattr(cast(type[Any], type(env)), "step", None) is gymnasium.Env.step


def _copy(env: Any) -> Any:
    try:
        return deepcopy(env)
    except Exception:  # windows and locks cannot be copied
        return env.unwrapped


def _disagreement(env: Any) -> str | None:
    """Return how sampled steps of an environment differ from its table, or None."""
    states = len(env.P)
    if env.observation_space != spaces.Discrete(states):
        return f"its observation space is {env.observation_space}, but the table has {states} states"
    if _has_no_step(env):
        return None
    env = _copy(env)
    try:
        return _compared(env, np.random.default_rng(0))
    except Exception as error:  # the environment is foreign code
        return f"its reset() or step() raised {type(error).__name__}: {error}"


def _compared(env: Any, rng: np.random.Generator) -> str | None:
    start: NDArray[np.float64] | None = getattr(env, "initial_state_distrib", None)
    state: int | None = None
    for number in range(SAMPLED_STEPS):
        if state is None:
            first, _ = cast(tuple[Any, Any], env.reset(seed=number))
            state = int(first)
            if start is not None and not start[state] > 0:
                return f"reset() returns state {state}, which has probability 0 in initial_state_distrib"
        choices = cast(Mapping[int, Sequence[Any]] | Sequence[Sequence[Any]], env.P[state])
        listed = choices if isinstance(choices, Mapping) else range(len(choices))
        actions = [action for action in listed if len(choices[action])]
        if not actions:
            return f"step() leads to state {state}, which has no actions in P, without terminating"
        action = int(rng.choice(actions))
        observation, reward, terminated, truncated, _ = env.step(action)
        found = (int(observation), float(reward), bool(terminated))
        if truncated:
            return f"step({action}) in state {state} truncates the episode, which the table leaves out"
        if not any(_agrees(outcome, found) for outcome in choices[action]):
            return (
                f"step({action}) in state {state} returns the state, reward and termination {found}, "
                f"expected an outcome of P[{state}][{action}]: {list(choices[action])[:4]}"
            )
        state = None if terminated else found[0]
    return None


def _agrees(outcome: Any, found: tuple[int, float, bool]) -> bool:
    probability, successor, reward, terminated = outcome
    same = bool(np.isclose(reward, found[1], rtol=1e-6, atol=1e-9))
    return probability > 0 and same and (int(successor), bool(terminated)) == (found[0], found[2])
