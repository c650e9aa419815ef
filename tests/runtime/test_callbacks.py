import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import operant
from operant.runtime import callbacks as module
from operant.runtime.callbacks import Callback, Callbacks, Reporting, check
from operant.runtime.checkpoints import CheckpointError
from operant.runtime.metrics import read_records
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.runtime.training import resume_from, train
from runtime.test_training import Config, evaluate, final_bytes
from runtime.tiny import Regression


@pytest.fixture
def make_run(tmp_path):
    def make(name="run", budget=400):
        return Run.create(tmp_path / name, Settings("regression", "line", seeds=(0, 1), budget=budget), Config())

    return make


def quiet(run, *callbacks, learner=None, **options):
    options = {"budget": 400, "progress": "silent", "evaluate": evaluate, "evaluate_every": 100} | options
    return train(learner or Regression(), run, callbacks=callbacks, **options)


INFOS = {"height": (1.0, 2.0)}


class Listener(Callback):
    """Callback that records its events and their threads."""

    def __init__(self):
        self.heard, self.threads = [], set()

    def _hear(self, event, value):
        self.heard.append((event, value))
        self.threads.add(threading.current_thread())

    def on_start(self, run):
        self._hear("start", run)

    def on_metrics(self, record):
        self._hear("metrics", record)

    def on_evaluation(self, record):
        self._hear("evaluation", record)

    def on_checkpoint(self, path, consumed):
        self._hear("checkpoint", (path, consumed))

    def on_end(self, outcome):
        self._hear("end", outcome)

    def told(self, event):
        return [value for name, value in self.heard if name == event]


class Patient(Listener):
    """Callback that stops after `evaluations` evaluations."""

    def __init__(self, evaluations):
        super().__init__()
        self.left = evaluations

    def on_evaluation(self, record):
        super().on_evaluation(record)
        self.left -= 1

    def should_stop(self, consumed):
        return self.left <= 0


def test_the_public_name_is_this_class():
    assert operant.Callback is Callback


def test_callbacks_run_in_order_off_the_training_thread(make_run):
    run, listener = make_run(), Listener()
    outcome = quiet(run, listener, checkpoint_seconds=0)
    assert listener.heard[0] == ("start", run)
    event, ended = listener.heard[-1]
    assert (event, ended.consumed, ended.evaluation) == ("end", 400, outcome.evaluation)
    assert threading.main_thread() not in listener.threads
    assert len(listener.threads) == 1
    for event, path in (("metrics", run.metrics_path), ("evaluation", run.evaluations_path)):
        assert [record["consumed"] for record in listener.told(event)] == [r["consumed"] for r in read_records(path)]
    assert listener.told("evaluation")[-1]["scores"] == outcome.evaluation.scores
    assert listener.told("checkpoint")[-1] == (outcome.checkpoint, 400)
    assert len(listener.told("checkpoint")) > 10


def test_one_that_stops_is_called_in_the_training_thread_and_ends_the_run(make_run):
    run, patient = make_run(), Patient(2)
    outcome = quiet(run, patient)
    assert patient.threads == {threading.main_thread()}
    assert (outcome.consumed, outcome.interrupted, outcome.exit_code) == (200, False, 0)
    assert outcome.stopped_by == "callback Patient"
    assert outcome.evaluation is not None
    assert run.outcome() == ("finished", "callback Patient stopped it")
    learner = Regression()
    assert resume_from(run, learner)
    assert quiet(run, Patient(1), learner=learner).consumed == 300
    assert [r["consumed"] for r in read_records(run.evaluations_path)] == [100, 200, 300]


def test_a_stop_between_evaluations_is_scored(make_run):
    class Now(Callback):
        def should_stop(self, consumed):
            return consumed >= 250

    run, learner = make_run(), Regression()
    outcome = quiet(run, Now(), learner=learner)
    assert 250 <= outcome.consumed < 300
    assert outcome.evaluation == evaluate(learner)
    assert [r["consumed"] for r in read_records(run.evaluations_path)] == [100, 200, outcome.consumed]


