"""Sessions of a run in `run.json`: start and end of each, and what all of them have in common."""

import importlib.metadata
import os
import platform
import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("operant", "torch", "numpy", "gymnasium")

FINISHED, INTERRUPTED, FAILED, UNFINISHED = "finished", "interrupted", "failed", "unfinished"
"""Outcome of a session; unfinished: still running, or killed."""

_STOPPED = " stopped it"
"""End of the reason of a session that a callback stopped."""

MERGED = "merged"
"""Name of the list of source runs among the resolved settings of a merged run, which has no checkpoints."""


def identity(path: Path) -> dict[str, str]:
    """Return the random id and the first name of a new run, which trackers know it by after it is renamed.

    Args:
        path: folder of the run.
    """
    return {"id": secrets.token_hex(8), "name": path.name}


def started(command: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a session that starts now.

    Args:
        command: the command line.
    """
    return {
        "started": _now(),
        "command": list(command),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "platform": platform.platform(),
        "git_commit": _git_commit(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def ended(outcome: str, consumed: int, reason: str = "") -> dict[str, Any]:
    """Return the fields added when a session ends.

    Args:
        outcome: `FINISHED`, `INTERRUPTED` or `FAILED`.
        consumed: budget used by then, per seed.
        reason: reason of the outcome; empty without one.
    """
    return {"ended": _now(), "outcome": outcome, "consumed": consumed, "reason": reason}


def described(sessions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the outcome of the last session, and the reason if known."""
    last: Mapping[str, Any] = sessions[-1] if sessions else {}
    return str(last.get("outcome", UNFINISHED)), str(last.get("reason", ""))


def stopped_by(callback: str) -> str:
    """Return the reason of the outcome if a callback stopped training; empty without one."""
    return f"{callback}{_STOPPED}" if callback else ""


def was_stopped(sessions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a callback stopped training in the last session, which is then finished before its budget."""
    outcome, reason = described(sessions)
    return outcome == FINISHED and reason.endswith(_STOPPED)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the working folder, or None outside a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603  the arguments are constants
            [git, "rev-parse", "--verify", "--quiet", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
