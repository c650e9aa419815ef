"""What is said about an algorithm before it runs: `Algorithm`."""

from dataclasses import dataclass
from typing import Any, Literal

ActionKind = Literal["discrete", "multi-discrete", "continuous"]
"""The kinds of action: one choice, several choices at once, a vector of real numbers."""
ObservationKind = Literal["none", "finite", "continuous", "text"]
"""The kinds of observation."""
Sight = Literal["pictures", "mixtures", "masks"]
"""What a network may look at beside vectors: pictures, dictionaries of a picture and other parts, and masks of the
actions that are allowed, which it obeys."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What there is to say about an algorithm before running it.

    Attributes:
        name: what it is called on the command line.
        title: its name in full.
        package: the package that holds it, under `operant`.
        family: what it learns: `bandit`, `prediction`, `value`, `policy`, `actor-critic`, ...
        model: whether it has a model of the world: `none`, `known` or `learned`.
        on_policy: whether it learns only from what its current policy did.
        actions: the kinds of action it can choose.
        bounded: whether continuous ones need finite bounds.
        sees: what its networks look at beside vectors.
        idea: its key idea, in a sentence.
        paper: where it was published.
        module: the module that implements it.
        config: the name of its configuration in that module.
        learner: the name of its learner in that module.
        unit: what a budget counts.
        budget: how much is trained, unless another budget is asked for.
        budgets: the same for single tasks, by their names without options.
        seeds: how many are trained, unless others are asked for.
        presets: named configurations, beside those that a task selects by itself.
        values: fields of the configuration and what they are in this variant of what the module implements; they win
            over a preset, and what a user names wins over them.
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

    def budget_for(self, task: str) -> int:
        """Return how much is trained on a task, such as `arithmetic:digits=3`, unless another budget is asked for."""
        return dict(self.budgets).get(task.partition(":")[0], self.budget)

    @property
    def observations(self) -> ObservationKind:
        """What it can tell apart: nothing (a bandit has one state), finitely many states, vectors or pictures, text."""
        if self.package == "language":
            return "text"
        if self.family == "bandit":
            return "none"
        return "finite" if self.package == "tabular" else "continuous"
