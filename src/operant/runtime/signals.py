"""Graceful stopping: a signal only sets a flag, which training checks once per update and during evaluations."""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_REQUEUE = 75
"""Exit status (`EX_TEMPFAIL`) of a process that stopped on a signal and saved its state; it can be resumed."""

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


class Interruption:
    """Context manager that turns SIGINT, SIGTERM, SIGUSR1 and SIGHUP into a flag.

    SIGHUP, sent when the terminal closes, stays ignored if it already is, as under `nohup`.

    A second SIGINT raises `KeyboardInterrupt` immediately. The previous handlers are restored at the end of the block.
    In nested blocks a signal sets the flags of all, so that a run which stops also stops the sweep that it is part of.
    Python delivers signals to the main thread only; in other threads only `request` sets the flag.

    Args:
        unhandled_only: whether to leave signals alone that already have a handler.

    Attributes:
        received: the last signal, or None.
    """

    def __init__(self, *, unhandled_only: bool = False) -> None:
        self.received: int | None = None
        self._unhandled_only = unhandled_only
        self._event = threading.Event()
        self._interrupted_by_keyboard = False
        self._former: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self._event.is_set()

    def request(self) -> None:
        """Request a stop, as a signal would."""
        self._event.set()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in _SIGNALS:
                number = getattr(signal, name, None)
                if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                    continue
                if not (self._unhandled_only and _handled(number)):
                    self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _restore(self._former)
        self._former.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        enclosing = getattr(self._former.get(number), "__self__", None)
        if isinstance(enclosing, Interruption):
            enclosing._handle(number, frame)
        self.received = number
        if number == signal.SIGINT:
            if self._interrupted_by_keyboard:
                raise KeyboardInterrupt
            self._interrupted_by_keyboard = True
        self._event.set()


@contextlib.contextmanager
def saving_first(asked: Callable[[], bool] | None = None) -> Generator[Callable[[], bool]]:
    """Yield the stop condition of training: `asked` if given, otherwise whether a fatal signal was received.

    Once `asked` has returned True, it is not called again, and the condition stays True. The signal takes effect after
    the block, when the state has been saved: SIGINT raises `KeyboardInterrupt`. Signals that the program handles, and
    other threads than the main one, are not affected.
    """
    if asked is not None:
        yield _Latch(asked)
        return
    with Interruption(unhandled_only=True) as interruption:
        yield interruption
    if interruption.received is not None:
        signal.raise_signal(interruption.received)


class _Latch:
    """A condition that stays True, because several parts of training check it before all of them have stopped."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition, self._met = condition, False

    def __call__(self) -> bool:
        self._met = self._met or self._condition()
        return self._met


def _handled(number: int) -> bool:
    """Return whether a signal has a handler other than Python's default."""
    return signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)


@contextlib.contextmanager
def handlers_kept(*names: str) -> Generator[None]:
    """Restore the handlers of signals after the block, in which a library replaces them.

    Only the main thread can set handlers, so in other threads nothing is restored.

    Args:
        names: names of the signals.
    """
    own = names if threading.current_thread() is threading.main_thread() else ()
    former: dict[int, Any] = {signal.Signals[name]: signal.getsignal(signal.Signals[name]) for name in own}
    try:
        yield
    finally:
        _restore(former)


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
