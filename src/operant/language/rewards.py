"""Weighted sums of reward functions: `combine`.

Reward functions have TRL's signature, `f(prompts, completions, completion_ids, **columns)`, and may be `async`. The
columns are those of the examples except the prompt, each a list with one entry per completion. A function returns a
list with one number per completion, or None if it does not apply. As in TRL it may also take `trainer_state`
(`global_step`, `max_steps`, `epoch`, `num_train_epochs`), `log_metric(name, value)` and `log_extra(column, values)`. It
receives the arguments in its signature, or all of them if it has `**kwargs`.
"""

import asyncio
import inspect
import itertools
import math
import numbers
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from operant import doors
from operant.language.sandbox import SandboxError
from operant.tensors import floats

RewardFunction = Callable[..., "Sequence[float | None] | Awaitable[Sequence[float | None]]"]
"""`f(prompts, completions, completion_ids, **columns)`, with one number or None per completion."""


TRAINER = ("trainer_state", "log_metric", "log_extra")
"""Optional arguments of reward functions other than columns."""
GIVEN = ("prompts", "completions", "completion_ids", "prompt_ids", "truncated", *TRAINER)
"""Arguments that are not columns."""
START: Mapping[str, float] = {"global_step": 0, "max_steps": 0, "epoch": 0.0, "num_train_epochs": 0.0}
"""Default trainer state."""


class Rewards(NamedTuple):
    """Rewards of n completions by F functions.

    Attributes:
        table: rewards of each function, `[n, F]`; NaN where it does not apply.
        total: weighted sum over the functions that apply, `[n]` in float32; NaN if none applies.
        valid: mask `[n]` of the completions to which at least one function applies; others get advantage 0.
        names: names of the functions.
        metrics: means of the values logged by `log_metric`, each call of a function weighted by its completions.
        extra: columns logged by `log_extra`, with one entry per completion.
    """

    table: Float[Tensor, "n F"]
    total: Float[Tensor, " n"]
    valid: Bool[Tensor, " n"]
    names: tuple[str, ...]
    metrics: Mapping[str, float] = {}
    extra: Mapping[str, Sequence[Any]] = {}


class RewardFunctions(Protocol):
    """Reward functions whose rewards are computed together, such as those of `combine`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Unique names of the functions."""
        ...

    def __call__(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Any],
        trainer_state: Mapping[str, float] | None = None,
        **columns: Any,
    ) -> Rewards:
        """Compute the rewards of completions (see `Combined`)."""
        ...


class RewardError(RuntimeError):
    """Raised if a reward function raises an exception, which is the cause, or returns an invalid result."""


class Combined:
    """Weighted sum of reward functions, created by `combine`.

    Attributes:
        names: unique names of the functions.
        weights: weights of the functions.
    """

    def __init__(self, functions: Sequence[RewardFunction], weights: Sequence[float]) -> None:
        self.weights = tuple(map(float, weights))
        self.names = _different([name_of(function) for function in functions])
        self._functions = tuple((function, _accepted(function)) for function in functions)
        self._warned = False

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        trainer_state: Mapping[str, float] | None = None,
        **columns: Sequence[Any],
    ) -> Rewards:
        """Compute the rewards of n completions.

        Args:
            prompts: prompt of each completion, a string or a list of messages.
            completions: strings or lists of messages.
            completion_ids: token ids of the completions, including EOS.
            trainer_state: progress of training. Default: `START`.
            **columns: other columns of the examples, with one entry per completion.

        Raises:
            RewardError: a function raised an exception, or its result is not a list with one finite number or None per
                completion; the message contains function, index and value.
            ValueError: the lengths of the columns differ.
        """
        given: dict[str, Any] = {"prompts": prompts, "completion_ids": completion_ids, **columns}
        for name, column in given.items():
            if len(column) != len(completions):
                raise ValueError(f"there are {len(completions)} completions, but {len(column)} entries of {name}")
        log = _Log(len(completions))
        given |= {"completions": completions, "log_metric": log.metric, "log_extra": log.column}
        state = partial(SimpleNamespace, **(START if trainer_state is None else trainer_state))
        results = [
            _checked(name, _ask(name, function, accepted, given | {"trainer_state": state()}), len(completions))
            for name, (function, accepted) in zip(self.names, self._functions, strict=True)
        ]
        table = torch.tensor(results, dtype=torch.float64).reshape(len(results), len(completions)).T.contiguous()
        applies = ~table.isnan()
        valid = applies.any(-1)
        total = (table.nan_to_num(nan=0.0) @ torch.tensor(self.weights, dtype=torch.float64)).float()
        if not bool(total.isfinite().all()):
            row = int(total.isfinite().byte().argmin())
            raise RewardError(
                f"the weighted sum of the rewards for row {row}, {floats(table[row])}, exceeds the largest number of "
                f"float32, {torch.finfo(torch.float32).max:.3g}"
            )
        if not (self._warned or bool(valid.all())):
            self._warn(int(valid.byte().argmin()), prompts)
        return Rewards(table, total.masked_fill(~valid, math.nan), valid, self.names, log.means(), log.columns)

    def _warn(self, row: int, prompts: Sequence[Any]) -> None:
        """Warn that no function applies to a completion."""
        self._warned = True
        warnings.warn(
            f"no reward function applies to row {row} (prompt {prompts[row]!r}): {', '.join(self.names)} returned "
            "None; such rows get advantage 0; this warning appears once",
            RuntimeWarning,
            stacklevel=3,
        )


