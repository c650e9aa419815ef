"""Access to Gymnasium's registry: specs of tasks by name, and creation of single environments."""

import difflib
import importlib
import inspect
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, cast, get_args

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, load_env_creator, parse_env_id

from operant import doors
from operant.envs.packages import PACKAGES, module_of, packages_of, with_symbols
from operant.envs.workers import EnvError, place

logger = logging.getLogger(__name__)

ENTRY_POINTS = "operant.environments"
"""Entry-point group of unregistered environments in installed packages."""

MODEL_TASK = "operant.mdp.environment:ModelEnv"
"""Name of the environment of a model in a file, `env_kwargs["file"]`."""

MODEL_SUFFIXES = (".json", ".npz", ".csv", ".tsv")
"""Suffixes of files with a model; here, because `operant.mdp` imports numba."""

GYMNASIUMS_OWN = ("max_episode_steps",)
"""Keyword arguments of `gymnasium.make` itself."""

MADE_BY_GYMNASIUM = ("OrderEnforcing", "PassiveEnvChecker", "TimeLimit", "HumanRendering", "RenderCollection")
"""Wrappers that `gymnasium.make` adds itself."""

_SWITCHES = ("true", "false", "yes", "no", "on", "off")
"""Texts that mean true or false, but not in JSON."""

_INSTALLED = ("operant", "gymnasium", "__main__")
"""Modules that are not recorded as files of an environment, such as a training script, which contains other code."""


def specified(task: str, env_kwargs: Mapping[str, Any] | None = None) -> EnvSpec:
    """Return the spec of a task with the given keyword arguments.

    Args:
        task: Gymnasium id.
        env_kwargs: keyword arguments of the environment's constructor, which override the registered ones.

    Raises:
        ValueError: the task is unknown or out of date, or a keyword argument is unknown or missing.
        ModuleNotFoundError: the task needs a package that is not installed.
    """
    known = registered(task)
    own = dict(env_kwargs or {})
    spec = copy(known)
    if "max_episode_steps" in own:
        spec.max_episode_steps = own.pop("max_episode_steps")
    spec.kwargs = {**known.kwargs, **own}
    _require_signature(spec, own)
    return spec


def frozen(task: str, env_kwargs: Mapping[str, Any] | None, steps: int) -> dict[str, Any]:
    """Return the keyword arguments of an environment that stays as it is after a number of steps.

    This concerns environments that change with the number of steps: their constructor has the parameter `frozen_at`.
    The keyword arguments of others, and of a task that is not registered, are unchanged.

    Args:
        task: Gymnasium id.
        env_kwargs: keyword arguments of the environment's constructor; its own `frozen_at` takes precedence, unless it
            is None.
        steps: number of steps of one environment.
    """
    own = dict(env_kwargs or {})
    return {**own, "frozen_at": steps} if changes(task, own) else own


def changes(task: str, env_kwargs: Mapping[str, Any] | None) -> bool:
    """Return whether an environment changes with the number of steps (see `frozen`)."""
    try:
        parameters = _parameters(registered(task)) or {}
    except (ValueError, ModuleNotFoundError):
        return False
    return "frozen_at" in parameters and (env_kwargs or {}).get("frozen_at") is None


