import dataclasses
import logging
import math
import re
import shutil
from dataclasses import dataclass

import pytest
import torch

from operant.runtime.checkpoints import CheckpointError, NonFiniteError
from operant.runtime.course import Hints
from operant.runtime.evaluation import Evaluation, StoppedError
from operant.runtime.metrics import read_records
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings
from operant.runtime.training import resume_from, train
from runtime.tiny import Regression


@dataclass(frozen=True)
class Config:
    pass


@pytest.fixture
def make_run(tmp_path):
    def make(name="run"):
        return Run.create(tmp_path / name, Settings("regression", "line", seeds=(0, 1)), Config())

    return make


def evaluate(learner):
    error = (learner.weight - learner.truth).norm(dim=1, keepdim=True)
    return Evaluation.of(-error.numpy())


def stop_after(iterations):
    """Return an ``interrupted`` that is true from its ``iterations + 1``-th call in the loop on."""
    questions = iter(range(10**9))
    return lambda: next(questions) >= iterations


def final_bytes(run):
    path, _ = run.checkpoints.latest()
    return {file.name: file.read_bytes() for file in path.iterdir()}


def quiet(learner, run=None, **options):
    return train(learner, run, **({"budget": 400, "progress": "silent"} | options))


def test_without_a_run_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learner = Regression()
    outcome = quiet(learner, budget=395, evaluate=evaluate)
    assert outcome.consumed == learner.consumed == 400
    assert not outcome.interrupted
    assert outcome.exit_code == 0
    assert outcome.checkpoint is None
    assert outcome.evaluation == evaluate(learner)
    assert list(tmp_path.iterdir()) == []


def test_it_learns():
    learner = Regression()
    quiet(learner, budget=5000)
    assert torch.allclose(learner.weight, learner.truth.expand(2, -1), atol=1e-3)


def test_a_run_holds_everything(make_run):
    run, learner = make_run(), Regression()
    outcome = quiet(learner, run, evaluate=evaluate, evaluate_every=150)
    assert run.checkpoints.latest() == (outcome.checkpoint, 400)
    records = read_records(run.metrics_path)
    assert records[-1]["consumed"] == 400
    assert len(records[-1]["losses/value"]) == 2
    assert records[-1]["constant"] == 2.5
    assert records[-1]["time/seconds"] == pytest.approx(outcome.seconds)
    evaluations = read_records(run.evaluations_path)
    assert [r["consumed"] for r in evaluations] == [150, 300, 400]
    assert evaluations[-1]["iqm"] == outcome.evaluation.iqm
    assert (outcome.lost_records, outcome.missed_checkpoints) == (0, 0)


def test_speed_counts_all_seeds_and_no_evaluation(make_run, monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr("operant.runtime.training.time.perf_counter", lambda: 0.5 * next(ticks))  # half a second each
    run = make_run()
    outcome = quiet(Regression(), run, evaluate=evaluate)
    assert outcome.seconds == 20.0
    assert outcome.steps_per_second == 2 * 10 / 0.5
    assert {r["time/steps_per_second"] for r in read_records(run.metrics_path)} == {40.0}
    assert math.isnan(quiet(Regression(), budget=10, interrupted=lambda: True).steps_per_second)


def test_records_keep_their_distance_and_average(make_run, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("operant.runtime.training.time.monotonic", lambda: now[0])

    class Clocked(Regression):
        def iterate(self):
            now[0] += 0.125
            super().iterate()
            return {"number": float(self.consumed)}

    run = make_run()
    quiet(Clocked(), run, budget=120)
    records = [(r["consumed"], r["number"]) for r in read_records(run.metrics_path)]
    assert records == [(10, 10), (50, 35), (90, 75), (120, 110)]


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [*range(10, 401, 10)]), (2.0, [20, 210, 400]), (30.0, [300])])
def test_slow_checkpoints_take_a_twentieth_of_the_time_unless_every_update_is_saved(
    tmp_path, monkeypatch, seconds, expected
):
    now, saves = [0.0], []
    monkeypatch.setattr("operant.runtime.training.time.monotonic", lambda: now[0])

    class Large(Regression):
        def iterate(self):
            now[0] += 1.0
            return super().iterate()

        def state_dict(self):
            now[0] += 1.0
            saves.append(self.consumed)
            return super().state_dict()

    settings = Settings("regression", "line", seeds=(0, 1), budget=400, keep_checkpoints="none")
    quiet(Large(), Run.create(tmp_path / "run", settings, Config()), checkpoint_seconds=seconds)
    assert saves == [0, *expected, 400]


