import shutil

import pytest

import operant
from operant.runtime.callback_files import callbacks_of
from operant.runtime.callbacks import Callback
from operant.runtime.inputs import digest
from operant.runtime.metrics import read_records
from operant.runtime.run import Run, RunError

STOP = """\
from dataclasses import dataclass

import operant


@dataclass
class Stop(operant.Callback):
    evaluations: int = 2
    seen: int = 0

    def on_start(self, run):
        with (run.path / "started").open("a") as file:
            file.write("x")

    def on_evaluation(self, record):
        self.seen += 1

    def should_stop(self, consumed):
        return self.seen >= self.evaluations


def make(evaluations):
    return Stop(evaluations)


number = 3


def nothing():
    return None


class Other:
    pass
"""
SMALL = {"num_envs": 2, "num_steps": 25, "num_minibatches": 2, "num_epochs": 1, "hidden_sizes": (8,)}
QUICK = {"budget": 400, "evaluate_every": 100, "evaluate_episodes": 2, "progress": "silent", **SMALL}


def train(folder, **options):
    return operant.train("ppo", "CartPole-v1", run=folder, **{"seeds": 2, **QUICK, **options})


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "stop.py").write_text(STOP)
    monkeypatch.chdir(folder)
    return folder


def test_a_class_or_a_function_in_a_file_makes_one(home):
    first, second, third, own = callbacks_of(
        ["stop.py:Stop", "stop.py:Stop(evaluations=7, seen=-1)", f"{home / 'stop.py'}:make(evaluations=4)", Callback()]
    )
    assert (first.evaluations, second.evaluations, second.seen, third.evaluations) == (2, 7, -1, 4)
    assert type(first) is type(second) is type(third)
    assert type(own) is Callback


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("stop.py:Stop", "callbacks must be a list .* got 'stop.py:Stop'"),
        (3, "callbacks must be a list .* got 3"),
        ([3], "must be an instance of a subclass of operant.Callback, .* got 3"),
        (["Stop"], r"'Stop' names nothing: expected a subclass of operant.Callback"),
        (["stop.py:Stop("], r"expected a name with parameters or without, .* got 'stop.py:Stop\('"),
        (["none.py:Stop"], "there is no file .*none.py to take Stop from; did you mean"),
        (["stop.py:Stopp"], "stop.py has no 'Stopp', expected a subclass of operant.Callback.*; did you mean Stop"),
        (["stop.py:number"], "number in stop.py is 3, of type int, expected a subclass of operant.Callback"),
        (["stop.py:make"], r"'stop.py:make' cannot be called: missing a required argument: 'evaluations'"),
        (["stop.py:Stop(2)"], "parameters are given by name"),
        (["stop.py:Stop(seen=open('x'))"], r"such as my.py:Bonus\(scale=0.1\), got"),
        (["stop.py:Stop(seen=)"], r"such as my.py:Bonus\(scale=0.1\), got"),
        (["stop.py:nothing"], "must be or return an operant.Callback, got None: inherit from that class"),
        (["stop.py:Other"], "must be or return an operant.Callback, got an object of Other"),
        (["broken.py:Stop"], "broken.py.* line 2.*: ZeroDivisionError: division by zero"),
        (["torn.py:Stop"], "torn.py, line 1: "),
    ],
)
def test_invalid_callbacks_are_rejected_before_anything_is_written(home, given, message):
    (home / "broken.py").write_text("\n1 / 0\n")
    (home / "torn.py").write_text("class Stop(\n")
    with pytest.raises(ValueError, match=message):
        train(home / "run", callbacks=given)
    assert not (home / "run").exists()


def test_a_run_calls_again_what_it_was_made_with(home, tmp_path, monkeypatch):
    trained = train(home / "run", callbacks=(text for text in ["stop.py:Stop(evaluations=1)"]))
    assert trained.outcome.consumed == 100
    assert trained.outcome.stopped_by == "callback Stop"
    run = Run.open(home / "run")
    assert run.settings.callbacks == (f"{home / 'stop.py'}:Stop(evaluations=1)",)
    (record,) = run.facts()["inputs"]
    assert (record["name"], record["path"]) == ("callbacks", str(home / "stop.py"))
    monkeypatch.chdir(tmp_path)
    assert operant.resume(home / "run", progress="silent").outcome.consumed == 200
    home.rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "run"
    again = operant.resume(moved, progress="silent", callbacks=[Callback()])
    assert again.outcome.consumed == 300
    assert (moved / "started").read_text() == "xxx"
    assert len(read_records(moved / "eval" / "evaluations.jsonl")) == 3


def test_a_changed_file_matters_to_resume_alone(home, caplog):
    train(home / "run", callbacks=["stop.py:Stop(evaluations=1)"])
    shutil.copytree(home / "run", home / "whole")
    (home / "stop.py").write_text(STOP.replace('"x"', '"y"'))
    assert operant.load(home / "run").evaluate(2).episodes == 2
    assert caplog.records == []
    with pytest.raises(RunError, match=r"callbacks .*stop.py has changed.*accept_changes=True"):
        operant.resume(home / "run", progress="silent")
    operant.resume(home / "run", progress="silent", accept_changes=True)
    assert (home / "run" / "started").read_text() == "xy"
    operant.resume(home / "run", progress="silent")
    (home / "stop.py").unlink()
    with pytest.raises(RunError, match="is missing"):
        operant.resume(home / "run", progress="silent")
    assert operant.resume(home / "run", progress="silent", accept_changes=True).outcome.consumed == 400
    assert any("is missing; training continues without it" in record.getMessage() for record in caplog.records)


def test_a_resumed_run_names_the_callbacks_that_it_does_not_call(home, caplog):
    class Watching(Callback):
        pass

    train(home / "run", callbacks=[Watching(), "stop.py:Stop(evaluations=1)"])
    name = Watching.__qualname__
    assert Run.open(home / "run").facts()["sessions"][-1]["callbacks"] == [name]
    operant.resume(home / "run", progress="silent", callbacks=[Watching()])
    assert not caplog.records
    operant.resume(home / "run", progress="silent")
    assert f"the callback {name} was a Python object" in caplog.text
    assert "callbacks" not in Run.open(home / "run").facts()["sessions"][-1]


def test_a_run_does_not_begin_otherwise_because_a_callback_of_its_teacher_changed(home):
    train(home / "first", callbacks=["stop.py:Stop"])
    before = digest(home / "first")
    (home / "stop.py").write_text(STOP + "\n")
    assert digest(home / "first") == before
