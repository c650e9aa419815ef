import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs.spaces import (
    ActionFormat,
    GymnasiumActions,
    ObservationFormat,
    SpaceError,
    discrete,
    first_member,
    is_box,
    is_dict,
    is_multi_discrete,
    is_tuple,
    members,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(3), ((2,), False)),
        (spaces.MultiDiscrete([2, 3]), ((2, 2), False)),
        (spaces.MultiBinary(4), ((2, 4), False)),
        (spaces.Box(-1, 1, (3, 2)), ((2, 3, 2), True)),
        (spaces.Box(0, 255, (3,), np.uint8), ((2, 3), False)),
    ],
)
def test_action_format(space, expected):
    assert ActionFormat.of(space, 2) == expected


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (spaces.Discrete(3, start=-4), spaces.Discrete(3)),
        (spaces.MultiDiscrete([2, 3], start=[7, -1]), spaces.MultiDiscrete([2, 3])),
        (spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32), spaces.MultiDiscrete([2, 3, 4, 5])),
        (spaces.MultiBinary(3), spaces.MultiDiscrete([2, 2, 2])),
        (spaces.MultiBinary((2, 2)), spaces.MultiDiscrete([2, 2, 2, 2])),
        (spaces.Box(-1, 1, ()), spaces.Box(-1, 1, (1,))),
        (
            spaces.Box(-np.eye(2), np.eye(2), dtype=np.float64),
            spaces.Box(-np.eye(2).ravel(), np.eye(2).ravel(), dtype=np.float64),
        ),
        (spaces.Box(0, 9, (2, 2), np.int64), spaces.Box(0, 9, (2, 2), np.int64)),
        (spaces.Text(3), spaces.Text(3)),
    ],
    ids=str,
)
def test_learners_see_actions_of_one_axis_that_count_from_0(space, seen):
    assert GymnasiumActions.of(space).space == seen


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Discrete(3, start=-4), 2, -2),
        (spaces.MultiDiscrete([2, 3], start=[7, -1]), [1, 0], [8, -1]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32), [0, 1, 2, 3], [[0, 1], [2, 3]]),
        (spaces.MultiBinary((2, 2)), [0, 1, 1, 0], [[0, 1], [1, 0]]),
        (spaces.Box(-1, 1, ()), [0.5], 0.5),
        (spaces.Box(-9.0, 9.0, (2, 2), np.float64), [1.0, 2.0, 3.0, 4.0], [[1, 2], [3, 4]]),
    ],
    ids=str,
)
def test_actions_of_learners_become_members_of_the_space(space, action, expected):
    kind = np.float32 if isinstance(space, spaces.Box) else np.int64
    written = GymnasiumActions.of(space).write(np.array([action, action], kind))
    assert written.dtype == space.dtype
    assert written.tolist() == [expected] * 2
    assert all(np.asarray(row) in space for row in written)


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.Discrete(3, start=5), [0, 0, 1], 7),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), [0, 1, 0, 1, 1], [1, 6]),
        (spaces.MultiBinary(2), [1, 0, 0, 1], [0, 1]),
    ],
    ids=str,
)
def test_the_first_action_that_a_mask_allows(space, mask, expected):
    actions = GymnasiumActions.of(space).allowed(np.array([mask, np.ones_like(mask)], np.int8))
    assert actions[0].tolist() == expected
    assert all(row in space for row in actions)


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), torch.float32),
        (spaces.Box(-1, 1, (2,), np.float32), torch.float32),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), torch.uint8),
        (spaces.Discrete(5), torch.int64),
        (spaces.MultiDiscrete([2, 3]), torch.int64),
        (spaces.MultiBinary(3), torch.int8),
    ],
)
def test_observations_are_copied_with_their_values(space, dtype):
    space.seed(0)
    form = ObservationFormat.of(space, CPU)
    batch = np.stack([np.asarray(space.sample()) for _ in range(4)])
    tensor = form.read(batch)
    assert tensor.dtype == dtype
    np.testing.assert_allclose(tensor.numpy(), batch, rtol=1e-6)
    assert all(row.numpy().astype(form.space.dtype) in form.space for row in tensor.reshape(4, *space.shape))
    before = tensor.clone()
    batch += 1
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("space", [spaces.Text(4), spaces.Tuple([spaces.Discrete(2)])])
def test_spaces_without_a_tensor_form_are_rejected(space):
    with pytest.raises(TypeError, match="wrapper"):
        ObservationFormat.of(space, CPU)
    with pytest.raises(TypeError, match="wrapper"):
        ObservationFormat.of(spaces.Dict({"inside": space}), CPU)
    with pytest.raises(TypeError, match="wrapper"):
        ActionFormat.of(space, 2)


def test_discrete_spaces_are_narrowed():
    space = spaces.Discrete(3, start=2)
    assert discrete(space) is space
    with pytest.raises(TypeError, match=r"expected a Discrete space, got MultiBinary\(3\)"):
        discrete(spaces.MultiBinary(3))


def test_the_first_member_of_a_space():
    assert first_member(spaces.Discrete(3, start=2)) == 2
    assert first_member(spaces.MultiDiscrete([2, 3], start=[1, 4])).tolist() == [1, 4]
    assert first_member(spaces.MultiBinary(3)) == 0


def test_members_are_counted():
    assert members(spaces.Discrete(4, start=3)) == 4
    assert members(spaces.MultiDiscrete([[2, 3], [1, 4]])) == 24
    assert members(spaces.MultiBinary((2, 50))) == 2**100, "more than a machine word holds"
    assert members(spaces.Tuple([spaces.Discrete(3), spaces.Dict(a=spaces.MultiBinary(2))])) == 12
    for space in (spaces.Box(0, 1, (2,), np.int64), spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])):
        assert members(space) is None


class _Mission(spaces.Space):
    def __init__(self):
        super().__init__(dtype=str)


@pytest.mark.parametrize("text", [spaces.Text(8), _Mission()])
def test_text_in_a_dictionary_is_left_out_with_a_message(text, caplog):
    part = spaces.Box(0.0, 1.0, (2,), np.float32)
    form = ObservationFormat.of(spaces.Dict({"seen": part, "mission": text}), torch.device("cpu"))
    assert list(form.space.spaces) == ["seen"]
    read = form.read({"seen": np.ones((3, 2), np.float32), "mission": ("go",) * 3})
    assert list(read) == ["seen"]
    assert "the text in observations is dropped: mission" in caplog.text


def test_text_alone_is_rejected():
    with pytest.raises(SpaceError, match="contain only text"):
        ObservationFormat.of(spaces.Dict({"mission": spaces.Text(8)}), torch.device("cpu"))


def test_spaces_are_distinguished():
    kinds = {
        is_box: spaces.Box(-1, 1, (2,)),
        is_multi_discrete: spaces.MultiDiscrete([2, 3]),
        is_dict: spaces.Dict({"a": spaces.Discrete(2)}),
        is_tuple: spaces.Tuple((spaces.Discrete(2),)),
    }
    for ask in kinds:
        assert [ask(space) for space in kinds.values()] == [ask is own for own in kinds]


@pytest.mark.filterwarnings("error")
def test_bounds_beyond_float32_become_infinite_without_a_warning():
    most = np.finfo(np.float64).max
    box = spaces.Box(-most, most, (2,), np.float64)
    found = ObservationFormat.of(box, torch.device("cpu")).space
    assert found.dtype == np.float32
    assert np.isinf(found.low).all()
    assert np.isinf(found.high).all()
