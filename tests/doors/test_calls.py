import pytest

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
    ],
)
def test_several_calls_in_a_text_and_repeated_parameters_are_rejected(text, reason):
    with pytest.raises(DoorError, match=reason):
        Call.of(text)


def test_parameters_are_bound_to_what_is_found():
    assert Call.of("json:dumps(indent=1)").load(expected="a function")([1]) == "[\n 1\n]"
    assert Call.of("json:dumps").load(expected="a function")([1]) == "[1]"
