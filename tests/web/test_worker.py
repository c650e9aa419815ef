import io
import json

import pytest

from operant.web import worker
from operant.web.workers import HEADER


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
    ],
)
def test_errors_are_reported(tmp_path, name, arguments, status, message):
    found, answer = call(tmp_path, name, **arguments)
    assert found == status
    assert message in answer["error"]


def test_an_internal_error_is_reported_and_the_worker_continues(tmp_path, capsys):
    lines = b"".join(
        json.dumps(call).encode() + b"\n"
        for call in (["playground.read", {"drawing": 3}], ["playground.read", {"drawing": "S.G"}])
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


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'["playground.read"]'])
def test_a_line_that_is_no_call(tmp_path, line):
    assert worker.answer(tmp_path, line)[0] == 400


def test_numbers_that_json_lacks_become_null():
    assert worker._plain({"a": [float("nan"), 1.0, (float("inf"),)]}) == {"a": [None, 1.0, [None]]}
