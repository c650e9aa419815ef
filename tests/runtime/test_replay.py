import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.runtime import replay as memory
from operant.runtime.available_memory import available
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.encoding import flatten
from operant.runtime.replay import SEGMENT, Replay
from operant.runtime.rollouts import Rollout
from operant.state import clone


def rollout(steps, seeds, rows, *, first=0, generator=None, invalid=0.0, next_step=False):
    """Return steps whose observations are seed, row and time, with random rewards, ends and actions."""
    generator = generator or torch.Generator().manual_seed(first)
    shape = (steps, seeds, rows)
    time = torch.arange(first, first + steps).view(-1, 1, 1).expand(shape)
    seed, row = torch.arange(seeds).view(1, -1, 1).expand(shape), torch.arange(rows).expand(shape)
    obs = torch.stack((seed, row, time), dim=-1).float()
    kind = torch.randint(8, shape, generator=generator)
    rewards = torch.randn(shape, generator=generator)
    rewards[torch.rand(shape, generator=generator) < invalid] = torch.nan
    valid = torch.rand(shape, generator=generator) > 0.2 if next_step else None
    story = Rollout(
        obs=obs,
        last_obs=obs[-1],
        kept=(),
        rewards=rewards,
        terminated=(kind == 5) | (kind == 7),
        truncated=kind >= 6,
        final_obs=obs + 0.5,
        valid=valid,
        metrics={},
    )
    return story, (100 * seed + 10 * row + time) % 7


def expected_steps(stories, seeds, rows, length):
    """Return the last ``length`` steps of all rollouts as dicts, by time, seed and row."""
    lines = []
    for story, actions in stories:
        for t in range(len(actions)):
            valid = torch.ones(seeds, rows, dtype=torch.bool) if story.valid is None else story.valid[t]
            lines.append(
                [
                    [
                        {
                            "obs": story.obs[t, s, r],
                            "action": int(actions[t, s, r]),
                            "reward": float(story.rewards[t, s, r]),
                            "next_obs": story.final_obs[t, s, r],
                            "terminated": bool(story.terminated[t, s, r]),
                            "ended": bool(story.terminated[t, s, r] | story.truncated[t, s, r]),
                            "valid": bool(valid[s, r] & story.rewards[t, s, r].isfinite()),
                        }
                        for r in range(rows)
                    ]
                    for s in range(seeds)
                ]
            )
    return lines[-length:], len(lines)


def filled_replay(seed, *, added, capacity, seeds=2, rows=3, chunk=4, invalid=0.0, extras=False):
    """Return a buffer that was filled chunk by chunk, and its expected content."""
    generator = torch.Generator().manual_seed(seed)
    replay, stories = Replay(seeds=seeds, rows=rows, capacity=capacity), []
    for first in range(0, added, chunk):
        story, actions = rollout(
            min(chunk, added - first), seeds, rows, first=first, generator=generator, invalid=invalid
        )
        if extras:
            story = replace(story, extras={"goal": 2 * story.obs})
        replay.add(story, actions)
        stories.append((story, actions))
    return replay, stories


def window(lines, gamma, n):
    """Compute the n-step sum of a window in a loop."""
    reward, k = 0.0, 0
    while True:
        line = lines[k]
        reward += gamma**k * line["reward"]
        k += 1
        if line["ended"] or k == n or k == len(lines) or not lines[k]["valid"]:
            return reward, gamma**k, line["next_obs"], line["terminated"]


