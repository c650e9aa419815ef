"""Time travel: restore the learner of a run at any update, bit for bit, verified by hashes.

The nearest earlier state (a checkpoint, a state in memory, or the start) is loaded, and the updates after it
are recomputed. Updates are deterministic, so they give the same bits. If training has recorded the SHA-256 of a state
on the way (`operant.runtime.history`), the hashes are compared. Nothing is written to the run.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor

from operant.runtime.checkpoints import CheckpointError, consumed_of, folder_name, load, verify
from operant.runtime.encoding import digest, flatten, size_in_bytes, unflatten
from operant.runtime.history import hashes
from operant.runtime.learner import Learner
from operant.runtime.metrics import last_record
from operant.runtime.run import Run, RunError
from operant.state import State

MEMORY_BYTES = 128 << 20
"""Default size of the states in memory, in bytes."""


Origin = Literal["checkpoint", "memory", "start", "here"]


class DivergedError(RunError):
    """Recomputed updates gave another state than training."""


@dataclass(frozen=True)
class Arrival:
    """The state of a learner after a move to an update.

    Attributes:
        consumed: budget used by each seed.
        sha256: SHA-256 of the current state (`operant.runtime.encoding.digest`).
        recorded: SHA-256 recorded by training at this update; None if it was not recorded.
        origin: source of the loaded state: a checkpoint of the run, memory, or the start of training; or none, if
            the learner continued from its state.
        began: budget used at the loaded state.
        updates: number of recomputed updates.
    """

    consumed: int
    sha256: str
    recorded: str | None
    origin: Origin
    began: int
    updates: int

    @property
    def verified(self) -> bool:
        """Whether the hash was recorded, and is equal."""
        return self.recorded == self.sha256


class _Snapshot(NamedTuple):
    """A state in memory."""

    structure: str
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, state: State) -> "_Snapshot":
        structure, tensors = flatten(state)
        return cls(json.dumps(structure), {name: tensor.detach().clone() for name, tensor in tensors.items()})

    def state(self) -> State:
        return unflatten(json.loads(self.structure), {name: tensor.clone() for name, tensor in self.tensors.items()})

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


class _Snapshots:
    """Least recently used cache of states by the budget used."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[int, _Snapshot] = OrderedDict()

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __contains__(self, consumed: int) -> bool:
        return consumed in self._kept

    def keep(self, consumed: int, state: State) -> None:
        if consumed in self._kept or size_in_bytes(state) > self._most:
            return
        self._kept[consumed] = snapshot = _Snapshot.of(state)
        self._bytes += snapshot.bytes
        while self._bytes > self._most:
            self._bytes -= self._kept.popitem(last=False)[1].bytes

    def state(self, consumed: int) -> State:
        self._kept.move_to_end(consumed)
        return self._kept[consumed].state()


