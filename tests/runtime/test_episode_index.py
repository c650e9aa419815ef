"""The index finds the episode of every transition, in agreement with a loop over the steps."""

import pytest
import torch

from operant.runtime.episode_index import EpisodeIndex
from operant.runtime.replay import Replay
from runtime.test_replay import expected_steps, rollout

SEEDS, ROWS, LENGTH = 2, 3, 12


def episode(lines, place):
    """Return the first and the last place of the episode around a place of a list of steps."""
    first = last = place
    if not lines[place]["valid"]:
        return place, place
    while first > 0 and not lines[first - 1]["ended"] and lines[first - 1]["valid"]:
        first -= 1
    while last + 1 < len(lines) and not lines[last]["ended"] and lines[last + 1]["valid"]:
        last += 1
    return first, last


@pytest.mark.parametrize("ends", [1.0, 0.1])
@pytest.mark.parametrize("invalid", [0.0, 0.2])
@pytest.mark.parametrize("chunk", [1, 3, 5, 20])
def test_first_and_last_steps_are_those_of_a_walk(chunk, invalid, ends):
    generator = torch.Generator().manual_seed(chunk)
    replay, stories = Replay(seeds=SEEDS, rows=ROWS, capacity=ROWS * LENGTH), []
    index = EpisodeIndex(replay)
    for first in range(0, 40, chunk):
        story, actions = rollout(chunk, SEEDS, ROWS, first=first, generator=generator, invalid=invalid)
        for ended in (story.terminated, story.truncated):
            ended.logical_and_(torch.rand(ended.shape, generator=generator) < ends)
        stories.append((story, actions))
        replay.add(story, actions)
        lines, total = expected_steps(stories, SEEDS, ROWS, LENGTH)
        oldest = total - len(lines)
        places = torch.arange(replay.filled * ROWS).expand(SEEDS, -1)
        found = index.of(places)
        for s in range(SEEDS):
            for m, place in enumerate(places[s].tolist()):
                slot, row = divmod(place, ROWS)
                step = next(u for u in range(oldest, total) if u % LENGTH == slot)
                assert (int(found.columns[s, m]), int(found.steps[s, m])) == (s * ROWS + row, step)
                expected = episode([line[s][row] for line in lines], step - oldest)
                assert (int(found.first[s, m]) - oldest, int(found.last[s, m]) - oldest) == expected
    assert torch.equal(found.at("obs", found.steps), replay.read("obs", places))


def test_a_step_is_looked_at_when_it_comes_and_when_its_episode_ends_alone(monkeypatch):
    index, looked, arange = EpisodeIndex(Replay(seeds=1, rows=1, capacity=64)), [], torch.arange

    def counted(*bounds, **options):
        looked.append(len(arange(*bounds)))
        return arange(*bounds, **options)

    for step in range(40):
        story, actions = rollout(1, 1, 1, first=step)
        story.terminated.fill_(step == 30)
        story.truncated.fill_(False)
        index.replay.add(story, actions)
        places = arange(step + 1).expand(1, -1)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "arange", counted)
            found = index.of(places)
        assert found.last[0].tolist() == [30 if at <= 30 <= step else step for at in range(step + 1)]
    assert sorted(looked)[-2:] == [1, 30], "the thirty steps before the end, once"


def test_steps_are_drawn_between_bounds_by_each_seeds_own_stream():
    index = EpisodeIndex(Replay(seeds=2, rows=1, capacity=9))
    index.replay.add(*rollout(9, 2, 1))
    found = index.of(torch.zeros(2, 4000, dtype=torch.int64))
    low, high = torch.full((2, 4000), 3), torch.full((2, 4000), 6)
    drawn = found.draw(low, high, [torch.Generator().manual_seed(seed) for seed in (5, 6)])
    assert drawn.unique().tolist() == [3, 4, 5, 6]
    assert drawn.float().mean(1).sub(4.5).abs().max() < 0.1
    again = found.draw(low, high, [torch.Generator().manual_seed(seed) for seed in (7, 6)])
    assert not torch.equal(again[0], drawn[0])
    assert torch.equal(again[1], drawn[1])
