"""Progress display of training."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self, get_args

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

ProgressMode = Literal["auto", "plain", "silent"]
"""`auto`: a live line on a terminal, otherwise as `plain`: a line every 10 seconds; `silent`: none."""


def require_mode(mode: str) -> None:
    """Raise ValueError unless a mode is one of `ProgressMode`."""
    if mode not in get_args(ProgressMode):
        raise ValueError(f"progress must be auto, plain or silent, got {mode!r}")


class _Console(Console):
    """A console that ignores broken pipes."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass(frozen=True)
class Line:
    """Contents of the progress line.

    Attributes:
        consumed: budget used per seed.
        rate: budget units per second over all seeds.
        seconds_left: estimated remaining training time in seconds; NaN if unknown.
        episode_return: mean over the seeds and standard deviation of the episode return; None before the first episode.
        evaluation: latest score.
        start: score before the first update, or None.
        label: label of `episode_return`.
        evaluating: duration of the running evaluation so far in seconds, or None.
    """

    consumed: int
    rate: float = math.nan
    seconds_left: float = math.nan
    episode_return: tuple[float, float] | None = None
    evaluation: float | None = None
    start: float | None = None
    label: str = "return"
    evaluating: float | None = None

    def text(self) -> str:
        """Return the line as text."""
        parts = [f"{si(self.rate)}/s"] if math.isfinite(self.rate) else []
        if self.episode_return is not None:
            mean, spread = self.episode_return
            parts.append(f"{self.label} {mean:.4g}" + (f" ± {spread:.2g}" if spread > 0 else ""))
        if self.evaluation is not None:
            start = "" if self.start is None else f" (start {self.start:.4g})"
            parts.append(f"eval {self.evaluation:.4g}{start}")
        if math.isfinite(self.seconds_left):
            parts.append(f"{clock(self.seconds_left)} left")
        if self.evaluating is not None:
            parts.append("evaluating" + (f" for {clock(self.evaluating)}" if self.evaluating >= 1 else ""))
        return "  ".join(parts)


_MUCH = 1.05
"""Fraction of the budget above which the consumed budget is displayed, since iterations are always finished."""


class Progress:
    """Displays progress lines on standard error within its `with` block; it is disabled after an error."""

    def __init__(
        self,
        mode: ProgressMode,
        *,
        title: str,
        budget: int,
        every: float = 10.0,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        """Initialize the display.

        Args:
            mode: see `ProgressMode`.
            title: title of the run.
            budget: budget per seed.
            every: seconds between plain lines.
            console: console to write to. Default: standard error.
            now: clock in seconds.

        Raises:
            ValueError: the mode is unknown.
        """
        require_mode(mode)
        self._console = console or _Console(stderr=True)
        self._title, self._budget, self._every, self._now = title, budget, every, now
        self._silent = mode == "silent"
        self._next_line = -math.inf
        self._bar: Bar | None = None
        self._task = TaskID(0)
        if mode == "auto" and self._console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(20),
                TextColumn("{task.percentage:>3.0f} %  {task.fields[text]}", markup=False),
                console=self._console,
                auto_refresh=False,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._task = self._bar.add_task(self._title, total=self._budget, text="")
            self._attempt(self._bar.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._attempt(self._bar.stop)

    def show(self, line: Line, *, last: bool = False) -> None:
        """Display a line; plain lines only after enough time, or if it is the last one."""
        if self._silent:
            return
        bar, text = self._bar, line.text()
        if line.consumed > _MUCH * self._budget:
            text = f"{text}  ({line.consumed} of {self._budget}: the last iteration is always finished)"
        if bar is not None:
            completed = min(line.consumed, self._budget)
            self._attempt(lambda: bar.update(self._task, completed=completed, text=text, refresh=True))
        elif last or self._now() >= self._next_line:
            self._next_line = self._now() + self._every
            share = 100 * min(line.consumed, self._budget) / self._budget
            whole = f"{self._title}  {share:.0f} %  {text}"
            self._attempt(lambda: self._console.print(whole, markup=False, highlight=False, soft_wrap=True))

    @contextlib.contextmanager
    def evaluating(self, line: Line) -> Generator[None]:
        """Display a line while an evaluation runs in the block, repeatedly, with the time it has taken."""
        self.show(replace(line, evaluating=0.0))
        if self._silent:
            yield
            return
        begin, ended = self._now(), threading.Event()

        def repeat() -> None:
            while not ended.wait(self._every if self._bar is None else 1.0):
                self.show(replace(line, evaluating=self._now() - begin))

        thread = threading.Thread(target=repeat, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _attempt(self, write: Callable[[], object]) -> None:
        if not self._silent:
            try:
                write()
            except (OSError, ValueError):
                self._silent = True


def announce(mode: ProgressMode, notes: Iterable[str]) -> None:
    """Print lines on standard error before training, unless the mode is `silent` or the stream is closed."""
    if mode != "silent":
        console = _Console(stderr=True)
        with contextlib.suppress(OSError, ValueError):
            for note in notes:
                console.print(note, markup=False, highlight=False, soft_wrap=True)


def si(number: float) -> str:
    """Return a number with three digits and an SI prefix: 1234567 is `1.23 M`."""
    for factor, prefix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= 0.9995 * factor:  # 999.5 is 1 k with three digits
            return f"{number / factor:.3g}{prefix}"
    return f"{number:.3g}"


def clock(seconds: float) -> str:
    """Return a duration as `h:mm:ss`, or `m:ss` below an hour."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
