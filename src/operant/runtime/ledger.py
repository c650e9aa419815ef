"""Token-level records of language-model updates, in `ledger/` of a run: `keep_ledgers`, `read_ledger`.

A file contains one batch of one seed: prompts, answers and rewards as JSON, and columns with one number per token. It
is written atomically, and can be read without torch.
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
_NAME = re.compile(r"step_(\d+)_seed_(-?\d+)\.safetensors")
_TEXT = "batch"


class Visit(NamedTuple):
    """An answer in an optimizer step.

    Attributes:
        answer: index of the answer.
        step: index of the optimizer step in the batch, from 0.
        start: index of its first token in the columns.
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
        consumed: number of prompts used by the run, including the batch: the minimum over its seeds.
        seed: seed of the learner.
        group: number of answers per prompt, G.
        steps: number of optimizer steps, K.
        loss: logged loss terms by metric, means over the optimizer steps.
        prompts: texts of the prompts.
        answers: records `{"prompt": index, "text", "reward", "counts", "version"}`; the reward may be None, answers
            whose `counts` is false are in no optimizer step, and `version` is that of the weights that sampled the
            answer, the number of updates (not in ledgers of earlier versions of operant).
        pieces: texts of the distinct tokens, to which the column `piece` refers.
        visits: answers of the tokens in the columns.
        columns: one number per token, `[m]` each: `piece`, `log_prob`, `behavior`, `advantage`, `weight`,
            `importance`, `ratio`, `clipped`, `entropy`, `policy`, and with a reference `kl` and `reference`. `policy`
            and `reference` are loss terms, which sum to `loss` together with `rest`.
        rest: number of tokens beyond the limit, `tokens`, and the sums of their `policy` and `reference`.
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
    """Write ledgers into the folder of a run, replacing those of the same batches; a failed write causes a warning."""
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
    """Return `(consumed, seed)` of every ledger of a run, sorted."""
    try:
        found = [_NAME.fullmatch(path.name) for path in (run / FOLDER).iterdir()]
    except OSError:
        return []
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def read_ledger(run: Path, consumed: int, seed: int) -> Ledger:
    """Read a ledger.

    Raises:
        OSError: the file does not exist.
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
    """Remove the ledgers after `consumed` prompts, which a resumed run writes again."""
    for at, seed in ledgers_of(run):
        if at > consumed:
            (run / FOLDER / f"step_{at}_seed_{seed}.safetensors").unlink(missing_ok=True)
