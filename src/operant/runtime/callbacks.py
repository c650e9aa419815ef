"""What a training tells as it goes, to code of the user's own: `Callback`; and who calls it, `Callbacks`."""

import inspect
import logging
import queue
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from operant.runtime.outcome import Outcome
from operant.runtime.run import Run

logger = logging.getLogger(__name__)

WAITING = 1000
"""Events that may wait for a callback in a thread of its own; one that comes when so many do is lost to it."""

Report = Callable[[Mapping[str, Any]], object]
"""Is called with every record as it is written: those of metrics, whose values are numbers or arrays `[S]`, and those
of evaluations, which have `scores`."""


class Callback:
    """What is called in the course of training; a class of one's own overrides what it needs.

    An error that a callback raises costs no training: it is warned about once, with file and line, and that callback is
    not called again. A callback is called in a thread of its own, with the events in their order, so that training
    does not wait for it. One that overrides `should_stop` is called in the thread that trains, and training waits:
    where it stops must not depend on which thread is faster.

    It has no state that is saved: a resumed run begins with a new one, which finds what was written in `run`.

    Attributes:
        background: False to be called in the thread that trains, whatever is overridden.
        patience: seconds that the end of training waits for a thread that is behind; what is left then is lost.
    """

    background: ClassVar[bool] = True
    patience: ClassVar[float] = 60.0

    def on_start(self, run: Run | None) -> None:
        """Training begins or goes on.

        Args:
            run: its folder, settings and files; None where `operant.runtime.training.train` trains without one.
        """

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """A record of metrics is written; at most two come a second.

        Args:
            record: numbers, or arrays `[S]` of a number for each seed, by name, as in `metrics.jsonl`; `"consumed"` is
                the budget that each seed has used.
        """

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """An evaluation is written.

        Args:
            record: `"consumed"` and the fields of `operant.runtime.evaluation.Evaluation`, as in `evaluations.jsonl`.
        """

    def on_checkpoint(self, path: Path, consumed: int) -> None:
        """A checkpoint is written.

        Args:
            path: its folder; a later one may take its place.
            consumed: budget that each seed has used.
        """

    def should_stop(self, consumed: int) -> bool:
        """Whether training is to end here; asked before every iteration, after the events of the one before.

        The state is saved and scored as at the end of the budget, and the run is finished; `operant resume` goes on.
        What evaluations decide depends on the seeds alone. Records of metrics are written by the clock.

        Args:
            consumed: budget that each seed has used.
        """
        del consumed
        return False

    def on_end(self, outcome: Outcome | None) -> None:
        """Training has ended, and everything is written.

        Args:
            outcome: how; None after an error, which the one who trains is told.
        """


class Reporting(Callback):
    """Tells a function every record, in the thread that trains."""

    background = False

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """Tell it a record of metrics."""
        self._report(record)

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """Tell it an evaluation."""
        self._report(record)


