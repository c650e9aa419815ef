"""Frames: sequences of what was seen, and what was done and got before it, as recurrent world models learn from them.

A replay buffer holds steps: an observation, the action taken there, and what followed. A frame is an observation with
the action and the reward that led to it. So the last observation of an episode, on which nobody acts, is a frame of its
own, and a sequence has one frame more for each episode that ends in it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from operant.runtime.transitions import Sequences


@dataclass(frozen=True)
class Frames:
    """`L` frames in a row, `M` times for each of `S` seeds.

    Attributes:
        obs: `[L, S, M, ...]` what was seen.
        actions: `[L, S, M, ...]` what was done before; zero in first frames.
        rewards: `[L, S, M]` what that brought; zero in first frames.
        first: `[L, S, M]` bool, whether an episode or the sequence begins with the frame.
        last: `[L, S, M]` bool, whether the episode ends with the frame.
        terminal: `[L, S, M]` bool, whether it does so by termination.
        weights: `[L, S, M]`, 1 for frames to learn from, else 0.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    first: Tensor
    last: Tensor
    terminal: Tensor
    weights: Tensor


def frames_of(steps: Sequences) -> Frames:
    """Return the first `L` frames of sequences of `L` steps; shapes do not depend on where episodes end."""
    length, device = len(steps.rewards), steps.rewards.device
    ended = steps.terminated | steps.truncated
    time = torch.arange(length, device=device).view(-1, 1, 1).expand_as(ended)
    place = time + ended.cumsum(0) - ended.long()
    # Where each frame comes from: step t itself, or what followed on step t, as L + t. The last row takes the rest.
    source = torch.zeros(2 * length + 1, *ended.shape[1:], dtype=torch.int64, device=device)
    source.scatter_(0, place, time)
    source.scatter_(0, torch.where(ended, place + 1, 2 * length), time + length)
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