def drawn(task: Any, env_kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return task and keyword arguments for a text file with a drawing of a grid; other tasks are unchanged.

    Raises:
        ValueError: the file cannot be read, or there are two drawings.
    """
    if not isinstance(task, str) or not task.endswith(".txt"):
        return task, env_kwargs
    if "drawing" in env_kwargs:
        raise ValueError(f"{task} is a drawing, and env_kwargs contain another one: remove one of them")
    try:
        text = Path(task).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ValueError(f"the drawing {task} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return "operant/Grid-v0", {**env_kwargs, "drawing": text}


def from_object(task: Any, env_kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and keyword arguments of an `EnvSpec`, or of an environment created from one.

    The environment itself is not used: others are created by its name. Its render mode is left out.

    Raises:
        ValueError: the object is neither, its spec is incomplete, or it has wrappers that the name does not create.
    """
    spec = task.spec if isinstance(task, gymnasium.Env) else task
    if not isinstance(spec, EnvSpec) or spec.entry_point is None:
        raise ValueError(
            f"{task!r:.80} is not a task: pass the name of a registered environment, its EnvSpec, a subclass of "
            "gymnasium.Env, or a function that creates an environment"
        )
    known = gymnasium.registry.get(spec.id)
    if known is not None and known.entry_point != spec.entry_point:
        known = None
    created = [] if known is None else [wrapper.name for wrapper in known.additional_wrappers]
    if (added := _added_wrappers(task)) != created:
        raise ValueError(
            f"{spec.id} has the wrappers {', '.join(added) or 'none'}, but training creates its environments by name, "
            f"with the wrappers {', '.join(created) or 'none'}: pass a function that creates it, such as "
            "env=lambda: MyWrapper(gymnasium.make(...))"
        )
    limit = {"max_episode_steps": spec.max_episode_steps}
    if spec.max_episode_steps is None or (known is not None and known.max_episode_steps == spec.max_episode_steps):
        limit = {}
    own = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    return spec.id if known is not None else doors.named(spec.entry_point), {**limit, **own, **env_kwargs}


def wrapper_chain(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """Return the Gymnasium wrappers of an environment, outermost first."""
    found: list[gymnasium.Wrapper[Any, Any, Any, Any]] = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(cast("gymnasium.Wrapper[Any, Any, Any, Any]", env))
        env = env.env
    return found


def _added_wrappers(task: Any) -> list[str]:
    """Return the names of the wrappers outside those of `gymnasium.make`, innermost first.

    Those inside belong to the environment, whose entry point creates them.
    """
    if isinstance(task, EnvSpec):
        return [wrapper.name for wrapper in task.additional_wrappers]
    names = [type(wrapper).__name__ for wrapper in wrapper_chain(task)]
    outside = names[: names.index("OrderEnforcing")] if "OrderEnforcing" in names else names
    return [name for name in reversed(outside) if name not in MADE_BY_GYMNASIUM]


def make_single(spec: EnvSpec, *, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Create one environment.

    Args:
        spec: result of `specified`.
        render_mode: render mode of the environment, or None.

    Raises:
        ValueError: the constructor rejects a keyword argument, or the environment has no spaces.
        ModuleNotFoundError: the environment needs a package that is not installed.
        EnvError: the constructor raised another error.
    """
    rendering: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if rendering:  # pygame would open an audio device, which servers lack
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    try:
        env = gymnasium.make(spec, disable_env_checker=True, **rendering)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ModuleNotFoundError(f"{spec.id} needs a package that is not installed: {error}{_hint(spec)}") from error
    except (Exception, SystemExit) as error:
        what = f"the constructor of {spec.id} raised {type(error).__name__}: {error}{place(error)}"
        if isinstance(error, ValueError | TypeError | LookupError | gymnasium.error.Error):
            raise ValueError(what) from error
        raise EnvError(what) from error
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            raise ValueError(
                f"{spec.id} has no {name}: set it in its class or constructor, to a gymnasium.spaces.Space"
            )
    bare: Any = env.unwrapped
    if spec.max_episode_steps is not None and hasattr(bare, "max_steps") and _is_own(type(bare).__module__):
        bare.max_steps = spec.max_episode_steps  # instead of its own limit, which may be lower
    if any(package.symbols for package in packages_of(spec)):
        env.observation_space = with_symbols(env.observation_space, spec)
    return env


def _require_signature(spec: EnvSpec, own: Mapping[str, Any]) -> None:
    """Check that the constructor accepts all keyword arguments, and that none is missing."""
    parameters = _parameters(spec)
    if parameters is None:
        return
    named = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "render_mode"
    ]
    more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    accepted = ", ".join([*named, *GYMNASIUMS_OWN]) + (", and others that it passes on" if more else "")
    for name, value in own.items():
        if name not in named and not more:
            near = difflib.get_close_matches(name, named, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{spec.id} has no parameter {name!r}: its constructor accepts {accepted}{hint}")
        switch = name in named and isinstance(parameters[name].default, bool)
        if switch and isinstance(value, str) and value.lower() in _SWITCHES:
            raise ValueError(f"{name} of {spec.id} must be true or false, got {value!r}, a text, which counts as true")
    missing = [
        name for name in named if parameters[name].default is inspect.Parameter.empty and name not in spec.kwargs
    ]
    if missing:
        example = " ".join(f"{name}=..." for name in missing)
        raise ValueError(
            f"{spec.id} needs {', '.join(missing)}: pass --env-kwargs {example}, in Python env_kwargs={{...}}; its "
            f"constructor accepts {accepted}"
        )
    _require_types(spec, parameters, own)


_TYPES: Mapping[type, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a finite number"),
    bool: (bool, "true or false"),
}
"""By annotation: the type of values, and what they are called in messages."""


def _require_types(spec: EnvSpec, parameters: Mapping[str, inspect.Parameter], own: Mapping[str, Any]) -> None:
    """Check numbers and switches of operant's own environments, whose constructors would raise obscure errors."""
    point: Any = spec.entry_point
    if not _is_own(point if isinstance(point, str) else str(point.__module__)):
        return
    others = [each.annotation for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    for name, value in own.items():
        kind = parameters[name].annotation if name in parameters else others[0]
        required, optional = (get_args(kind)[0], True) if isinstance(kind, UnionType) else (kind, False)
        if required not in _TYPES or (optional and value is None):
            continue
        expected, words = _TYPES[required]
        fits = isinstance(value, expected) and isinstance(value, bool) == (required is bool)
        if not fits or not math.isfinite(value):
            raise ValueError(f"{name} of {spec.id} must be {words}, got {value!r}")


def _is_own(module: str) -> bool:
    return module.startswith("operant.")


def render_modes(spec: EnvSpec) -> tuple[str, ...] | None:
    """Return the render modes of an environment's class; None if they are unknown.

    They are if a function or a wrapper creates the environment, or its import fails.
    """
    try:
        creator = _creator(spec)
    except Exception:
        return None
    metadata = getattr(creator, "metadata", None)  # of a subclass of gymnasium.Wrapper: a property
    if not inspect.isclass(creator) or not isinstance(metadata, Mapping):
        return None
    return tuple(cast(Mapping[str, Any], metadata).get("render_modes") or ())


def _creator(spec: EnvSpec) -> Any:
    point: Any = spec.entry_point
    return load_env_creator(point) if isinstance(point, str) else point


def _parameters(spec: EnvSpec) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of an environment's constructor; None if they are unknown or the import fails."""
    try:
        return inspect.signature(_creator(spec)).parameters
    except Exception:
        return None  # creating the environment reports the error


def _hint(spec: EnvSpec) -> str:
    return "".join(f'. Try: pip install "operant[{package.extra}]"' for package in packages_of(spec))


def registered(task: str) -> EnvSpec:
    """Return Gymnasium's spec of `task`, after importing the module that registers it.

    Tasks such as `my.py:MyEnv` need no registration.
    """
    offered = task not in gymnasium.registry and task in doors.entry_points(ENTRY_POINTS)
    if doors.is_file(task) or doors.is_object(task) or offered:
        return _from_outside(task)
    module, _, name = task.rpartition(":")
    module = module or module_of(name)
    for needed in (*PACKAGES[module].needs, module) if module in PACKAGES else (module,) if module else ():
        _import(needed, task)
    known = gymnasium.registry
    if name not in known and hasattr(sys.modules.get(module), name):
        return _from_outside(task)
    if name not in known:
        raise ValueError(_unknown(name, list(known)))
    namespace, stem, version = parse_env_id(name)
    newest = find_highest_version(namespace, stem)
    if version is not None and newest is not None and version < newest:
        _check_old(known[name], get_env_id(namespace, stem, newest))
    return known[name]


def _check_old(spec: EnvSpec, newest: str) -> None:
    """Log that a version is old, if the environment is custom, or its package keeps old versions as separate tasks.

    Raises:
        ValueError: it is an old version of Gymnasium's own, or of another package.
    """
    packages = packages_of(spec)
    is_custom = not packages and not str(spec.entry_point).startswith("gymnasium.")
    if not is_custom and not any(package.keeps_old for package in packages):
        raise ValueError(
            f"{spec.id!r} is out of date: use {newest!r}. For the old one, pass its vector environment to "
            "operant.envs.GymnasiumEnv"
        )
    logger.warning("%s is an old version, which is a separate task; the newest is %s", spec.id, newest)


def _from_outside(task: str) -> EnvSpec:
    """Return the spec for a name such as `my.py:MyEnv`.

    Raises:
        ValueError: the name does not refer to an environment.
    """
    creator = doors.load(
        task,
        expected="an environment: a subclass of gymnasium.Env, or a function that creates one",
        group=ENTRY_POINTS,
    )
    return EnvSpec(id=doors.label(task), entry_point=creator)


def own_files(task: str) -> list[Path]:
    """Return the user's files that define a task; empty if it comes from installed packages.

    They register the task, or define its environment, base classes and wrappers; their other imports are not included.
    Empty if the task cannot be created, which raises an error later.
    """
    try:
        spec = registered(task)
        points = [spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
        creators: list[Any] = [load_env_creator(point) if isinstance(point, str) else point for point in points]
    except Exception:
        return []
    modules = [task.rpartition(":")[0], *(name for creator in creators for name in _modules(creator))]
    files = (getattr(sys.modules.get(module), "__file__", None) for module in modules if not _installed(module))
    found = dict.fromkeys(Path(file) for file in files if file)
    return [file for file in found if file.is_file() and not doors.is_installed(file)]


def _modules(creator: Any) -> Iterator[str]:
    """Yield the names of the modules that define a class and its bases, or a function."""
    for part in inspect.getmro(creator) if inspect.isclass(creator) else [creator]:
        yield str(getattr(part, "__module__", ""))


def _installed(module: str) -> bool:
    return module.partition(".")[0] in _INSTALLED


def _import(module: str, task: str) -> None:
    try:
        gymnasium.register_envs(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ModuleNotFoundError(
                f"{task!r} needs the module {module!r}, which cannot be imported: {error}", name=error.name
            ) from error
        package = module.partition(".")[0]
        hint = (
            f': pip install "operant[{PACKAGES[package].extra}]"'
            if package in PACKAGES
            else "; one in the working folder is found by `python -m operant`, or with PYTHONPATH=."
        )
        raise ModuleNotFoundError(f"{task!r} needs the module {module!r}, which is not installed{hint}") from error


def _unknown(name: str, known: Sequence[str]) -> str:
    """Return the error message for an unknown name, with suggestions."""
    stems = {_stem(task).lower(): _stem(task) for task in known}
    near = [stems[match] for match in difflib.get_close_matches(_stem(name).lower(), stems, n=3)]
    newest = [get_env_id(*parse_env_id(stem)[:2], find_highest_version(*parse_env_id(stem)[:2])) for stem in near]
    meant = f"; did you mean {' or '.join(newest)}?" if near else "."
    return (
        f"{name!r} is not a registered environment{meant} Use 'module:Name-v0' for an environment that importing the "
        "module registers; Atari games have names such as 'ALE/Pong-v5', and DeepMind Control tasks names such as "
        "'dm_control/cartpole-swingup-v0'"
    )


def _stem(task: str) -> str:
    """Return a Gymnasium id without its version."""
    return re.sub(r"-v\d+$", "", task)
