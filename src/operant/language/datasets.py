"""Training and evaluation examples, from a task or a data set, and the rewards of answers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from operant.language import tasks, verifiers
from operant.language.configs import LanguageConfig, SamplingConfig
from operant.language.data import PROMPTED, Kind, Row, kind, read_rows, same_prompts, split_rows, unused
from operant.language.rewards import RewardFunctions, check_columns, combine
from operant.language.sources import READERS
from operant.runtime.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

FILES = tuple(READERS)
"""File suffixes of data sets; a task with such a name is a data set."""
MAX_COMPLETION = 256
"""Default maximum completion length for a data set, in tokens."""
HELD_OUT_SHARE = 0.2
"""Maximum fraction of a data set to hold out."""


@dataclass(frozen=True)
class TrainingData:
    """The data of one learner.

    Attributes:
        config: configuration of the algorithm.
        task: built-in task; None for a data set.
        train: training examples.
        held_out: evaluation examples.
        max_tokens: maximum number of tokens of a completion.
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

    @property
    def columns(self) -> list[str]:
        """Columns of all examples; those that an example lacks count as None."""
        return [*dict.fromkeys(name for row in (*self.train, *self.held_out) for name in row)]

    def encode(self, part: Literal["training", "evaluation"], make: Callable[[list[Row]], T]) -> T:
        """Return one part of the examples as `make` encodes it.

        Raises:
            ValueError: `make` rejects the rows; the message names the part.
        """
        try:
            return make(self.train if part == "training" else self.held_out)
        except ValueError as error:
            raise ValueError(f"in the {part} examples, {error}") from error

    def reward_functions(self, extra: Sequence[Callable[..., Any]] = ()) -> RewardFunctions | None:
        """Return the configured reward functions, or those of the task; None if there are none.

        Args:
            extra: additional reward functions.

        Raises:
            ValueError: a function requires a column that the examples lack, or cannot use a value in it.
        """
        names = getattr(self.config, "rewards", ())
        given: dict[str, Any] = {"max_completion_length": self.max_tokens}
        if isinstance(self.config, SamplingConfig):
            memory = round(self.config.reward_memory * 2**30) or None
            given |= {"timeout": self.config.reward_timeout, "workers": self.config.reward_workers, "memory": memory}
        functions = [verifiers.find(name, **given) for name in names]
        for part in ("training", "evaluation"):
            self.encode(part, lambda rows: check_columns(functions, rows))
        # The last one is that of the reward model, whose score is not always one of the functions.
        weights = list(getattr(self.config, "reward_weights", ()))[: len(functions) + len(extra)]
        if not functions and not extra and self.task:
            functions, weights = list(self.task.rewards), weights or list(self.task.reward_weights)
        functions += extra
        return combine(functions, weights or None) if functions else None


def source_of(config: LanguageConfig, task: str) -> str:
    """Return the configured data set, or the task if it is a file; empty if there is none."""
    return config.dataset or (task if task.endswith(FILES) else "")


def _rows(source: str, config: LanguageConfig, accepted: Sequence[Kind]) -> tuple[list[Row], list[Row]]:
    """Return training and evaluation examples; the latter come from `eval_dataset` or are held out."""
    rows = read_rows(source, accept=accepted)
    kind(rows, accept=accepted)
    if not config.eval_dataset:
        return split_rows(rows, min(config.held_out, max(1, round(HELD_OUT_SHARE * len(rows)))), 0, accept=accepted)
    others = read_rows(config.eval_dataset, split="test", accept=accepted)
    kind(others, accept=accepted)
    others = others[: config.held_out]
    if known := same_prompts(rows, others, accept=accepted):
        logger.warning(
            "%d of %d rows of eval_dataset have prompts of the training data, so the score also measures memorization: "
            "remove them from either.",
            *(known, len(others)),
        )
    return rows, others


def _warn_of_unused(source: str, row: Row, accepted: Sequence[Kind]) -> None:
    """Warn about columns of other kinds in the first row of a data set."""
    found = kind([row], accept=accepted)
    others = unused(row, found)
    if others:
        logger.warning(
            "The rows of %s are of the kind %s, in which the columns %s have no effect; if they are meant instead, "
            "remove those of this kind.",
            *(source, found, ", ".join(others)),
        )


def load_data(settings: Settings, config: LanguageConfig, accepted: Sequence[Kind], *, seed: int) -> TrainingData:
    """Load the training and evaluation examples of a learner.

    Held-out examples are the same for every seed; training examples that a task generates differ.

    Args:
        settings: settings of the run, with the task.
        config: configuration of the algorithm, with the data set, if any.
        accepted: kinds of examples that the algorithm accepts; tasks generate the first one.
        seed: seed of the learner.

    Raises:
        ValueError: there is no such task, or the examples are of another kind.
    """
    source = source_of(config, settings.task)
    if config.eval_dataset and not source:
        raise ValueError(
            f"eval_dataset={config.eval_dataset} needs a training dataset; {settings.task} generates its own examples"
        )
    if source:
        named = settings.task.partition(":")[0] in tasks.TASKS and settings.task != Path(source).stem
        if named and seed == settings.seeds[0]:
            logger.warning("The task %s has no effect with dataset=%s: leave out one of them.", settings.task, source)
        train, rest = _rows(source, config, accepted)
        # Algorithms that sample pass all other columns to the reward functions.
        if accepted != PROMPTED and seed == settings.seeds[0]:
            _warn_of_unused(source, train[0], accepted)
        return TrainingData(config, None, train, rest, config.max_completion_length or MAX_COMPLETION)
    task = tasks.find(settings.task)
    make = {"preference": task.pairs, "stepwise": task.stepwise_rows}.get(accepted[0], task.rows)
    train = make("train", config.train_examples, seed=seed)
    return TrainingData(
        config,
        task,
        train,
        make("held-out", config.held_out, seed=0),
        config.max_completion_length or task.max_completion_length,
    )