class _Log:
    """Values logged by a reward function in one call on n completions."""

    def __init__(self, count: int):
        self._count = count
        self._metrics: list[tuple[str, float, int]] = []
        self.columns: dict[str, list[Any]] = {}

    def metric(self, name: str, value: float) -> None:
        """Log a number."""
        self._metrics.append((name, float(value), 1))

    def column(self, column: str, values: Sequence[Any]) -> None:
        """Log one value per completion."""
        if len(values) != self._count:
            raise ValueError(f"log_extra({column!r}, ...) needs {self._count} values, got {len(values)}")
        self.columns[column] = list(values)

    def means(self) -> dict[str, float]:
        """Return the mean of each logged metric."""
        return mean_by_name(self._metrics)


def mean_by_name(values: Iterable[tuple[str, float, int]]) -> dict[str, float]:
    """Return the weighted mean of the values of each name, `(name, value, weight)`; those of weight 0 do not count."""
    found: dict[str, list[tuple[float, int]]] = {}
    for name, value, weight in values:
        if weight:
            found.setdefault(name, []).append((value, weight))
    return {name: sum(v * w for v, w in several) / sum(w for _, w in several) for name, several in found.items()}


def check_columns(functions: Iterable[RewardFunction], rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that the examples have all columns that reward functions require, with valid values.

    Args:
        functions: reward functions. The attribute `check_columns` of a function may map columns to checks of their
            values other than None, which raise ValueError. Of several names in a tuple, the first whose value in a row
            is not None counts.
        rows: examples.

    Raises:
        ValueError: a column is missing, or a value is invalid; the message names function and row.
    """
    present = set[str]().union(*rows) - {"prompt", "completion"}
    for function in functions:
        options = [(needed,) if isinstance(needed, str) else needed for needed in required(function)]
        missing = [" or ".join(map(repr, names)) for names in options if present.isdisjoint(names)]
        if missing:
            there = ", ".join(sorted(present)) or "no columns except prompt and completion, which are not passed on"
            raise ValueError(
                f"the reward function {name_of(function)} needs the column {missing[0]}, but the data has {there}: "
                "add it to the data, or give the parameter a default"
            )
        for columns, check in getattr(function, "check_columns", {}).items():
            names = (columns,) if isinstance(columns, str) else columns
            for number, row in enumerate(rows, 1):
                value = next((row[name] for name in names if row.get(name) is not None), None)
                if value is not None:
                    _check_value(function, check, value, f"row {number}, which starts with {row!r:.80}")


def _check_value(function: RewardFunction, check: Callable[[Any], object], value: Any, where: str) -> None:
    """Check a value of a column of a row."""
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"the reward function {name_of(function)}: {error} ({where})") from error


def required(function: RewardFunction) -> tuple[str | tuple[str, ...], ...]:
    """Return the required columns of a reward function: its parameters without a default.

    Of several names in a tuple, as the attribute `required_columns` may have, one is enough.
    """
    if (found := getattr(function, "required_columns", None)) is not None:
        return tuple(found)
    return tuple(
        parameter.name
        for parameter in _parameters(function)
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in GIVEN
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; `**kwargs` if its signature is unknown."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("names", inspect.Parameter.VAR_KEYWORD)]


def combine(functions: Sequence[RewardFunction], weights: Sequence[float] | None = None) -> Combined:
    """Combine reward functions into a weighted sum, like TRL's `reward_funcs` and `reward_weights`.

    Args:
        functions: one or more reward functions.
        weights: weight of each function; None: 1 each.

    Raises:
        ValueError: there is no function, or the number of weights differs, or a weight is NaN or Inf.
    """
    if not functions:
        raise ValueError("at least one reward function is needed")
    weights = [1.0] * len(functions) if weights is None else weights
    if len(weights) != len(functions):
        names = ", ".join(map(name_of, functions))
        raise ValueError(f"{len(functions)} reward functions ({names}) need one weight each, got {list(weights)}")
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"reward weights must be finite, got {list(weights)}")
    return Combined(functions, weights)


def name_of(function: RewardFunction) -> str:
    """Return the name of a reward function in metrics and messages."""
    return getattr(function, "__name__", type(function).__name__)


def text_of(completion: Any) -> str:
    """Return the text of a completion: the string, or the content of its last message.

    Raises:
        TypeError: the completion is neither a string nor a list of messages.
    """
    if isinstance(completion, str):
        return completion
    try:
        content = completion[-1]["content"]
    except (IndexError, KeyError, TypeError):
        content = None
    if not isinstance(content, str):
        raise TypeError(f"a completion must be a string or a list of messages with 'content', got {completion!r}")
    return content


def _different(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique names, with numbers appended to duplicates."""
    result: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(2))
        result.append(next(found for found in itertools.chain([name], others) if found not in result))
    return tuple(result)