@st.composite
def cases(draw):
    seeds, rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    parts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    invalid = draw(st.sampled_from((0.0, 0.2)))
    kind = {"invalid": invalid, "next_step": draw(st.booleans())}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    stories, first = [], 0
    for steps in parts:
        stories.append(rollout(steps, seeds, rows, first=first, generator=generator, **kind))
        first += steps
    return seeds, rows, length, stories, draw(st.integers(1, 5))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_windows_equal_those_of_a_walk_along_the_steps(case):
    seeds, rows, length, stories, n = case
    replay = Replay(seeds=seeds, rows=rows, capacity=length * rows + rows - 1)
    for story, actions in stories:
        replay.add(story, actions)
    lines, added = expected_steps(stories, seeds, rows, length)
    assert (replay.added, replay.filled, replay.size) == (added, len(lines), len(lines) * rows)
    everything = torch.arange(replay.size).expand(seeds, -1)
    batch = replay.take(everything, gamma=0.9, n=n)
    oldest = added - len(lines)
    live = 0
    for s in range(seeds):
        for place in range(replay.size):
            slot, r = divmod(place, rows)
            t = (slot - oldest) % length
            line = lines[t][s][r]
            weight = 1.0 if batch.weights is None else batch.weights[s, place].item()
            assert weight == float(line["valid"])
            if not line["valid"]:
                assert not batch.obs[s, place].any()
                continue
            live += 1
            reward, discount, next_obs, terminated = window([step[s][r] for step in lines[t:]], 0.9, n)
            assert torch.equal(batch.obs[s, place], line["obs"])
            assert batch.actions[s, place] == line["action"]
            assert batch.rewards[s, place].item() == pytest.approx(reward, abs=1e-5)
            assert batch.discounts[s, place].item() == pytest.approx(discount)
            assert torch.equal(batch.next_obs[s, place], next_obs)
            assert bool(batch.terminated[s, place]) is terminated
    ever = expected_steps(stories, seeds, rows, added)[0]
    assert (batch.weights is None) == all(line["valid"] for step in ever for seed in step for line in seed)
    assert live == sum(line["valid"] for step in lines for seed in step for line in seed)


def test_a_window_worked_by_hand():
    story, actions = rollout(4, 1, 1)
    flags = torch.zeros(4, 1, 1, dtype=torch.bool)
    story = replace(
        story,
        rewards=torch.tensor([1.0, 2.0, 4.0, 8.0]).view(4, 1, 1),
        terminated=flags,
        truncated=flags.index_fill(0, torch.tensor([2]), True),
    )
    replay = Replay(seeds=1, rows=1, capacity=10)
    replay.add(story, actions)
    batch = replay.take(torch.arange(4).unsqueeze(0), gamma=0.5, n=3)
    assert batch.rewards.tolist() == [[3.0, 4.0, 4.0, 8.0]]
    assert batch.discounts.tolist() == [[0.125, 0.25, 0.5, 0.5]]
    assert batch.next_obs[0, :, 2].tolist() == [2.5, 2.5, 2.5, 3.5]
    assert not batch.terminated.any(), "a truncated window bootstraps from the final observation"


def test_transitions_with_nan_or_inf_are_left_out_and_counted():
    story, actions = rollout(6, 2, 2)
    story.rewards[1, 0, 1] = torch.inf
    story.obs[2, 1, 0, 2] = torch.nan
    story.final_obs[3, 1, 0, 0] = -torch.inf
    replay = Replay(seeds=2, rows=2, capacity=100)
    assert replay.add(story, actions).tolist() == [1, 2]
    batch = replay.take(torch.arange(replay.size).expand(2, -1), gamma=0.9, n=4)
    dead = (batch.weights == 0).nonzero().tolist()
    assert dead == [[0, 1 * 2 + 1], [1, 2 * 2], [1, 3 * 2]]
    for field in (batch.obs, batch.rewards, batch.next_obs, batch.discounts):
        assert field.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in flatten(replay.state_dict())[1].values())
    assert torch.equal(replay.valid(torch.tensor([0, 3, 4, 6])), torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]]).bool())


def test_continuous_actions_that_are_not_finite_are_left_out():
    story, _ = rollout(3, 1, 1)
    actions = torch.zeros(3, 1, 1, 2)
    actions[1, 0, 0, 1] = torch.nan
    replay = Replay(seeds=1, rows=1, capacity=9)
    assert replay.add(story, actions).tolist() == [1]
    batch = replay.take(torch.arange(3).unsqueeze(0), gamma=0.9)
    assert batch.weights.tolist() == [[1.0, 0.0, 1.0]]
    assert batch.actions.shape == (1, 3, 2)


def test_draws_are_uniform_within_what_is_held_and_belong_to_the_seed():
    replay = Replay(seeds=2, rows=3, capacity=30)
    replay.add(*rollout(4, 2, 3))

    def streams(*seeds):
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    index = replay.draw(12_000, streams(0, 1))
    counts = torch.stack([row.bincount(minlength=30) for row in index])
    assert not counts[:, 12:].any()
    assert (counts[:, :12] - 1000).abs().max() < 5 * 1000**0.5
    assert not torch.equal(index[0], index[1])
    assert torch.equal(replay.draw(12_000, streams(1, 0))[[1, 0]], index)


