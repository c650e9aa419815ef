import json
import subprocess
import sys

import pytest

from operant.language import sandbox_worker
from operant.language.sandbox_worker import answer, load


def test_answers_are_lines_of_json():
    assert answer(lambda x, y: x + y, {"args": [1], "kwargs": {"y": 2}}) == '{"id": 0, "result": 3}'
    assert json.loads(answer(lambda: "a\nb", {"args": [], "kwargs": {}})) == {"id": 0, "result": "a\nb"}
    assert "\n" not in answer(lambda: "a\nb", {"args": [], "kwargs": {}})


def test_exceptions_become_answers():
    reply = json.loads(answer(lambda: 1 / 0, {"args": [], "kwargs": {}}))
    assert reply["error"].startswith(f"ZeroDivisionError: division by zero ({__file__}, line ")
    assert "\n" not in reply["error"]
    assert reply["traceback"].endswith("ZeroDivisionError: division by zero\n")

    def hog():
        raise MemoryError

    assert json.loads(answer(hog, {"id": 7, "args": [], "kwargs": {}})) == {"id": 7, "memory": "ran out of memory"}


def test_results_that_json_cannot_represent_are_named_with_the_function():
    def lazily(completions):
        return (1.0 for _ in completions)

    def mixed(completions):
        return [1.0, object()]

    place = f"({__file__}, line "
    call = {"args": [], "kwargs": {"completions": ["a", "b"], sandbox_worker.TRAINER_KEY: {}}}
    reply = json.loads(answer(lazily, call))
    assert reply.keys() == {"id", "invalid"}
    assert reply["invalid"].startswith(f"must return a list of 2 rewards, got a generator {place}")
    assert json.loads(answer(mixed, call))["invalid"].startswith("must return a list of 2 rewards, got a object: <obj")
    reply = json.loads(answer(lambda: {1}, {"args": [], "kwargs": {}}))
    assert reply["invalid"].startswith(f"must return numbers, strings, lists and None, got a set: {{1}} {place}")


def test_functions_are_loaded_from_modules_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load("math:sqrt")(4.0) == 2.0
    (tmp_path / "helper_beside_it.py").write_text("ONE = 1\n")
    (tmp_path / "json.py").write_text("from helper_beside_it import ONE\nvalue = 3\ndef f(x): return x + ONE\n")
    assert load(f"{tmp_path}/json.py:f")(1) == 2
    assert sys.modules["json"] is json
    with pytest.raises(TypeError, match=r"value in .* is 3, not a function"):
        load(f"{tmp_path}/json.py:value")
    (tmp_path / "scorer.py").write_text("class Scorer:\n    def __call__(self, x): return [x]\nreward = Scorer()\n")
    assert load(f"{tmp_path}/scorer.py:reward")(1) == [1]
    with pytest.raises(
        TypeError, match=r"Scorer in .* is a class: name an instance of it, such as `reward = Scorer\(\)`"
    ):
        load(f"{tmp_path}/scorer.py:Scorer")
    with pytest.raises(AttributeError, match="nothing"):
        load(f"{tmp_path}/json.py:nothing")


def test_the_script_answers_line_by_line_and_ends_with_its_input():
    calls = [{"id": i, "args": [x], "kwargs": {}, "seconds": 1.0} for i, x in enumerate((4.0, -1.0, 9.0), 1)]
    result = subprocess.run(
        [sys.executable, "-P", sandbox_worker.__file__, "math:sqrt", "0"],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, two, wrong, three = map(json.loads, result.stdout.splitlines())
    assert (first, two, three) == ({"id": 0, "result": True}, {"id": 1, "result": 2.0}, {"id": 3, "result": 3.0})
    assert "ValueError" in wrong["error"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such alarm")
def test_a_worker_without_a_parent_ends_itself(tmp_path):
    (tmp_path / "hang.py").write_text("def f():\n    while True: pass\n")
    call = json.dumps({"args": [], "kwargs": {}, "seconds": 0.2 - sandbox_worker.GRACE})
    result = subprocess.run(
        [sys.executable, "-P", sandbox_worker.__file__, f"{tmp_path}/hang.py:f", "0"],
        input=call + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode < 0