def _accepted(function: RewardFunction) -> set[str] | None:
    """Return the names of the arguments of a function; None: all."""
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def _ask(name: str, function: RewardFunction, accepted: set[str] | None, given: Mapping[str, Any]) -> Any:
    # A function that changes its arguments changes its own copies, neither the data nor the tokens that are trained on,
    # nor what other functions get.
    own = {argument: _copied(value) for argument, value in given.items() if accepted is None or argument in accepted}
    try:
        result = function(**own)
        return _finish(result) if inspect.isawaitable(result) else result
    except SandboxError as error:  # names file, line and exception
        raise RewardError(f"the reward function {name} failed: {error}") from error
    except Exception as error:
        place = f" ({at})" if (at := doors.place_of_error(error, __file__)) else ""
        raise RewardError(f"the reward function {name} raised {type(error).__name__}: {error}{place}") from error


def _copied(value: Any) -> Any:
    """Copy lists, tuples and dictionaries at any depth."""
    if isinstance(value, list):
        return [_copied(one) if isinstance(one, list | tuple | dict) else one for one in cast(list[Any], value)]
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        return getattr(items, "_make", tuple)(map(_copied, items))  # named tuples keep their names
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in cast(dict[Any, Any], value).items()}
    return value


def _finish(result: Awaitable[Any]) -> Any:
    """Wait for the result of an asynchronous function, in a new thread, since notebooks have a running event loop."""

    async def wait() -> Any:
        return await result

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(wait())).result()


def _checked(name: str, result: Any, count: int) -> list[float]:
    """Return rewards as floats, with NaN for None."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise RewardError(f"the reward function {name} must return a list of {count} rewards, got {result!r}")
    found = cast(Sequence[Any], result)
    if len(found) != count:
        raise RewardError(
            f"the reward function {name} must return {count} rewards, one per completion, got {len(found)}"
        )
    return [math.nan if value is None else _number(name, row, value) for row, value in enumerate(found)]


def _number(name: str, row: int, value: Any) -> float:
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise RewardError(f"the reward of {name} for row {row} must be a number or None, got {value!r}")
    try:
        found = float(value)
    except OverflowError:  # an integer beyond the largest float
        found = math.inf
    if not math.isfinite(found):
        raise RewardError(
            f"the reward of {name} for row {row} is {found}, expected a finite number, or None if it does not apply"
        )
    return found
