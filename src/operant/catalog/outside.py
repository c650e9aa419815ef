"""Metadata of external algorithms: `algorithm`, and `recorded` for runs.

It is derived from the learner class. The attribute `CATALOG` of a class is a dictionary with some of `FACTS`, which
subclasses inherit; `like` is the name of a built-in algorithm that provides all others. A subclass of a built-in
learner is like that algorithm. Other facts have permissive defaults.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, cast, get_args, get_type_hints

from operant import catalog, doors
from operant.catalog.algorithm import ActionKind, Algorithm, Sight

FACTS = (
    *("like", "title", "package", "family", "model", "on_policy", "actions", "bounded", "sees", "idea", "paper"),
    *("unit", "budget", "budgets", "seeds", "presets", "values"),
)
"""Keys of `CATALOG`: fields of `Algorithm`, and `like`."""
INHERITED = (
    *("package", "family", "model", "on_policy", "actions", "bounded", "sees", "unit", "budget", "budgets", "seeds"),
    *("presets", "values"),
)
"""Facts from a built-in algorithm."""
PACKAGES = ("tabular", "control", "language")
"""Packages that create learners and their environments."""
METHODS = ("iterate", "state_dict", "load_state_dict")
"""Methods of every learner."""
EXPECTED = f"a class with the methods {', '.join(METHODS)}, such as a subclass of operant.control.PPO"


def algorithm(name: str | type) -> Algorithm:
    """Return the metadata of an external algorithm.

    Args:
        name: path of its learner's class, `file.py:Name` or `package.module:Name`; the name of an entry point; or the
            class itself.

    Raises:
        operant.doors.DoorError: if there is none, or it is not a learner with a configuration.
    """
    name = doors.name_of(name) if isinstance(name, type) else doors.absolute(name)
    learner = doors.load(name, expected=EXPECTED, accepts=is_learner, group=catalog.ENTRY_POINTS)
    config = _checked_config(learner, name)
    facts = _facts(learner, name)
    _require_names(facts, name)
    _require_fields(learner, config, name)
    place = doors.place_of(doors.name_of(learner))
    assert place is not None  # noqa: S101 - of `name_of`
    said: dict[str, Any] = {
        "title": learner.__name__,
        "family": "none",
        "package": "control",
        "on_policy": True,
        "actions": get_args(ActionKind),
        "sees": get_args(Sight),
        "idea": _first_paragraph(learner),
        "paper": "not published",
        **{key: _items(value) for key, value in facts.items()},
        "name": name,
        "module": place.where,
        "learner": place.name,
        "config": doors.name_of(config),
    }
    found = Algorithm(**said)
    known = found.preset_values
    return dataclasses.replace(found, presets=tuple(p for p in found.presets if p == "paper" or p in known))


def recorded(name: str, facts: Mapping[str, Any] | None) -> Algorithm | None:
    """Return the metadata of a built-in algorithm, or of an external one from the record of a run.

    The record must not add code to what the run's `config.toml` names. So if its code is neither in the file or package
    of the algorithm nor in operant, `module` is empty, and the name leads to the code.

    Args:
        name: name of the algorithm in `config.toml`.
        facts: `Algorithm.facts` of an external algorithm when the run was created.

    Returns:
        The metadata; None if there are none.
    """
    built_in = {entry.name: entry for entry in catalog.ALGORITHMS}
    if name in built_in or facts is None:
        return built_in.get(name)
    entry = Algorithm.of_facts(facts)
    entry = dataclasses.replace(entry, name=name, base=entry.base if entry.base in built_in else None)
    point = None if doors.place_of(name) else doors.entry_points(catalog.ENTRY_POINTS).get(name)
    homes = {_home(f"{entry.module}:{entry.learner}"), *([_home(entry.config)] if ":" in entry.config else [])}
    if doors.place_of(name) or point:
        names_code = not homes <= {_home(point.value if point else name), "operant"}
    else:  # an entry point of a package that is not installed here
        names_code = any(home.endswith(".py") for home in homes)
    return dataclasses.replace(entry, module="") if names_code else entry


def _home(name: str) -> str:
    """Return the file of `file.py:Name`, the package of `package.module:Name`, and any other string unchanged."""
    place = doors.place_of(name)
    if place is None:
        return name
    return str(place.path or place.where.partition(".")[0])


def _items(fact: Any) -> Any:
    """Return the items of a table, and any other fact unchanged."""
    return tuple(cast(Mapping[str, Any], fact).items()) if isinstance(fact, Mapping) else fact


def is_learner(found: Any) -> bool:
    """Return whether an object is a class with all methods of a learner."""
    return isinstance(found, type) and all(callable(getattr(found, method, None)) for method in METHODS)


def config_of(learner: type) -> Any:
    """Return the dataclass of a learner's configuration; None if the class has no annotation.

    It is the annotation of the attribute `config`, or of the parameter `config` of `__init__`; the class itself takes
    precedence over those that it inherits from.
    """
    for kind in learner.__mro__:
        for annotated in (kind, vars(kind).get("__init__")):
            annotations = {} if annotated is None else inspect.get_annotations(annotated)
            found = _evaluated(annotations.get("config"), kind)
            if isinstance(found, type) and dataclasses.is_dataclass(found):
                return found
    return None


def _evaluated(annotation: Any, scope: type) -> Any:
    """Evaluate an annotation that may be a string, as with `from __future__ import annotations`."""
    if not isinstance(annotation, str):
        return annotation
    try:
        told = type(scope.__name__, (), {"__annotations__": {"config": annotation}, "__module__": scope.__module__})
        return get_type_hints(told, localns=dict(vars(scope)))["config"]
    except (NameError, AttributeError):
        return None


def _checked_config(learner: type, name: str) -> Any:
    """Return the dataclass of a learner's configuration.

    Raises:
        operant.doors.DoorError: if there is none, it is not frozen, or a field has no default or an unknown type.
    """
    kind = config_of(learner)
    if kind is None:
        raise doors.DoorError(
            f"{name} has no configuration: annotate the parameter `config` of its __init__, or its "
            "attribute `config`, with a frozen dataclass"
        )
    where = f"the configuration {kind.__qualname__} of {name}"
    if "__dataclass_params__" not in kind.__dict__:
        raise doors.DoorError(
            f"{where} is no dataclass itself, only its base: decorate it with @dataclass(frozen=True)"
        )
    if not kind.__dict__["__dataclass_params__"].frozen:
        raise doors.DoorError(f"{where} is mutable: decorate it with @dataclass(frozen=True)")
    for field in dataclasses.fields(kind):
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise doors.DoorError(f"{where}: {field.name} has no default; add one")
    try:
        get_type_hints(kind)
    except NameError as error:
        raise doors.DoorError(
            f"{where}: the types of its fields cannot be read, {error}: import it also outside of `if TYPE_CHECKING:`"
        ) from error
    return kind


def _facts(learner: type, name: str) -> dict[str, Any]:
    """Return the facts of a class: those of the built-in algorithms that it inherits from, and its own.

    Raises:
        operant.doors.DoorError: if `CATALOG` has an unknown key.
    """
    facts: dict[str, Any] = {}
    for kind in reversed(learner.__mro__):
        own = vars(kind).get("CATALOG", {})
        unknown = [fact for fact in own if fact not in FACTS]
        if unknown:
            raise doors.DoorError(f"CATALOG of {name} has unknown key {unknown[0]!r}; valid keys: {', '.join(FACTS)}")
        if base := own.get("like") or _built_in(kind):
            facts |= _of_built_in(base, name)
        if "budget" in own:
            facts.pop("budgets", None)
        facts |= {fact: value for fact, value in own.items() if fact != "like"}
    if facts.get("package", "control") not in PACKAGES:
        raise doors.DoorError(f"CATALOG of {name}: package must be {', '.join(PACKAGES)}, got {facts['package']!r}")
    if facts.get("package") == "language" and "base" not in facts:
        raise doors.DoorError(
            f"{name} trains a language model, so it must extend a built-in algorithm, which defines its "
            "data: make it a subclass of one, such as operant.language.GRPO, or set CATALOG = {'like': 'grpo'}"
        )
    return facts


def _require_names(facts: Mapping[str, Any], name: str) -> None:
    for fact in ("actions", "sees", "presets"):
        given = facts.get(fact, ())
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in cast(list[Any], given)):
            raise doors.DoorError(f"CATALOG of {name}: {fact} must be a list of names, got {given!r}")


def _require_fields(learner: type, config: type, name: str) -> None:
    """Check that a configuration has the fields of a class's own values; those of its base may be missing."""
    known = [field.name for field in dataclasses.fields(config)]
    for value in getattr(learner, "CATALOG", {}).get("values", {}):
        if value not in known:
            raise doors.DoorError(f"CATALOG of {name}: {config.__qualname__} has no field {value!r} for 'values'")


def _of_built_in(base: str, name: str) -> dict[str, Any]:
    found = {entry.name: entry for entry in catalog.ALGORITHMS}.get(base)
    if found is None:
        raise doors.DoorError(f"CATALOG of {name}: there is no built-in algorithm {base!r} for 'like'")
    inherited = {fact: getattr(found, fact) for fact in INHERITED}
    return {**inherited, "base": base, "paper": f"changes {base}: {found.paper}"}


def _built_in(kind: type) -> str:
    """Return the name of the built-in algorithm of a learner's class, the first of several; empty: none."""
    own = (kind.__module__, kind.__qualname__)
    return next((entry.name for entry in catalog.ALGORITHMS if (entry.module, entry.learner) == own), "")


def _first_paragraph(learner: type) -> str:
    """Return the first sentence of a class's docstring."""
    text = " ".join((vars(learner).get("__doc__") or "").split("\n\n")[0].split())
    return text or f"{learner.__name__}, which has no docstring."
