"""What to do about a run without checkpoints: `require`."""

from typing import TYPE_CHECKING

from operant.runtime import sessions
from operant.runtime.metrics import read_records, used_budget
from operant.runtime.run_paths import RunError

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