def test_the_newest_places_are_those_written_last():
    replay = Replay(seeds=1, rows=2, capacity=6)
    for first, expected in ((0, [0, 1, 2, 3]), (2, [4, 5, 0, 1]), (4, [2, 3, 4, 5])):
        replay.add(*rollout(2, 1, 2, first=first))
        assert replay.newest(2).tolist() == expected
    assert replay.newest(9).tolist() == [0, 1, 2, 3, 4, 5]
    replay.add(*rollout(20, 1, 2, first=6))
    index = replay.newest(3).unsqueeze(0)
    assert replay.take(index, gamma=1.0).obs[0, :, 2].tolist() == [23, 23, 24, 24, 25, 25]


def test_parts_are_the_minibatches_of_a_draw():
    replay = Replay(seeds=2, rows=1, capacity=8)
    replay.add(*rollout(8, 2, 1, invalid=0.3))
    whole = replay.take(torch.arange(6).expand(2, -1), gamma=0.9)
    parts = whole.parts(3)
    assert [part.rewards.shape for part in parts] == [(2, 2)] * 3
    for name in ("obs", "actions", "rewards", "next_obs", "terminated", "discounts", "weights", "index"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], dim=1), getattr(whole, name))


def test_types_of_observations_are_kept():
    story, actions = rollout(2, 1, 1)
    replay = Replay(seeds=1, rows=1, capacity=4)
    replay.add(replace(story, obs=story.obs.byte(), final_obs=story.final_obs.byte()), actions)
    batch = replay.take(torch.tensor([[0, 1]]), gamma=0.9)
    assert (batch.obs.dtype, batch.next_obs.dtype, batch.actions.dtype) == (torch.uint8, torch.uint8, torch.int64)


def test_numbers_are_kept_that_are_too_large_to_be_added_up():
    story, actions = rollout(3, 1, 2)
    large = torch.full_like(story.obs, 3e38)
    replay = Replay(seeds=1, rows=2, capacity=8)
    assert replay.add(replace(story, obs=large), actions).tolist() == [0]
    batch = replay.take(torch.arange(6).expand(1, -1), gamma=0.9)
    assert batch.weights is None
    assert torch.equal(batch.obs, large.view(1, 6, 3))


def test_gaps_are_known_when_whole_transitions_were_there_before_and_come_after():
    replay = Replay(seeds=1, rows=1, capacity=4)
    for first in range(9):
        story, actions = rollout(1, 1, 1, first=first)
        bad = first in {3, 5}
        rewards = torch.full_like(story.rewards, torch.nan if bad else 1.0)
        assert replay.add(replace(story, rewards=rewards), actions).tolist() == [int(bad)]
    weights = replay.take(torch.arange(4).unsqueeze(0), gamma=0.9).weights
    assert weights.tolist() == [[1.0, 0.0, 1.0, 1.0]], "of the steps 8, 5, 6 and 7"


# Saved states


@pytest.mark.parametrize("steps", [0, 3, 7, 25])
def test_a_buffer_resumes_bit_for_bit(steps, tmp_path):
    def fresh():
        return Replay(seeds=2, rows=2, capacity=14)

    first, second = fresh(), fresh()
    if steps:
        first.add(*rollout(steps, 2, 2, invalid=0.1))
    saved = clone(first.state_dict())
    folder = Checkpoints(tmp_path / "checkpoints").save(saved, 1)
    second.load_state_dict(load_checkpoint(folder))
    for replay in (first, second):
        replay.add(*rollout(5, 2, 2, first=steps))
    index = torch.arange(first.size).expand(2, -1)
    one, other = first.take(index, gamma=0.9, n=3), second.take(index, gamma=0.9, n=3)
    for left, right in zip(vars(one).values(), vars(other).values(), strict=True):
        assert left is right is None or torch.equal(left, right)
    assert second.added == steps + 5


def test_segments_that_have_not_changed_are_the_same():
    replay = Replay(seeds=1, rows=1, capacity=3 * SEGMENT)
    replay.add(*rollout(2 * SEGMENT + 5, 1, 1))
    before = clone(replay.state_dict())["segments"]
    replay.add(*rollout(7, 1, 1, first=2 * SEGMENT + 5))
    after = replay.state_dict()["segments"]
    equal = [all(torch.equal(old[name], new[name]) for name in old) for old, new in zip(before, after, strict=True)]
    assert [len(segment["rewards"]) for segment in after] == [SEGMENT, SEGMENT, 12]
    assert equal[:2] == [True, True]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 23), st.lists(st.integers(0, 30), max_size=12))
