"""Hyperparameter search: `Study`, a folder with many short trainings and their results."""

from operant.tuning.limits import Plan
from operant.tuning.search_spaces import SPACES, Choices, Dimension, Factor, Range, Space, space_of
from operant.tuning.study import Result, Study, Trial

__all__ = [
    "SPACES",
    "Choices",
    "Dimension",
    "Factor",
    "Plan",
    "Range",
    "Result",
    "Space",
    "Study",
    "Trial",
    "space_of",
]
