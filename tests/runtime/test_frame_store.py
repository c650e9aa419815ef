import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.runtime import frame_store as module
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.frame_store import FrameStore
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Rollout
from operant.state import clone

SIDE = 3


class Screen:
    """Screen of random frames that advance by one plane per step (`stacked`) or are entirely new."""

    def __init__(self, seeds, rows, channels, *, stacked, seed=0, ends=0.15):
        self.shape, self.stacked, self.ends = (seeds, rows, channels, SIDE, SIDE), stacked, ends
        self.generator = torch.Generator().manual_seed(seed)
        self.obs = self.bytes(*self.shape)

    def bytes(self, *shape):
        return torch.randint(256, shape, generator=self.generator, dtype=torch.uint8)

    def play(self, steps):
        seen, final, ended = [], [], []
        for _ in range(steps):
            seen.append(self.obs)
            new = self.bytes(*self.shape)
            final.append(torch.cat((self.obs[:, :, 1:], new[:, :, :1]), dim=2) if self.stacked else new)
            ended.append(torch.rand(self.shape[:2], generator=self.generator) < self.ends)
            self.obs = torch.where(ended[-1].view(*self.shape[:2], 1, 1, 1), self.bytes(*self.shape), final[-1])
        flags = torch.stack(ended)
        story = Rollout(
            obs=torch.stack(seen),
            last_obs=self.obs,
            kept=(),
            rewards=torch.rand(flags.shape, generator=self.generator),
            terminated=flags,
            truncated=torch.zeros_like(flags),
            final_obs=torch.stack(final),
            valid=None,
            metrics={},
        )
        return story, torch.zeros_like(flags, dtype=torch.int64)


@st.composite
def cases(draw):
    seeds, rows, channels = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    parts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=9))
    screen = Screen(seeds, rows, channels, stacked=draw(st.booleans()), seed=draw(st.integers(0, 2**31)))
    return screen, draw(st.integers(1, 20)), parts, draw(st.integers(0, len(parts)))


def head(replay):
    """Return the number of planes that a replay buffer has stored so far."""
    assert replay.frames is not None
    return replay.frames.head


def ring(replay):
    """Return the number of planes that a replay buffer can store."""
    assert replay.frames is not None
    return len(replay.frames.planes)


def remembered(replay, stories):
    """Return whether a replay buffer returns the last frames of all rollouts, in every place."""
    seen, final = (
        torch.cat([getattr(story, name) for story in stories])[-replay.length :] for name in ("obs", "final_obs")
    )
    batch = replay.take(torch.arange(replay.size).expand(replay.seeds, -1), gamma=0.9)
    slots = torch.arange(replay.size).view(-1, replay.rows)[:, 0] // replay.rows
    times = (slots - (replay.added - len(seen))) % replay.length

    def by_place(frames):
        return frames[times].movedim(1, 0).flatten(1, 2)

    return torch.equal(batch.obs, by_place(seen)) and torch.equal(batch.next_obs, by_place(final))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_a_memory_gives_back_what_was_shown_around_the_end_of_its_rings_and_after_loading(case):
    screen, length, parts, loaded = case
    seeds, rows = screen.shape[:2]

    def fresh():
        return Replay(seeds=seeds, rows=rows, capacity=length * rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 8)
        replay, stories = fresh(), []
        for part, steps in enumerate(parts):
            if part == loaded:
                state, replay = clone(replay.state_dict()), fresh()
                replay.load_state_dict(state)
            story, actions = screen.play(steps)
            replay.add(story, actions)
            stories.append(story)
            assert remembered(replay, stories)


