import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs.features import Features, is_image

ACTIONS = spaces.Discrete(3)


def box(*shape, low=0, high=255, dtype=np.uint8):
    return spaces.Box(low, high, shape, dtype)


def numbers(*shape, dtype=torch.uint8):
    return torch.arange(int(np.prod(shape))).view(shape).to(dtype)


@pytest.mark.parametrize("shape", [(4,), (2, 3), ()])
def test_numbers_become_one_vector(shape):
    features = Features.of(spaces.Box(-1.0, 1.0, shape, np.float32), ACTIONS)
    assert features.shape == (int(np.prod(shape)),)
    obs = numbers(6, *shape, dtype=torch.float32)
    assert torch.equal(features.encode(obs), obs.view(6, -1))
    assert torch.equal(features.by_seed(obs.view(2, 3, *shape)), obs.view(2, 3, -1))


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (box(4, 84, 84), True),
        (box(84, 84), True),
        (box(128), False),
        (box(3, 9, 9, high=1), False),
        (box(3, 9, 9, low=1), False),
        (spaces.Box(0, 255, (3, 9, 9), np.float32), False),
        (spaces.MultiBinary((3, 9, 9)), False),
        (box(2, 3, 4, 5), False),
    ],
    ids=str,
)
def test_images_are_bytes_with_two_or_three_axes(space, image):
    assert is_image(space) is image
    features = Features.of(space, ACTIONS)
    assert len(features.shape) == (3 if image else 1)
    encoded = features.encode(torch.zeros(2, *space.shape, dtype=torch.uint8))
    assert encoded.dtype is (torch.uint8 if image else torch.float32)
    assert encoded.shape == (2, *features.shape)


def test_channels_come_first():
    first, last, none = (Features.of(box(*shape), ACTIONS) for shape in [(4, 8, 9), (8, 9, 3), (8, 9)])
    assert (first.shape, last.shape, none.shape) == ((4, 8, 9), (3, 8, 9), (1, 8, 9))
    images = numbers(2, 4, 8, 9)
    assert torch.equal(first.encode(images), images)
    images = numbers(2, 8, 9, 3)
    encoded = last.encode(images)
    assert encoded.is_contiguous()
    for channel in range(3):
        assert torch.equal(encoded[:, channel], images[..., channel])
    assert torch.equal(last.by_seed(images.unsqueeze(0)), encoded.unsqueeze(0))
    images = numbers(2, 8, 9)
    assert torch.equal(none.encode(images)[:, 0], images)


SPACE = spaces.Dict(
    {
        "speed": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "gear": spaces.Discrete(3, start=1),
        "action_mask": spaces.MultiBinary(3),
        "zone": spaces.MultiDiscrete([2, 3], start=[0, 5]),
        "inner": spaces.Dict({"b": spaces.MultiBinary(2), "a": spaces.Box(0, 9, (1, 2), np.int64)}),
    }
)
OBS = {
    "speed": torch.tensor([[0.25, -0.5]]),
    "gear": torch.tensor([2]),
    "action_mask": torch.tensor([[1, 0, 1]], dtype=torch.int8),
    "zone": torch.tensor([[1, 6]]),
    "inner": {"b": torch.tensor([[1, 0]], dtype=torch.int8), "a": torch.tensor([[[7, 8]]])},
}


def test_dictionaries_become_one_vector_by_the_order_of_their_keys_with_the_mask_last():
    features = Features.of(SPACE, ACTIONS)
    assert features.masked == 3
    gear, inner, speed, zone, mask = [0, 1, 0], [7, 8, 1, 0], [0.25, -0.5], [0, 1, 0, 1, 0], [1, 0, 1]
    expected = torch.tensor([[*gear, *inner, *speed, *zone, *mask]])
    assert torch.equal(features.encode(OBS), expected)
    assert features.shape == (expected.shape[1],)
    shuffled = {key: OBS[key] for key in sorted(OBS, reverse=True)}
    assert torch.equal(features.encode(shuffled), expected)