@pytest.mark.parametrize("every", [0, 10, 35, 1000])
def test_evaluations_fall_on_multiples_and_the_end(make_run, every):
    run = make_run()
    quiet(Regression(), run, evaluate=evaluate, evaluate_every=every)
    step = every or 20
    expected = sorted({math.ceil(m / 10) * 10 for m in range(step, 401, step)} | {400})
    assert [r["consumed"] for r in read_records(run.evaluations_path)] == expected


def test_metrics_are_recorded_at_every_evaluation(make_run):
    run = make_run()
    quiet(Regression(), run, budget=400, evaluate=evaluate, evaluate_every=40)
    scored = [record["consumed"] for record in read_records(run.evaluations_path)]
    assert len(scored) == 10
    assert set(scored) <= {record["consumed"] for record in read_records(run.metrics_path)}


@pytest.mark.parametrize("iterations", [0, 1, 7, 20])
def test_resumed_is_uninterrupted_bit_for_bit(make_run, iterations):
    whole, parts = make_run("whole"), make_run("parts")
    quiet(Regression(), whole, evaluate=evaluate, evaluate_every=70)
    outcome = quiet(Regression(), parts, evaluate=evaluate, evaluate_every=70, interrupted=stop_after(iterations))
    assert outcome.interrupted
    assert outcome.exit_code == 75
    learner = Regression()
    assert resume_from(Run.open(parts.path), learner)
    assert learner.consumed == outcome.consumed
    assert quiet(learner, parts, evaluate=evaluate, evaluate_every=70).consumed == 400
    assert final_bytes(whole) == final_bytes(parts)
    with_time = [read_records(run.evaluations_path) for run in (whole, parts)]
    one, two = ([r | {"time/seconds": 0} for r in records] for records in with_time)
    assert one == two


def test_the_evaluation_missed_by_an_interruption_is_made_up_for(make_run):
    run = make_run()
    stop = []
    seen = []

    class Stopping(Regression):
        def iterate(self):
            metrics = super().iterate()
            if self.consumed == 100:
                stop.append(True)
            return metrics

    options = {"evaluate": lambda learner: seen.append(learner.consumed) or evaluate(learner), "evaluate_every": 100}
    assert quiet(Stopping(), run, interrupted=lambda: bool(stop), **options).interrupted
    assert seen == []
    learner = Regression()
    resume_from(run, learner)
    quiet(learner, run, **options)
    assert seen == [100, 200, 300, 400]


def test_an_interruption_before_the_last_evaluation_is_one(make_run):
    run = make_run()
    learner = Regression()
    outcome = quiet(learner, run, evaluate=evaluate, evaluate_every=400, interrupted=lambda: learner.consumed >= 400)
    assert outcome.interrupted
    assert outcome.evaluation is None
    again = quiet(learner, run, evaluate=evaluate, evaluate_every=400)
    assert not again.interrupted
    assert [r["consumed"] for r in read_records(run.evaluations_path)] == [400]


@pytest.mark.parametrize("moment", [200, 400])
def test_an_evaluation_that_is_given_up_is_saved_and_made_up_for(make_run, moment):
    whole, run, stop = make_run("whole"), make_run(), []

    def evaluate_or_stop(learner):
        if learner.consumed == moment:
            stop.append(True)
            raise StoppedError
        return evaluate(learner)

    quiet(Regression(), whole, evaluate=evaluate, evaluate_every=100)
    options = {"evaluate_every": 100, "checkpoint_seconds": 1000.0}
    outcome = quiet(Regression(), run, evaluate=evaluate_or_stop, interrupted=lambda: bool(stop), **options)
    assert outcome.interrupted
    assert outcome.consumed == moment
    learner = Regression()
    assert resume_from(run, learner)
    assert not quiet(learner, run, evaluate=evaluate, **options).interrupted
    assert final_bytes(run) == final_bytes(whole)
    assert [r["consumed"] for r in read_records(run.evaluations_path)] == [100, 200, 300, 400]


@pytest.mark.parametrize("every", [100, 300])
def test_a_last_evaluation_that_fails_loses_no_training(make_run, every):
    def fail_at_the_end(learner):
        if learner.consumed == 400:
            raise RuntimeError("no light")
        return evaluate(learner)

    whole, run = make_run("whole"), make_run()
    quiet(Regression(), whole, evaluate=evaluate, evaluate_every=every)
    with pytest.raises(RuntimeError, match="no light"):
        quiet(Regression(), run, evaluate=fail_at_the_end, evaluate_every=every, checkpoint_seconds=1000.0)
    learner = Regression()
    assert resume_from(run, learner)
    assert quiet(learner, run, evaluate=evaluate, evaluate_every=every).evaluation == evaluate(learner)
    assert final_bytes(run) == final_bytes(whole)
    evaluated = [[r["consumed"] for r in read_records(one.evaluations_path)] for one in (run, whole)]
    assert evaluated[0] == evaluated[1]
    assert read_records(run.metrics_path)[-1]["consumed"] == 400


