"""Creation of environments by name."""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, get_args
from weakref import WeakValueDictionary

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit

from operant import doors, streams
from operant.envs.adapter import GymnasiumEnv
from operant.envs.atari import Atari, is_atari, limited_game, require_options
from operant.envs.base import BatchEnv
from operant.envs.checks import first_problem, needs_check, problem_of_result
from operant.envs.envpool import EnvPool
from operant.envs.features import MASK
from operant.envs.infos import scalars
from operant.envs.registry import changes, make_single, registered, specified, wrapper_chain
from operant.envs.spaces import is_dict
from operant.envs.tensor import TENSOR_ENVS, TensorEnv
from operant.envs.worker_pool import WorkerPool, pooled
from operant.envs.workers import DEADLINE, place
from operant.envs.wrapper import wrappers

logger = logging.getLogger(__name__)

Backend = Literal["auto", "tensor", "gymnasium", "envpool"]
Vectorization = Literal["sync", "async"]


def make(
    task: str,
    rows: int,
    seeds: Sequence[int],
    *,
    backend: Backend = "auto",
    purpose: str = "environment",
    first_row: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    vectorization: Vectorization = "sync",
    deadline: float = DEADLINE,
    pool: WorkerPool | None = None,
    max_steps: int | None = None,
    clip_rewards: bool = True,
    episodic_life: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
) -> BatchEnv:
    """Create `len(seeds) * rows` environments of a task, in the order of `[S, N]`, flattened.

    The random numbers of an environment depend only on its seed, the purpose and its index within the seed.

    Args:
        task: Gymnasium id such as `"CartPole-v1"`, `"ALE/Pong-v5"` or `"module:Name-v0"`.
        rows: number of environments per seed, N.
        seeds: non-negative seeds of the runs.
        backend: "tensor" uses tensor environments, for tasks of `operant.envs.tensor.TENSOR_ENVS`; "gymnasium" uses
            Gymnasium's environments in a vector environment; "envpool" uses EnvPool's, in C++ threads (see
            `operant.envs.EnvPool`); "auto" uses tensor environments if available, otherwise Gymnasium's.
        purpose: purpose of the random numbers; use different ones for training and evaluation.
        first_row: index of the first environment within its seed, if the others are in another process.
        device: device of observations and actions.
        dtype: dtype of observations; Gymnasium's are float32.
        vectorization: for the backend "gymnasium": "sync" runs environments in this process, "async" in worker
            processes, at most one per core. Atari runs in its own threads (see `operant.envs.Atari`).
        deadline: time limit in seconds for a reply of a worker process.
        pool: worker processes for "async", with their own time limit. Default: new ones, which end when the
            environments are closed.
        max_steps: number of steps after which an episode is truncated, unless it has a shorter limit; frames of the
            random start of Atari's games count, too. Default: no limit.
        clip_rewards: for Atari, see `operant.envs.Atari`.
        episodic_life: for Atari, see `operant.envs.Atari`.
        env_kwargs: keyword arguments of the constructor of Gymnasium's environment, which override the registered
            ones; `max_episode_steps` sets the time limit. Tensor environments accept only those in their `OPTIONS`.

    Raises:
        ValueError: an argument is out of range, or the task is unknown, out of date, has no tensor environment, or is
            not an Atari game although one is required.
        ModuleNotFoundError: the task needs a package that is not installed.
    """
    if rows < 1 or not seeds:
        raise ValueError(f"at least one row and one seed are needed, got rows={rows} and seeds={list(seeds)}")
    if vectorization not in get_args(Vectorization):
        raise ValueError(f"vectorization must be 'sync' or 'async', got {vectorization!r}")
    row_seeds = streams.row_seeds(seeds, rows, purpose, first_row)
    resolved = resolve_backend(task, backend, env_kwargs)
    spec = specified(task, env_kwargs) if resolved == "gymnasium" else None
    game = spec is not None and is_atari(spec)
    given = [*([] if clip_rewards else ["clip_rewards=False"]), *(["episodic_life=True"] if episodic_life else [])]
    if not game and given:
        raise ValueError(
            "only Atari games such as ALE/Pong-v5, with the backend 'gymnasium', have clip_rewards and episodic_life, "
            f"but the task is {task!r} with {resolved!r}: remove {' and '.join(given)}"
        )
    if resolved == "tensor":
        if env_kwargs:
            specified(task, env_kwargs)  # which checks them
        tensors = TENSOR_ENVS[task](row_seeds, device=device, dtype=dtype, **(env_kwargs or {}))
        tensors.env_kwargs = dict(env_kwargs or {})
        if max_steps is not None:
            tensors.max_episode_steps = min(tensors.max_episode_steps, max_steps)
        return tensors
    if dtype is not torch.float32:
        raise ValueError(f"Gymnasium environments have observations of torch.float32, got dtype={dtype}")
    if spec is None:
        return EnvPool(_limited(registered(task), max_steps), row_seeds, device=device)
    if game:
        require_options(registered(task), env_kwargs or {})
        spec = _limited(spec, max_steps)
        atari = Atari(spec, row_seeds, device=device, clip_rewards=clip_rewards, episodic_life=episodic_life)
        atari.env_kwargs = dict(env_kwargs or {})
        return atari
    one = partial(_make_one, spec, max_steps)
    if vectorization == "async":
        env = pooled(one, len(row_seeds), task=spec.id, deadline=deadline, pool=pool)
    else:
        env = _in_turn(one, len(row_seeds), spec.id)
    check, turns = needs_check(spec), changes(task, spec.kwargs)
    checks = {"check": check, "check_seeding": check}
    made = GymnasiumEnv(env, row_seeds, task=spec.id, device=device, deadline=deadline, changes=turns, **checks)
    made.spec, made.env_kwargs = spec, dict(env_kwargs or {})
    return made


