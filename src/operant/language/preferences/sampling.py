"""Answers of a run's policy to prompts of its task, as items to label."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from operant import streams
from operant.language import examples
from operant.language.chat import trained_model
from operant.language.data import PROMPTED, Row
from operant.language.datasets import TrainingData, load_data
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.inputs import MODEL
from operant.language.preferences.items import Completion, encode
from operant.language.preferences.samples import groups
from operant.language.preferences.store import PreferenceStore
from operant.language.rollouts import ask, asked
from operant.language.sources import template_inputs
from operant.runtime.run import Run

Prompts = Literal["training", "held-out"]
"""Prompts of training, or held-out ones."""

ROUNDS = 4
"""Attempts per prompt if all its answers are equal."""


@dataclass(frozen=True)
class Asked:
    """Summary of sampling from a policy.

    Attributes:
        items: number of new items.
        prompts: number of prompts.
        alike: number of prompts whose answers are all equal, so that there is nothing to compare.
    """

    items: int
    prompts: int
    alike: int


class Policy:
    """The policy of one seed of a run.

    Args:
        run: run of a language model.
        index: index of the seed in the run.
        best: whether to use the weights with the highest score in evaluations instead of the latest ones.
        device: device of the model.
        remote_code: whether to allow Python code that comes with the model.
        accept_changes: whether to continue if the run's initial model has changed.

    Raises:
        ValueError: the run has no generative model.
        RunError: the run is unreadable, its model has code that is not allowed, or its initial model has changed.
    """

    def __init__(
        self,
        run: Run,
        *,
        index: int = 0,
        best: bool = False,
        device: str = "cpu",
        remote_code: bool = False,
        accept_changes: bool = False,
    ) -> None:
        run.require_inputs(MODEL, accept=accept_changes)
        seed = _seed(run, index)
        self._model = trained_model(run, seed, device=device, remote_code=remote_code, best=best)
        data, found = data_of(run, index), run.checkpoints.latest()
        self._prompt_length, self._sampling = data.config.max_prompt_length, Sampling(max_tokens=data.max_tokens)
        self._provenance = {"run": run.path.name, "consumed": found[1] if found else 0, "seed": seed}

    def add_answers(
        self,
        store: PreferenceStore,
        rows: Sequence[Row],
        *,
        held_out: Container[str],
        completions: int = 2,
        seed: int = 0,
    ) -> Asked:
        """Sample answers to prompts at temperature 1, and add the distinct ones; skip prompts with unlabeled items.

        Args:
            store: the store.
            rows: examples with the prompts.
            held_out: held-out prompts (`encode`), which are for evaluations.
            completions: number to sample, and number per item.
            seed: of sampling.

        Raises:
            StoreError: the items could not be stored.
        """
        known = {_input(item.prompt, item.provenance) for item in store.items()}
        asks = {given: row for row in rows if (given := _input(asked(row), row)) not in known}
        found = {given: dict[str, None]() for given in asks}
        generator, left = streams.torch_generator(seed, "labeled answers"), list(asks)
        for _ in range(ROUNDS):
            if left:
                self._draw([asks[given] for given in left], found, completions, generator)
            left = [given for given in left if len(found[given]) < 2]
        new = 0
        with store.transaction():
            for given, row in asks.items():
                different = [Completion(text, self._provenance) for text in found[given]][:completions]
                mark = {"held_out": encode(asked(row)) in held_out, **template_inputs(row)}
                new += store.add_items(groups(asked(row), different, completions, seed, provenance=mark))
        return Asked(new, len(asks), len(left))

    def _draw(
        self, rows: Sequence[Row], found: dict[str, dict[str, None]], count: int, generator: torch.Generator
    ) -> None:
        """Sample `count` answers to each prompt, and return the distinct ones, in order."""
        tokenizer, engine = self._model.tokenizer, NativeEngine(self._model)
        prompts = examples.prompts(tokenizer, rows, max_prompt_length=self._prompt_length)
        answers = ask(engine, prompts, count, self._sampling, tokenizer=tokenizer, generator=generator)
        for prompt, text in zip(answers.prompts, answers.texts, strict=True):
            found[_input(asked(prompt.row), prompt.row)][text] = None


def _input(prompt: Any, row: Mapping[str, Any]) -> str:
    """Return a prompt with the other inputs of the chat template, as a key."""
    return encode([prompt, template_inputs(row)])


def prompts_of(run: Run, which: Prompts, count: int, *, index: int = 0) -> list[Row]:
    """Return examples with prompts of a run's task or data set, the same at each call.

    Args:
        run: run of a language model.
        which: split of the prompts, see `Prompts`.
        count: number of prompts; a data set with fewer returns all.
        index: index of the seed in the run.

    Raises:
        ValueError: there is no such seed, the run has no prompts, or the task has fewer.
    """
    data = data_of(run, index)
    if data.task is None:
        return (data.train if which == "training" else data.held_out)[:count]
    split, seed = ("train", _seed(run, index)) if which == "training" else ("held-out", 0)
    return list(data.task.rows(split, count, seed=seed))


def held_out_prompts(run: Run) -> set[str]:
    """Return the held-out prompts (`encode`) of a run, which are for evaluations.

    Raises:
        ValueError: the run has no prompts, or its data are unreadable.
    """
    return {encode(asked(row)) for row in data_of(run, 0).held_out}


def data_of(run: Run, index: int) -> TrainingData:
    """Return the prompts of one seed of a run.

    Raises:
        ValueError: there is no such seed, the run has no language model, or its examples have no prompts.
    """
    entry = run.entry
    if entry.package != "language":
        raise ValueError(f"{run.path} is a run of {entry.name}, which has no prompts; name a run of a language model")
    return load_data(run.settings, run.config(entry.config_class), PROMPTED, seed=_seed(run, index))


def _seed(run: Run, index: int) -> int:
    seeds = run.settings.seeds
    if not 0 <= index < len(seeds):
        raise ValueError(f"the run has {len(seeds)} seeds, so the index must be below {len(seeds)}; got {index}")
    return seeds[index]
