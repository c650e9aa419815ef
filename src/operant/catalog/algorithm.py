"""Metadata of algorithms: `Algorithm`."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, cast

from operant import doors

ActionKind = Literal["discrete", "multi-discrete", "continuous"]
"""Types of actions: one discrete choice, several simultaneous choices, a vector of real numbers."""
ObservationKind = Literal["none", "finite", "continuous", "text"]
"""Types of observations."""
Sight = Literal["images", "mixtures", "masks"]
"""Supported inputs other than vectors: images, dictionaries of an image and other entries, and action masks."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Metadata of an algorithm.

    Attributes:
        name: name on the command line.
        title: full name.
        package: subpackage of `operant` that creates its learners, and contains them except those of `explore`, which
            builds on it.
        family: learned quantity: `bandit`, `prediction`, `value`, `policy`, `actor-critic`, ...
        model: whether it has a model of the world: `none`, `known` or `learned`.
        on_policy: whether it learns only from data of its current policy.
        actions: supported types of actions.
        bounded: whether continuous actions need finite bounds.
        sees: supported inputs other than vectors.
        vectors: whether it supports vectors.
        idea: key idea, in one sentence.
        paper: reference of its publication.
        module: module or file of the implementation; empty in the record of a run that names other code than its
            `config.toml` (`operant.catalog.outside.recorded`): the name leads to it.
        config: name of its configuration class in this module, or `module:Name`.
        learner: name of its learner class in this module.
        unit: unit of the budget.
        budget: default budget per seed.
        budgets: default budgets of some tasks, by their names without options.
        seeds: default number of seeds.
        presets: named presets, besides those by task.
        values: fixed fields of the configuration in this variant of the module's algorithm; they override presets, and
            user options override them.
        base: for a custom algorithm, the built-in one that it modifies, by name; None: none.
    """

    name: str
    title: str
    package: str
    family: str
    model: Literal["none", "known", "learned"] = "none"
    on_policy: bool
    actions: tuple[ActionKind, ...] = ("discrete",)
    bounded: bool = False
    sees: tuple[Sight, ...] = ()
    vectors: bool = True
    idea: str
    paper: str
    module: str
    config: str
    learner: str
    unit: str = "environment steps"
    budget: int = 100_000
    budgets: tuple[tuple[str, int], ...] = ()
    seeds: int = 8
    presets: tuple[str, ...] = ("paper",)
    values: tuple[tuple[str, Any], ...] = ()
    base: str | None = None

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Create an algorithm from `facts`, also after a round trip through JSON."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: _tuples(value) for name, value in facts.items() if name in known})

    def facts(self) -> dict[str, Any]:
        """Return all metadata by name."""
        return asdict(self)

    @property
    def label(self) -> str:
        """Short name for tables and folders."""
        return doors.label(self.name)

    @property
    def root(self) -> str:
        """Name of the built-in algorithm that this one is or modifies; otherwise its own name."""
        return self.base or self.name

    @property
    def config_class(self) -> Any:
        """The configuration class.

        Raises:
            operant.doors.DoorError: if there is none.
        """
        if not self.module:
            return _found(self.name).config_class
        place = self.config if ":" in self.config else f"{self.module}:{self.config}"
        return doors.load(place, expected=f"the configuration of {self.name}")

    @property
    def learner_class(self) -> Any:
        """The learner class.

        Raises:
            operant.doors.DoorError: if there is none.
        """
        if not self.module:
            return _found(self.name).learner_class
        return doors.load(f"{self.module}:{self.learner}", expected=f"the learner of {self.name}")

    @property
    def preset_values(self) -> Mapping[str, Mapping[str, Any]]:
        """Values of presets, by the names of presets and tasks: its own, or those of its base."""
        own = getattr(sys.modules[self.learner_class.__module__], "PRESETS", None)
        if own is not None or self.base is None:
            return own or {}
        base = _found(self.base)
        return base.preset_values if issubclass(self.config_class, base.config_class) else {}

    @property
    def experimental(self) -> bool:
        """Whether its interface may change in any version (`operant.experimental`)."""
        return self.module.startswith("operant.experimental.")

    def budget_for(self, task: str) -> int:
        """Return the default budget of a task, such as `arithmetic:digits=3`."""
        return dict(self.budgets).get(task.partition(":")[0], self.budget)

    @property
    def observations(self) -> ObservationKind:
        """Kind of observations: none (a bandit has one state), finitely many states, vectors or images, text."""
        if self.package == "language":
            return "text"
        if self.family == "bandit":
            return "none"
        return "finite" if self.package == "tabular" else "continuous"


def _found(name: str) -> Algorithm:
    """Return the algorithm called `name`, for which the code of a custom one is imported."""
    from operant.catalog import find  # noqa: PLC0415 - it knows all algorithms, and imports this module

    return find(name)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, cast(list[Any], value))) if isinstance(value, list) else value
