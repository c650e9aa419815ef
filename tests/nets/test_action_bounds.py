import gymnasium
import numpy as np
import pytest
import torch

from operant.nets import Bounded

LOW, HIGH = np.array([-1.0, 0.0, -3.0], np.float32), np.array([3.0, 0.5, -1.0], np.float32)
CPU = torch.device("cpu")
WIDEST = np.finfo(np.float32).max


def bounded():
    return Bounded(gymnasium.spaces.Box(LOW, HIGH), device=CPU)


def test_nan_becomes_the_middle_of_the_bounds():
    found = bounded().to_env(torch.tensor([torch.nan, torch.inf, -torch.inf]))
    assert found.tolist() == [1.0, 0.5, -3.0]


def test_the_interval_is_mapped_onto_the_bounds():
    actions = torch.tensor([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, -0.5, 0.0]])
    expected = torch.tensor([[-1.0, 0.0, -3.0], [1.0, 0.25, -2.0], [3.0, 0.5, -1.0], [2.0, 0.125, -2.0]])
    torch.testing.assert_close(bounded().to_env(actions), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rounding_leaves_the_space(dtype):
    space = gymnasium.spaces.Box(dtype(-0.1), dtype(0.7), (1,), dtype)
    made = Bounded(space, device=CPU)
    for action in made.to_env(torch.tensor([[-1.0], [1.0], [1.0000001]])).numpy():
        assert space.contains(action.astype(dtype))


def test_noise_comes_from_the_generator_alone_and_has_its_distribution():
    made = bounded()
    before = torch.get_rng_state()
    uniform, again = (made.uniform((4000,), torch.Generator().manual_seed(1)) for _ in range(2))
    normal = made.normal((4000, 2), torch.Generator().manual_seed(1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(uniform, again)
    assert uniform.shape == (4000, 3)
    assert uniform.abs().max() <= 1
    assert uniform.std(0).sub(3**-0.5).abs().max() < 0.03
    assert normal.shape == (4000, 2, 3)
    assert normal.std((0, 1)).sub(1).abs().max() < 0.05


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gymnasium.spaces.Discrete(2), r"one-dimensional Box of float with finite bounds, got Discrete\(2\)"),
        (gymnasium.spaces.Box(-1, 1, (2, 2)), "one-dimensional Box of float with finite bounds, got"),
        (gymnasium.spaces.Box(0, 9, (2,), dtype="int64"), "one-dimensional Box of float with finite bounds, got"),
        (
            gymnasium.spaces.Box(-np.inf, np.inf, (2,)),
            "expected a one-dimensional Box of float with finite bounds, got",
        ),
        (gymnasium.spaces.Box(np.float32(0), np.float32(np.inf), (1,)), "finite bounds"),
        (gymnasium.spaces.Box(-WIDEST, WIDEST, (1,)), "finite bounds"),
    ],
    ids=str,
)
def test_other_spaces_are_rejected(space, message):
    with pytest.raises(ValueError, match=message):
        Bounded(space, device=CPU)
