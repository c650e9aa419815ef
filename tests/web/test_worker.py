import io
import json

import pytest

from operant.envs.adapter import RestoreError
from operant.envs.workers import EnvError, WorkerError
from operant.language.preferences import ConflictError, StoreError
from operant.runtime.checkpoints import CheckpointError, DamagedError
from operant.runtime.run_paths import RunError, TakenError
from operant.runtime.time_travel import DivergedError
from operant.web import worker
from operant.web.workers import HEADER

EXPLAINED = (
    *(RunError, TakenError, DivergedError, CheckpointError, DamagedError, StoreError, ConflictError),
    *(EnvError, RestoreError, WorkerError),
)


def call(tmp_path, name, **arguments):
    status, body = worker.answer(tmp_path, json.dumps([name, arguments]).encode())
    return status, json.loads(body)


def test_a_function_is_called(tmp_path):
    status, found = call(tmp_path, "playground.read", drawing="S.G")
    assert status == 200
    assert found["cells"] == [["S", ".", "G"]]


@pytest.mark.parametrize(
    ("name", "arguments", "status", "message"),
    [
        ("playground.nothing", {}, 404, "unknown function playground.nothing"),
        ("playground.read", {}, 400, "missing a required argument: 'drawing'"),
        ("playground.read", {"drawing": "S", "other": 1}, 400, "unexpected keyword argument 'other'"),
        ("playground.read", {"drawing": "S?G"}, 400, "line 1, column 2"),
        ("playground.read", {"drawing": 3}, 400, "playground.read: drawing must be str, got 3"),
        ("playground.exact", {"drawing": "S.G", "gamma": None}, 400, "gamma must be float, got None"),
        (
            "playground.frames",
            {"drawing": "S.G", "algorithm": "q-learning", "gamma": 1, "seed": 1.5},
            400,
            "seed must be int",
        ),
        (
            "playground.frames",
            {"drawing": "S.G", "algorithm": "dyna-q", "gamma": 1, "planning_steps": 10**9},
            400,
            "planning_steps must be at most 50, got 1000000000",
        ),
        ("runs.compare", {"names": None}, 400, "names must be list[str], got None"),
        ("runs.compare", {"names": ["a", 3]}, 400, "names must be list[str], got ['a', 3]"),
        ("runs.compare", {"names": ["a"], "metric": 5}, 400, "metric must be str | None, got 5"),
        ("explorables.draw", {"explorable": "gae", "values": [1]}, 400, "values must be dict[str, float], got [1]"),
        ("runs.curves", {"names": "a"}, 400, "names must be list[str], got 'a'"),
        ("runs.curves", {"names": [None]}, 400, "names must be list[str], got [None]"),
        ("labels.following", {"run": "a", "annotator": 3}, 400, "annotator must be str, got 3"),
        ("travel.go", {"run": "a", "at": 1.5}, 400, "at must be int, got 1.5"),
        ("travel.go", {"run": "a", "at": True}, 400, "at must be int, got True"),
        ("travel.batch", {"run": "a", "at": "3"}, 400, "at must be int | None, got '3'"),
        ("travel.batch", {"run": "a", "environment": True}, 400, "environment must be int, got True"),
        (
            "chat.answer",
            {"model": "m", "prompt": "a", "before": [None]},
            400,
            "before must be list[dict[str, str]], got [None]",
        ),
        (
            "chat.answer",
            {"model": "m", "prompt": "a", "before": [{"prompt": 3}]},
            400,
            "before must be list[dict[str, str]], got [{'prompt': 3}]",
        ),
        (
            "chat.answer",
            {"model": "m", "prompt": "a", "before": [], "top_p": True},
            400,
            "top_p must be float, got True",
        ),
        ("chat.answer", {"model": "m", "prompt": 3, "before": []}, 400, "prompt must be str, got 3"),
        ("chat.answer", {"model": "m", "prompt": "a", "before": [], "seed": 0.5}, 400, "seed must be int, got 0.5"),
        (
            "travel.go",
            {"run": "a", "at": 1, "way": "up"},
            400,
            "way must be Literal['to', 'back', 'confirm'], got 'up'",
        ),
    ],
)
def test_errors_are_reported(tmp_path, name, arguments, status, message):
    found, answer = call(tmp_path, name, **arguments)
    assert found == status
    assert message in answer["error"]


def broken(runs):
    return {"number": 1 / 0}


def test_an_internal_error_is_reported_and_the_worker_continues(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(worker, "FUNCTIONS", {**worker.FUNCTIONS, "broken": f"{__name__}:broken"})
    lines = b"".join(
        json.dumps(call).encode() + b"\n" for call in (["broken", {}], ["playground.read", {"drawing": "S.G"}])
    )
    answers = io.BytesIO()
    worker.run(tmp_path, io.BytesIO(lines), answers)
    answers.seek(0)
    found = []
    while head := answers.read(HEADER.size):
        status, length = HEADER.unpack(head)
        found.append((status, json.loads(answers.read(length))))
    assert [status for status, _ in found] == [500, 200]
    assert "Error" in found[0][1]["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_run_without_its_files_is_not_found_and_is_no_internal_error(tmp_path, capsys, monkeypatch):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_text('[settings]\nalgorithm = "q-learning"\n', encoding="utf-8")
    status, found = call(tmp_path, "runs.show", run="half")
    assert (status, found["error"]) == (404, f"{tmp_path / 'half' / 'run.json'} does not exist")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(worker, "FUNCTIONS", {**worker.FUNCTIONS, "missing": f"{__name__}:missing"})
    assert call(tmp_path, "missing")[0] == 500, "a file of the library"


def missing(runs):
    return runs.with_name("elsewhere").read_text()


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'["playground.read"]'])
def test_a_line_that_is_no_call(tmp_path, line):
    assert worker.answer(tmp_path, line)[0] == 400


@pytest.mark.parametrize("kind", [*EXPLAINED, ModuleNotFoundError], ids=lambda kind: kind.__name__)
def test_explained_errors_are_shown_without_their_type(tmp_path, capsys, monkeypatch, kind):
    def fail(runs):
        raise kind("the reason")

    monkeypatch.setattr(worker, "FUNCTIONS", {"fail": f"{__name__}:fail"})
    monkeypatch.setitem(globals(), "fail", fail)
    assert call(tmp_path, "fail") == (409, {"error": "the reason"})
    assert capsys.readouterr().err == ""


def test_values_of_calls_are_compared_with_annotations():
    fitting = [
        (1, float),
        ([1, None, 2.5, True], list[float]),
        ({"a": [0.5]}, dict[str, list[float]]),
        (None, int | None),
    ]
    for value, kind in fitting:
        assert worker._fits(value, kind), (value, kind)
    for value, kind in [
        (1.0, int),
        (True, int),
        ("1", float),
        ([1], dict[str, float]),
        ({}, str),
        (None, str),
        (["a"], list[int]),
        (True, float),
        ([None], list[str]),
        ([True], list[int]),
    ]:
        assert not worker._fits(value, kind), (value, kind)
