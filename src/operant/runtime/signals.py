"""Stopping on request: a signal only sets a flag, which training looks at once per update, and in evaluations."""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_REQUEUE = 75
"""Exit status (`EX_TEMPFAIL`) of a process that was asked to stop and saved its state: run it again to go on."""

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


class Interruption:
    """Turns SIGINT, SIGTERM, SIGUSR1 and SIGHUP into a flag while its `with` block runs.

    SIGHUP, which comes when the terminal goes, stays ignored where it is ignored: `nohup` wants that.

    A second SIGINT raises `KeyboardInterrupt` at once, for those who do not want to wait. The former handlers
    come back at the end of the block. Python delivers signals to the main thread only; in any other one the block
    changes nothing, and only `request` sets the flag.

    Args:
        unhandled_only: whether to leave those signals alone for which the program has a handler of its own.

    Attributes:
        received: the last signal that came; None if none did.
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
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGINT:
            if self._interrupted_by_keyboard:
                raise KeyboardInterrupt
            self._interrupted_by_keyboard = True
        self._event.set()


@contextlib.contextmanager
def saving_first(asked: Callable[[], bool] | None = None) -> Generator[Callable[[], bool]]:
    """Yield what training asks whether to stop: `asked`, or else whether a signal has come that would end the process.

    Such a signal takes its course after the block, when the state is saved: SIGINT raises `KeyboardInterrupt`. Signals
    that the program handles itself, and those that come to another thread than the main one, are left alone.
    """
    if asked is not None:
        yield asked
        return
    with Interruption(unhandled_only=True) as interruption:
        yield interruption
    if interruption.received is not None:
        signal.raise_signal(interruption.received)


def _handled(number: int) -> bool:
    """Whether a signal does something else than Python does by itself."""
    return signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
