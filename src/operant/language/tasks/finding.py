"""Built-in tasks by name: `find`."""

from collections.abc import Callable

from operant.language import options
from operant.language.tasks.arithmetic import arithmetic
from operant.language.tasks.countdown import countdown
from operant.language.tasks.steps import steps
from operant.language.tasks.strings import reverse, sort
from operant.language.tasks.task import Task
from operant.language.tasks.writing import preference

TASKS: dict[str, Callable[..., Task]] = {
    "arithmetic": arithmetic,
    "countdown": countdown,
    "reverse": reverse,
    "sort": sort,
    "steps": steps,
    "preference": preference,
}
"""Factories of tasks by name; their keyword arguments are the options."""


def find(name: str) -> Task:
    """Create a task by its name, with or without options: `arithmetic`, `steps:terms=2-6,limit=40`.

    Raises:
        ValueError: there is no such task or option (the message suggests a similar one), or a value is out of its
            range.
    """
    return options.build(name, TASKS, "task")


def names() -> list[str]:
    """Return the names of all tasks."""
    return [*TASKS]
