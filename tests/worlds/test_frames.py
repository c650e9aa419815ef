"""Sequences of steps as frames: by hand, against a loop, and without losses at the ends of episodes."""

import torch
from torch.testing import assert_close

from operant.runtime.transitions import Sequences
from operant.worlds.frames import frames_of


def sequences(terminated, truncated, is_first, weights=None):
    """Return sequences `[L, S, M]` in which step t of column c has observation 10 t + c, and leads to 10 t + c + 5."""
    length, seeds, samples = terminated.shape
    number = 10.0 * torch.arange(length).view(-1, 1, 1) + torch.arange(seeds * samples).view(1, seeds, samples)
    following = torch.where(terminated | truncated, number + 5, number.roll(-1, 0))
    return Sequences(
        obs=number.unsqueeze(-1),
        actions=(number + 100).unsqueeze(-1),
        rewards=number + 1000,
        next_obs=following.unsqueeze(-1),
        terminated=terminated,
        truncated=truncated,
        is_first=is_first,
        weights=weights,
        extras={},
        index=torch.zeros(seeds, samples, dtype=torch.int64),
    )


def flags(*places, length=4):
    found = torch.zeros(length, 1, 1, dtype=torch.bool)
    found[list(places)] = True
    return found


def test_an_end_is_a_separate_frame():
    """Steps 0 and 1, of which the second ends; then 2 and 3: the frames are 0, 1, the end of 1, and 2."""
    frames = frames_of(sequences(flags(1), flags(), flags(0, 2)))
    assert frames.obs.flatten().tolist() == [0, 10, 15, 20]
    assert frames.actions.flatten().tolist() == [0, 100, 110, 0]
    assert frames.rewards.flatten().tolist() == [0, 1000, 1010, 0]
    assert frames.first.flatten().tolist() == [True, False, False, True]
    assert frames.last.flatten().tolist() == [False, False, True, False]
    assert frames.terminal.flatten().tolist() == [False, False, True, False]


def test_a_truncation_is_last_but_not_terminal():
    frames = frames_of(sequences(flags(), flags(0), flags(1)))
    assert frames.obs.flatten().tolist() == [0, 5, 10, 20]
    assert frames.last.flatten().tolist() == [False, True, False, False]
    assert not frames.terminal.any()


def test_a_sequence_begins_with_a_first_frame_wherever_it_begins():
    frames = frames_of(sequences(flags(), flags(), flags()))
    assert frames.first.flatten().tolist() == [True, False, False, False]
    assert frames.rewards.flatten().tolist() == [0, 1000, 1010, 1020]


def test_against_a_loop_over_columns():
    draw = torch.Generator().manual_seed(0)
    length, seeds, samples = 9, 2, 5
    ended = torch.rand(length, seeds, samples, generator=draw) < 0.4
    terminated = ended & (torch.rand(ended.shape, generator=draw) < 0.5)
    is_first = torch.cat((torch.rand(1, seeds, samples, generator=draw) < 0.5, ended[:-1]))
    weights = (torch.rand(ended.shape, generator=draw) < 0.8).float()
    steps = sequences(terminated, ended & ~terminated, is_first, weights)
    frames = frames_of(steps)
    for s in range(seeds):
        for m in range(samples):
            expected = []
            for t in range(length):
                first = t == 0 or bool(is_first[t, s, m])
                arrives = (0.0, 0.0) if first else (steps.actions[t - 1, s, m, 0], steps.rewards[t - 1, s, m])
                weight = weights[t, s, m] * (1.0 if first else weights[t - 1, s, m])
                expected.append([steps.obs[t, s, m, 0], *arrives, first, False, False, weight])
                if ended[t, s, m]:
                    arrives = (steps.actions[t, s, m, 0], steps.rewards[t, s, m])
                    row = [steps.next_obs[t, s, m, 0], *arrives, False, True, terminated[t, s, m]]
                    expected.append([*row, weights[t, s, m]])
            columns = (
                frames.obs[..., 0],
                frames.actions[..., 0],
                frames.rewards,
                frames.first,
                frames.last,
                frames.terminal,
                frames.weights,
            )
            found = torch.stack([column[:, s, m].float() for column in columns], 1)
            assert_close(found, torch.tensor([[float(x) for x in row] for row in expected[:length]]))


def test_discrete_actions_and_images_keep_their_types():
    steps = sequences(flags(1), flags(), flags(0, 2))
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1, 1, 1).expand(4, 1, 1, 1, 2, 2)
    steps = Sequences(**{**vars(steps), "obs": images, "next_obs": images + 9, "actions": flags(1).long()[:, :, :]})
    frames = frames_of(steps)
    assert frames.obs.dtype == torch.uint8
    assert frames.obs[:, 0, 0, 0, 0, 0].tolist() == [0, 1, 10, 2]
    assert frames.actions.flatten().tolist() == [0, 0, 1, 0]
