"""The training loop of all learners: `train`."""

import contextlib
import logging
import math
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np

from operant import doors
from operant.envs import without_episodes
from operant.runtime.callbacks import Callback, Callbacks, Report, Reporting
from operant.runtime.checkpoints import CheckpointError, load
from operant.runtime.course import Hints
from operant.runtime.encoding import flatten
from operant.runtime.evaluation import Evaluation, StoppedError
from operant.runtime.history import forget_later
from operant.runtime.learner import Learner, Metrics
from operant.runtime.ledger import drop_later
from operant.runtime.metrics import read_records, rewind
from operant.runtime.metrics_window import DropWatch, Guard, RejectionWatch, SkipWatch, Window, summarize
from operant.runtime.outcome import Outcome
from operant.runtime.progress import Line, Progress, ProgressMode
from operant.runtime.run import TRAINING_NOTE, Run, RunError
from operant.runtime.run_paths import location
from operant.runtime.sessions import FAILED, FINISHED, INTERRUPTED, stopped_by
from operant.runtime.training_files import REWARD, TrainingFiles
from operant.runtime.warned import keeping

logger = logging.getLogger(__name__)

L = TypeVar("L", bound=Learner)

RECORD_SECONDS = 0.5
"""Minimum time in seconds between two records of metrics."""

CHECKPOINT_SHARE = 0.05
"""Maximum share of the time that checkpoints take: those of a large model take minutes, and would always be due."""

EPISODE_RETURNS = ("rollout/episode_return", REWARD)
"""Metrics for the progress display, of which the first available one is shown."""

_REWARDS = re.compile(r"rewards/(.+)/mean")


