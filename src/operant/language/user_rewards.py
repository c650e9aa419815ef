"""Reward functions from Python files, which run in separate processes with a time limit: `user_function`."""

import ast
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from operant.language.rewards import GIVEN, START, RewardFunction, mean_by_name
from operant.language.sandbox import MEMORY, Sandbox
from operant.language.sandbox_worker import TRAINER_KEY


def user_function(
    target: str, *, seconds: float = 60.0, workers: int = 1, memory: int | None = MEMORY
) -> RewardFunction:
    """Return a reward function from a Python file, which runs in separate processes with a time limit.

    Args:
        target: `path/to/file.py:function`. The function has TRL's signature and may be `async`.
        seconds: time limit of a call; after it all completions of the call get None.
        workers: number of processes. With one, a call gets the whole batch; with several, the batch is split into one
            call per process of consecutive completions, which run in parallel with separate time limits.
        memory: memory limit of a process in bytes (Linux); None: no limit.

    Raises:
        ValueError: there is no such file, or an argument is out of its range.
        SandboxError: the file cannot be imported, or has no such function.
    """
    sandbox = Sandbox(target, seconds=seconds, workers=workers, memory=memory)
    sandbox.start()
    needed, accepted = _parameters(sandbox.target)

    def reward(
        completions: Sequence[Any],
        trainer_state: Any = None,
        log_metric: Any = None,
        log_extra: Any = None,
        **given: Any,
    ) -> list[float | None]:
        count: int = len(completions)
        state: dict[str, Any] = {**(START if trainer_state is None else vars(trainer_state))}
        given |= {"completions": completions}
        columns = {name: list(value) for name, value in given.items() if accepted is None or name in accepted}
        edges = [count * part // workers for part in range(workers + 1)]
        bounds = [(low, high) for low, high in itertools.pairwise(edges) if low < high] or [(0, count)]
        calls = [
            {**{name: value[low:high] for name, value in columns.items()}, TRAINER_KEY: state} for low, high in bounds
        ]
        try:
            found = sandbox.calls(calls, fallbacks=[None] * len(calls))
        except TypeError:
            _require_json(target, columns)
            raise
        sizes = [high - low for low, high in bounds]
        _pass_on(found, sizes, log_metric, log_extra)
        parts: list[Any] = [[None] * n if one is None else one["result"] for one, n in zip(found, sizes, strict=True)]
        if len(parts) == 1:
            return parts[0]
        for part, size in zip(parts, sizes, strict=True):
            if not isinstance(part, list) or len(cast(list[Any], part)) != size:
                raise ValueError(f"{target} must return {size} rewards, one per completion, got {part!r}")
        return [reward for part in parts for reward in part]

    vars(reward)["required_columns"] = [name for name in needed if name not in GIVEN]
    checks = {name: partial(_require_json_value, name) for name in accepted or () if name not in GIVEN}
    vars(reward)["check_columns"] = checks
    reward.__name__ = target.rpartition(":")[2]
    return reward


def _pass_on(answers: Sequence[dict[str, Any] | None], sizes: Sequence[int], log_metric: Any, log_extra: Any) -> None:
    """Log the values that a function logged in the calls of a batch; failed calls have None in every column.

    A metric is the mean over the calls, weighted by their completions.
    """
    logged = [answer for answer in answers if answer is not None]
    means = [mean_by_name((*pair, 1) for pair in answer["metrics"]) if answer else {} for answer in answers]
    parts = zip(means, sizes, strict=True)
    overall = mean_by_name((name, value, size) for part, size in parts for name, value in part.items())
    for name, value in overall.items() if log_metric else ():
        log_metric(name, value)
    for name in dict.fromkeys(name for answer in logged for name in answer["extra"]) if log_extra else ():
        parts = [(answer or {"extra": {}})["extra"].get(name) for answer in answers]
        log_extra(name, [v for part, size in zip(parts, sizes, strict=True) for v in part or [None] * size])


def _require_json(target: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Raise ValueError for the first value that cannot be passed to another process."""
    for name, values in columns.items():
        for value in values:
            try:
                _require_json_value(name, value)
            except ValueError as error:
                raise ValueError(f"{error}; or name the columns that {target} uses in its signature") from None


def _require_json_value(name: str, value: Any) -> None:
    """Check that a value of a column can be passed to another process."""
    try:
        json.dumps(value)
    except TypeError:
        raise ValueError(
            f"the column {name!r} has the value {value!r}, which JSON cannot represent, expected text, numbers, lists "
            "or dictionaries: convert the column"
        ) from None


def _parameters(target: str) -> tuple[list[str], set[str] | None]:
    """Return the required and all parameters of a function in a file, without importing the file; None: any.

    The last binding of the name counts; the parameters are known if it is a definition without decorators.
    """
    where, _, name = target.rpartition(":")
    bindings = [node for node in ast.parse(Path(where).read_bytes()).body if _binds(node, name)]
    node = bindings[-1] if bindings else None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
        return [], None
    plain = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]]
    only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    least = len(plain) - len(node.args.defaults)
    every = {*plain, *(argument.arg for argument in node.args.kwonlyargs)}
    needed = plain[:least] + [argument.arg for argument, default in only if default is None]
    return needed, None if node.args.kwarg else every


def _binds(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement of a module may bind a name: by definition, assignment or import."""
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in [statement] if isinstance(statement, defined) else ast.walk(statement):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found = node.name
            case ast.Name(ctx=ast.Store()):
                found = node.id
            case ast.alias():
                found = node.asname or node.name.partition(".")[0]
            case _:
                continue
        if found in (name, "*"):
            return True
    return False
