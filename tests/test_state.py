from typing import NamedTuple

import numpy as np
import pytest
import torch

from operant.state import (
    DeclaredState,
    MissingError,
    Part,
    Resumable,
    StateError,
    all_or_nothing,
    clone,
    copy_into,
    copy_named,
    generator_state,
    load_part,
    restore,
    save,
    set_generator_state,
)


def tensors(state):
    """Yield the tensors of a state."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, list):
        for value in state:
            yield from tensors(value)


def test_copy_into_keeps_views_valid():
    target = torch.zeros(2, 3)
    row, reshaped = target[1], target.view(6)
    copy_into(target, torch.arange(6.0).view(2, 3), "x")
    assert row.tolist() == [3, 4, 5]
    assert reshaped.tolist() == [0, 1, 2, 3, 4, 5]


def test_copy_into_takes_no_part_of_the_source():
    target, source = torch.zeros(2), torch.ones(2)
    copy_into(target, source, "x")
    source.fill_(5)
    assert target.tolist() == [1, 1]


def test_copy_into_works_on_parameters_that_require_gradients():
    target = torch.zeros(2, requires_grad=True)
    copy_into(target, torch.ones(2), "x")
    assert target.tolist() == [1, 1]
    assert target.is_leaf


def test_copy_into_casts_to_the_dtype_of_the_target():
    target = torch.zeros(2, dtype=torch.float64)
    copy_into(target, torch.ones(2), "x")
    assert target.dtype is torch.float64


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 2), ()])
def test_copy_into_rejects_another_shape_even_if_it_broadcasts(shape):
    target = torch.zeros(2)
    with pytest.raises(ValueError, match=r"state entry 'moments' has shape .* but \(2,\) is needed: .*configuration"):
        copy_into(target, torch.ones(shape), "moments")
    assert target.tolist() == [0, 0]


def test_tensors_are_copied_by_name():
    targets = {"a": torch.zeros(2), "b": torch.zeros(1, requires_grad=True)}
    first = targets["a"]
    copy_named(targets, {"b": torch.ones(1), "a": torch.tensor([2.0, 3.0])}, of="model")
    assert first.tolist() == [2, 3]
    assert targets["b"].tolist() == [1]


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "c")])
def test_tensors_of_other_names_are_rejected_before_any_is_copied(names):
    targets = {"a": torch.zeros(2), "b": torch.zeros(2)}
    first = min({"a", "b"} ^ set(names))
    message = (
        f"the state and the critic differ in trained parameters, first in '{first}': load it with the --rank of the run"
    )
    with pytest.raises(ValueError, match=message):
        copy_named(targets, {name: torch.ones(2) for name in names}, of="critic", options="--rank")
    assert targets["a"].tolist() == [0, 0]


def test_a_generator_continues_where_it_was_saved():
    generator = torch.Generator().manual_seed(0)
    torch.randn(5, generator=generator)
    state = generator_state(generator)
    expected = torch.randn(7, generator=generator)
    other = torch.Generator().manual_seed(1)
    set_generator_state(other, state)
    assert torch.equal(torch.randn(7, generator=other), expected)
    set_generator_state(other, state)
    assert torch.equal(torch.randn(7, generator=other), expected), "drawing must not change the saved state"
    assert state.dtype is torch.uint8


@pytest.mark.parametrize("size", [16, 44])
def test_the_state_of_another_device_s_generator_seeds_this_one(size):
    states = [torch.arange(size, dtype=torch.uint8) + number for number in (0, 0, 1)]
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    for generator, state in zip(generators, states, strict=True):
        set_generator_state(generator, state)
    first, same, other = (torch.randn(7, generator=generator) for generator in generators)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_clone_copies_values_and_structure():
    state = {"a": torch.arange(3), "b": [1, 2.5, None, True, "x", {"c": torch.ones(2, requires_grad=True)}], "d": (1,)}
    copy = clone(state)
    assert copy["a"].tolist() == [0, 1, 2]
    assert copy["b"][:5] == [1, 2.5, None, True, "x"]
    assert copy["d"] == [1]
    assert not copy["b"][5]["c"].requires_grad


def test_clone_shares_nothing():
    base = torch.arange(6.0)
    state = {"a": base, "b": [base[2:], {"c": base}]}
    copy = clone(state)
    base.fill_(-1)
    state["b"].append(1)
    assert copy["a"].tolist() == [0, 1, 2, 3, 4, 5]
    assert copy["b"][0].tolist() == [2, 3, 4, 5]
    assert len(copy["b"]) == 2
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors(copy)}) == 3


def test_a_copy_of_a_part_keeps_its_mark():
    mark = object()
    original = {"parts": [Part({"x": torch.ones(2)}, mark=mark), {"x": torch.ones(2)}]}
    copied = clone(original)
    part, plain = copied["parts"]
    assert isinstance(part, Part)
    assert part.mark is mark
    assert type(plain) is dict
    original["parts"][0]["x"].zero_()
    assert part["x"].tolist() == [1, 1]


class Pair:
    """Two numbers, the second of which must be positive."""

    def __init__(self, first, second):
        self.first, self.second = first, second

    def state_dict(self):
        return {"first": self.first, "second": self.second}

    @all_or_nothing
    def load_state_dict(self, state):
        """Load."""
        self.first = state["first"]
        if state["second"] <= 0:
            raise ValueError(f"second must be positive, got {state['second']}")
        self.second = state["second"]


class Triple(Pair):
    """Subclass with one more number in its state."""

    third = 3

    def state_dict(self):
        return {**super().state_dict(), "third": self.third}

    @all_or_nothing
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.third = state["third"]


def test_a_good_state_is_loaded():
    pair = Pair(1, 2)
    pair.load_state_dict({"first": 5, "second": 6})
    assert pair.state_dict() == {"first": 5, "second": 6}


def test_a_bad_state_is_rejected_as_a_whole_with_its_own_error():
    pair = Pair(1, 2)
    with pytest.raises(ValueError, match=r"^second must be positive, got -6$"):
        pair.load_state_dict({"first": 5, "second": -6})
    assert pair.state_dict() == {"first": 1, "second": 2}


@pytest.mark.parametrize(
    ("state", "error"), [({"first": 5, "second": 6}, KeyError), ({"first": 5, "second": 0, "third": 7}, ValueError)]
)
def test_state_loaded_by_a_parent_class_is_restored_too(state, error):
    triple = Triple(1, 2)
    with pytest.raises(error):
        triple.load_state_dict(state)
    assert triple.state_dict() == {"first": 1, "second": 2, "third": 3}


def test_the_method_keeps_its_name_and_its_words():
    assert Pair.load_state_dict.__name__ == "load_state_dict"
    assert Pair.load_state_dict.__doc__ == "Load."


class Inner(NamedTuple):
    words: np.ndarray
    steps: np.ndarray


class Outer(NamedTuple):
    inner: Inner
    flags: np.ndarray
    rate: float = 0.5


class Child(DeclaredState):
    STATE = ("weight",)

    def __init__(self, width=2):
        self.weight = torch.zeros(width)


class Owner(Resumable):
    """State with one part of every kind."""

    STATE = ("count", "plain", "nothing", ("weight", "child.weight"), "streams", "parts", "array", "record", "child")

    def __init__(self, width=2, streams=2, **parts):
        self.count, self.plain, self.nothing = 0, {"best": [1.5, None], "name": "x"}, None
        self.child = Child(width)
        self.streams = [torch.Generator().manual_seed(seed) for seed in range(streams)]
        self.parts = {"a": torch.zeros(2), "b": Child(), **parts}
        self.array = np.zeros(2)
        self.record = Outer(Inner(np.array([2**64 - 1, 3], np.uint64), np.zeros((2, 2))), np.array([True]))

    def move(self):
        """Change every part."""
        self.count, self.plain, self.nothing = 3, {"best": [], "name": "y"}, [1]
        for tensor in (self.child.weight, self.parts["a"], self.parts["b"].weight):
            tensor.add_(2)
        for stream in self.streams:
            torch.rand(3, generator=stream)
        self.array += 1
        self.record.inner.words[0] = 7


def test_a_state_has_the_entries_that_are_declared_in_their_order():
    state = Owner().state_dict()
    assert list(state) == ["count", "plain", "nothing", "weight", "streams", "parts", "array", "record", "child"]
    assert state["child"].keys() == {"weight"}
    assert state["record"].keys() == {"inner", "flags"}, "what does not change is configuration"
    assert state["record"]["inner"]["words"].tolist() == [-1, 3], "safetensors stores the words as signed integers"
    assert [stream.dtype for stream in state["streams"]] == [torch.uint8] * 2


def test_every_kind_of_part_comes_back():
    moved, fresh = Owner(), Owner()
    moved.move()
    held = fresh.child.weight, fresh.parts, fresh.parts["a"], fresh.streams
    fresh.load_state_dict(moved.state_dict())
    assert (fresh.count, fresh.plain, fresh.nothing) == (3, {"best": [], "name": "y"}, [1])
    assert fresh.record.inner.words.tolist() == [7, 3]
    assert fresh.record.inner.words.dtype == np.uint64
    assert fresh.record.rate == 0.5
    assert fresh.array.tolist() == [1, 1]
    assert held == (fresh.child.weight, fresh.parts, fresh.parts["a"], fresh.streams), "tensors stay the same objects"
    assert held[0].tolist() == held[2].tolist() == fresh.parts["b"].weight.tolist() == [2, 2]
    drawn = [[torch.rand(1, generator=stream).item() for stream in owner.streams] for owner in (moved, fresh)]
    assert drawn[0] == drawn[1]


def test_a_part_may_be_nothing_again():
    moved, fresh = Owner(), Owner()
    moved.move()
    moved.load_state_dict(fresh.state_dict())
    assert moved.nothing is None


def test_a_learner_s_state_is_a_copy_and_a_part_s_is_not():
    owner = Owner()
    owner.move()
    state, part = owner.state_dict(), owner.child.state_dict()
    owner.move()
    assert state["weight"].tolist() == [2, 2]
    assert state["plain"]["best"] is not owner.plain["best"]
    assert part["weight"] is owner.child.weight


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("count",), "many", "'count' is a string but a number is needed"),
        (("count",), torch.zeros(2), "'count' is a Tensor but a number is needed"),
        (("weight",), 1.0, "'weight' is a number but a tensor is needed"),
        (("weight",), torch.zeros(3), r"'weight' has shape \(3,\) but \(2,\) is needed"),
        (("nothing",), torch.zeros(3), "'nothing' is a Tensor but None is needed"),
        (("streams",), [torch.zeros(1)], "'streams' has 1 parts but 2 are needed"),
        (("streams",), 5, "'streams' is a number but a list is needed"),
        (("parts", "a"), torch.zeros(1), r"'parts\.a' has shape \(1,\) but \(2,\) is needed"),
        (("parts", "b", "weight"), torch.zeros(1), r"'parts\.b\.weight' has shape \(1,\) but \(2,\) is needed"),
        (("parts", "c"), 5, r"'parts\.c' is unknown here"),
        (("record", "inner", "steps"), torch.zeros(2, 3), r"'record\.inner\.steps' has shape \(2, 3\) but \(2, 2\)"),
        (("array",), torch.zeros(3), r"'array' has shape \(3,\) but \(2,\) is needed"),
        (("child",), 5, "'child' is a number but a dict is needed"),
        (("more",), 5, "'more' is unknown here"),
    ],
)
def test_a_state_that_does_not_fit_is_rejected_by_the_name_of_the_part(path, value, message):
    owner, other = Owner(), Owner()
    other.move()
    state, before = other.state_dict(), owner.state_dict()
    *outer, last = path
    inner = state
    for name in outer:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(StateError, match=rf"state entry {message}.*: the state was saved by a different configuration"):
        owner.load_state_dict(state)
    assert str(owner.state_dict()) == str(before), "the parts before the failure are unchanged"


@pytest.mark.parametrize("path", [("count",), ("parts", "a"), ("parts", "b", "weight"), ("record", "inner", "steps")])
def test_a_state_that_lacks_a_part_is_rejected_by_its_name(path):
    owner = Owner()
    state = owner.state_dict()
    *outer, last = path
    inner = state
    for name in outer:
        inner = inner[name]
    del inner[last]
    with pytest.raises(MissingError, match=rf"state entry '{'.'.join(path)}' is missing"):
        owner.load_state_dict(state)


def test_unsupported_types_are_rejected_by_name():
    with pytest.raises(
        TypeError, match=r"state entry 'parts\.odd' is a set, which cannot be saved; give it state_dict"
    ):
        Owner(odd={1}).state_dict()


def test_an_array_grows_only_where_it_may():
    inner = Inner(np.zeros(2, np.uint64), np.zeros((2, 2)))
    state = save(Inner(np.zeros(2, np.uint64), np.ones((2, 3))))
    with pytest.raises(StateError, match=r"'agent\.steps' has shape \(2, 3\) but \(2, 2\) is needed"):
        restore(inner, state, "agent")
    grown = restore(inner, state, "agent", {"steps"})
    assert grown.steps.shape == (2, 3)
    grown.steps[:] = -1
    assert state["steps"].min() == 1, "the state shares no memory with the record"
    with pytest.raises(StateError, match=r"'agent\.steps' has shape \(3, 2\)"):
        restore(inner, {**state, "steps": torch.zeros(3, 2)}, "agent", {"steps"})


def test_a_part_that_is_loaded_by_hand_is_named_too():
    child = Child()
    with pytest.raises(StateError, match=r"'child\.weight' has shape \(3,\)"):
        load_part(child, {"child": Child(3).state_dict()}, "child")
    with pytest.raises(MissingError, match="'child' is missing"):
        load_part(child, {}, "child")


class Place(NamedTuple):
    x: int
    y: int


class Walker(Resumable):
    STATE = ("place", "corners", "seen")

    def __init__(self):
        self.place, self.corners, self.seen = Place(0, 0), ((0, 0), {"end": (1, 1)}), []


def test_tuples_of_plain_values_come_back_as_such():
    moved, fresh = Walker(), Walker()
    moved.place, moved.corners = Place(3, 4), ((5, 6), {"end": (7, 8)})
    fresh.load_state_dict(moved.state_dict())
    assert fresh.place.x == 3
    assert fresh.corners == moved.corners
    with pytest.raises(StateError, match="'place' has 3 parts but 2 are needed"):
        fresh.load_state_dict({**moved.state_dict(), "place": [1, 2, 3]})


def test_a_list_that_was_empty_is_no_place_for_tensors():
    moved, fresh = Walker(), Walker()
    moved.seen = [torch.zeros(2)]
    with pytest.raises(StateError, match="'seen' has 1 parts but 0 are needed"):
        fresh.load_state_dict(moved.state_dict())
