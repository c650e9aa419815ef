import pytest

from operant import doors

ONE, TEN = object(), object()


def load(name):
    return doors.load(name, expected="an object", accepts=lambda _: True)


def test_every_run_has_its_own_objects():
    tables = {}
    for run, thing in (("/own/one", ONE), ("/own/ten", TEN)):
        doors.bind(run, ["thing_1"], {"thing_1": thing})
        tables[run] = doors.bound({"task": "object:thing_1", "rewards": ["exact", "object:thing_1"], "seeds": [0]}, run)
    assert [load(table["task"]) for table in tables.values()] == [ONE, TEN]
    assert load(tables["/own/ten"]["rewards"][1]) is TEN
    assert doors.label(tables["/own/ten"]["task"]) == "thing_1"
    assert doors.unbound(tables["/own/one"]) == doors.unbound(tables["/own/ten"])
    doors.bind("/own/one", ["thing_1"], {"thing_1": TEN})
    assert load(tables["/own/one"]["task"]) is ONE  # what was loaded before keeps its object


def test_objects_that_were_passed_before_need_not_be_passed_again():
    doors.bind("/own/two", ["a", "b"], {"a": ONE, "b": ONE})
    doors.bind("/own/two", ["a", "b"], {"b": TEN})
    table = doors.bound({"a": "object:a", "b": "object:b"}, "/own/two")
    assert [load(name) for name in table.values()] == [ONE, TEN]


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ({"nope": 1}, r"/own/three needs no object 'nope'; it needs thing_1, other_2"),
        ({"thing_1": 1}, r"object:other_2 was passed as a Python object.*objects=\{'other_2': \.\.\.\}"),
        ({}, r"object:thing_1, object:other_2 was passed as a Python object"),
    ],
)
def test_a_missing_or_unknown_object_is_named(objects, said):
    with pytest.raises(doors.DoorError, match=said):
        doors.bind("/own/three", ["thing_1", "other_2"], objects)


def test_held_objects_are_never_replaced():
    name = doors.hold(ONE)
    assert doors.hold(TEN) != name
    assert load(name) is ONE
    assert doors.named(doors.bound({"a": "object:a"}, "/own/two")["a"]) == name
