"""Rewards of the steps of answers, assigned to tokens: `step_rewards_of`."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.huggingface import Tokenizer
from operant.language.tasks import Task
from operant.language.tokenizer import decode

Steps = tuple[Tensor, Tensor, Tensor]
"""Steps of n answers, padded to K: rewards, indices of their last tokens, and mask of existing steps, `[n, K]` each."""
StepRewards = Callable[[Sequence[Prompt], Sequence[Completion]], Steps]
"""Reward function of the steps of answers."""


def step_rewards_of(task: Task, tokenizer: Tokenizer) -> StepRewards:
    """Return the step reward function of a task.

    Raises:
        ValueError: the task has no step rewards.
    """
    rewards = task.step_rewards
    if rewards is None:
        raise ValueError(f"the task {task.name} has no step rewards; use the task `steps`, or a process reward model")

    def step_rewards(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Steps:
        return table(
            [
                placed(tokenizer, completion, rewards(prompt.row["prompt"], decode(tokenizer, completion.ids)))
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
        )

    return step_rewards


def placed(tokenizer: Tokenizer, completion: Completion, steps: Sequence[tuple[int, float]]) -> list[tuple[float, int]]:
    """Return (reward, index of the last token) of each step of a completion.

    EOS belongs to the last step; otherwise it would have advantage 0, and the model would not learn to stop. Truncated
    completions have no EOS.

    Args:
        tokenizer: tokenizer of the model.
        completion: token ids and truncation.
        steps: for each step the number of characters up to its end, and its reward.
    """
    ends = last_tokens(tokenizer, completion.ids, [characters for characters, _ in steps])
    found = [(reward, end) for (_, reward), end in zip(steps, ends, strict=True) if end is not None]
    if found and not completion.truncated:
        found[-1] = (found[-1][0], len(completion.ids) - 1)
    return found


def table(steps: Sequence[Sequence[tuple[float, int]]]) -> Steps:
    """Convert lists of (reward, index of the last token) to tensors, padded to the longest answer."""
    most = max([1, *(len(row) for row in steps)])
    rewards, exists = torch.zeros(len(steps), most), torch.zeros(len(steps), most, dtype=torch.bool)
    ends = torch.zeros(len(steps), most, dtype=torch.int64)
    for i, row in enumerate(steps):
        for j, (reward, end) in enumerate(row):
            rewards[i, j], ends[i, j], exists[i, j] = reward, end, True
    return rewards, ends, exists


def join_steps(parts: Sequence[tuple[Tensor, ...]]) -> Steps:
    """Concatenate the steps of several batches of answers, padded to the longest answer."""
    most = max([1, *(int(exists.sum(1).max()) for _, _, exists in parts if len(exists))])
    rewards, ends, exists = (
        torch.cat([pad(table, (0, max(0, most - table.shape[1])))[:, :most] for table in column])
        for column in zip(*parts, strict=True)
    )
    return rewards, ends, exists


def last_tokens(tokenizer: Tokenizer, ids: Sequence[int], characters: Sequence[int]) -> list[int | None]:
    """Return the index of the token at which a completion reaches each number of characters; None if it is shorter."""

    @cache
    def length(index: int) -> int:
        # A character of several tokens decodes to one or more U+FFFD until it is complete.
        return len(decode(tokenizer, ids[: index + 1]).rstrip("\ufffd"))

    places = [bisect_left(range(len(ids)), count, key=length) for count in characters]
    return [place if place < len(ids) else None for place in places]