class TimeTravel:
    """Time travel of the learner of a run to any update.

    Args:
        run: the run, which may be training at the same time.
        learner: learner of an experiment with the run's configuration, before its first update
            (`operant.build.reassemble`).
        memory: bytes for states cached in memory, which make moves back and forth fast.

    Attributes:
        learner: the given learner, in the state of the last move.
    """

    def __init__(self, run: Run, learner: Learner, *, memory: int = MEMORY_BYTES) -> None:
        if learner.consumed:
            raise ValueError(f"the learner has already used {learner.consumed} of its budget: build a new experiment")
        self.learner = learner
        self._run, self._recorded = run, hashes(run)
        self._start = None if "init" in run.resolved() else _Snapshot.of(learner.state_dict())
        self._snapshots = _Snapshots(memory)
        self._before: dict[int, int] = {}
        self._here: int | None = None
        self._journey: tuple[Origin, int, int] = ("start", 0, 0)
        self._budgets = _budgets(run)

    @property
    def here(self) -> int | None:
        """Budget used at the learner's state; None after an interrupted or diverged update."""
        return self._here

    @property
    def end(self) -> int:
        """Budget used by the run so far, the latest valid target."""
        return _end(self._run)

    def go(self, at: int) -> Arrival:
        """Go to the first update that has used at least a budget of `at`, or to the start (0).

        Raises:
            ValueError: `at` is negative, or the run has not reached it.
            DivergedError: the recomputed updates gave another state than training.
            RunError: there is no state to start from.
        """
        for _ in self.toward(at):
            pass
        return self.arrival()

    def toward(self, at: int) -> Iterator[int]:
        """Go to an update as `go`, and yield the budget used after each recomputed update.

        Raises:
            ValueError, DivergedError, RunError: see `go`.
        """
        require_reached(self._run, at)
        self._recorded, self._budgets = hashes(self._run), _budgets(self._run)
        target = next((after for after, before in self._before.items() if before < at <= after), at)
        self._begin(target)
        while self.learner.consumed < target:
            self._update()
            yield self.learner.consumed

    def back(self) -> Iterator[int]:
        """Go to the previous update, and yield as `toward`.

        Raises:
            DivergedError, RunError: see `go`.
        """
        here = self.learner.consumed
        if here and here not in self._before:
            earlier = [consumed for consumed in self._known() if consumed < here]
            if not earlier:
                raise self._no_state(here)
            yield from self.toward(max(earlier))
            while self.learner.consumed < here:  # computed, since a loaded state would not tell the one before it
                self._update()
                yield self.learner.consumed
        yield from self.toward(self._before.get(here, 0))

    def confirm(self) -> Iterator[int]:
        """Continue to the next state with a recorded hash, compare the hashes, return, and yield as `toward`.

        If the hashes are equal, so are all states on the way, since each determines the next.

        Raises:
            DivergedError: the hashes differ.
            RunError: no hash is recorded from the current update on.
        """
        here = self.learner.consumed
        later = self.next_recorded()
        if later is None:
            raise RunError(f"{self._run.path} has no recorded hash of a state from {here} on")
        self._journey = "here", here, 0
        while self.learner.consumed < later:  # computed, since a loaded state would confirm nothing
            self._update()
            yield self.learner.consumed
        yield from self.toward(here)

    def next_recorded(self) -> int | None:
        """Return the budget used at the next state with a recorded hash."""
        return min((consumed for consumed in self._recorded if consumed >= self.learner.consumed), default=None)

    def arrival(self) -> Arrival:
        """Return the learner's current state."""
        consumed = self.learner.consumed
        sha256 = digest(self.learner.state_dict())
        return Arrival(consumed, sha256, self._recorded.get(consumed), *self._journey)

    def _known(self) -> set[int]:
        """Return the used budgets of states that can be loaded."""
        paths = [*self._run.history.paths(), *self._run.checkpoints.paths()]
        return {*self._snapshots, *map(consumed_of, paths), *([] if self._start is None else [0])}

    def _begin(self, target: int) -> None:
        """Load the nearest state that is not later than `target`, and store its origin.

        Raises:
            RunError: there is no such state.
        """
        for consumed in sorted((known for known in self._known() if known <= target), reverse=True):
            if self._here is not None and consumed <= self._here <= target:
                break
            for origin, state in self._found(consumed):
                self._here = None
                self.learner.load_state_dict(state)
                if self._differs():  # a checkpoint restored after a crash may be of a later update at this budget
                    continue
                self._here = consumed
                self._journey = origin, consumed, 0
                self._snapshots.keep(consumed, self.learner.state_dict())
                return
        if self._here is None or self._here > target:
            raise self._no_state(target)
        self._journey = "here", self._here, 0

    def _no_state(self, target: int) -> RunError:
        return RunError(
            f"{self._run.path.name} has no state before {target} to recompute it from; stored states: {self._listed()}"
        )

    def _found(self, consumed: int) -> Iterator[tuple[Origin, State]]:
        """Yield valid states at a used budget with their origins."""
        if consumed in self._snapshots:
            yield "memory", self._snapshots.state(consumed)
        for checkpoints in (self._run.history, self._run.checkpoints):
            path = checkpoints.folder / folder_name(consumed)
            with suppress(CheckpointError):
                verify(path)
                yield "checkpoint", load(path)
        if consumed == 0 and self._start is not None:
            yield "start", self._start.state()

    def _differs(self) -> bool:
        """Return whether the state differs from the hash that training recorded here."""
        recorded = self._recorded.get(self.learner.consumed)
        return recorded is not None and recorded != digest(self.learner.state_dict())

    def _update(self) -> None:
        """Recompute one update.

        Raises:
            DivergedError: the state differs from that of the training.
            RunError: training computed the update with another budget.
        """
        before, (origin, began, updates) = self.learner.consumed, self._journey
        self._require_budget(before)
        self._here = None  # an interrupted update leaves the learner in an undefined state
        self.learner.iterate()
        self._journey = origin, began, updates + 1
        after = self.learner.consumed
        if after > before and self._differs():
            raise DivergedError(
                f"the state of {self._run.path.name} at {after}, recomputed from {began}, differs from that of the "
                "training by SHA-256. The versions of operant and torch, the processor and the number of its "
                "threads must be the same as in training, and environments must be deterministic. Stored states: "
                f"{self._listed()}"
            )
        self._here = after
        if after > before:
            self._before[after] = before
            self._snapshots.keep(after, self.learner.state_dict())

    def _require_budget(self, consumed: int) -> None:
        """Check that training computed the next update with the current budget of the run.

        Raises:
            RunError: the budget was different, so schedules differ.
        """
        budget = next(budget for start, budget in self._budgets if start <= consumed)
        if budget != self._run.settings.budget:
            raise RunError(
                f"{self._run.path.name} was trained with a budget of {budget} at {consumed}, and now has one of "
                f"{self._run.settings.budget}, so its schedules differ; stored states: "
                f"{self._listed()}"
            )

    def _listed(self) -> str:
        """Return the used budgets of stored states as text."""
        paths = {*map(consumed_of, [*self._run.history.paths(), *self._run.checkpoints.paths()])}
        return ", ".join(map(str, sorted(paths))) or "none"


def require_reached(run: Run, at: int) -> None:
    """Check that a run has used a budget.

    Raises:
        ValueError: `at` is negative, or the run has not reached it.
    """
    end = _end(run)
    if not isinstance(cast(object, at), Integral) or not 0 <= at <= end:
        raise ValueError(f"at must be an integer between 0 and {end}, the budget used by {run.path.name}, got {at!r}")


def _end(run: Run) -> int:
    checkpoints = [consumed_of(path) for path in [*run.checkpoints.paths(), *run.history.paths()]]
    records = [last_record(path) or {} for path in (run.metrics_path, run.evaluations_path)]
    return max([0, *checkpoints, *(int(record.get("consumed", 0)) for record in records)])


def _budgets(run: Run) -> list[tuple[int, int]]:
    """Return pairs of used budget and total budget from that point on, the latest first.

    A session replaces the earlier ones from its start on: what they trained after it was lost or rewound.
    """
    sessions: list[dict[str, Any]] = run.facts()["sessions"]
    own = run.settings.budget
    known: list[tuple[int, int]] = []
    for session in sessions:
        start = int(session.get("from", 0))
        known = [pair for pair in known if pair[0] < start] + [(start, int(session.get("budget", own)))]
    return known[::-1] or [(0, own)]
