"""Token-level records of language-model updates, in `ledger/` of a run: `keep_ledgers`, `read_ledger`.

A file holds one batch of one seed: the prompts, the answers and their rewards as JSON, and a number per token in every
column. It is written atomically, and reading it needs no torch.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from operant.runtime.files import read_regular, replace_durably

logger = logging.getLogger(__name__)

FOLDER = "ledger"
"""Subfolder of a run."""
_NAME = re.compile(r"step_(\d{1,15})_seed_(-?\d{1,15})\.safetensors")
_TEXT = "batch"


class Visit(NamedTuple):
    """An answer in an optimizer step.

    Attributes:
        answer: position among the answers.
        step: optimizer step of the batch, from 0.
        start: first token in the columns.
        length: number of its tokens.
    """

    answer: int
    step: int
    start: int
    length: int


@dataclass(frozen=True)
class Ledger:
    """A training batch, token by token.

    Attributes:
        consumed: prompts used by the learner of this seed, including it.
        seed: of the learner.
        group: answers to each prompt, G.
        steps: optimizer steps, K.
        loss: logged terms of the loss, by metric; means over the optimizer steps.
        prompts: texts.
        answers: `{"prompt": position, "text", "reward", "counts"}` each; the reward may be None, and answers without
            `counts` are in no optimizer step.
        pieces: texts of the distinct tokens; the column `piece` has positions here.
        visits: answers of the tokens in the columns.
        columns: a number for each of the tokens, `[m]` each: `piece`, `log_prob`, `behavior`, `advantage`, `weight`,
            `importance`, `ratio`, `clipped`, `entropy`, `policy`, and with a reference `kl` and `reference`. `policy`
            and `reference` are terms of the loss: with `rest` they sum to `loss`.
        rest: of the tokens beyond the limit: `tokens`, their number, and the sums of `policy` and `reference`.
    """

    consumed: int
    seed: int
    group: int
    steps: int
    loss: Mapping[str, float]
    prompts: Sequence[str]
    answers: Sequence[Mapping[str, Any]]
    pieces: Sequence[str]
    visits: Sequence[Visit]
    columns: Mapping[str, NDArray[Any]]
    rest: Mapping[str, float]

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"step_{self.consumed}_seed_{self.seed}.safetensors"


def keep_ledgers(run: Path, ledgers: Sequence[Ledger]) -> None:
    """Write ledgers into the folder of a run, replacing those of the same batches; a failure is only warned about."""
    folder = run / FOLDER
    try:
        for ledger in ledgers:
            folder.mkdir(exist_ok=True)
            fields = {name: value for name, value in vars(ledger).items() if name != "columns"}
            columns = {name: np.ascontiguousarray(column) for name, column in ledger.columns.items()}
            replace_durably(folder / ledger.name, save(columns, {_TEXT: json.dumps(fields)}))
    except OSError as error:
        logger.warning("the tokens of a batch could not be written in %s (%s); training continues", run, error.strerror)


def ledgers_of(run: Path) -> list[tuple[int, int]]:
    """Return `(consumed, seed)` of every ledger of a run, in this order."""
    try:
        found = [_NAME.fullmatch(path.name) for path in (run / FOLDER).iterdir()]
    except OSError:
        return []
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def read_ledger(run: Path, consumed: int, seed: int) -> Ledger:
    """Return a ledger.

    Raises:
        OSError: it does not exist.
        ValueError: the file is damaged.
    """
    path = run / FOLDER / f"step_{consumed:d}_seed_{seed:d}.safetensors"
    data = read_regular(path)
    try:
        size = int.from_bytes(data[:8], "little")
        fields = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_TEXT])
        fields["visits"] = [Visit(*visit) for visit in fields["visits"]]
        return Ledger(**fields, columns=load(data))
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it") from error


def drop_later(run: Path, consumed: int) -> None:
    """Remove the ledgers of batches after `consumed` prompts, which a resumed run writes again."""
    for at, seed in ledgers_of(run):
        if at > consumed:
            (run / FOLDER / f"step_{at}_seed_{seed}.safetensors").unlink(missing_ok=True)