def test_training_with_callbacks_is_bit_for_bit_training_without(make_run):
    class Meddler(Listener):
        background = False

        def on_metrics(self, record):
            record["losses/value"][:] = 0.0  # which is read-only

    plain, watched, cut = make_run("plain"), make_run("watched"), make_run("cut")
    quiet(plain)
    outcome = quiet(watched, Listener(), Meddler(), Patient(100))
    assert "read-only" in outcome.callback_errors[0]
    quiet(cut, Patient(1))
    learner = Regression()
    resume_from(cut, learner)
    quiet(cut, Listener(), learner=learner)
    assert final_bytes(plain) == final_bytes(watched) == final_bytes(cut)
    assert read_records(plain.evaluations_path)[-1]["scores"] == read_records(watched.evaluations_path)[-1]["scores"]


def test_any_error_of_a_background_callback_is_its_own(make_run, caplog):
    class Stopping(Listener):
        def on_metrics(self, record):
            raise KeyboardInterrupt

    outcome = quiet(make_run(), Stopping())
    assert outcome.consumed == 400
    (error,) = outcome.callback_errors
    assert error.startswith("callback Stopping: KeyboardInterrupt")


@pytest.mark.parametrize("background", [True, False])
def test_an_error_switches_one_off_with_file_and_line(make_run, caplog, background):
    class Broken(Listener):
        def on_metrics(self, record):
            super().on_metrics(record)
            np.zeros(2).reshape(3)  # LINE

    Broken.background = background
    run, broken, listener = make_run(), Broken(), Listener()
    outcome = quiet(run, broken, listener)
    assert outcome.consumed == 400
    assert [event for event, _ in broken.heard] == ["start", "metrics"]
    assert listener.told("end")
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# LINE"))
    (error,) = outcome.callback_errors
    assert error.startswith("callback Broken: ValueError: cannot reshape")
    assert error.endswith(f"({__file__}, line {line})")
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("callback Broken is disabled, since it raised ValueError")
    assert text.endswith("training continues")
    (kept,) = read_records(run.path / "warnings.jsonl")
    assert kept["text"] == text


@pytest.mark.parametrize("method", ["on_start", "on_evaluation", "on_checkpoint", "should_stop", "on_end"])
@pytest.mark.parametrize("error", [ArithmeticError("no more"), SystemExit(3)])
def test_an_error_anywhere_costs_no_training(make_run, method, error):
    def fail(self, *_):
        raise error

    broken = type("Broken", (Callback,), {method: fail})()
    outcome = quiet(make_run(), broken)
    assert outcome.consumed == 400
    assert not outcome.stopped_by
    assert len(outcome.callback_errors) == 1


def test_an_error_of_training_is_reported_without_an_outcome(make_run, monkeypatch):
    class Lost(Regression):
        def iterate(self):
            raise CheckpointError("no more")

    listener = Listener()
    with pytest.raises(CheckpointError):
        quiet(make_run(), listener, learner=Lost())
    assert [event for event, _ in listener.heard] == ["start", "end"]
    assert listener.told("end") == [None]


def test_an_interrupt_at_the_start_of_a_callback_is_raised(make_run):
    class Interrupted(Callback):
        background = False

        def on_start(self, run):
            raise KeyboardInterrupt

    listener = Listener()
    with pytest.raises(KeyboardInterrupt):
        quiet(make_run(), Interrupted(), listener)
    assert not listener.heard


def test_one_that_blocks_does_not_stall_training(make_run, monkeypatch, caplog):
    release = threading.Event()

    class Slow(Listener):
        patience = 0.1

        def on_start(self, run):
            release.wait(60)

    monkeypatch.setattr(module, "WAITING", 4)
    slow, listener = Slow(), Listener()
    begin = time.monotonic()
    try:
        outcome = quiet(make_run(), slow, listener, evaluate_every=20)
        assert time.monotonic() - begin < 30
    finally:
        release.set()
    assert outcome.consumed == 400
    assert listener.told("end")
    # On a busy machine the other one may be four events late, too, and report it meanwhile.
    texts = [record.getMessage() for record in caplog.records if "callback Slow" in record.getMessage()]
    assert texts[0].startswith("callback Slow has 4 queued events: further events are dropped")
    assert texts[1].startswith("callback Slow is still busy 0.1 seconds after the end of training")
    assert len(texts) == 2