def test_records_after_the_checkpoint_are_rewound(make_run):
    run = make_run()
    quiet(Regression(), run, budget=100, evaluate=evaluate, evaluate_every=50)
    quiet_learner = Regression()
    resume_from(run, quiet_learner)
    quiet(quiet_learner, run, budget=200, evaluate=evaluate, evaluate_every=50)
    shutil.rmtree(run.checkpoints.paths()[-1])
    learner = Regression()
    resume_from(run, learner)
    assert learner.consumed == 100
    assert max(r["consumed"] for r in read_records(run.metrics_path)) == 100
    assert [r["consumed"] for r in read_records(run.evaluations_path)] == [50, 100]
    assert [r["consumed"] for r in read_records(run.evaluations_path.with_name("rewound.jsonl"))] == [150, 200]


def test_a_run_without_checkpoint_starts_over(make_run):
    run = make_run()
    run.metrics_path.write_text('{"consumed": 30}\n')
    learner = Regression()
    assert not resume_from(run, learner)
    assert learner.consumed == 0
    assert read_records(run.metrics_path) == []


def test_a_learner_behind_the_checkpoint_is_rejected(make_run, tmp_path):
    (tmp_path / "my runs").mkdir()
    run = make_run("my runs/one")
    quiet(Regression(), run, budget=100)
    before = final_bytes(run)
    with pytest.raises(RunError, match=r"has a checkpoint at 100 but the learner is at 0; .*`operant resume '.*/one'`"):
        quiet(Regression(), run)
    assert final_bytes(run) == before


def test_a_checkpoint_of_another_configuration_is_rejected(make_run):
    run = make_run()
    quiet(Regression(), run)
    with pytest.raises(ValueError, match=r"'weight' has shape \(2, 3\) but \(2, 5\) is needed"):
        resume_from(run, Regression(size=5))


def test_a_learner_that_forgets_what_it_consumed_is_found_out(make_run):
    class Forgetful(Regression):
        def load_state_dict(self, state):
            super().load_state_dict(state | {"consumed": 0})

    run = make_run()
    quiet(Regression(), run)
    with pytest.raises(CheckpointError, match="contains a state at 0, expected 400"):
        resume_from(run, Forgetful())


def test_training_an_ended_run_again_changes_nothing(make_run):
    run = make_run()
    learner = Regression()
    quiet(learner, run, evaluate=evaluate)
    before = final_bytes(run), run.metrics_path.read_bytes(), run.evaluations_path.read_bytes()
    outcome = quiet(learner, run, evaluate=evaluate)
    assert outcome.seconds == 0
    assert (final_bytes(run), run.metrics_path.read_bytes(), run.evaluations_path.read_bytes()) == before


def test_two_trainers_in_one_process(make_run):
    run = make_run()
    with Run.open(run.path).lock(), pytest.raises(RunError, match="is being trained by process"):
        quiet(Regression(), run)


class Sick(Regression):
    """Learner whose loss is NaN from 200 on; its weights become NaN on request."""

    def __init__(self, ruin_weight):
        super().__init__()
        self.ruin_weight = ruin_weight

    def iterate(self):
        metrics = dict(super().iterate())
        if self.consumed > 200:
            metrics["losses/value"] = torch.tensor([0.0, math.nan])
            if self.ruin_weight:
                self.weight[1] = math.nan
        return metrics


def test_a_loss_that_stays_bad_ends_training(make_run):
    run = make_run()
    learner = Sick(ruin_weight=False)
    with pytest.raises(NonFiniteError, match="losses/value of seed 1"):
        quiet(learner, run, budget=10**6, checkpoint_seconds=0.0)
    assert learner.consumed == 300
    assert math.isnan(read_records(run.metrics_path)[-1]["losses/value"][1])


def test_a_run_that_drops_its_transitions_warns(caplog):
    class Dropping(Regression):
        def iterate(self):
            return {**super().iterate(), "health/dropped_transitions": torch.tensor([0, 8])}

    quiet(Dropping())
    assert "80 % of the latest transitions of seed 1" in caplog.text
    assert len(caplog.records) == 1


