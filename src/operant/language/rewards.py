"""Several reward functions as one, with weights: `combine`.

A reward function has the signature of TRL's: `f(prompts, completions, completion_ids, **columns)`, plain or `async`,
where the columns are those of the rows beside the prompt, each a list with one entry a completion. It returns one
number a completion, or None where it does not apply.
"""

import asyncio
import inspect
import math
import numbers
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

RewardFunction = Callable[..., "Sequence[float | None] | Awaitable[Sequence[float | None]]"]
"""`f(prompts, completions, completion_ids, **columns)`, with one number or None a completion."""


class Rewards(NamedTuple):
    """Rewards of n completions by F functions.

    Attributes:
        table: what each function said, NaN where it does not apply.
        total: the weighted sum over the functions that apply, in float32; NaN where none does.
        valid: where at least one applies. The others are to have advantage 0.
        names: of the functions.
    """

    table: Float[Tensor, "n F"]
    total: Float[Tensor, " n"]
    valid: Bool[Tensor, " n"]
    names: tuple[str, ...]


class RewardError(RuntimeError):
    """A reward function raised an exception, which is the cause of this one."""


class Combined:
    """Several reward functions as one; made by `combine`.

    Attributes:
        names: of the functions, each once.
        weights: of the functions.
    """

    def __init__(self, functions: Sequence[RewardFunction], weights: Sequence[float]) -> None:
        self.weights = tuple(map(float, weights))
        self.names = _different([name_of(function) for function in functions])
        self._functions = tuple(functions)
        self._warned = False

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **columns: Sequence[Any],
    ) -> Rewards:
        """Reward n completions.

        Args:
            prompts: the prompt of each completion, a string or a list of messages.
            completions: strings or lists of messages.
            completion_ids: their tokens, the end-of-sequence token included.
            **columns: what else the rows have, one entry a completion.

        Raises:
            RewardError: a function raises an exception.
            TypeError: a function returns anything but a list of numbers and None.
            ValueError: lengths differ, or a reward is not finite; the message names function, row and value.
        """
        given = {"prompts": prompts, "completion_ids": completion_ids, **columns}
        for name, column in given.items():
            if len(column) != len(completions):
                raise ValueError(f"there are {len(completions)} completions, but {len(column)} entries of {name}")
        results = [
            _checked(name, _ask(name, function, completions, given), len(completions))
            for name, function in zip(self.names, self._functions, strict=True)
        ]
        table = torch.tensor(results, dtype=torch.float64).reshape(len(results), len(completions)).T.contiguous()
        applies = ~table.isnan()
        valid = applies.any(-1)
        total = (table.nan_to_num(nan=0.0) @ torch.tensor(self.weights, dtype=torch.float64)).float()
        self._warn(valid, prompts)
        return Rewards(table, total.masked_fill(~valid, math.nan), valid, self.names)

    def _warn(self, valid: Bool[Tensor, " n"], prompts: Sequence[Any]) -> None:
        """Say once that no function applies to some row."""
        if self._warned or bool(valid.all()):
            return
        self._warned = True
        row = int(valid.byte().argmin())
        warnings.warn(
            f"no reward function applies to row {row} (prompt {prompts[row]!r}): {', '.join(self.names)} returned "
            "None; such rows count as without advantage, and no more is said of them",
            RuntimeWarning,
            stacklevel=3,
        )


def combine(functions: Sequence[RewardFunction], weights: Sequence[float] | None = None) -> Combined:
    """Make one of several reward functions, as TRL's `reward_funcs` and `reward_weights` do.

    Args:
        functions: one or more.
        weights: one for each function; None: 1 for each.

    Raises:
        ValueError: there is no function, or weights are too few, too many or not finite.
    """
    if not functions:
        raise ValueError("at least one reward function is needed")
    weights = [1.0] * len(functions) if weights is None else weights
    if len(weights) != len(functions):
        names = ", ".join(map(name_of, functions))
        raise ValueError(f"{len(functions)} reward functions ({names}) need as many weights, got {list(weights)}")
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"reward weights must be finite, got {list(weights)}")
    return Combined(functions, weights)


def name_of(function: RewardFunction) -> str:
    """Return what a reward function is called in metrics and messages."""
    return getattr(function, "__name__", type(function).__name__)


def text_of(completion: Any) -> str:
    """Return the text of a completion: itself, or what the last of its messages says.

    Raises:
        TypeError: it is neither a string nor a list of messages.
    """
    if isinstance(completion, str):
        return completion
    try:
        content = completion[-1]["content"]
    except (IndexError, KeyError, TypeError):
        content = None
    if not isinstance(content, str):
        raise TypeError(f"a completion is a string or a list of messages with 'content', got {completion!r}")
    return content


def _different(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with a number behind those that another one has before."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(result)


def _ask(name: str, function: RewardFunction, completions: Sequence[Any], given: Mapping[str, Any]) -> Any:
    try:
        result = function(completions=completions, **given)
        return _finish(result) if inspect.isawaitable(result) else result
    except Exception as error:
        raise RewardError(f"the reward function {name} raised {type(error).__name__}: {error}") from error


def _finish(result: Awaitable[Any]) -> Any:
    """Wait for the result of an asynchronous function, in a thread of its own: a notebook has a loop in this one."""

    async def wait() -> Any:
        return await result

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(wait())).result()


def _checked(name: str, result: Any, count: int) -> list[float]:
    """Return rewards as floats, NaN for None."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise TypeError(f"the reward function {name} must return a list of {count} rewards, got {result!r}")
    if len(result) != count:
        raise ValueError(f"the reward function {name} must return {count} rewards, one a completion, got {len(result)}")
    return [math.nan if value is None else _number(name, row, value) for row, value in enumerate(result)]


def _number(name: str, row: int, value: Any) -> float:
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise TypeError(f"the reward of {name} for row {row} must be a number or None, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(
            f"the reward of {name} for row {row} is {value}, expected a finite number, or None where it does not apply"
        )
    return float(value)