def train(
    learner: L,
    run: Run | None = None,
    *,
    budget: int,
    evaluate: Callable[[L], Evaluation] | None = None,
    evaluate_every: int = 0,
    evaluate_first: bool = False,
    hints: Hints | None = None,
    checkpoint_seconds: float = 60.0,
    seeds: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    report: Report | None = None,
    callbacks: Sequence[Callback] = (),
    progress: ProgressMode = "auto",
) -> Outcome:
    """Train a learner until its budget is used.

    Metrics are written at most twice a second, and at evaluations, checkpoints and the end, averaged since the previous
    record (`operant.runtime.metrics_window.summarize`). A killed and resumed run ends in the same state as an
    uninterrupted one, bit for bit, if the learner's `state_dict` is complete.

    Args:
        learner: learner to train.
        run: run for metrics, evaluations and checkpoints, which is locked during training; None: nothing is written. To
            resume, call `resume_from` first, both within `with run.lock():`.
        budget: budget per seed, in the learner's unit; training ends after the first iteration that reaches it.
        evaluate: function that evaluates the learner without changing it. It may raise `StoppedError` once
            `interrupted` returns True; the evaluation is repeated when training continues.
        evaluate_every: evaluation interval: `evaluate` is called after the first iteration that reaches a multiple, and
            at the end. 0: a twentieth of the budget.
        evaluate_first: whether to evaluate before the first update, too; a resumed run does not repeat it. A later
            score that is significantly lower causes a warning (`operant.runtime.course`).
        hints: details for this warning.
        checkpoint_seconds: interval of checkpoints in seconds; one is always written at the end and at an interruption.
        seeds: number of seeds, S, for the aggregate speed. Default: from the settings of `run`; 1 without a run.
        interrupted: function called at least once per iteration, such as an `operant.runtime.signals.Interruption`; if
            it returns True, the state is saved and training stops. From then on it must return True.
        report: function called with every record of metrics and every evaluation; it is disabled after an error.
        callbacks: callbacks (`operant.runtime.callbacks.Callback`).
        progress: display of progress on standard error.

    Raises:
        ValueError: a parameter is out of range, or a callback is invalid.
        TypeError: the learner's state has a type that checkpoints cannot store.
        RunError: another process trains the run, it is not writable, or it has a checkpoint later than `learner`.
        NonFiniteError: in 10 consecutive iterations a loss was NaN or Inf or updates were skipped, or the state has NaN
            or Inf; the latest valid checkpoint remains.
        CheckpointError: three checkpoints in a row could not be written, or the last one of the session.
    """
    every = evaluate_every or max(1, budget // 20)
    settings = run.settings if run else None
    if seeds is None:
        seeds = len(settings.seeds) if settings else 1
    for name, value in (("budget", budget), ("evaluate_every", every), ("seeds", seeds)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not checkpoint_seconds >= 0:
        raise ValueError(f"checkpoint_seconds must not be negative, got {checkpoint_seconds}")
    title = f"{doors.label(settings.algorithm)} {doors.label(settings.task)}" if settings else type(learner).__name__
    told = Callbacks([*callbacks, *([] if report is None else [Reporting(report)])])
    with contextlib.ExitStack() as stack:
        if run is not None:
            stack.enter_context(run.lock())
            stack.enter_context(keeping(run.path))
            stack.enter_context(_ending(run, learner))
            _refuse_restart(run, learner)
            flatten(learner.state_dict())  # report a state that cannot be saved now, not after hours
        files = stack.enter_context(contextlib.closing(TrainingFiles(run, learner.consumed, budget)))
        shown = stack.enter_context(Progress(progress, title=title, budget=budget))
        session = _Session(learner, files, shown, budget, seeds, evaluate, every, interrupted, told, hints or Hints())
        try:
            told.start(run)
            outcome = session.run(checkpoint_seconds, evaluate_first=evaluate_first)
            if run is not None:
                fault = "" if outcome.evaluation is None else outcome.evaluation.fault()
                state = INTERRUPTED if outcome.interrupted else FAILED if fault else FINISHED
                run.end_session(state, outcome.consumed, fault or stopped_by(outcome.stopped_by))
        except BaseException as error:
            error.add_note(TRAINING_NOTE)
            told.end(None)
            raise
        told.end(outcome)
        errors = told.errors(reports=True)
        return replace(outcome, report_error=errors[0] if errors else "", callback_errors=told.errors())


@contextlib.contextmanager
def _ending(run: Run, learner: Learner) -> Generator[None]:
    """Record the reason if training ends early."""
    try:
        yield
    except RunError:
        raise  # the error occurred before training started
    except BaseException as error:
        state = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
        run.end_session(state, learner.consumed, f"{type(error).__name__}: {error}".rstrip(": "))
        raise


def resume_from(run: Run, learner: Learner, *, new_episodes: bool = False) -> bool:
    """Load the latest valid checkpoint into `learner`, and move later records to `rewound.jsonl`.

    Args:
        run: the run.
        learner: its learner.
        new_episodes: whether environments start new episodes instead of continuing the saved ones.

    Returns:
        False if the run has no checkpoint, so that `learner` starts from the beginning.

    Raises:
        RunError: another process trains the run, or its checkpoints are missing.
        CheckpointError: no checkpoint can be used.
        ValueError: the checkpoint belongs to another configuration.
    """
    with run.lock():
        run.clean()
        found = run.checkpoints.latest()
        if found is None:
            run.require_checkpoints()
        else:
            path, consumed = found
            state = load(path)
            learner.load_state_dict(without_episodes(state) if new_episodes else state)
            if learner.consumed != consumed:
                raise CheckpointError(f"{path} contains a state at {learner.consumed}, expected {consumed}")
        for records in (run.metrics_path, run.evaluations_path):
            rewind(records, learner.consumed)
        forget_later(run, learner.consumed)
        # Samples and ledgers are written before their evaluation; later ones are written again.
        evaluated = max((r.get("consumed", 0) for r in read_records(run.evaluations_path)), default=-1)
        rewind(run.samples_path, evaluated)
        drop_later(run.path, evaluated)
    return found is not None


def require_own_beginning(run: Run) -> None:
    """Warn that a run without checkpoints starts from the beginning; raise RunError if that is another run."""
    if init := run.resolved().get("init"):
        raise RunError(
            f"{run.path} has no checkpoint, not even of its initial networks: train it again, with --init {init}"
        )
    logger.warning("%s has no checkpoint yet: training starts from the beginning", run.path)


def _refuse_restart(run: Run, learner: Learner) -> None:
    found = run.checkpoints.latest()
    if found is None:
        run.require_checkpoints()
    elif found[1] > learner.consumed:
        raise RunError(
            f"{run.path} has a checkpoint at {found[1]} but the learner is at {learner.consumed}; "
            f"continue with `operant resume {location(run.path)}` (in Python: resume_from), or create a new run"
        )


@dataclass
class _Session(Generic[L]):
    """One call of `train`."""

    learner: L
    files: TrainingFiles
    shown: Progress
    budget: int
    seeds: int
    evaluate: Callable[[L], Evaluation] | None
    every: int
    interrupted: Callable[[], bool]
    callbacks: Callbacks
    hints: Hints

    def __post_init__(self) -> None:
        self._window, self._guard, self._skips = Window(), Guard(), SkipWatch()
        self._drops, self._rejections = DropWatch(), RejectionWatch()
        self._start = self.learner.consumed
        self._seconds = 0.0
        self._recorded = (self._start, 0.0)
        self._return: tuple[float, float] | None = None
        self._label = "return"
        self._evaluation: Evaluation | None = None
        self._stopped_by = ""
        self._warned = self._parted = False

    def run(self, checkpoint_seconds: float, *, evaluate_first: bool) -> Outcome:
        learner = self.learner
        next_record = -math.inf
        next_save = time.monotonic() + checkpoint_seconds
        if self.files.history:
            self.files.history.note(learner, None)
        begun = self._evaluate_first() if evaluate_first else True
        self._evaluate_if_due()
        while begun and learner.consumed < self.budget and not self._stops():
            self._iterate()
            now = time.monotonic()
            save = now >= next_save
            if save or now >= next_record:
                self._record()
                next_record = now + RECORD_SECONDS
            if save:
                self._save()
                end = time.monotonic()
                next_save = end + _pause(checkpoint_seconds, end - now)
            if learner.consumed < self.budget:
                self._evaluate_if_due()
        self._record()
        self._guard.close()
        self._skips.close()
        self._save(last=True)
        interrupted = not self._finish()
        self.shown.show(self._line(), last=True)
        return Outcome(
            consumed=learner.consumed,
            interrupted=interrupted,
            evaluation=self._evaluation,
            checkpoint=self.files.checkpoint,
            seconds=self._seconds,
            steps_per_second=self._rate(self._start, 0.0),
            lost_records=self.files.lost,
            missed_checkpoints=self.files.missed,
            stopped_by=self._stopped_by,
        )

    def _stops(self) -> bool:
        """Return whether training was interrupted, or a callback stops it."""
        if self.interrupted():
            return True
        self._stopped_by = self.callbacks.stopped_by(self.learner.consumed)
        return bool(self._stopped_by)

    def _save(self, *, last: bool = False) -> None:
        before = self.files.checkpoint
        self.files.save(self.learner, last=last)
        if self.files.checkpoint is not None and self.files.checkpoint is not before:
            self.callbacks.checkpoint(self.files.checkpoint, self.learner.consumed)

    def _iterate(self) -> None:
        begin, before = time.perf_counter(), self.learner.consumed
        metrics: Any = self.learner.iterate()
        if not isinstance(metrics, Mapping):
            raise ValueError(
                f"{type(self.learner).__name__}.iterate returned {metrics!r:.80}: it must return a mapping of metrics, "
                "{} if there are none"
            )
        self._window.add(cast(Metrics, metrics))
        self._seconds += time.perf_counter() - begin
        if self.files.history:
            self.files.history.note(self.learner, before)

    def _record(self) -> None:
        """Write and display the metrics since the last record; raise an error on persistent NaN or Inf."""
        reports = self._window.take()
        if not reports:
            return
        metrics = summarize(reports)
        consumed, seconds = self.learner.consumed, self._seconds
        own = {
            "consumed": consumed,
            "time/seconds": self.files.seconds_before + seconds,
            "time/steps_per_second": self._rate(*self._recorded),
        }
        steps, self._recorded = consumed - self._recorded[0], (consumed, seconds)
        record = own | {name: value for name, value in metrics.items() if name not in own}
        self.files.record(record)
        self.callbacks.metrics(record)
        returns = np.atleast_1d(next((metrics[name] for name in EPISODE_RETURNS if name in metrics), math.nan))
        returns = returns[np.isfinite(returns)]
        self.files.course.add_reward(metrics.get(REWARD))
        self._label = _label(metrics)
        if returns.size:
            self._return = float(returns.mean()), float(returns.std())
        self.shown.show(self._line())
        self._rejections.check(reports)
        self._skips.check(reports)
        self._guard.check(reports)
        self._drops.check(reports, steps)

    def _rate(self, consumed: int, seconds: float) -> float:
        """Return budget units per second over all seeds, since a point in this session."""
        passed = self._seconds - seconds
        return self.seeds * (self.learner.consumed - consumed) / passed if passed > 0 else math.nan

    def _line(self) -> Line:
        rate = self._rate(self._start, 0.0)
        left = self.seeds * max(0, self.budget - self.learner.consumed)
        return Line(
            consumed=self.learner.consumed,
            rate=rate,
            seconds_left=left / rate if rate > 0 else math.nan,
            episode_return=self._return,
            label=self._label,
            evaluation=self._evaluation.iqm if self._evaluation else None,
            start=start.evaluation.iqm if self._evaluation and (start := self.files.course.start) else None,
        )

    def _evaluate_first(self) -> bool:
        """Evaluate before the first update, unless already done; return False if interrupted."""
        if self.learner.consumed or self.files.evaluated is not None:
            return True
        return self._evaluate()

    def _evaluate_if_due(self) -> None:
        """Evaluate if a multiple of the interval was passed since the last evaluation."""
        due = (self.files.evaluated or 0) // self.every < self.learner.consumed // self.every
        if due and not self.interrupted():
            self._evaluate()

    def _finish(self) -> bool:
        """Save the state and run the last evaluation; return False if interrupted."""
        if self.learner.consumed < self.budget and not self._stopped_by:
            return False
        evaluated = self.files.evaluated
        if self.evaluate is None or (evaluated is not None and evaluated >= self.learner.consumed):
            return True
        if self.interrupted():
            return False
        return self._evaluate()

    def _evaluate(self) -> bool:
        """Evaluate, if there is an `evaluate`; return False if interrupted."""
        if self.evaluate is None:
            return True
        self._record()  # one record of metrics per evaluation, so that short runs have curves, too
        try:
            with self.shown.evaluating(self._line()):
                self._evaluation = self.evaluate(self.learner)
        except StoppedError:
            return False
        seconds = self.files.seconds_before + self._seconds
        stamp = {"consumed": self.learner.consumed, "time/seconds": seconds}
        record = stamp | self._evaluation.record()
        self.files.evaluation(record, self._evaluation)
        self.callbacks.evaluation(record)
        self._warn()
        return True

    def _warn(self) -> None:
        """Warn if the score falls significantly below the start, and again at the end."""
        warning = self.files.course.warning(self.hints)
        if warning is not None and (not self._warned or self.learner.consumed >= self.budget):
            logger.warning("%s", warning)
        self._warned = warning is not None
        parting = None if self._parted else self.files.course.parting(self.hints)
        if parting is not None:
            self._parted = True
            logger.warning("%s", parting)


def _pause(checkpoint_seconds: float, took: float) -> float:
    """Return the time in seconds until the next checkpoint, after one that took some seconds; 0 stays 0."""
    return checkpoint_seconds and max(checkpoint_seconds, took / CHECKPOINT_SHARE - took)


def _label(metrics: Mapping[str, Any]) -> str:
    """Return the label of the return in the progress display."""
    if EPISODE_RETURNS[0] in metrics or REWARD not in metrics:
        return "return"
    names = [match[1] for name in metrics if (match := _REWARDS.fullmatch(name))]
    return f"sampled reward ({' + '.join(names)})" if names else "sampled reward"