def test_a_run_that_skips_many_of_its_updates_warns(make_run, caplog):
    class Skipping(Regression):
        def iterate(self):
            updates = {"health/updates": torch.tensor([9, 9]), "health/skipped_updates": torch.tensor([0, 2])}
            if self.consumed % 20:  # not in a row, which would end training
                updates["health/skipped_updates"] = torch.tensor([0, 0])
            return {**super().iterate(), **updates}

    quiet(Skipping(), make_run())
    assert "11 % of the updates of seed 1 (counted from 0) were skipped" in caplog.text
    assert len(caplog.records) == 1


def test_the_last_healthy_checkpoint_survives(make_run):
    run = make_run()
    with pytest.raises(NonFiniteError, match="state entry /weight"):
        quiet(Sick(ruin_weight=True), run, checkpoint_seconds=0.0)
    learner = Regression()
    resume_from(run, learner)
    assert learner.consumed == 200
    assert torch.isfinite(learner.weight).all()
    assert [p.name for p in run.checkpoints.quarantine.iterdir()] == ["step_000000000210"]


def test_a_missed_checkpoint_is_counted_and_the_third_in_a_row_is_an_error(make_run, monkeypatch, caplog):
    run = make_run()
    usage = shutil.disk_usage(run.path)
    full = [False]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0) if full[0] else usage)

    class Filling(Regression):
        until = 50

        def iterate(self):
            metrics = super().iterate()
            full[0] = 20 < self.consumed < self.until
            return metrics

    with caplog.at_level(logging.WARNING):
        outcome = quiet(Filling(), run, checkpoint_seconds=0.0, budget=100)
    assert outcome.missed_checkpoints == 2
    assert "no checkpoint at 40" in caplog.text
    Filling.until = 1000
    run = Run.create(run.path.with_name("second"), run.settings, Config())
    with pytest.raises(CheckpointError, match=r"the state at 50 could not be saved .*step_000000000020"):
        quiet(Filling(), run, checkpoint_seconds=0.0, budget=100)
    assert run.checkpoints.latest()[1] == 20


