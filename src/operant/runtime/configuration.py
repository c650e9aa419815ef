"""Configurations of algorithms from presets and values, for all packages."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

from operant.catalog import Algorithm
from operant.catalog.names import hint
from operant.runtime.settings import OF_PACKAGES, Settings
from operant.runtime.tables import NONE, from_table


def configuration(
    algorithm: Algorithm, task: str, preset: str | None = None, *, under: Mapping[str, Any] | None = None, **values: Any
) -> Any:
    """Return the configuration of an algorithm: defaults, then preset, then the variant's values, then `values`.

    Args:
        algorithm: catalog entry.
        task: training task, which selects the preset with its name, or with the longest matching pattern such as
            `ALE/*`.
        preset: name of another preset; `"paper"` selects only the defaults.
        under: values that override the defaults but not the preset.
        **values: values of single fields.

    Raises:
        ValueError: a preset or field is unknown, or a value is out of range.
        TypeError: `task` is not a string.
    """
    if not isinstance(task, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"task must be a name such as 'CartPole-v1', got {task!r}; register a custom environment with "
            "gymnasium.register"
        )
    kind, presets = algorithm.config_class, algorithm.preset_values
    if preset is not None and preset not in algorithm.presets and preset not in presets:
        known = ", ".join(dict.fromkeys([*algorithm.presets, *presets]))
        raise ValueError(f"{algorithm.name} has no preset {preset!r}; presets: {known}")
    chosen = [preset] if preset else [task, *_patterns(presets, task)]
    found = next((name for name in chosen if name in presets), "")
    own, known_fields = presets.get(found, {}), {field.name for field in fields(kind)}
    for name in own:
        if name not in known_fields:
            raise ValueError(
                f"preset {found!r} of {algorithm.name}: there is no field {name!r}{hint(name, known_fields)}"
            )
    # A class that is like a built-in algorithm may have a configuration without some of its fields.
    fixed = {name: value for name, value in algorithm.values if name in known_fields}
    base = kind(**{**(under or {}), **own, **fixed})
    table = {name: NONE if value is None else value for name, value in values.items()}
    return from_table(kind, table, base=base, where=algorithm.name, algorithm=algorithm)


def _patterns(presets: Iterable[str], task: str) -> list[str]:
    """Return the patterns that match the id of a task, the longest first."""
    name = task.rpartition(":")[2]
    found = [key for key in presets if key.endswith("*") and fnmatchcase(name, key)]
    return sorted(found, key=len, reverse=True)


def require_own(settings: Settings, package: str) -> None:
    """Check that settings of other packages have their defaults (`operant.runtime.settings.OF_PACKAGES`).

    Args:
        settings: settings of the run.
        package: package of its algorithm.

    Raises:
        ValueError: a setting of another package differs from its default.
    """
    for name, value in settings.of_others(package).items():
        raise ValueError(
            f"{settings.algorithm} has no {name}, which {' and '.join(_USERS[user] for user in OF_PACKAGES[name])} "
            f"have: remove {name}={value!r}"
        )


_USERS = {
    "control": "algorithms with networks that act in environments",
    "tabular": "algorithms with tables",
    "language": "algorithms that train language models",
}


def learner_kind(algorithm: Algorithm, config: Any) -> Any:
    """Return the class of an algorithm's learner, and check the type of its configuration.

    Raises:
        TypeError: the configuration has another type.
    """
    kind = algorithm.config_class
    if not isinstance(config, kind):
        raise TypeError(f"{algorithm.name} needs a configuration of {kind.__name__}, got {config!r}")
    return algorithm.learner_class