def resolve_backend(
    task: str, backend: Backend, env_kwargs: Mapping[str, Any] | None = None
) -> Literal["tensor", "gymnasium", "envpool"]:
    """Return the backend that `make` uses for a task and keyword arguments.

    Raises:
        ValueError: the backend is unknown, or the task has no tensor environment although one is required.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be 'auto', 'tensor', 'gymnasium' or 'envpool', got {backend!r}")
    taken = frozenset[str]() if task not in TENSOR_ENVS or backend == "envpool" else TENSOR_ENVS[task].OPTIONS
    if env_kwargs and not taken.issuperset(env_kwargs):
        if backend in ("tensor", "envpool"):
            raise ValueError(
                f"env_kwargs are for environments of Gymnasium, but env_backend is {backend!r}"
                f"{', which takes ' + ', '.join(sorted(taken)) + ' alone' if taken else ''}: leave that at 'auto', "
                f"got env_kwargs={dict(env_kwargs)}"
            )
        return "gymnasium"
    if backend == "envpool":
        return "envpool"
    if backend == "tensor" and task not in TENSOR_ENVS:
        raise ValueError(f"{task!r} has no tensor environment; tasks with one: {', '.join(TENSOR_ENVS)}")
    return "tensor" if backend != "gymnasium" and task in TENSOR_ENVS else "gymnasium"


class EnvMaker(Protocol):
    """Function that creates environments, in any process."""

    def __call__(self, *seeds: int, first_row: int = 0) -> BatchEnv:
        """Create the environments of the given seeds (see `make`)."""
        ...


def maker_like(env: BatchEnv, rows: int) -> EnvMaker:
    """Return a function that creates `rows` environments per seed of the task of `env`, possibly in another process.

    The other process need not import the registering module if the entry point is a name, or a class or function of a
    module.

    Raises:
        ValueError: the environment has wrappers.
    """
    if found := wrappers(env):
        raise ValueError(
            f"{type(found[-1]).__name__} wraps the environments of {env.task}, but other processes create them by "
            "name, without wrappers: remove the wrapper, or use an algorithm that acts in this process"
        )
    game = {"clip_rewards": env.clip_rewards, "episodic_life": env.episodic_life} if isinstance(env, Atari) else {}
    own = {"env_kwargs": env.env_kwargs} if isinstance(env, Atari | GymnasiumEnv | TensorEnv) else {}
    backend = "tensor" if isinstance(env, TensorEnv) else "envpool" if isinstance(env, EnvPool) else "gymnasium"
    return partial(_make_registered, _name(env), _registration(env.task), rows, backend, **game, **own)


def only_here(env: BatchEnv) -> bool:
    """Return whether a task may be unavailable in other processes: its class is in a script, or it is a function."""
    if env.task in gymnasium.registry:
        return _registration(env.task) is None
    return doors.is_object(_name(env))


def _name(env: BatchEnv) -> str:
    """Return the name by which processes create the environment: a registered id, or the path of its class."""
    spec = env.spec if isinstance(env, GymnasiumEnv) and env.task not in gymnasium.registry else None
    return env.task if spec is None else doors.named(spec.entry_point)


def _registration(task: str) -> EnvSpec | None:
    """Return the registration for a process that has not imported the registering module; None if impossible."""
    if task not in gymnasium.registry:
        return None
    spec = copy(gymnasium.registry[task])
    point: Any = spec.entry_point
    if callable(point) and getattr(point, "__qualname__", "<").isidentifier() and point.__module__ != "__main__":
        point = spec.entry_point = f"{point.__module__}:{point.__qualname__}"
    return spec if isinstance(point, str) else None


def _make_registered(
    task: str, spec: EnvSpec | None, rows: int, backend: Backend, *seeds: int, **options: Any
) -> BatchEnv:
    if spec is not None:
        importlib.import_module(str(spec.entry_point).partition(":")[0])  # the import may register the task
        gymnasium.registry.setdefault(task, spec)
    return make(task, rows, seeds, backend=backend, **options)


def _in_turn(make_one: Callable[[], gymnasium.Env[Any, Any]], rows: int, task: str) -> SyncVectorEnv:
    """Return a vector environment of single environments, which are stepped one after another.

    Raises:
        ValueError: their spaces differ, or two of them are the same object.
    """
    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        for _ in range(rows):
            envs.append(make_one())
            for name in ("observation_space", "action_space"):
                first, other = getattr(envs[0], name), getattr(envs[-1], name)
                if first != other:
                    raise ValueError(
                        f"two environments of {task} have different {name}s, {first} and {other}: make them equal"
                    )
    except BaseException:
        for env in envs:
            env.close()
        raise
    return SyncVectorEnv([lambda env=env: env for env in envs], copy=False, autoreset_mode=AutoresetMode.DISABLED)


_open: WeakValueDictionary[int, gymnasium.Env[Any, Any]] = WeakValueDictionary()
"""User environments that have been created and not closed, by `id`."""


class _Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Drops all infos except the numbers in the last info of an episode, and logs errors of `close`.

    Other infos are not used, and merging them at every step costs time. Empty reset options, as passed by vector
    environments that reset some environments, are replaced by None.

    Raises:
        ValueError: another open environment is the same object.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        bare = env.unwrapped
        if _open.get(id(bare)) is bare:
            raise ValueError(
                f"{_task(env)}: the function that creates environments has returned the same object twice, but several "
                "environments are stepped separately, in training and in evaluations: create a new one in each call"
            )
        with suppress(TypeError):  # an object without weak references
            _open[id(bare)] = bare

    def close(self) -> None:
        """Close the environment; an error causes a warning, since nothing depends on it."""
        _open.pop(id(self.env.unwrapped), None)
        try:
            super().close()
        except Exception as error:
            _warn_of_close(_task(self.env), f"{type(error).__name__}: {error}{place(error)}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options or None)
        if info and MASK in info:
            _warn_of_masks(self.env, f"info[{MASK!r}]")
        return obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        ended = terminated or truncated
        return obs, reward, terminated, truncated, scalars(info) if info and ended else {}


class _Checked(_Plain):
    """Checks the first observations of a custom environment against their space, and what its first step returns."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._unseen = {"reset", "step"}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        if "reset" in self._unseen:
            self._look(obs, "reset")
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self._unseen:
            self._look(result[0], "step")
            if problem := problem_of_result(*result[1:4]):
                raise ValueError(f"{problem} after step()")
        return result

    def _look(self, obs: Any, call: str) -> None:
        self._unseen.discard(call)
        problem = first_problem(self.observation_space, obs)
        if problem is not None:
            raise ValueError(f"{problem} after {call}()")


