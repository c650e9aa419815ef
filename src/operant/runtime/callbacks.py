"""Training callbacks: `Callback`, and their dispatcher, `Callbacks`."""

import inspect
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from operant import doors
from operant.runtime.outcome import Outcome
from operant.runtime.run import Run
from operant.runtime.warned import bound

logger = logging.getLogger(__name__)

WAITING = 1000
"""Maximum number of queued events per callback thread; further events are dropped."""

Report = Callable[[Mapping[str, Any]], object]
"""Function called with every record when it is written: metrics, as numbers or arrays `[S]`, and evaluations, with
`scores`."""


class Callback:
    """Base class of callbacks; subclasses override the methods that they need.

    An error in a callback does not stop training: a warning with file and line appears once, and the callback is not
    called again. A callback runs in its own thread and receives the events in order; training does not wait for it. If
    it overrides `should_stop`, it runs in the training thread, so that the stopping point does not depend on the timing
    of threads.

    The state of callbacks is not saved: a resumed run starts with a new instance, which can read the run's files.

    Attributes:
        background: False to always run in the training thread.
        patience: time limit in seconds for remaining events of a slow thread at the end of training; those of several
            callbacks run in parallel.
    """

    background: ClassVar[bool] = True
    patience: ClassVar[float] = 60.0

    def on_start(self, run: Run | None) -> None:
        """Called when training starts or resumes.

        Args:
            run: the run; None if `operant.runtime.training.train` is called without one.
        """

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """Called with each record of metrics: at most twice a second, and at evaluations, checkpoints and the end.

        Args:
            record: numbers, or arrays `[S]` with one per seed, by name, as in `metrics.jsonl`; `"consumed"` is the
                budget used per seed.
        """

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """Called with each evaluation.

        Args:
            record: `"consumed"` and the fields of `operant.runtime.evaluation.Evaluation`, as in `evaluations.jsonl`.
        """

    def on_checkpoint(self, path: Path, consumed: int) -> None:
        """Called after each checkpoint.

        Args:
            path: folder of the checkpoint, which may be deleted after a later checkpoint.
            consumed: budget used per seed.
        """

    def should_stop(self, consumed: int) -> bool:
        """Return whether to stop training; called before every iteration, after the events of the previous one.

        If it returns True, the state is saved and evaluated as at the end of the budget; `operant resume` continues the
        run. Decisions based on evaluations are reproducible; those based on metrics depend on the clock.

        Args:
            consumed: budget used per seed.
        """
        del consumed
        return False

    def on_end(self, outcome: Outcome | None) -> None:
        """Called at the end of training, after everything is written.

        Args:
            outcome: outcome of training; None after an error, which is raised to the caller.
        """


class Reporting(Callback):
    """Calls a function with every record, in the training thread."""

    background = False

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_metrics(self, record: Mapping[str, Any]) -> None:
        """Report a record of metrics."""
        self._report(record)

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """Report an evaluation."""
        self._report(record)


