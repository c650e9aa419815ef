"""Built-in tasks, generated from a seed: prompts, demonstrations, verifiers and held-out prompts."""

from operant.language.tasks.finding import TASKS, find, names
from operant.language.tasks.task import Row, Split, Task

__all__ = ["TASKS", "Row", "Split", "Task", "find", "names"]
