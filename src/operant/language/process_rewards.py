"""Rewards of the single steps of an answer, placed at tokens: `step_judge`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.tasks import Task
from operant.language.tokenizer import decode

Steps = tuple[Tensor, Tensor, Tensor]
"""Of the steps of n answers the rewards, the index of the last token, and which exist, `[n, K]` each; those that exist
come first."""
StepRewards = Callable[[Sequence[Prompt], Sequence[Completion]], Steps]
"""Rewards the steps of answers."""


def step_judge(task: Task, tokenizer: Any) -> StepRewards:
    """Return what rewards the steps of answers as a task does.

    Raises:
        ValueError: the task does not reward steps.
    """
    rewards = task.step_rewards
    if rewards is None:
        raise ValueError(f"the task {task.name} does not reward single steps; take `steps`, or a process reward model")

    def judge(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Steps:
        return table(
            [
                placed(tokenizer, completion, rewards(prompt.row["prompt"], decode(tokenizer, completion.ids)))
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
        )

    return judge


def placed(tokenizer: Any, completion: Completion, steps: Sequence[tuple[int, float]]) -> list[tuple[float, int]]:
    """Return (reward, last token) of each step of a completion.

    The end of sequence belongs to the last step: in no step it would have advantage 0, and stopping would not be
    learned. A completion that was cut off has none.

    Args:
        tokenizer: that the ids are of.
        completion: what was drawn.
        steps: for each step the characters up to and with its end, and its reward.
    """
    found = [
        (reward, end)
        for characters, reward in steps
        if (end := last_token(tokenizer, completion.ids, characters)) is not None
    ]
    if found and not completion.truncated:
        found[-1] = (found[-1][0], len(completion.ids) - 1)
    return found


def table(steps: Sequence[Sequence[tuple[float, int]]]) -> Steps:
    """Return steps, K being the most of one answer, from (reward, last token) of each step."""
    most = max([1, *(len(row) for row in steps)])
    rewards, exists = torch.zeros(len(steps), most), torch.zeros(len(steps), most, dtype=torch.bool)
    ends = torch.zeros(len(steps), most, dtype=torch.int64)
    for i, row in enumerate(steps):
        for j, (reward, end) in enumerate(row):
            rewards[i, j], ends[i, j], exists[i, j] = reward, end, True
    return rewards, ends, exists


def join_steps(parts: Sequence[tuple[Tensor, ...]]) -> Steps:
    """Return the steps of several batches of answers as one, K being the most of one answer."""
    most = max([1, *(int(exists.sum(1).max()) for _, _, exists in parts if len(exists))])
    rewards, ends, exists = (
        torch.cat([pad(table, (0, max(0, most - table.shape[1])))[:, :most] for table in column])
        for column in zip(*parts, strict=True)
    )
    return rewards, ends, exists


def last_token(tokenizer: Any, ids: Sequence[int], characters: int) -> int | None:
    """Return the index of the first token with which a completion has `characters` characters; None if none has."""
    low, high = 0, len(ids)
    if len(decode(tokenizer, ids)) < characters:
        return None
    while low < high:
        middle = (low + high) // 2
        if len(decode(tokenizer, ids[: middle + 1])) >= characters:
            high = middle
        else:
            low = middle + 1
    return low
