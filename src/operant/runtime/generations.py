"""Sampled answers of evaluations in `eval/samples.jsonl`: `keep_samples`, `read_samples`, `latest_samples`."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.runtime.metrics import RecordWriter, read_records

if TYPE_CHECKING:  # it imports torch, and the web app's processes that list runs have none
    from operant.runtime.run import Run

logger = logging.getLogger(__name__)

_TEXTS = ("prompt", "completion")


def keep_samples(run: "Run", consumed: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Append the samples of an evaluation, one record per line; a failed write causes a warning.

    Args:
        run: the run.
        consumed: budget used by the learner.
        samples: records `{"seed", "prompt", "completion", "reward", "truncated", ...}`.
    """
    if not samples:
        return
    try:
        with closing(RecordWriter(run.samples_path)) as records:
            for sample in samples:
                records.write({"consumed": consumed, **sample})
            records.sync()
    except OSError as error:
        logger.warning("samples could not be written in %s (%s); training continues", run.path, error.strerror)


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of all evaluations in a file `samples.jsonl`; a missing file has none."""
    return read_records(path, texts=_TEXTS)


def latest_samples(run: "Run") -> list[dict[str, Any]]:
    """Return the samples of the last evaluation that has any."""
    found = read_samples(run.samples_path)
    return [record for record in found if record.get("consumed") == found[-1].get("consumed")]
