"""Rewards of the steps of an answer, assigned to tokens: `step_judge`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.huggingface import Tokenizer
from operant.language.tasks import Task
from operant.language.tokenizer import decode

Steps = tuple[Tensor, Tensor, Tensor]
"""For the steps of n answers: rewards, indices of their last tokens, and existence, `[n, K]` each; existing ones come
first."""
StepRewards = Callable[[Sequence[Prompt], Sequence[Completion]], Steps]
"""Function that rewards the steps of answers."""


def step_judge(task: Task, tokenizer: Tokenizer) -> StepRewards:
    """Return the step rewards of a task.

    Raises:
        ValueError: the task has no step rewards.
    """
    rewards = task.step_rewards
    if rewards is None:
        raise ValueError(f"the task {task.name} has no step rewards; use the task `steps`, or a process reward model")

    def judge(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Steps:
        return table(
            [
                placed(tokenizer, completion, rewards(prompt.row["prompt"], decode(tokenizer, completion.ids)))
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
        )

    return judge


def placed(tokenizer: Tokenizer, completion: Completion, steps: Sequence[tuple[int, float]]) -> list[tuple[float, int]]:
    """Return (reward, last token) of each step of a completion.

    The end of sequence belongs to the last step: outside all steps it would have advantage 0, and the model would not
    learn to stop. Truncated completions have none.

    Args:
        tokenizer: of the ids.
        completion: token ids and truncation.
        steps: for each step the number of characters up to its end, and its reward.
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
    """Return steps as tensors, padded to the longest answer, from (reward, last token) of each step."""
    most = max([1, *(len(row) for row in steps)])
    rewards, exists = torch.zeros(len(steps), most), torch.zeros(len(steps), most, dtype=torch.bool)
    ends = torch.zeros(len(steps), most, dtype=torch.int64)
    for i, row in enumerate(steps):
        for j, (reward, end) in enumerate(row):
            rewards[i, j], ends[i, j], exists[i, j] = reward, end, True
    return rewards, ends, exists


def join_steps(parts: Sequence[tuple[Tensor, ...]]) -> Steps:
    """Return the steps of several batches of answers as one, padded to the longest answer."""
    most = max([1, *(int(exists.sum(1).max()) for _, _, exists in parts if len(exists))])
    rewards, ends, exists = (
        torch.cat([pad(table, (0, max(0, most - table.shape[1])))[:, :most] for table in column])
        for column in zip(*parts, strict=True)
    )
    return rewards, ends, exists


def last_token(tokenizer: Tokenizer, ids: Sequence[int], characters: int) -> int | None:
    """Return the index of the token with which a completion reaches `characters` characters; None if none does."""
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