def test_a_last_checkpoint_that_fails_is_an_error(make_run, monkeypatch):
    run = make_run()
    usage = shutil.disk_usage(run.path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(CheckpointError, match="free disk space"):
        quiet(Regression(), run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be at least 1, got 0"),
        ({"evaluate_every": -1}, "evaluate_every must be at least 1, got -1"),
        ({"seeds": -2}, "seeds"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        ({"checkpoint_seconds": math.nan}, "checkpoint_seconds"),
        ({"progress": "loud"}, "progress"),
    ],
)
def test_bad_arguments(options, message):
    learner = Regression()
    with pytest.raises(ValueError, match=message):
        quiet(learner, **options)
    assert learner.consumed == 0


def test_progress_shows_returns_and_evaluations(capsys):
    quiet(Regression(), progress="plain", evaluate=evaluate)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("Regression  100 %")
    assert "return -" in lines[-1]
    assert "eval -" in lines[-1]


def test_a_state_that_cannot_be_saved_is_rejected_at_the_start(make_run):
    class Odd(Regression):
        def state_dict(self):
            return super().state_dict() | {"odd": {1, 2}}

    learner = Odd()
    with pytest.raises(TypeError, match="state entry /odd is a set"):
        quiet(learner, make_run())
    assert learner.consumed == 0


def test_an_outcome_cannot_be_changed():
    outcome = quiet(Regression())
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.consumed = 3


def test_a_run_records_how_it_ended(make_run):
    run = make_run()
    assert run.outcome() == ("unfinished", "")
    train(Regression(), run, budget=100, interrupted=lambda: True)
    assert run.outcome() == ("interrupted", "")
    learner = Regression()
    resume_from(run, learner)
    train(learner, run, budget=100, evaluate=lambda _: Evaluation.of([[1.0], [float("nan")]]))
    assert run.outcome() == ("failed", "the score of seed 1 (counted from 0) is NaN")
    train(learner, run, budget=200)
    assert run.outcome() == ("finished", "")
    assert run.facts()["sessions"][-1]["consumed"] == 200

    class Broken(Regression):
        def iterate(self):
            raise ArithmeticError("no more")

    other = make_run("other")
    with pytest.raises(ArithmeticError):
        train(Broken(), other, budget=100)
    assert other.outcome() == ("failed", "ArithmeticError: no more")


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_whose_checkpoints_are_missing_does_not_start_over(make_run, whole):
    run = make_run()
    train(Regression(), run, budget=100)
    shutil.rmtree(run.checkpoints.folder)
    if not whole:
        run.checkpoints.folder.mkdir()
    again = Run.open(run.path)
    for attempt in (lambda: resume_from(again, Regression()), lambda: train(Regression(), again, budget=200)):
        with pytest.raises(RunError, match=r"checkpoints of .* are missing: .*Restore the folder"):
            attempt()
    assert read_records(run.metrics_path)[-1]["consumed"] == 100


def test_the_error_about_missing_checkpoints_names_another_state(make_run):
    run = make_run()
    train(Regression(), run, budget=100)
    spare = run.history.paths()[-1]
    shutil.rmtree(run.checkpoints.folder)
    with pytest.raises(RunError, match=re.escape(f"continue from {spare} (move it to {run.checkpoints.folder}), or")):
        Run.open(run.path).latest_checkpoint()


# The evaluation before the first update


def evaluated(run):
    return [r["consumed"] for r in read_records(run.evaluations_path)]


def test_the_start_is_evaluated_once_and_changes_nothing(make_run, capsys):
    plain, first = make_run("plain"), make_run("first")
    quiet(Regression(), plain, evaluate=evaluate, evaluate_every=200)
    options = {"evaluate": evaluate, "evaluate_every": 200, "evaluate_first": True}
    outcome = quiet(Regression(), first, interrupted=stop_after(12), **options)
    assert outcome.interrupted
    learner = Regression()
    assert resume_from(first, learner)
    quiet(learner, first, progress="plain", **options)
    assert evaluated(plain) == [200, 400]
    assert evaluated(first) == [0, 200, 400]
    assert final_bytes(plain) == final_bytes(first)
    assert f"(start {evaluate(Regression()).iqm:.4g})" in capsys.readouterr().err.splitlines()[-1]


def test_a_start_that_could_not_be_evaluated_is_made_up_for(make_run):
    def give_up(learner):
        raise StoppedError("stop")

    run = make_run()
    outcome = quiet(Regression(), run, evaluate=give_up, evaluate_first=True)
    assert (outcome.interrupted, outcome.consumed) == (True, 0)
    assert evaluated(run) == []
    learner = Regression()
    resume_from(run, learner)
    quiet(learner, run, evaluate=evaluate, evaluate_every=400, evaluate_first=True)
    assert evaluated(run) == [0, 400]


def test_samples_of_a_start_whose_evaluation_was_lost_are_written_again(make_run):
    run = make_run()
    run.samples_path.parent.mkdir(parents=True, exist_ok=True)
    run.samples_path.write_text('{"consumed": 0, "prompt": "1+1="}\n')
    resume_from(run, Regression())
    assert read_records(run.samples_path) == []


def test_a_score_below_the_start_is_warned_about_when_it_falls_and_at_the_end(make_run, caplog):
    def worse(learner):
        return Evaluation.of([[1.0 if learner.consumed in (0, 200) else i % 2 for i in range(40)]] * 2)

    run = make_run()
    options = {"evaluate": worse, "evaluate_every": 50, "evaluate_first": True}
    with caplog.at_level(logging.WARNING):
        quiet(Regression(), run, hints=Hints("examples", kept=True, advice="a smaller step"), **options)
    told = [record.message for record in caplog.records]
    assert len(told) == 3, "at 50, at 250 again, and at the end"
    assert told[0].startswith("eval 0.5 is below the start, 1 (-0.5, 99 % interval")
    assert told[2].endswith("the start is the best so far (saved: --best). Try a smaller step")


class Rewarded(Regression):
    """Learner whose reward rises while its score falls."""

    def iterate(self):
        own = {"reward": torch.tensor([0.1, 0.3]) * self.consumed, "rewards/model/mean": torch.tensor([0.1, 0.3])}
        return {"losses/value": super().iterate()["losses/value"]} | own


def test_a_reward_that_parts_from_the_score_is_named_once(make_run, caplog, capsys, monkeypatch):
    monkeypatch.setattr("operant.runtime.training.RECORD_SECONDS", 0.0)

    def worse(learner):
        return Evaluation.of([[1.0 if i >= learner.consumed // 25 else 0.0 for i in range(20)]] * 2)

    run = make_run()
    options = {"evaluate": worse, "evaluate_every": 50, "evaluate_first": True, "progress": "plain"}
    with caplog.at_level(logging.WARNING):
        quiet(Rewarded(), run, hints=Hints("examples"), **options)
    assert sum("reward hacking" in record.message for record in caplog.records) == 1
    assert "sampled reward (model) 7" in capsys.readouterr().err
    with caplog.at_level(logging.WARNING):
        learner = Rewarded()
        resume_from(run, learner)
        caplog.clear()
        quiet(learner, run, budget=450, **options)
    assert sum("reward hacking" in record.message for record in caplog.records) == 1, "earlier rewards count, too"
