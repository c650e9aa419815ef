"""Frames: sequences of observations with the preceding actions and rewards, as recurrent world models use them.

A replay buffer contains steps: an observation, the action taken, and the result. A frame is an observation with the
action and the reward that led to it. So the last observation of an episode, in which no action is taken, is also a
frame, and a sequence has one additional frame per episode that ends in it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.runtime.transitions import Sequences


@dataclass(frozen=True)
class Frames:
    """`M` sequences of `L` frames for each of `S` seeds.

    Attributes:
        obs: `[L, S, M, ...]` observations.
        actions: `[L, S, M, ...]` previous actions; zero in first frames.
        rewards: `[L, S, M]` rewards of the previous actions; zero in first frames.
        first: `[L, S, M]` bool, whether the frame is the first of an episode or of the sequence.
        last: `[L, S, M]` bool, whether the frame is the last of an episode.
        terminal: `[L, S, M]` bool, whether the frame is a terminal state.
        weights: `[L, S, M]`, 1 for valid frames, else 0.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    first: Tensor
    last: Tensor
    terminal: Tensor
    weights: Tensor


def frames_of(steps: Sequences) -> Frames:
    """Return the first `L` frames of sequences of `L` steps; shapes do not depend on the ends of episodes."""
    length, device = len(steps.rewards), steps.rewards.device
    ended = steps.terminated | steps.truncated
    time = torch.arange(length, device=device).view(-1, 1, 1).expand_as(ended)
    position = time + ended.cumsum(0) - ended.long()
    # Source of each frame: the observation of step t, or its successor, as L + t. The last row takes the rest.
    source = torch.zeros(2 * length + 1, *ended.shape[1:], dtype=torch.int64, device=device)
    source.scatter_(0, position, time)
    source.scatter_(0, torch.where(ended, position + 1, 2 * length), time + length)
    source = source[:length]
    last, step = source >= length, source % length
    first = steps.is_first.gather(0, step) & ~last
    first[0] = True
    before = torch.where(last, step, (step - 1).clamp(min=0))
    seeds, samples = (torch.arange(n, device=device) for n in ended.shape[1:])
    index = seeds.view(1, -1, 1), samples.view(1, 1, -1)

    def held(field: Tensor, at: Tensor) -> Tensor:
        return field[at, *index]

    weights = torch.ones_like(steps.rewards)
    if steps.weights is not None:
        weights = held(steps.weights, step) * torch.where(first, 1.0, held(steps.weights, before))
    actions = held(steps.actions, before)
    begins = first.view(*first.shape, *[1] * (actions.dim() - first.dim()))
    return Frames(
        obs=held(torch.cat((steps.obs, steps.next_obs)), source),
        actions=actions.masked_fill(begins, 0),
        rewards=held(steps.rewards, before).masked_fill(first, 0.0),
        first=first,
        last=last,
        terminal=last & held(steps.terminated, step),
        weights=weights,
    )
