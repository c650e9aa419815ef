"""From names and numbers to the configuration of a learner, whatever its package."""

from collections.abc import Mapping
from typing import Any

from operant.catalog import Algorithm
from operant.runtime.settings import Settings
from operant.runtime.tables import NONE, from_table


def configuration(
    algorithm: Algorithm, task: str, preset: str | None = None, *, under: Mapping[str, Any] | None = None, **values: Any
) -> Any:
    """Return the configuration of an algorithm: its defaults, then the preset, the variant's values, and single ones.

    Args:
        algorithm: from the catalog.
        task: selects a preset by itself where there is one of its name, of its namespace (`ALE/*`), or of all (`*`).
        preset: a named one instead; `"paper"` is the defaults alone.
        under: fields of the configuration that take the place of its defaults, below the preset.
        **values: fields of the configuration.

    Raises:
        ValueError: there is no such preset or field, or a value is out of its range.
        TypeError: `task` is no name.
    """
    if not isinstance(task, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"task must be a name such as 'CartPole-v1', got {task!r}; give an environment of your own a name with "
            "gymnasium.register"
        )
    kind, presets = algorithm.config_class, algorithm.preset_values
    if preset is not None and preset not in algorithm.presets and preset not in presets:
        known = ", ".join(dict.fromkeys([*algorithm.presets, *presets]))
        raise ValueError(f"{algorithm.name} has no preset {preset!r}; there are: {known}")
    chosen = [preset] if preset else [task, f"{task.partition('/')[0]}/*", "*"]
    found = [presets[name] for name in chosen if name in presets]
    base = kind(**{**(under or {}), **(found[0] if found else {}), **dict(algorithm.values)})
    table = {name: NONE if value is None else value for name, value in values.items()}
    return from_table(kind, table, base=base, where=algorithm.name, algorithm=algorithm)


def require_no_compiling(settings: Settings) -> None:
    """Refuse to compile the updates of an algorithm that has none to compile.

    Raises:
        ValueError: `Settings.compile` is on.
    """
    if settings.compile == "on":
        raise ValueError(f"{settings.algorithm} has no update that could be compiled: leave compile at auto, got 'on'")


def require_no_game(settings: Settings) -> None:
    """Refuse the settings of games of Atari for an algorithm that cannot play any.

    Raises:
        ValueError: `Settings.clip_rewards` or `Settings.episodic_life` is not as it is by default.
    """
    if settings.episodic_life or not settings.clip_rewards:
        raise ValueError(
            f"{settings.algorithm} plays no games of Atari: leave out clip_rewards={settings.clip_rewards} and "
            f"episodic_life={settings.episodic_life}"
        )


def require_no_workers(settings: Settings) -> None:
    """Refuse to run environments in processes of their own for an algorithm that runs one in this process.

    Raises:
        ValueError: `Settings.vectorization` is async, or workers are described.
    """
    defaults = {"vectorization": "sync", "num_workers": 0, "lost_workers": "end"}
    for name, default in defaults.items():
        if getattr(settings, name) != default:
            raise ValueError(
                f"{settings.algorithm} has no environments in processes of their own: leave out "
                f"{name}={getattr(settings, name)!r}"
            )


def require_no_wrappers(settings: Settings) -> None:
    """Refuse wrappers of environments for an algorithm that has no networks that act in some.

    Raises:
        ValueError: `Settings.wrappers` is not empty.
    """
    if settings.wrappers:
        raise ValueError(
            f"{settings.algorithm} has no environments that could be wrapped, as algorithms with networks have: leave "
            f"out wrappers={list(settings.wrappers)}"
        )


def require_no_env_kwargs(settings: Settings) -> None:
    """Refuse parameters of an environment for an algorithm that acts in none.

    Raises:
        ValueError: `Settings.env_kwargs` is not empty.
    """
    if settings.env_kwargs:
        raise ValueError(
            f"{settings.algorithm} acts in no environment: leave out env_kwargs={dict(settings.env_kwargs)}"
        )


def learner_kind(algorithm: Algorithm, config: Any) -> Any:
    """Return the class of an algorithm's learner, for a configuration of the algorithm's own kind.

    Raises:
        TypeError: the configuration is of another kind.
    """
    kind = algorithm.config_class
    if not isinstance(config, kind):
        raise TypeError(f"{algorithm.name} needs a configuration of {kind.__name__}, got {config!r}")
    return algorithm.learner_class
