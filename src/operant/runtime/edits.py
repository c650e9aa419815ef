"""Edits of `config.toml` between the sessions of a run, which would otherwise relabel what was trained before."""

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from operant.runtime.files import read_regular
from operant.runtime.run_paths import RunError

if TYPE_CHECKING:
    from operant.runtime.run import Run

logger = logging.getLogger(__name__)

HASH = "config_sha256"
"""Name of the hash of `config.toml` in the entry of a session."""

_PENDING = f"pending_{HASH}"
"""Name of the list of hashes that `config.toml` may have since the last session began: several after crashes."""


def hash_of(contents: bytes) -> dict[str, str]:
    """Return the part of a session's entry that identifies the contents of `config.toml`."""
    return {HASH: hashlib.sha256(contents).hexdigest()}


def announce(facts: dict[str, Any], contents: bytes) -> None:
    """Add the hash of what will be written to `config.toml` to the contents of `run.json`."""
    facts.setdefault(_PENDING, []).append(hash_of(contents)[HASH])


def settled(facts: dict[str, Any]) -> dict[str, Any]:
    """Remove all announced hashes from the contents of `run.json`, and return these."""
    facts.pop(_PENDING, None)
    return facts


def require_seeds(run: "Run") -> None:
    """Check that a run has the seeds that it was created with.

    Raises:
        RunError: `config.toml` has other seeds than `run.json`.
    """
    recorded, found = run.facts().get("seeds"), list(run.settings.seeds)
    if recorded is not None and recorded != found:
        raise RunError(
            f"{run.path / 'config.toml'} has the seeds {found}, but the run was trained with {recorded}: restore them, "
            "and train other seeds as a new run"
        )


def require_unedited(run: "Run", *, accept: bool) -> dict[str, Any]:
    """Check that `config.toml` is the one that operant wrote last; runs of earlier versions have no hash, and pass.

    Args:
        run: the run.
        accept: whether to continue with an edited file.

    Returns:
        What to record in the next session: `config_edited` if the file was edited, else nothing.

    Raises:
        RunError: the file was edited, and `accept` is false.
    """
    facts, file = run.facts(), run.path / "config.toml"
    recorded = facts["sessions"][-1].get(HASH) if facts["sessions"] else None
    if recorded is None or hash_of(read_regular(file))[HASH] in (recorded, *facts.get(_PENDING, ())):
        return {}
    if not accept:
        raise RunError(
            f"{file} has changed since the last session, so the run would continue with other settings than it was "
            "trained with: restore the file, start a new run, or continue with these settings by --accept-changes "
            "(in Python accept_changes=True)"
        )
    logger.warning("%s: config.toml has changed since the last session; the run continues with its settings", run.path)
    return {"config_edited": True}