class Callbacks:
    """The callbacks of one training, none of which can end it by an error.

    Args:
        callbacks: in the order in which they are called.

    Raises:
        ValueError: one of them is no callback, or a method of it takes other arguments.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        for callback in callbacks:
            check(callback)
        self._members = [_Threaded(one) if _in_background(one) else _Member(one) for one in callbacks]

    def start(self, run: Run | None) -> None:
        """Tell them that training begins."""
        self._tell("on_start", run)

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Tell them a record of metrics."""
        if self._members:
            self._tell("on_metrics", _read_only(record))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Tell them an evaluation."""
        if self._members:
            self._tell("on_evaluation", _read_only(record))

    def checkpoint(self, path: Path, consumed: int) -> None:
        """Tell them a checkpoint."""
        self._tell("on_checkpoint", path, consumed)

    def stopped_by(self, consumed: int) -> str:
        """Return the name of the first that wants training to stop; empty: none."""
        return next((member.name for member in self._members if member.stops(consumed)), "")

    def end(self, outcome: Outcome | None) -> None:
        """Tell them that training has ended, and wait for those that are behind."""
        self._tell("on_end", outcome)
        for member in self._members:
            member.close()

    def errors(self, *, reports: bool = False) -> tuple[str, ...]:
        """Return what those raised that are not called any more: functions that are reported to, or all others."""
        wrong = [one for one in self._members if one.error and isinstance(one.callback, Reporting) is reports]
        return tuple(one.error if reports else f"{one.name}: {one.error}" for one in wrong)

    def _tell(self, event: str, *arguments: Any) -> None:
        for member in self._members:
            member.tell(event, *arguments)


class _Member:
    """A callback, called in the thread that trains."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.name = "report" if isinstance(callback, Reporting) else f"callback {type(callback).__name__}"
        self.error = ""

    def tell(self, event: str, *arguments: Any) -> None:
        self._call(event, *arguments)

    def stops(self, consumed: int) -> bool:
        return self._call("should_stop", consumed)

    def close(self) -> None:
        """Wait until all is told."""

    def _call(self, method: str, *arguments: Any) -> bool:
        """Call a method unless one has raised an error before; return whether its answer is true."""
        if self.error:
            return False
        try:
            return bool(getattr(self.callback, method)(*arguments))
        except (Exception, SystemExit) as error:
            self.error = f"{type(error).__name__}: {error} ({_place(error, getattr(self.callback, method))})"
            logger.warning("%s is not called again, as it raised %s; training goes on", self.name, self.error)
            return False


class _Threaded(_Member):
    """A callback, called in a thread of its own, which ends with `on_end`."""

    def __init__(self, callback: Callback) -> None:
        super().__init__(callback)
        self._events: queue.Queue[tuple[Any, ...]] = queue.Queue(WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)

    def tell(self, event: str, *arguments: Any) -> None:
        last = event == "on_end"
        if event == "on_start":
            self._thread.start()
        try:
            self._events.put((event, *arguments), block=last, timeout=self.callback.patience)
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                logger.warning(
                    "%s is %d events behind: it is not told what comes while so many wait; training does not wait",
                    self.name,
                    WAITING,
                )

    def stops(self, consumed: int) -> bool:
        del consumed
        return False  # it overrides no `should_stop`

    def close(self) -> None:
        self._thread.join(self.callback.patience)
        if self._thread.is_alive():
            logger.warning(
                "%s is still busy %g seconds after the end of training, which waits no longer: %d events are not told "
                "to it",
                self.name,
                self.callback.patience,
                self._events.qsize() + self._lost,
            )
        elif self._lost:
            logger.warning("%s was too slow for %d events, which it was not told", self.name, self._lost)

    def _work(self) -> None:
        event = ""
        while event != "on_end":
            event, *arguments = self._events.get()
            self._call(event, *arguments)


def check(callback: Any) -> None:
    """Make sure that something is a callback whose methods can be called.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(callback, Callback):
        what = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
        raise ValueError(
            f"a callback must be an instance of a subclass of operant.Callback, or a text such as "
            f"'file.py:Name', got {what:.120}"
        )
    for name, wanted in _EVENTS.items():
        method = getattr(callback, name)
        try:
            inspect.signature(method).bind(*wanted)
        except TypeError as error:
            raise ValueError(
                f"{type(callback).__name__}.{name} must take ({', '.join(['self', *wanted])}): {error}"
            ) from error


_EVENTS = {
    name: tuple(inspect.signature(getattr(Callback, name)).parameters)[1:]
    for name in vars(Callback)
    if name.startswith("on_") or name == "should_stop"
}
"""What each method of a callback is called with."""


def _in_background(callback: Callback) -> bool:
    return callback.background and type(callback).should_stop is Callback.should_stop


def _read_only(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a record that nobody can change for the others."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        found[name] = value
        if isinstance(value, np.ndarray):
            own = found[name] = cast("NDArray[Any]", value).copy()
            own.flags.writeable = False
    return found


def _place(error: BaseException, method: Callable[..., Any]) -> str:
    """Return file and line where code of the user's own raised an error, or called what raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        code = getattr(method, "__code__", None)
        return f"{code.co_filename}, line {code.co_firstlineno}" if code else "no place is known"
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{last.filename}, line {last.lineno}"
