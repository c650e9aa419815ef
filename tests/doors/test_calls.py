import json
import types

import pytest

from operant import doors
from operant.doors import Call, DoorError


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("my.py:Bonus", "my.py:Bonus", {}),
        ("a (b)/my.py:Bonus(scale=-0.1, kind='count:3', sizes=[1, 2])", "a (b)/my.py:Bonus", None),
        ("pack.age:Bonus()", "pack.age:Bonus", {}),
        ("its-bonus(n=3)", "its-bonus", {"n": 3}),
    ],
)
def test_a_name_may_have_parameters(text, name, parameters):
    found = Call.of(text)
    expected = {"scale": -0.1, "kind": "count:3", "sizes": [1, 2]} if parameters is None else parameters
    assert (found.name, found.parameters) == (name, expected)


@pytest.mark.parametrize("text", ["", "my.py:Bonus(", "my.py:Bonus(3)", "my.py:Bonus(x=y)", "my.py:Bonus(**{})", "a b"])
def test_invalid_calls_are_rejected(text):
    with pytest.raises(
        DoorError, match=r"expected a name with parameters or without, such as my\.py:Bonus\(scale=0\.1\)"
    ):
        Call.of(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rnd(weight=0.1), icm(weight=1)", "one name"),
        ("rnd(weight=0.1)(weight=1)", "got"),
        ("rnd(weight=0.1, weight=1)", "each once"),
        ("rnd(episodic=true)", "episodic=true is no value: put texts in quotes, and write True"),
        ("rnd(channel=other, weight=1)", "channel=other is no value: put texts in quotes"),
    ],
)
def test_several_calls_in_a_text_and_repeated_parameters_are_rejected(text, reason):
    with pytest.raises(DoorError, match=reason):
        Call.of(text)


def test_parameters_are_bound_to_what_is_found():
    assert Call.of("json:dumps(indent=1)").load(expected="a function")([1]) == "[\n 1\n]"
    assert Call.of("json:dumps").load(expected="a function")([1]) == "[1]"


def test_the_place_of_an_error_is_the_last_line_of_the_users_file(file_of_errors):
    for name, line in (("direct", 2), ("indirect", 8)):
        with pytest.raises((ZeroDivisionError, json.JSONDecodeError)) as caught:
            getattr(file_of_errors, name)()
        assert doors.place_of_error(caught.value, __file__) == f"{file_of_errors.__file__}, line {line}"
    with pytest.raises(ValueError, match="here") as caught:
        raise ValueError("in the calling file, here")
    assert doors.place_of_error(caught.value, __file__) == ""


@pytest.fixture
def file_of_errors(tmp_path):
    path = tmp_path / "errors.py"
    path.write_text("def direct():\n    1 / 0\n\n\nimport json\n\n\ndef indirect(): return json.loads('{')\n")
    module = types.ModuleType("errors")
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))  # noqa: S102 - as an import
    return module