def test_several_choices_become_one_hot_vectors_in_a_row():
    space = spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 5], [-1, 0]])
    features = Features.of(space, ACTIONS)
    choices = torch.tensor([[[1, 7], [-1, 1]], [[0, 5], [2, 0]]])
    first, second = [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    assert features.encode(choices).tolist() == [first, second]
    for wrong in (torch.tensor([[[2, 5], [0, 0]]]), torch.tensor([[[0, 5], [-2, 0]]])):
        with pytest.raises(ValueError, match="an observation is not a member of MultiDiscrete"):
            features.encode(wrong)


def test_dictionaries_by_seed():
    def grow(tree):
        if isinstance(tree, dict):
            return {key: grow(part) for key, part in tree.items()}
        return tree.unsqueeze(0).expand(2, 3, *tree.shape[1:])

    features = Features.of(SPACE, ACTIONS)
    assert torch.equal(features.by_seed(grow(OBS)), features.encode(OBS).expand(2, 3, -1))


def test_a_dictionary_without_a_mask_has_none():
    assert Features.of(spaces.Dict(a=box(2)), ACTIONS).masked == 0


@pytest.mark.parametrize("mask", [spaces.MultiBinary(2), spaces.MultiBinary((3, 1)), spaces.Discrete(3)], ids=str)
def test_a_mask_that_does_not_fit_the_actions_is_rejected(mask):
    with pytest.raises(ValueError, match="'action_mask' must be a MultiBinary or Box with one entry for each of 3 act"):
        Features.of(spaces.Dict(a=box(2), action_mask=mask), ACTIONS)


def test_several_choices_are_masked_in_a_row():
    several, mask = spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(5)
    assert Features.of(spaces.Dict(a=box(2), action_mask=mask), several).masked == 5
    with pytest.raises(
        ValueError, match="one entry for each of 5 alternatives of 2 choices, concatenated, got MultiBinary"
    ):
        Features.of(spaces.Dict(a=box(2), action_mask=spaces.MultiBinary(2)), several)


def test_a_mask_of_continuous_actions_is_rejected():
    with pytest.raises(ValueError, match="'action_mask' can only mask discrete actions, but they are Box"):
        Features.of(spaces.Dict(a=box(2), action_mask=spaces.MultiBinary(3)), spaces.Box(-1, 1, (3,)))


def test_a_mask_alone_is_rejected():
    with pytest.raises(ValueError, match="contain only a mask"):
        Features.of(spaces.Dict(action_mask=spaces.MultiBinary(3)), ACTIONS)


def test_empty_observations_are_rejected():
    with pytest.raises(ValueError, match=r"observations of Box.* are empty: add inputs for the policy"):
        Features.of(box(0), ACTIONS)


@pytest.mark.parametrize(("shape", "warned"), [((32, 32, 3), True), ((1, 16, 20), True), ((8, 8, 3), False)])
def test_images_of_floats_are_flattened_with_a_warning(shape, warned, caplog):
    found = Features.of(spaces.Box(0.0, 1.0, shape, np.float32), spaces.Discrete(2))
    assert found.shape == (np.prod(shape),)
    assert ("return bytes (uint8, bounds 0 and 255)" in caplog.text) is warned


def test_stacked_color_images_are_flattened_with_a_warning(caplog):
    assert Features.of(box(4, 9, 9, 3), ACTIONS).shape == (972,)
    assert "shape [4, 9, 9, 3] are not images" in caplog.text
    caplog.clear()
    Features.of(box(12, 9, 9), ACTIONS)
    assert not caplog.records


def test_a_vector_begins_with_the_image_of_a_dictionary():
    space = spaces.Dict(
        camera=spaces.Box(0, 255, (8, 9, 3), np.uint8),
        action_mask=spaces.MultiBinary(3),
        before=spaces.Discrete(2),
        speed=spaces.Box(-1.0, 1.0, (2,)),
    )
    features = Features.of(space, ACTIONS)
    assert (features.shape, features.masked, features.image) == ((3 * 8 * 9 + 4 + 3,), 3, (3, 8, 9))
    obs = {
        "camera": numbers(2, 8, 9, 3),
        "action_mask": torch.tensor([[1, 0, 1]] * 2),
        "before": torch.tensor([0, 1]),
        "speed": torch.tensor([[0.5, -0.5]] * 2),
    }
    encoded = features.encode(obs)
    image = encoded[:, : 3 * 8 * 9].view(2, 3, 8, 9)
    assert torch.equal(image, obs["camera"].movedim(3, 1).float())
    assert encoded[1, 3 * 8 * 9 :].tolist() == [0, 1, 0.5, -0.5, 1, 0, 1]


def test_a_dictionary_may_contain_only_an_image():
    features = Features.of(spaces.Dict(camera=spaces.Box(0, 255, (8, 9), np.uint8)), ACTIONS)
    images = numbers(2, 8, 9)
    assert (features.shape, features.image) == ((72,), (1, 8, 9))
    assert torch.equal(features.encode({"camera": images}), images.flatten(1).float())
    masked = spaces.Dict(camera=spaces.Box(0, 255, (8, 9), np.uint8), action_mask=spaces.MultiBinary(3))
    assert Features.of(masked, ACTIONS).shape == (75,)


def test_unsupported_images_in_a_dictionary_are_rejected():
    image = spaces.Box(0, 255, (8, 9), np.uint8)
    with pytest.raises(ValueError, match=r"parts left, right of the observation are images: .* into one image"):
        Features.of(spaces.Dict(left=image, right=image), ACTIONS)
    with pytest.raises(ValueError, match=r"part 'camera' of a nested dictionary of the observation is an image"):
        Features.of(spaces.Dict(head=spaces.Dict(camera=image), speed=box(1)), ACTIONS)


def test_spaces_without_arrays_are_rejected():
    with pytest.raises(TypeError, match=r"observations of Text.* cannot be encoded as a vector"):
        Features.of(spaces.Text(3), ACTIONS)


def test_other_spaces_are_distinguished_from_dictionaries():
    with pytest.raises(TypeError, match="must be one tensor, got a dict"):
        Features.of(box(2), ACTIONS).encode({"a": torch.zeros(1, 2)})
    with pytest.raises(TypeError, match="must be a dictionary, got one tensor"):
        Features.of(spaces.Dict(a=box(2)), ACTIONS).encode(torch.zeros(1, 2))


def test_images_that_are_not_preprocessed_are_rejected():
    features = Features.of(box(4, 84, 84), ACTIONS)
    with pytest.raises(ValueError, match=r"observations have shape \[2, 210, 160, 3\], but \[2, 4, 84, 84\] is needed"):
        features.by_seed(torch.zeros(1, 2, 210, 160, 3, dtype=torch.uint8))


def test_the_parts_of_a_dictionary_are_found_in_its_vector():
    space = spaces.Dict(
        desired_goal=spaces.Box(-1.0, 1.0, (2,)),
        achieved_goal=spaces.Box(-1.0, 1.0, (2,)),
        action_mask=spaces.MultiBinary(3),
        camera=spaces.Box(0, 255, (1, 2, 2), np.uint8),
        inner=spaces.Dict(b=spaces.Discrete(4), a=spaces.Box(-1.0, 1.0, (1, 3))),
    )
    features = Features.of(space, spaces.Discrete(3))
    obs = {
        "desired_goal": torch.tensor([[1.0, 2.0]]),
        "achieved_goal": torch.tensor([[3.0, 4.0]]),
        "action_mask": torch.tensor([[1, 0, 1]]),
        "camera": torch.tensor([[[[5, 6], [7, 8]]]], dtype=torch.uint8),
        "inner": {"a": torch.tensor([[[9.0, 10.0, 11.0]]]), "b": torch.tensor([2])},
    }
    (vector,) = features.encode(obs)
    found = {name: vector[part].tolist() for name, part in features.slices.items()}
    assert found == {
        "camera": [5, 6, 7, 8],
        "achieved_goal": [3, 4],
        "desired_goal": [1, 2],
        "inner": [9, 10, 11, 0, 0, 1, 0],
        "inner.a": [9, 10, 11],
        "inner.b": [0, 0, 1, 0],
        "action_mask": [1, 0, 1],
    }
    assert Features.of(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)).slices == {}
