"""Index of the episodes in a replay buffer, for relabeling sampled transitions (hindsight)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.runtime.replay import Replay
from operant.runtime.transitions import Transitions

_NEVER = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class EpisodeSteps:
    """Stored parts of the episodes of `M` transitions for each of `S` seeds.

    Steps are counted from the first step ever added, equally for all environments.

    Attributes:
        replay: buffer of the transitions.
        columns: environments of the transitions among the S * N, `[S, M]`.
        steps: steps of the transitions, `[S, M]`.
        first: first stored step of each episode, `[S, M]`.
        last: last stored step of each episode: its end, or the newest step, `[S, M]`.
    """

    replay: Replay
    columns: Tensor
    steps: Tensor
    first: Tensor
    last: Tensor

    def at(self, name: str, steps: Tensor) -> Tensor:
        """Return a field of the buffer at other steps `[S, M]` of the same environments, `[S, M, ...]`.

        Args:
            name: `obs`, `actions`, `rewards`, `next_obs`, `terminated`, `ended`, or `extras.` with the name of an extra
                tensor.
            steps: steps from `first` to `last`, `[S, M]`.

        Raises:
            KeyError: unknown field.
        """
        return self.replay.look(name, steps % self.replay.length, self.columns)

    def draw(self, low: Tensor, high: Tensor, streams: Sequence[torch.Generator]) -> Tensor:
        """Draw steps `[S, M]` uniformly from `low` to `high` (inclusive), with one random stream per seed."""
        device, samples = low.device, low.shape[1]
        drawn = [torch.rand(samples, generator=stream, device=device, dtype=torch.float64) for stream in streams]
        return torch.minimum(low + (torch.stack(drawn) * (high - low + 1)).long(), high)


Relabel = Callable[[Transitions, EpisodeSteps, Sequence[torch.Generator]], Transitions]
"""Function `(batch, episodes, streams) -> batch` that relabels goals, rewards and terminations of sampled transitions
from their episodes, such as hindsight (Andrychowicz et al. 2017, arXiv:1707.01495). `streams` has one generator per
seed."""


class EpisodeIndex:
    """Index of the first and last step of the episode of every transition in a replay buffer.

    It is updated lazily, at a cost proportional to the new steps and the episodes that they end. Invalid transitions
    end episodes.

    Args:
        replay: replay buffer.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay, self.known = replay, 0
        self._first = torch.empty(0, dtype=torch.int64)
        self._last = self._first

    def of(self, index: Tensor) -> EpisodeSteps:
        """Return the episodes of the transitions at indices `index [S, M]` (see `Replay.take`)."""
        self._update()
        replay = self.replay
        slots, columns = index.div(replay.rows, rounding_mode="floor"), replay.columns(index)
        oldest = replay.added - replay.filled
        places = (slots * (replay.seeds * replay.rows) + columns).flatten()
        first, last = (part.view(-1).index_select(0, places).view(index.shape) for part in (self._first, self._last))
        return EpisodeSteps(
            replay,
            columns,
            steps=oldest + (slots - oldest) % replay.length,
            first=first.clamp(min=oldest),
            last=last.clamp(max=replay.added - 1),
        )

    def _update(self) -> None:
        """Add new steps, and set the last step of the episodes that they end."""
        replay = self.replay
        if self.known == replay.added:
            return
        oldest = replay.added - replay.filled
        ended, valid = replay.fields["ended"], replay.fields["valid"]
        amid = self.known > oldest
        begin = self.known if amid else oldest
        if not amid:
            self._first = torch.zeros(ended.shape, dtype=torch.int64, device=ended.device)
            self._last = torch.zeros_like(self._first)
        steps = torch.arange(begin, replay.added, device=ended.device)
        slots = steps % replay.length
        alone = ~valid[slots]
        stops = ended[slots] | alone
        stops[:-1] |= alone[1:]
        starts = alone.clone()
        starts[1:] |= stops[:-1]
        times = steps.view(-1, 1, 1)
        since = torch.where(starts, times, -1)
        until = torch.where(stops, times, _NEVER).flip(0).cummin(0).values.flip(0)
        since[0] = begin
        if amid:
            before = (begin - 1) % replay.length
            going = ~ended[before] & valid[before]
            since[0] = torch.where(going & ~alone[0], self._first[before], begin)
            self._end(going, torch.where(alone[0], begin - 1, until[0]), oldest)
        self._first[slots] = since.cummax(0).values
        self._last[slots] = until
        self.known = replay.added

    def _end(self, going: Tensor, last: Tensor, oldest: int) -> None:
        """Set the last step of earlier steps of continued episodes.

        Args:
            going: mask of the environments within an episode, `[S, N]`.
            last: last step of the episode, `_NEVER` if it has not ended, `[S, N]`.
            oldest: oldest stored step.
        """
        seeds, rows = torch.nonzero(going & (last != _NEVER), as_tuple=True)
        if not len(seeds):
            return
        firsts = self._first[(self.known - 1) % self.replay.length, seeds, rows].clamp(min=oldest)
        steps = torch.arange(int(firsts.min()), self.known, device=last.device).unsqueeze(1)
        slots = (steps % self.replay.length).expand(-1, len(seeds))
        seeds, rows = seeds.expand_as(slots), rows.expand_as(slots)
        held = self._last[slots, seeds, rows]
        self._last[slots, seeds, rows] = torch.where(steps >= firsts, last[seeds[0], rows[0]], held)
