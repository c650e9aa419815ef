"""Stopping on request: a signal only sets a flag, which training looks at once per update, and in evaluations."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_REQUEUE = 75
"""Exit status (`EX_TEMPFAIL`) of a process that was asked to stop and saved its state: run it again to go on."""

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")


class Interruption:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a flag while its `with` block runs.

    A second SIGINT raises `KeyboardInterrupt` at once, for those who do not want to wait. The former handlers
    come back at the end of the block. Python delivers signals to the main thread only; in any other one the block
    changes nothing, and only `request` sets the flag.
    """

    def __init__(self) -> None:
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
                if number is not None:
                    self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted_by_keyboard:
                raise KeyboardInterrupt
            self._interrupted_by_keyboard = True
        self._event.set()
