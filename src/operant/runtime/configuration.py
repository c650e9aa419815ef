"""Configurations of learners from names and values, for all packages."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from operant.catalog import Algorithm
from operant.runtime.settings import OF_PACKAGES, Settings
from operant.runtime.tables import NONE, from_table


def configuration(
    algorithm: Algorithm, task: str, preset: str | None = None, *, under: Mapping[str, Any] | None = None, **values: Any
) -> Any:
    """Return the configuration of an algorithm: defaults, then preset, then the variant's values, then `values`.

    Args:
        algorithm: from the catalog.
        task: selects the preset of its name, or else the longest pattern that its id matches, such as `ALE/*`.
        preset: a named one instead; `"paper"`: the defaults only.
        under: fields that replace the defaults, below the preset.
        **values: fields of the configuration.

    Raises:
        ValueError: unknown preset or field, or a value out of range.
        TypeError: `task` is not a name.
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
    chosen = [preset] if preset else [task, *_patterns(presets, task)]
    found = [presets[name] for name in chosen if name in presets]
    base = kind(**{**(under or {}), **(found[0] if found else {}), **dict(algorithm.values)})
    table = {name: NONE if value is None else value for name, value in values.items()}
    return from_table(kind, table, base=base, where=algorithm.name, algorithm=algorithm)


def _patterns(presets: Iterable[str], task: str) -> list[str]:
    """Return the patterns that the id of a task matches, the longest first."""
    name = task.rpartition(":")[2]
    found = [key for key in presets if key.endswith("*") and fnmatchcase(name, key)]
    return sorted(found, key=len, reverse=True)


def require_own(settings: Settings, package: str) -> None:
    """Check that only settings of the algorithm's package are changed (`operant.runtime.settings.OF_PACKAGES`).

    Args:
        settings: the run's.
        package: of its algorithm.

    Raises:
        ValueError: another setting differs from its default.
    """
    for name, value in settings.of_others(package).items():
        raise ValueError(
            f"{settings.algorithm} has no {name}, which {' and '.join(_USERS[user] for user in OF_PACKAGES[name])} "
            f"have: remove {name}={value!r}"
        )


_USERS = {"control": "algorithms with networks that act in environments", "tabular": "algorithms with tables"}


def learner_kind(algorithm: Algorithm, config: Any) -> Any:
    """Return the class of an algorithm's learner, and check the type of its configuration.

    Raises:
        TypeError: the configuration has another type.
    """
    kind = algorithm.config_class
    if not isinstance(config, kind):
        raise TypeError(f"{algorithm.name} needs a configuration of {kind.__name__}, got {config!r}")
    return algorithm.learner_class
