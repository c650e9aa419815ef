"""Replay buffer of off-policy methods: `Replay`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from operant.runtime.available_memory import require_memory
from operant.runtime.frame_store import FrameStore
from operant.runtime.rollouts import Rollout
from operant.runtime.transitions import Sequences, Transitions
from operant.state import Part, State, copy_into

EXTRAS = "extras."
"""Prefix of the fields of extra tensors."""

SEGMENT = 4096
"""Number of steps in one part of a saved state; unchanged parts are not written again."""


class Replay:
    """Replay buffer of the last transitions of `S` seeds with `N` environments each, as ring buffers (Lin 1992).

    Memory is allocated at the first rollout, which defines shapes and dtypes.

    Args:
        seeds: number of seeds, S.
        rows: number of environments per seed, N.
        capacity: number of transitions per seed, at least N; rounded down to a multiple of N. Vectors are stored twice,
            as observation and as successor; image frames once (`operant.runtime.frame_store`).
        device: device of the buffer.

    Attributes:
        added: number of steps ever added per environment.
        fields: stored tensors, `[length, S, N, ...]` each; for images the indices of their planes; extra tensors of
            steps under `extras.` and their name.
        frames: store of image planes; None if observations are not images.

    Raises:
        ValueError: the capacity is less than one step of all environments, or more than fits into memory.
    """

    def __init__(self, *, seeds: int, rows: int, capacity: int, device: str | torch.device = "cpu") -> None:
        if capacity < rows:
            raise ValueError(f"capacity must be at least the {rows} environments per seed, got {capacity}")
        self.seeds, self.rows, self.length = seeds, rows, capacity // rows
        self.device, self.added = torch.device(device), 0
        self.fields: dict[str, Tensor] = {}
        self.frames: FrameStore | None = None
        self._flat: dict[str, Tensor] = {}
        self._arrays: dict[str, Any] = {}
        self._offsets = torch.arange(seeds, device=device).unsqueeze(1) * rows
        self._gaps = False
        self._marks: list[object] = []
        self._marked = 0
        self._none_dropped = torch.zeros(seeds, dtype=torch.int64, device=device)

    @property
    def filled(self) -> int:
        """Number of stored steps per environment."""
        return min(self.added, self.length)

    @property
    def size(self) -> int:
        """Number of stored transitions per seed."""
        return self.filled * self.rows

    @property
    def oldest(self) -> int:
        """Index of the oldest stored step, of the first environment of a seed."""
        return (self.added - self.filled) % self.length * self.rows

    def numbers(self) -> Tensor:
        """Return `[size]`, for each index the number of its transition among all that a seed ever added."""
        slots = torch.arange(self.filled, device=self.device)
        steps = self.added - 1 - (self.added - 1 - slots) % self.length
        return (steps.unsqueeze(1) * self.rows + torch.arange(self.rows, device=self.device)).flatten()

    def add(self, rollout: Rollout, actions: Tensor) -> Tensor:
        """Add a rollout and its actions `[T, S, N, ...]`, replacing the oldest steps.

        Dummy transitions of NEXT_STEP autoreset and transitions with NaN or Inf are invalid: they are stored as zeros
        with weight 0, and n-step windows end before them.

        Returns:
            The number of transitions with NaN or Inf, `[S]`.
        """
        entries = {
            "obs": rollout.obs,
            "actions": actions,
            "rewards": rollout.rewards,
            "next_obs": rollout.final_obs,
            "terminated": rollout.terminated,
            "ended": rollout.terminated | rollout.truncated,
        }
        for name, extra in rollout.extras.items():
            entries[f"{EXTRAS}{name}"] = extra
        dropped, steps = self._none_dropped, len(actions)
        if rollout.valid is not None or not _all_finite(entries):
            dropped, entries["valid"] = self._mend(entries, rollout.valid)
        elif self._gaps:
            entries["valid"] = torch.ones_like(rollout.terminated)
        entries = {name: entry[-self.length :] for name, entry in entries.items()}
        if not self.fields:
            self._begin(entries)
        if self.frames is not None:
            entries["obs"], entries["next_obs"] = self._numbered(self.frames, entries, steps)
        self._write(entries, steps)
        return dropped

    def _mend(self, entries: dict[str, Tensor], valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Set invalid transitions to 0, and return the result of `add`, and the mask of valid ones `[T, S, N]`."""
        finite = _finite(entries)
        if valid is not None:
            finite, valid = finite | ~valid, finite & valid
        else:
            valid = finite
        if not valid.all():
            self._gaps = True
            for name, entry in entries.items():
                if entry.dtype != torch.uint8:  # bytes are always finite, and images are identified by content
                    entries[name] = entry.masked_fill(~_like(valid, entry), 0)
        return (~finite).sum((0, 2)), valid

    def _begin(self, entries: Mapping[str, Tensor]) -> None:
        """Allocate memory with the shapes and dtypes of the first transitions."""
        obs, next_obs = entries["obs"], entries["next_obs"]
        if obs.dtype != torch.uint8 or obs.dim() < len("TSNCHW"):
            self._allocate(entries)
            return
        moved = FrameStore.moved(obs.flatten(1, 2), next_obs.flatten(1, 2))
        fresh = 1 if moved.mean() >= 0.5 else obs.shape[3]
        self.frames = FrameStore(obs.shape[3:], obs.dtype, self.device, fresh=fresh)
        numbers = torch.empty(obs.shape[:4], dtype=torch.int64)
        self._allocate({**entries, "obs": numbers, "next_obs": numbers})

    def _allocate(self, entries: Mapping[str, Tensor]) -> None:
        """Allocate fields with the dtypes and shapes of `entries` `[T, S, N, ...]`, and an all-true mask."""
        shape = (self.length, self.seeds, self.rows)
        planes = 0 if self.frames is None else self.frames.size(math.prod(shape))
        size = 1 + sum(math.prod(entry.shape[3:]) * entry.itemsize for entry in entries.values())
        bytes_of_planes = 0 if self.frames is None else planes * self.frames.plane_size
        self._require_room(size + bytes_of_planes / math.prod(shape))
        self.fields = {
            name: torch.zeros(*shape, *entry.shape[3:], dtype=entry.dtype, device=self.device)
            for name, entry in entries.items()
        }
        self.fields["valid"] = torch.ones(shape, dtype=torch.bool, device=self.device)
        self._flat = {name: field.flatten(0, 2) for name, field in self.fields.items()}
        self._arrays = {name: _array(field) for name, field in self.fields.items()}
        if self.frames is not None:
            self.frames.reserve(planes)

    def _require_room(self, size: float) -> None:
        """Check that transitions of `size` bytes fit into memory, which the system assigns only when written."""
        transitions = self.length * self.rows
        require_memory(
            transitions * self.seeds * size,
            self.device,
            what=f"a replay buffer of {transitions} transitions for each of {self.seeds} seeds needs",
            remedy=lambda free: (
                f"lower buffer_size, to less than {int(free // (self.seeds * size))}, or train fewer seeds"
            ),
        )

    def _numbered(self, frames: FrameStore, entries: Mapping[str, Tensor], steps: int) -> tuple[Tensor, Tensor]:
        """Store the images of the last `length` steps, and return their plane numbers `[T, S, N, C]`."""
        latest = None
        if self.added:
            numbers, overwritten = self.fields["obs"], self.added + steps - self.length
            latest = self.fields["next_obs"][(self.added - 1) % self.length].flatten(0, 1)
            if overwritten > 0:
                oldest = numbers[overwritten % self.length] if steps < self.length else latest
                frames.forget(int(oldest.min()))
        shape = entries["rewards"].shape
        seen, successors = (entries[name].flatten(1, 2) for name in ("obs", "next_obs"))
        first, second = frames.add(seen, successors, latest)
        return first.view(*shape, -1), second.view(*shape, -1)

    def _write(self, entries: Mapping[str, Tensor], steps: int) -> None:
        """Write the last `length` steps to their slots, in one slice or two around the end of the ring buffer."""
        kept = min(steps, self.length)
        start = (self.added + steps - kept) % self.length
        before = min(kept, self.length - start)
        for name, entry in entries.items():
            field, new = self._arrays[name], _array(entry)
            field[start : start + before] = new[:before]
            if before < kept:
                field[: kept - before] = new[before:]
        self.added += steps

    def amend(self, index: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Replace extra tensors of the steps at `index [S, M]`, by name, `[S, M, ...]`.

        For repeated indices, the last of the values is used.
        """
        slots = index.div(self.rows, rounding_mode="floor")
        seeds = torch.arange(self.seeds, device=index.device).unsqueeze(1)
        last = _last_of_repeats(index)  # several threads write in any order
        for name, extra in extras.items():
            self.fields[f"{EXTRAS}{name}"][slots, seeds, index % self.rows] = extra[seeds, last]
        for segment in range(len(self._marks)):  # later segments get their first mark when saved
            if bool((slots.div(SEGMENT, rounding_mode="floor") == segment).any()):
                self._marks[segment] = object()

    def cut(self) -> None:
        """End windows at the newest step, if episodes do not continue with the next added step."""
        if self.added:
            self.fields["ended"][(self.added - 1) % self.length] = True

    def newest(self, steps: int) -> Tensor:
        """Return the indices of the newest `steps` stored steps, the same for each seed, `[steps * N]`."""
        kept = min(steps, self.filled)
        slots = torch.arange(self.added - kept, self.added, device=self.device) % self.length
        return (slots.unsqueeze(1) * self.rows + torch.arange(self.rows, device=slots.device)).flatten()

    def valid(self, places: Tensor) -> Tensor:
        """Return a mask of the valid transitions at `places [n]` of each seed, bool `[S, n]`."""
        held = self.fields["valid"][places.div(self.rows, rounding_mode="floor"), :, places % self.rows]
        return held.T

    def draw(self, samples: int, streams: Sequence[torch.Generator]) -> Tensor:
        """Draw the indices of `samples` transitions per seed uniformly with replacement, `[S, M]`."""
        return torch.stack(
            [torch.randint(self.size, (samples,), generator=stream, device=self.device) for stream in streams]
        )

    def draw_valid(self, samples: int, streams: Sequence[torch.Generator]) -> Tensor:
        """Draw like `draw`, but only valid transitions; all of a seed if it has none."""
        if not self._gaps:
            return self.draw(samples, streams)
        valid = self.fields["valid"][: self.filled].movedim(1, 0).flatten(1)
        drawn: list[Tensor] = []
        for row, stream in zip(valid, streams, strict=True):
            places = row.nonzero().squeeze(1) if row.any() else torch.arange(self.size, device=self.device)
            drawn.append(places[torch.randint(len(places), (samples,), generator=stream, device=self.device)])
        return torch.stack(drawn)

    def take(self, index: Tensor, *, gamma: float, n: int = 1) -> Transitions:
        """Return the n-step transitions at `index [S, M]`.

        A window ends early at the end of its episode, at the newest step, or before an invalid transition, and
        bootstraps from its end.

        Args:
            index: `slot * N + row` of each sample.
            gamma: discount factor per step.
            n: maximum number of steps of a window.
        """
        slots, rows = index.div(self.rows, rounding_mode="floor"), index % self.rows
        within = self._offsets + rows
        stride = self.seeds * self.rows
        places = (slots * stride + within).flatten()
        rewards, last = self._flat["rewards"].index_select(0, places), places
        discounts = torch.full_like(rewards, gamma)
        if n > 1:
            following = [((slots + k) % self.length * stride + within).flatten() for k in range(1, n)]
            newer = (self.added - 1 - slots.flatten()) % self.length
            rewards, discounts, last = self._windows(rewards, discounts, places, following, newer)
        return Transitions(
            obs=self._at("obs", places, index.shape),
            actions=self._at("actions", places, index.shape),
            rewards=rewards.view(self.seeds, -1),
            next_obs=self._at("next_obs", last, index.shape),
            terminated=self._at("terminated", last, index.shape),
            discounts=discounts.view(self.seeds, -1),
            weights=self._at("valid", places, index.shape).to(rewards.dtype) if self._gaps else None,
            index=index,
        )

    def _windows(
        self, rewards: Tensor, discounts: Tensor, places: Tensor, following: Sequence[Tensor], newer: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Extend one-step windows, and return discounted rewards, bootstrap discounts, and indices of the last steps.

        Args:
            rewards: rewards of the steps, `[n]`.
            discounts: γ, `[n]`.
            places: indices of the steps.
            following: indices of the first steps after them, the second, ...
            newer: numbers of stored steps after them.
        """
        gamma, last, running = discounts, places, ~self._flat["ended"][places]
        for k, place in enumerate(following, 1):
            running = running & (newer >= k) & self._flat["valid"][place]
            rewards = rewards + torch.where(running, discounts * self._flat["rewards"][place], 0.0)
            discounts = torch.where(running, discounts * gamma, discounts)
            last = torch.where(running, place, last)
            running = running & ~self._flat["ended"][place]
        return rewards, discounts, last

    def draw_sequences(self, samples: int, length: int, streams: Sequence[torch.Generator]) -> Tensor:
        """Draw the start indices of `samples` sequences per seed uniformly with replacement, `[S, M]`.

        Raises:
            ValueError: fewer than `length` steps of an environment are stored.
        """
        starts = self.filled - length + 1
        if length < 1 or starts < 1:
            raise ValueError(
                f"sequences must have at least one step, and at most the {self.filled} stored steps per environment, "
                f"got {length}: collect more steps first, or raise buffer_size"
            )
        drawn = torch.stack(
            [torch.randint(starts * self.rows, (samples,), generator=stream, device=self.device) for stream in streams]
        )
        steps = self.added - self.filled + drawn.div(self.rows, rounding_mode="floor")
        return steps % self.length * self.rows + drawn % self.rows

    def take_sequences(self, index: Tensor, length: int) -> Sequences:
        """Return the sequences of `length` steps that start at `index [S, M]` (see `take`).

        Raises:
            ValueError: a sequence would extend beyond the newest step.
        """
        slots, rows = index.div(self.rows, rounding_mode="floor"), index % self.rows
        newer = (self.added - 1 - slots) % self.length
        if bool((newer < length - 1).any()):
            raise ValueError(
                f"a sequence of {length} steps starts {int(newer.min())} steps before the newest: use indices from "
                "draw_sequences"
            )
        steps = slots + torch.arange(length, device=index.device).view(-1, 1, 1)
        places = steps % self.length * self.rows + rows
        previous = (steps - 1) % self.length * self.rows + rows
        before = self.read("ended", previous)
        if self._gaps:  # an invalid step may stand between two episodes, and nothing continues over it
            before |= ~self.read("valid", previous)
        before[0] |= newer == self.filled - 1
        terminated = self.read("terminated", places)
        names = [name for name in self.fields if name.startswith(EXTRAS)]
        return Sequences(
            **{name: self.read(name, places) for name in ("obs", "actions", "rewards", "next_obs")},
            terminated=terminated,
            truncated=self.read("ended", places) & ~terminated,
            is_first=before,
            weights=self.read("valid", places).to(self.fields["rewards"].dtype) if self._gaps else None,
            extras={name.removeprefix(EXTRAS): self.read(name, places) for name in names},
            index=index,
        )

    def read(self, name: str, index: Tensor) -> Tensor:
        """Return a field at `index [..., S, M]` (see `take`), `[..., S, M, ...]`."""
        return self.look(name, index.div(self.rows, rounding_mode="floor"), self.columns(index))

    def columns(self, index: Tensor) -> Tensor:
        """Return the environments (of `S * N`) of the transitions at `index [..., S, M]`."""
        return index % self.rows + self._offsets

    def look(self, name: str, slots: Tensor, columns: Tensor) -> Tensor:
        """Return a field at slots `[..., S, M]` of the environments `columns` from `columns()`."""
        places = slots * (self.seeds * self.rows) + columns
        return self._at(name, places.flatten(), places.shape)

    def _at(self, name: str, places: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a field at flat `places`, `[*shape, ...]`."""
        flat = self._flat[name]
        held = flat.index_select(0, places).view(*shape, *flat.shape[1:])
        return held if self.frames is None or name not in {"obs", "next_obs"} else self.frames.take(held)

    def state_dict(self) -> State:
        """Return the stored steps, in segments with change detection."""
        held = self.filled if self.fields else 0
        self._mark(-(-held // SEGMENT))
        return {
            "added": self.added,
            "gaps": self._gaps,
            "pictures": None if self.frames is None else self.frames.state_dict(),
            "segments": [
                Part(
                    {name: field[start : min(start + SEGMENT, held)] for name, field in self.fields.items()}, mark=mark
                )
                for start, mark in zip(range(0, held, SEGMENT), self._marks, strict=True)
            ],
        }

    def _mark(self, segments: int) -> None:
        """Assign new marks to the segments that changed since the last call."""
        self._marks += [object() for _ in range(segments - len(self._marks))]
        new = min(self.added - self._marked, self.length)
        start = (self.added - new) % self.length
        for first, end in ((start, min(start + new, self.length)), (0, start + new - self.length)):
            if first < end:
                for touched in range(first // SEGMENT, -(-end // SEGMENT)):
                    self._marks[touched] = object()
        self._marked = self.added

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ValueError: the state has another capacity, or other numbers of seeds and environments.
        """
        self.added, self._gaps = state["added"], state["gaps"]
        segments = state["segments"]
        self.fields, self._flat, self._arrays, self.frames = {}, {}, {}, None
        self._marks, self._marked = [], self.added
        frames = state.get("pictures")  # missing in states of earlier versions, which store images unchanged
        if segments and frames is not None:
            planes = next(iter(frames["segments"].values()))["planes"]
            channels = segments[0]["obs"].shape[3]
            shape = (channels, *planes.shape[1:])
            self.frames = FrameStore(shape, planes.dtype, self.device, fresh=frames["fresh"])
        if segments:
            self._allocate(segments[0])
        if self.frames is not None and frames is not None:
            self.frames.load_state_dict(frames)
        for start, segment in zip(range(0, self.filled, SEGMENT), segments, strict=True):
            for name, saved in segment.items():
                copy_into(self.fields[name][start : min(start + SEGMENT, self.filled)], saved, name)


def _array(tensor: Tensor) -> Any:
    """Return a writable view of a tensor: on the CPU an array, which is faster, otherwise the tensor."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _all_finite(entries: Mapping[str, Tensor]) -> bool:
    """Return whether all numbers are finite; false if their sum overflows."""
    numbers = torch.cat([entry.reshape(-1) for entry in entries.values() if entry.is_floating_point()])
    return math.isfinite(numbers.sum().item())


def _finite(entries: Mapping[str, Tensor]) -> Tensor:
    """Return a mask of the transitions with only finite numbers, `[T, S, N]`."""
    shape = entries["rewards"].shape
    sums = torch.zeros(shape, device=entries["rewards"].device)
    for entry in entries.values():
        if entry.is_floating_point():
            # NaN and Inf times 0 are NaN, and a sum is cheaper than a test of each number.
            sums = sums + (entry * 0.0).reshape(*shape, -1).sum(-1)
    return sums == 0.0


def _last_of_repeats(index: Tensor) -> Tensor:
    """Return the place `[S, M]` at which each index of `[S, M]` occurs in its row for the last time."""
    ordered, places = index.sort(dim=1, stable=True)
    ends = torch.searchsorted(ordered, ordered, right=True) - 1
    return torch.empty_like(places).scatter_(1, places, places.gather(1, ends))


def _like(mask: Tensor, entry: Tensor) -> Tensor:
    """Reshape a mask `[T, S, N]` to broadcast with `entry [T, S, N, ...]`."""
    return mask.view(*mask.shape, *[1] * (entry.dim() - mask.dim()))
