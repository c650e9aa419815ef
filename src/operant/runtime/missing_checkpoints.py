"""What to do about a run without checkpoints: `require`, `none_yet`."""

import contextlib
from typing import TYPE_CHECKING

from operant.runtime import sessions
from operant.runtime.locks import is_held
from operant.runtime.metrics import read_records, used_budget
from operant.runtime.run_paths import RunError, location

if TYPE_CHECKING:
    from operant.runtime.run import Run


def require(run: "Run") -> None:
    """Check that a run without checkpoints has not lost them.

    Raises:
        RunError: the run had checkpoints, but there are none; or it is merged from others, and never had any.
    """
    facts, folder = run.facts(), run.checkpoints.folder
    if sessions.MERGED in facts["resolved"]:
        raise RunError(
            f"{run.path} is merged from the evaluations of other runs, and has no policy to use: choose one of them "
            f"({facts['resolved'][sessions.MERGED]})"
        )
    scored = max((used_budget(record) for record in read_records(run.evaluations_path)), default=0)
    if facts.get("saved") or scored >= run.settings.budget or not folder.is_dir():
        raise RunError(
            f"the checkpoints of {run.path} are missing: {folder} {'is empty' if folder.is_dir() else 'is missing'}, "
            f"but it was trained before. Restore the folder from a backup, {run.checkpoints.other_state()}or start a "
            "new run; training never restarts silently"
        )


def none_yet(run: "Run") -> str:
    """Return the message about a run that has no checkpoint yet."""
    with contextlib.suppress(OSError):  # the folder is read-only
        if is_held(run.path):
            seconds = f"{run.settings.checkpoint_seconds:g} s (--checkpoint-seconds)"
            return f"{run.path} has no checkpoint yet: it is being trained, and first saved after {seconds}"
    return f"{run.path} has no checkpoint yet; train it with `operant resume {location(run.path)}`"
