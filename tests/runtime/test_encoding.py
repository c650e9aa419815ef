import enum
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.runtime.checkpoints import Checkpoints, load
from operant.runtime.encoding import flatten, size_in_bytes, unflatten

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


@st.composite
def tensors(draw):
    """Draw finite tensors of any dtype and any shape of up to 3 dimensions, also empty and non-contiguous ones."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.arange(math.prod(shape)).reshape(shape) % 100
    tensor = values.to(draw(st.sampled_from(DTYPES)))
    return tensor.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else tensor


keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["$tensor", "$float", "$", "$$x", "a/b", "~1", "__metadata__"]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**20_000), 2**20_000)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | tensors()
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)
states = st.dictionaries(keys, trees, max_size=4)


def same(a, b):
    """Return whether two states are equal to the last bit and of the same types."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    return type(a) is type(b) and a == b


def bits(tensor):
    return (
        tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
    )


@settings(deadline=None, max_examples=80)
@given(states)
def test_round_trip_in_memory(state):
    structure, found = flatten(state)
    assert same(state, unflatten(json.loads(json.dumps(structure, allow_nan=False)), found))


@settings(deadline=None, max_examples=40)
@given(states)
def test_round_trip_through_a_checkpoint(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("checkpoints")
    assert same(state, load(Checkpoints(folder).save(state, 1)))


def test_tuples_become_lists():
    assert unflatten(*flatten({"a": (1, (2.0,))})) == {"a": [1, [2.0]]}


def test_the_bytes_of_all_tensors_are_added_up():
    assert size_in_bytes({"a": torch.zeros(3), "b": [{"c": torch.zeros(2, 5, dtype=torch.uint8)}, 1.0]}) == 3 * 4 + 10


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [{"b": object()}]}, "state entry /a/0/b is a object"),
        ({"a": {3: 1}}, "state entry /a has the key 3; keys must be strings"),
        ({"a": np.zeros(2)}, "state entry /a is a ndarray"),
        ({"a": Color.RED}, "state entry /a is a Color"),
        ({"a/b": b"x"}, "state entry /a~1b is a bytes"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "state entry /a .*complex128"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "state entry /a .*sparse"),
        ({"a": torch.zeros(2, device="meta")}, "state entry /a .*meta"),
    ],
)
def test_unsupported_values_of_a_checkpoint_are_named(state, message):
    with pytest.raises(TypeError, match=message):
        flatten(state)
