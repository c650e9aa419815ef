"""Rewards of the single steps of an answer, placed at tokens: `step_judge`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from operant.language.engines.protocol import Completion
from operant.language.tasks import Task
from operant.language.tokenised import Prompt
from operant.language.tokens import decode

StepJudge = Callable[[Sequence[Prompt], Sequence[Completion]], tuple[Tensor, Tensor, Tensor]]
"""Rewards steps: for n answers rewards, the index of the last token of each step, and which exist, `[n, K]` each."""


def step_judge(task: Task, tokenizer: Any) -> StepJudge:
    """Return what rewards the steps of answers as a task does.

    Raises:
        ValueError: the task does not reward steps.
    """
    rewards = task.step_rewards
    if rewards is None:
        raise ValueError(f"the task {task.name} does not reward single steps; take `steps`, or a process reward model")

    def judge(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> tuple[Tensor, Tensor, Tensor]:
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
    learnt. A completion that was cut off has none.

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


def table(steps: Sequence[Sequence[tuple[float, int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards, last tokens and which steps exist, `[n, K]` each, from (reward, last token) of each step."""
    most = max([1, *(len(row) for row in steps)])
    rewards, exists = torch.zeros(len(steps), most), torch.zeros(len(steps), most, dtype=torch.bool)
    ends = torch.zeros(len(steps), most, dtype=torch.int64)
    for i, row in enumerate(steps):
        for j, (reward, end) in enumerate(row):
            rewards[i, j], ends[i, j], exists[i, j] = reward, end, True
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