class Callbacks:
    """Dispatcher of events to callbacks; errors of callbacks do not stop training.

    Args:
        callbacks: callbacks, in the order in which they are called.

    Raises:
        ValueError: an object is not a callback, or a method has other parameters.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        for callback in callbacks:
            check(callback)
        self._members = [_Threaded(one) if _in_background(one) else _Member(one) for one in callbacks]

    def start(self, run: Run | None) -> None:
        """Call `on_start` of all callbacks."""
        self._tell("on_start", run)

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Call `on_metrics` of all callbacks."""
        self._tell_record("on_metrics", record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Call `on_evaluation` of all callbacks."""
        self._tell_record("on_evaluation", record)

    def checkpoint(self, path: Path, consumed: int) -> None:
        """Call `on_checkpoint` of all callbacks."""
        self._tell("on_checkpoint", path, consumed)

    def stopped_by(self, consumed: int) -> str:
        """Return the name of the first callback that stops training; empty if there is none."""
        return next((member.name for member in self._members if member.stops(consumed)), "")

    def end(self, outcome: Outcome | None) -> None:
        """Call `on_end` of all callbacks, and wait for slow ones."""
        self._tell("on_end", outcome)
        for member in self._members:
            member.close()

    def errors(self, *, reports: bool = False) -> tuple[str, ...]:
        """Return the errors of disabled callbacks: of `report` functions if `reports`, otherwise of all others."""
        wrong = [one for one in self._members if one.error and isinstance(one.callback, Reporting) is reports]
        return tuple(one.error if reports else f"{one.name}: {one.error}" for one in wrong)

    def _tell(self, event: str, *arguments: Any) -> None:
        for member in self._members:
            member.tell(event, *arguments)

    def _tell_record(self, event: str, record: Mapping[str, Any]) -> None:
        for member in self._members:
            member.tell(event, _copied(record))


class _Member:
    """A callback that runs in the training thread."""

    caught: tuple[type[BaseException], ...] = (Exception, SystemExit)
    """Errors that disable the callback. A KeyboardInterrupt in the training thread is that of the user."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.name = "report" if isinstance(callback, Reporting) else f"callback {type(callback).__name__}"
        self.error = ""

    def tell(self, event: str, *arguments: Any) -> None:
        self._call(event, *arguments)

    def stops(self, consumed: int) -> bool:
        return self._call("should_stop", consumed)

    def close(self) -> None:
        """Wait until all events are processed."""

    def _call(self, method: str, *arguments: Any) -> bool:
        """Call a method unless the callback is disabled, and return whether it asks to stop training."""
        if self.error:
            return False
        try:
            result = getattr(self.callback, method)(*arguments)
            return method == "should_stop" and bool(result)
        except self.caught as error:
            self.error = f"{type(error).__name__}: {error} ({_place(error, getattr(self.callback, method))})"
            logger.warning("%s is disabled, since it raised %s; training continues", self.name, self.error)
            return False


class _Threaded(_Member):
    """A callback that runs in its own thread, which ends with `on_end`."""

    caught = (BaseException,)

    def __init__(self, callback: Callback) -> None:
        super().__init__(callback)
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._lost = 0
        self._deadline = 0.0
        self._thread: threading.Thread | None = None

    def tell(self, event: str, *arguments: Any) -> None:
        if event == "on_start":
            thread = threading.Thread(target=bound(self._work), name=self.name, daemon=True)
            thread.start()
            self._thread = thread
        if event == "on_end":
            self._deadline = time.monotonic() + self.callback.patience
        elif self._events.qsize() >= WAITING:
            self._lost += 1
            if self._lost == 1:
                logger.warning(
                    "%s has %d queued events: further events are dropped until it catches up; training does not wait",
                    self.name,
                    WAITING,
                )
            return
        self._events.put((event, *arguments))

    def stops(self, consumed: int) -> bool:
        del consumed
        return False  # it does not override `should_stop`

    def close(self) -> None:
        if self._thread is None:  # the user interrupted the start of an earlier callback
            return
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            logger.warning(
                "%s is still busy %g seconds after the end of training: %d remaining events are dropped",
                self.name,
                self.callback.patience,
                self._events.qsize() + self._lost,
            )
        elif self._lost:
            logger.warning("%s was too slow for %d events, which were dropped", self.name, self._lost)

    def _work(self) -> None:
        event = ""
        while event != "on_end":
            event, *arguments = self._events.get()
            self._call(event, *arguments)


def check(callback: Any) -> None:
    """Check that an object is a callback with callable methods.

    Raises:
        ValueError: the object is not a callback.
    """
    if not isinstance(callback, Callback):
        what = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
        raise ValueError(
            f"a callback must be an instance of a subclass of operant.Callback, or a string such as "
            f"'file.py:Name', got {what:.120}"
        )
    for name in dir(callback):
        if name.startswith("on_") and name not in _EVENTS and callable(getattr(callback, name)):
            raise ValueError(
                f"{type(callback).__name__}.{name} would never be called: events are {', '.join(_EVENTS)}; rename it"
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
"""Arguments of each method of a callback."""


def _in_background(callback: Callback) -> bool:
    return callback.background and type(callback).should_stop is Callback.should_stop


def _copied(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a record with read-only arrays, so that a callback cannot change it for others."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        found[name] = _copied(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else value
        if isinstance(value, np.ndarray):
            own = found[name] = cast("NDArray[Any]", value).copy()
            own.flags.writeable = False
    return found


def _place(error: BaseException, method: Callable[..., Any]) -> str:
    """Return file and line of the user's code that raised an error, or that called the code that did."""
    code = getattr(method, "__code__", None)
    start = f"{code.co_filename}, line {code.co_firstlineno}" if code else "unknown location"
    return doors.place_of_error(error, __file__) or start
