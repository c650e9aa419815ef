"""Gymnasium's `check_env` for custom environments, with one line per finding."""

import logging
import re
import warnings
from collections.abc import Mapping
from typing import Any

from gymnasium.utils.env_checker import check_env

from operant import doors
from operant.envs.registry import make_single, registered, specified

logger = logging.getLogger(__name__)

CHECKED_ELSEWHERE = ("gymnasium", "operant", "ale_py", "gymnasium_robotics", "minigrid")
"""Packages whose environments are not checked."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_USUAL = ("is not in the environment registry", "render mode", "For Box action spaces", "A Box observation space")
"""Prefixes of warnings that are ignored, since they are common or irrelevant to learning."""


def is_users(task: str) -> bool:
    """Return whether the environment of a task is custom: neither Gymnasium's nor operant's."""
    if doors.is_file(task):
        return True
    entry = registered(task).entry_point
    package = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return package.partition(".")[0].partition(":")[0] not in CHECKED_ELSEWHERE


def check_users_environment(task: str, env_kwargs: Mapping[str, Any] | None = None) -> list[str]:
    """Run Gymnasium's `check_env` once on a custom environment, and log every finding in one line.

    Findings do not stop training; relevant violations of the API raise an error later.

    Args:
        task: Gymnasium id. Environments of Gymnasium and operant are not checked.
        env_kwargs: keyword arguments of the environment's constructor.

    Returns:
        The findings.
    """
    if not is_users(task):
        return []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failure = _failure(task, env_kwargs)
    texts = [_one_line(str(warning.message)) for warning in caught]
    findings = [text for text in dict.fromkeys(texts) if not any(usual in text for usual in _USUAL)]
    findings += [failure] if failure else []
    for finding in findings:
        logger.warning("%s: Gymnasium's check_env reports: %s", task, finding)
    return findings


def _failure(task: str, env_kwargs: Mapping[str, Any] | None) -> str | None:
    """Return the error of the check, or None."""
    env = make_single(specified(task, env_kwargs))
    try:
        check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
    except Exception as error:
        return _one_line(str(error) or type(error).__name__)
    finally:
        env.close()
    return None


def _one_line(text: str) -> str:
    return " ".join(_COLOR.sub("", text).removeprefix("WARN: ").split())