def test_the_end_waits_once_for_all_slow_callbacks(monkeypatch):
    release = threading.Event()

    class Slow(Callback):
        patience = 0.5

        def on_metrics(self, record):
            release.wait(60)

    monkeypatch.setattr(module, "WAITING", 4)
    callbacks = Callbacks([Slow(), Slow()])
    callbacks.start(None)
    for _ in range(8):
        callbacks.metrics({"consumed": 1})
    begin = time.monotonic()
    callbacks.end(None)
    assert 0.5 <= time.monotonic() - begin < 0.9
    release.set()


def test_one_that_was_too_slow_for_a_while_gets_the_rest(make_run, monkeypatch, caplog):
    begun, release = threading.Event(), threading.Event()

    class Slow(Listener):
        def on_start(self, run):
            begun.set()
            release.wait(60)

    monkeypatch.setattr(module, "WAITING", 2)
    slow = Slow()
    told = Callbacks([slow])
    told.start(None)
    assert begun.wait(60)
    for number in range(5):
        told.metrics({"consumed": number})
    release.set()
    told.end(None)
    assert [record["consumed"] for record in slow.told("metrics")] == [0, 1]
    assert slow.told("end") == [None]
    assert caplog.records[-1].getMessage() == "callback Slow was too slow for 3 events, which were dropped"


def test_a_report_runs_in_the_training_thread():
    told = []
    callbacks = Callbacks([Reporting(lambda record: told.append((record["x"], threading.current_thread())))])
    callbacks.metrics({"x": 1})
    callbacks.evaluation({"x": 2})
    assert told == [(1, threading.main_thread()), (2, threading.main_thread())]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Listener, "must be an instance of a subclass of operant.Callback, .* got the class Listener"),
        (print, "must be an instance of a subclass of operant.Callback, .* got <built-in function print>"),
        (
            type("Odd", (Callback,), {"on_evaluations": lambda self, record: None})(),
            r"Odd.on_evaluations would never be called: events are on_start, on_metrics, on_evaluation, .*; rename it",
        ),
        (type("Odd", (Callback,), {"on_metrics": lambda self: None})(), r"Odd.on_metrics must take \(self, record\)"),
        (
            type("Odd", (Callback,), {"should_stop": lambda self: True})(),
            r"Odd.should_stop must take \(self, consumed\)",
        ),
    ],
)
def test_invalid_callbacks_are_rejected_before_training(given, message):
    with pytest.raises(ValueError, match=message):
        check(given)
    learner = Regression()
    with pytest.raises(ValueError, match=message):
        train(learner, budget=100, callbacks=[given], progress="silent")
    assert learner.consumed == 0


def test_no_warning_without_a_reason(make_run, caplog):
    caplog.set_level(logging.WARNING)
    outcome = quiet(make_run(), Listener(), Patient(100))
    assert caplog.records == []
    assert outcome.callback_errors == ()
    assert outcome.report_error == ""


class Changing(Callback):
    """Callback that changes what it gets, and returns an array."""

    background = False

    def on_metrics(self, record):
        return record.pop("losses/value")

    def on_evaluation(self, record):
        record["infos"].clear()


def test_a_callback_changes_records_for_no_other(make_run):
    listener = Listener()
    outcome = quiet(make_run(), Changing(), listener, evaluate=lambda learner: replace(evaluate(learner), infos=INFOS))
    assert outcome.callback_errors == ()
    assert all("losses/value" in record for record in listener.told("metrics"))
    assert all(record["infos"] == INFOS for record in listener.told("evaluation"))
