"""Training and evaluation examples, from a task or a data set, and the rewards of answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from operant.language import tasks, verifiers
from operant.language.configs import LanguageConfig, SamplingConfig
from operant.language.data import Kind, Row, kind, read_rows, split_rows
from operant.language.rewards import check_columns, combine
from operant.language.rollouts import Judge
from operant.runtime.settings import Settings

FILES = (".jsonl", ".json", ".parquet", ".csv")
"""File endings of data sets; a task with such a name is a data set."""
MAX_COMPLETION = 256
"""Default longest completion for a data set."""
HELD_OUT_SHARE = 0.2
"""Largest share of a data set to hold out."""


@dataclass(frozen=True)
class TrainingData:
    """The data of one learner.

    Attributes:
        config: of the algorithm.
        task: built-in; None for a data set.
        train: training examples.
        held_out: evaluation examples.
        max_tokens: longest completion.
    """

    config: LanguageConfig
    task: tasks.Task | None
    train: list[Row]
    held_out: list[Row]
    max_tokens: int

    @property
    def limits(self) -> dict[str, int]:
        """Length limits, as arguments of `operant.language.examples`."""
        return {"max_prompt_length": self.config.max_prompt_length, "max_completion_length": self.max_tokens}

    def judge(self, extra: Sequence[Callable[..., Any]] = ()) -> Judge | None:
        """Return the configured reward functions, or else those of the task; None if there are none.

        Args:
            extra: reward functions to append.

        Raises:
            ValueError: a function needs a column that the examples do not have.
        """
        names = getattr(self.config, "rewards", ())
        given: dict[str, Any] = {"max_completion_length": self.max_tokens}
        if isinstance(self.config, SamplingConfig):
            memory = round(self.config.reward_memory * 2**30) or None
            given |= {"timeout": self.config.reward_timeout, "workers": self.config.reward_workers, "memory": memory}
        functions = [verifiers.find(name, **given) for name in names]
        for rows in (self.train, self.held_out):
            check_columns(functions, rows)
        weights = list(getattr(self.config, "reward_weights", ()))
        if not functions and not extra and self.task:
            functions, weights = list(self.task.rewards), weights or list(self.task.reward_weights)
        functions += extra
        return combine(functions, weights or None) if functions else None


def source_of(config: LanguageConfig, task: str) -> str:
    """Return the configured data set, or a task that is named like a file; empty: none."""
    return config.dataset or (task if task.endswith(FILES) else "")


def _rows(source: str, config: LanguageConfig, wanted: Sequence[Kind]) -> tuple[list[Row], list[Row]]:
    """Return training and evaluation examples of a data set: from another data set, or a part of the first."""
    rows = read_rows(source)
    kind(rows, accept=wanted)
    if not config.eval_dataset:
        return split_rows(rows, min(config.held_out, max(1, round(HELD_OUT_SHARE * len(rows)))), 0)
    others = read_rows(config.eval_dataset, split="test")
    kind(others, accept=wanted)
    return rows, others[: config.held_out]


def material(settings: Settings, config: LanguageConfig, wanted: Sequence[Kind], *, seed: int) -> TrainingData:
    """Return the training and evaluation examples of a learner.

    Held-out examples are the same for every seed; training examples of a task differ.

    Args:
        settings: with the task.
        config: may name a data set instead.
        wanted: kinds of examples that the algorithm can use; of a task the first.
        seed: of the learner.

    Raises:
        ValueError: there is no such task, or the examples are of another kind.
    """
    source = source_of(config, settings.task)
    if config.eval_dataset and not source:
        raise ValueError(
            f"eval_dataset={config.eval_dataset} needs a dataset to train on; {settings.task} generates its own"
        )
    if source:
        train, rest = _rows(source, config, wanted)
        return TrainingData(config, None, train, rest, config.max_completion_length or MAX_COMPLETION)
    task = tasks.find(settings.task)
    make = {"preference": task.pairs, "stepwise": task.stepwise_rows}.get(wanted[0], task.rows)
    train = make("train", config.train_examples, seed=seed)
    return TrainingData(
        config,
        task,
        train,
        make("held-out", config.held_out, seed=0),
        config.max_completion_length or task.max_completion_length,
    )
