"""Answers of a learner in evaluations, in `eval/samples.jsonl` of its run: `keep_samples`, `latest_samples`."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from operant.runtime.metrics import RecordWriter, read_records
from operant.runtime.run import Run

logger = logging.getLogger(__name__)


def keep_samples(run: Run, consumed: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Append the samples of an evaluation, one record per line; a failure is only warned about.

    Args:
        run: the run.
        consumed: budget used by the learner.
        samples: `{"seed", "prompt", "completion", "reward", "truncated", ...}` each.
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


def latest_samples(run: Run) -> list[dict[str, Any]]:
    """Return the samples of the last evaluation with some, and its consumed budget."""
    found = read_records(run.samples_path)
    return [record for record in found if record.get("consumed") == found[-1].get("consumed")]