def test_a_segment_keeps_its_mark_exactly_as_long_as_nothing_is_written_to_it(length, parts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "SEGMENT", 4)
        replay, first = Replay(seeds=1, rows=1, capacity=length), 0
        before = replay.state_dict()["segments"]
        for steps in parts:
            if steps:
                replay.add(*rollout(steps, 1, 1, first=first))
            written = {(first + k) % length // 4 for k in range(max(0, steps - length), steps)}
            first += steps
            after = clone(replay.state_dict())["segments"]
            same = [new.mark is old.mark for old, new in zip(before, after, strict=False)]
            assert same == [place not in written for place in range(len(before))]
            assert len({segment.mark for segment in after}) == len(after)
            before = after


def test_a_loaded_buffer_has_separate_marks():
    replay = Replay(seeds=1, rows=1, capacity=8)
    replay.add(*rollout(8, 1, 1))
    state = clone(replay.state_dict())
    replay.load_state_dict(state)
    assert replay.state_dict()["segments"][0].mark is not state["segments"][0].mark


@pytest.mark.parametrize("shape", [(2, 1, 8), (1, 2, 8), (1, 1, 9)], ids=str)
def test_a_state_of_another_shape_is_rejected(shape):
    replay = Replay(seeds=1, rows=1, capacity=8)
    replay.add(*rollout(12, 1, 1))
    seeds, rows, capacity = shape
    other = Replay(seeds=seeds, rows=rows, capacity=capacity)
    with pytest.raises(ValueError, match=r"'\w+' has shape .* saved by a different configuration"):
        other.load_state_dict(replay.state_dict())


def test_a_capacity_below_one_step_is_rejected():
    with pytest.raises(ValueError, match="capacity must be at least the 4 environments per seed, got 3"):
        Replay(seeds=1, rows=4, capacity=3)


def test_a_buffer_that_does_not_fit_is_rejected_before_it_fills_up():
    free = available(torch.device("cpu"))
    if free is None:
        pytest.skip("nothing tells how much memory there is")
    story, actions = rollout(2, 2, 1)
    size = 12 + 8 + 4 + 12 + 1 + 1 + 1
    held = Replay(seeds=2, rows=1, capacity=free // size)  # for each seed: twice the free memory
    with pytest.raises(ValueError, match=r"for each of 2 seeds needs .* are available on cpu: lower buffer_size"):
        held.add(story, actions)
    assert not held.fields
    Replay(seeds=2, rows=1, capacity=free // size // 1000).add(story, actions)


def test_a_buffer_is_freed_before_a_state_is_loaded():
    left = []

    class Watched(Replay):
        def _require_room(self, size):
            left.append([array() for array in before])
            super()._require_room(size)

    before = []
    held = Watched(seeds=1, rows=1, capacity=8)
    held.add(*rollout(4, 1, 1))
    state, before = clone(held.state_dict()), [weakref.ref(array) for array in held._arrays.values()]
    held.load_state_dict(state)
    assert left == [[], [None] * len(before)]


@pytest.mark.parametrize("invalid", [0.0, 0.3])
@pytest.mark.parametrize(("added", "length"), [(7, 7), (9, 3), (30, 5), (31, 12), (40, 1)])
def test_sequences_are_steps_in_a_row_and_know_where_episodes_begin(added, length, invalid):
    seeds, rows, capacity, samples = 2, 3, 36, 100
    replay, stories = filled_replay(added, added=added, capacity=capacity, invalid=invalid, extras=True)
    lines, total = expected_steps(stories, seeds, rows, capacity // rows)
    oldest = total - len(lines)
    streams = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    index = replay.draw_sequences(samples, length, streams)
    got = replay.take_sequences(index, length)
    assert got.rewards.shape == (length, seeds, samples)
    begins = set()
    for s in range(seeds):
        for m in range(samples):
            slot, row = divmod(int(index[s, m]), rows)
            first = next(u for u in range(oldest, total) if u % replay.length == slot)
            begins.add((first, row))
            assert first + length <= total
            for k in range(length):
                line = lines[first + k - oldest][s][row]
                before = lines[first + k - 1 - oldest][s][row] if first + k > oldest else None
                begins_anew = before is None or held_end(before) or not before["valid"]
                assert bool(got.is_first[k, s, m]) == begins_anew
                assert got.weights is None or bool(got.weights[k, s, m]) == line["valid"]
                if line["valid"]:
                    assert torch.equal(got.obs[k, s, m], line["obs"])
                    assert torch.equal(got.next_obs[k, s, m], line["next_obs"])
                    assert torch.equal(got.extras["goal"][k, s, m], 2 * line["obs"])
                    assert float(got.rewards[k, s, m]) == line["reward"]
                    assert int(got.actions[k, s, m]) == line["action"]
                    assert bool(got.terminated[k, s, m]) == line["terminated"]
                    assert bool(got.terminated[k, s, m] | got.truncated[k, s, m]) == line["ended"]
    assert len(begins) == rows * (len(lines) - length + 1)  # all of them are drawn


def held_end(line):
    """Return whether the buffer knows that an episode has ended with a step: it stores zeros for an invalid one."""
    return line["ended"] and line["valid"]


def test_sequences_of_images_are_images():
    replay, seen = Replay(seeds=1, rows=1, capacity=20), torch.arange(12 * 4).view(12, 1, 1, 1, 2, 2).to(torch.uint8)
    never = torch.zeros(12, 1, 1, dtype=torch.bool)
    story, _ = rollout(12, 1, 1)
    story = replace(story, obs=seen, last_obs=seen[-1], final_obs=seen + 4, terminated=never, truncated=never)
    replay.add(story, torch.zeros(12, 1, 1))
    got = replay.take_sequences(torch.tensor([[3, 5]]), 4)
    assert torch.equal(got.obs[:, 0, 0], seen[3:7, 0, 0])
    assert torch.equal(got.next_obs[:, 0, 1], seen[5:9, 0, 0] + 4)


def test_sequences_that_are_not_stored_are_rejected():
    replay, _ = filled_replay(0, added=7, capacity=30)
    streams = [torch.Generator(), torch.Generator()]
    with pytest.raises(ValueError, match=r"at most the 7 stored steps per environment, got 8: collect more"):
        replay.draw_sequences(4, 8, streams)
    with pytest.raises(ValueError, match="a sequence of 3 steps starts 1 steps before the newest"):
        replay.take_sequences(torch.tensor([[5 * 3], [0]]), 3)


def test_extra_tensors_are_saved_with_the_buffer():
    replay, _ = filled_replay(3, added=9, capacity=30, extras=True)
    other = Replay(seeds=2, rows=3, capacity=30)
    other.load_state_dict(clone(replay.state_dict()))
    index = torch.tensor([[0, 7], [1, 5]])
    assert torch.equal(other.take_sequences(index, 2).extras["goal"], replay.take_sequences(index, 2).extras["goal"])


def test_extra_tensors_are_amended_and_written_again():
    """Change two places of each of two seeds; only the segments that contain them get new marks."""
    held = Replay(seeds=2, rows=3, capacity=3 * (SEGMENT + 10))
    steps = SEGMENT + 5
    played = rollout(steps, 2, 3)
    held.add(replace(played[0], extras={"value": torch.zeros(steps, 2, 3)}), played[1])
    marks = [part.mark for part in held.state_dict()["segments"]]
    index = torch.tensor([[3 * 4 + 1, 3 * 7], [3 * 9 + 2, 0]])
    held.amend(index, {"value": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    expected = torch.zeros(steps, 2, 3)
    expected[4, 0, 1], expected[7, 0, 0], expected[9, 1, 2], expected[0, 1, 0] = 1.0, 2.0, 3.0, 4.0
    assert torch.equal(held.fields["extras.value"][:steps], expected)
    assert torch.equal(held.read("extras.value", index), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    after = [part.mark for part in held.state_dict()["segments"]]
    assert after[0] is not marks[0]
    assert after[1] is marks[1]


def test_the_last_value_of_a_repeated_place_is_kept_with_any_number_of_threads():
    """Several threads write the values of many repeated places in any order."""
    held, samples = Replay(seeds=1, rows=2, capacity=200), 100_000
    played = rollout(100, 1, 2)
    held.add(replace(played[0], extras={"value": torch.zeros(100, 1, 2)}), played[1])
    index = torch.randint(200, (1, samples), generator=torch.Generator().manual_seed(0))
    values = torch.arange(samples, dtype=torch.float32).unsqueeze(0)
    expected = torch.zeros(200).scatter_reduce_(0, index[0], values[0], "amax")
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for _ in range(20):
            held.amend(index, {"value": values})
            assert torch.equal(held.fields["extras.value"].flatten(), expected)
    finally:
        torch.set_num_threads(threads)
