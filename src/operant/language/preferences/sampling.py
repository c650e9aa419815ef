"""Answers of a run's policy to prompts of its task, as items that can be labeled."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from operant import streams
from operant.language import examples
from operant.language.chat import trained_model
from operant.language.data import PROMPTED, Row
from operant.language.datasets import TrainingData, material
from operant.language.engines.native import NativeEngine
from operant.language.engines.protocol import Sampling
from operant.language.inputs import MODEL
from operant.language.preferences.items import Completion, encode
from operant.language.preferences.samples import groups
from operant.language.preferences.store import PreferenceStore
from operant.language.rollouts import ask, asked
from operant.runtime.run import Run

Prompts = Literal["training", "held-out"]
"""Those that policies are trained on, or those that they are scored by."""

ROUNDS = 4
"""How often a prompt is asked whose answers were all the same."""


@dataclass(frozen=True)
class Asked:
    """What came of asking a policy.

    Attributes:
        items: how many were new.
        prompts: how many were asked.
        alike: of them, how many got the same answer each time, so that there is nothing to compare.
    """

    items: int
    prompts: int
    alike: int


class Policy:
    """The policy of one seed of a run, which answers prompts.

    Args:
        run: of a language model.
        index: which seed, by its place among those of the run.
        best: whether the weights that scored highest in its evaluations answer, not the latest ones.
        device: where the model goes.
        remote_code: whether code that came with the model may run, if the run wants it.
        accept_changes: whether to go on where the model that the run began with has changed.

    Raises:
        ValueError: the run has trained nothing that answers.
        RunError: the run cannot be read, or something is not allowed.
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
        """Draw answers to prompts at temperature 1, and add those that differ; prompts that a store asks about wait.

        Args:
            store: where to.
            rows: with the prompts.
            held_out: the prompts (`encode`) by which policies are scored.
            completions: how many are drawn, and shown side by side.
            seed: of chance.

        Raises:
            StoreError: the items could not be stored.
        """
        known = {encode(item.prompt) for item in store.items()}
        asks = {prompt: row for row in rows if (prompt := encode(asked(row))) not in known}
        found = {prompt: dict[str, None]() for prompt in asks}
        generator, left = streams.torch_generator(seed, "labeled answers"), list(asks)
        for _ in range(ROUNDS):
            if left:
                self._draw([asks[prompt] for prompt in left], found, completions, generator)
            left = [prompt for prompt in left if len(found[prompt]) < 2]
        new = 0
        with store.transaction():
            for prompt, row in asks.items():
                different = [Completion(text, self._provenance) for text in found[prompt]][:completions]
                mark = {"held_out": prompt in held_out}
                new += store.add_items(groups(asked(row), different, completions, seed, provenance=mark))
        return Asked(new, len(asks), len(left))

    def _draw(
        self, rows: Sequence[Row], found: dict[str, dict[str, None]], count: int, generator: torch.Generator
    ) -> None:
        """Draw `count` answers to each prompt, and keep those that differ, in their order."""
        tokenizer, engine = self._model.tokenizer, NativeEngine(self._model)
        prompts = examples.prompts(tokenizer, rows, max_prompt_length=self._prompt_length)
        answers = ask(engine, prompts, count, self._sampling, tokenizer=tokenizer, generator=generator)
        for prompt, text in zip(answers.prompts, answers.texts, strict=True):
            found[encode(asked(prompt.row))][text] = None


def prompts_of(run: Run, which: Prompts, count: int, *, index: int = 0) -> list[Row]:
    """Return rows with prompts of a run's task or data set, the same at each call.

    Args:
        run: of a language model.
        which: see `Prompts`.
        count: how many; fewer if a data set does not have as many.
        index: which seed of the run, by its place.

    Raises:
        ValueError: there is no such seed, or the run has no prompts, or a task not as many.
    """
    data = data_of(run, index)
    if data.task is None:
        return (data.train if which == "training" else data.held_out)[:count]
    split, seed = ("train", _seed(run, index)) if which == "training" else ("held-out", 0)
    return list(data.task.rows(split, count, seed=seed))


def held_out_prompts(run: Run) -> set[str]:
    """Return the prompts (`encode`) by which policies of a run are scored.

    Raises:
        ValueError: the run has no prompts, or its data cannot be read.
    """
    return {encode(asked(row)) for row in data_of(run, 0).held_out}


def data_of(run: Run, index: int) -> TrainingData:
    """Return the prompts of one seed of a run.

    Raises:
        ValueError: there is no such seed, the run is of no language model, or its rows have no prompts.
    """
    entry = run.entry
    if entry.package != "language":
        raise ValueError(f"{run.path} is a run of {entry.name}, which has no prompts; name a run of a language model")
    return material(run.settings, run.config(entry.config_class), PROMPTED, seed=_seed(run, index))


def _seed(run: Run, index: int) -> int:
    seeds = run.settings.seeds
    if not 0 <= index < len(seeds):
        raise ValueError(f"the run has {len(seeds)} seeds, so the index must be below {len(seeds)}; got {index}")
    return seeds[index]