@pytest.mark.parametrize(("stacked", "planes"), [(True, 1), (False, 4)])
def test_every_plane_is_held_once(stacked, planes, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    screen = Screen(1, 2, 4, stacked=stacked, ends=0.0)
    replay = Replay(seeds=1, rows=2, capacity=200)
    for _ in range(150):
        replay.add(*screen.play(4))
    frames = replay.frames
    assert frames is not None
    assert replay.size == 200
    assert 200 * planes <= frames.head - frames.first <= 200 * planes + 2 * 4 + 8 + 4
    assert len(frames.planes) == math.ceil(225 * planes / 8) * 8 + 8


def test_an_episode_that_ends_takes_a_separate_stack():
    screen = Screen(1, 1, 4, stacked=True, ends=0.0)
    replay = Replay(seeds=1, rows=1, capacity=50)
    replay.add(*screen.play(5))
    assert head(replay) == 4 + 5
    screen.ends = 1.0
    replay.add(*screen.play(1))
    assert head(replay) == 4 + 6
    replay.add(*screen.play(1))
    assert head(replay) == 4 + 6 + 4 + 1


def test_planes_worked_by_hand():
    def frame(*planes):
        return torch.tensor(planes, dtype=torch.uint8).view(1, 1, -1, 1, 1)

    frames = FrameStore((3, 1, 1), torch.uint8, torch.device("cpu"))
    seen, successors = frames.add(frame(1, 2, 3), frame(2, 3, 4), None)
    assert (seen.tolist(), successors.tolist()) == ([[[0, 1, 2]]], [[[1, 2, 3]]])
    seen, successors = frames.add(frame(2, 3, 4), frame(9, 3, 4), successors[-1])
    assert (seen.tolist(), successors.tolist()) == ([[[1, 2, 3]]], [[[4, 5, 6]]])
    assert frames.take(torch.tensor([[3, 4, 0]])).flatten().tolist() == [4, 9, 1]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_memory_that_was_loaded_early_has_the_room_it_began_with(steps, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 64)
    screen = Screen(1, 1, 4, stacked=True)
    replay, other = (Replay(seeds=1, rows=1, capacity=1000) for _ in range(2))
    replay.add(*screen.play(steps))
    other.load_state_dict(clone(replay.state_dict()))
    assert ring(other) == ring(replay) == 1152 + 64


def test_short_episodes_make_the_ring_grow_until_nothing_is_left(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    screen = Screen(1, 1, 4, stacked=True, ends=0.5)
    replay = Replay(seeds=1, rows=1, capacity=100)
    replay.add(*screen.play(1))
    before = ring(replay)
    monkeypatch.setattr(module, "available", lambda _: 300 * SIDE**2)

    def play_on():
        for _ in range(1000):
            replay.add(*screen.play(1))

    with pytest.raises(
        ValueError, match=r"more images than expected, since episodes are short, and temporarily needs .*buffer_siz"
    ):
        play_on()
    assert before < ring(replay) <= 300


@pytest.mark.parametrize("dummy", [False, True])
def test_dummy_steps_are_stored_like_others(dummy):
    """A dummy step of NEXT_STEP autoreset shows the final frame, and leads to the first frame of the next episode."""
    screen = Screen(1, 1, 2, stacked=True, ends=0.0)
    replay = Replay(seeds=1, rows=1, capacity=20)
    story, actions = screen.play(6)
    if dummy:
        story = replace(story, valid=(torch.arange(6) != 2).view(6, 1, 1))
    else:
        story.rewards[2] = torch.nan
    assert replay.add(story, actions).tolist() == [not dummy]
    batch = replay.take(torch.arange(6).unsqueeze(0), gamma=0.9)
    assert batch.weights is not None
    assert batch.weights.tolist() == [[1.0, 1.0, 0.0, 1.0, 1.0, 1.0]]
    assert remembered(replay, [story])
    assert head(replay) == 2 + 6


def test_full_blocks_are_saved_once_and_a_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    screens = [Screen(1, 1, 4, stacked=True) for _ in range(2)]
    replay, other = (Replay(seeds=1, rows=1, capacity=60) for _ in range(2))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for _ in range(30):
        replay.add(*screens[0].play(4))
    before = clone(replay.state_dict())
    other.load_state_dict(load_checkpoint(checkpoints.save(before, 1)))
    screens[1].generator.set_state(screens[0].generator.get_state())
    screens[1].obs = screens[0].obs
    for screen, memory in zip(screens, (replay, other), strict=True):
        memory.add(*screen.play(4))
    after = clone(replay.state_dict())
    old, new = before["pictures"]["segments"], after["pictures"]["segments"]
    full = [start for start in old if start in new and int(start) + 8 <= before["pictures"]["head"]]
    assert len(full) > 5
    assert all(
        old[start].mark is new[start].mark and torch.equal(old[start]["planes"], new[start]["planes"]) for start in full
    )
    folders = [checkpoints.save(state, step) for step, state in ((2, after), (3, clone(other.state_dict())))]
    assert (folders[0] / "state.safetensors").read_bytes() == (folders[1] / "state.safetensors").read_bytes()
    assert (folders[0] / "state.json").read_bytes() == (folders[1] / "state.json").read_bytes()


def test_buffers_saved_with_whole_images_resume_with_them():
    screen = Screen(1, 1, 2, stacked=True)
    replay, story = Replay(seeds=1, rows=1, capacity=20), screen.play(6)[0]
    whole = {name: getattr(story, name) for name in ("obs", "rewards", "terminated")}
    whole |= {
        "next_obs": story.final_obs,
        "ended": story.terminated,
        "actions": torch.zeros(6, 1, 1, dtype=torch.int64),
    }
    whole["valid"] = torch.ones_like(story.terminated)
    replay.load_state_dict({"added": 6, "gaps": False, "segments": [whole]})
    second, actions = screen.play(3)
    replay.add(second, actions)
    assert replay.frames is None
    assert remembered(replay, [story, second])


def test_planes_of_another_size_are_rejected():
    held = Replay(seeds=1, rows=1, capacity=20)
    held.add(*Screen(1, 1, 2, stacked=True).play(3))
    state = held.state_dict()["pictures"]
    other = FrameStore((2, SIDE, SIDE + 1), torch.uint8, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"'frames' has shape \(5, 3, 3\) but \(5, 3, 4\) is needed"):
        other.load_state_dict(state)