@lru_cache(maxsize=64)
def _warn(text: str) -> None:
    """Log a warning of MuJoCo once for all environments."""
    logger.warning("MuJoCo: %s", text)


def _warn_of_masks(env: gymnasium.Env[Any, Any], where: str) -> None:
    """Log a warning, once, that masks of actions are ignored, unless observations contain one."""
    space = env.observation_space
    if not (is_dict(space) and MASK in space.spaces):
        _warn_of_ignored(_task(env), where)


def _task(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


@lru_cache(maxsize=64)
def _warn_of_close(task: str, error: str) -> None:
    logger.warning("%s: close() raised %s; the error is ignored", task, error)


@lru_cache(maxsize=64)
def _warn_of_ignored(task: str, where: str) -> None:
    logger.warning(
        "%s has masks of actions in %s, which are ignored: forbidden actions are masked if observations are a "
        "dictionary with the entry %s",
        *(task, where, MASK),
    )


def _limited(spec: EnvSpec, max_steps: int | None) -> EnvSpec:
    """Return a spec whose episodes are truncated after `max_steps` steps, unless its own limit is shorter."""
    limits = [steps for steps in (spec.max_episode_steps, max_steps) if steps is not None]
    if not limits:
        return spec
    if is_atari(spec):
        return limited_game(spec, min(limits))
    limited = copy(spec)
    limited.max_episode_steps = min(limits)
    return limited


def _make_one(spec: EnvSpec, max_steps: int | None) -> gymnasium.Env[Any, Any]:
    if "mujoco" in str(spec.entry_point) and importlib.util.find_spec("mujoco"):
        mujoco: Any = importlib.import_module("mujoco")
        if (
            mujoco.get_mju_user_warning() is None
        ):  # by default MuJoCo prints warnings, and writes a file into the working directory
            mujoco.set_mju_user_warning(_warn)
    env, own = make_single(spec), spec.max_episode_steps
    _require_no_statistics(spec, env)
    if any(hasattr(layer, "action_masks") for layer in (*wrapper_chain(env), env.unwrapped)):
        _warn_of_masks(env, "action_masks()")
    kind = _Checked if needs_check(spec) else _Plain
    return kind(env if max_steps is None or (own is not None and own <= max_steps) else TimeLimit(env, max_steps))


def _require_no_statistics(spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> None:
    """Check that no wrapper of a single environment normalizes by statistics of its own.

    Raises:
        ValueError: there is one.
    """
    for wrapper in wrapper_chain(env):
        if isinstance(wrapper, NormalizeObservation | NormalizeReward):
            option = "obs" if isinstance(wrapper, NormalizeObservation) else "reward"
            env.close()
            raise ValueError(
                f"{spec.id} has the wrapper {type(wrapper).__name__}, whose statistics would differ between "
                "environments, start again in evaluations and not be saved: remove it, and use "
                f"--normalize-{option}, in Python normalize_{option}=True, of algorithms such as ppo"
            )
