import pytest
import torch

from operant.state import Part, clone, copy_into, copy_named, generator_state, set_generator_state


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
def test_copy_into_refuses_another_shape_even_if_it_broadcasts(shape):
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
def test_tensors_of_other_names_are_refused_before_any_is_copied(names):
    targets = {"a": torch.zeros(2), "b": torch.zeros(2)}
    first = min({"a", "b"} ^ set(names))
    message = (
        f"the state and the critic differ in what is trained, first in '{first}': load it with the --rank of its own"
    )
    with pytest.raises(ValueError, match=message):
        copy_named(targets, {name: torch.ones(2) for name in names}, of="critic", options="--rank")
    assert targets["a"].tolist() == [0, 0]


def test_a_generator_goes_on_where_it_was_saved():
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


def test_a_copy_of_a_part_says_that_it_has_not_changed():
    mark = object()
    original = {"parts": [Part({"x": torch.ones(2)}, mark=mark), {"x": torch.ones(2)}]}
    copied = clone(original)
    part, plain = copied["parts"]
    assert isinstance(part, Part)
    assert part.mark is mark
    assert type(plain) is dict
    original["parts"][0]["x"].zero_()
    assert part["x"].tolist() == [1, 1]
