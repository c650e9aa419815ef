"""Actions as vectors: bounds, one-hot choices with their frequencies, and the noise that moves them."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from operant import ops
from operant.worlds.action_vectors import BoxActions, OneHotActions, action_vectors

CPU = torch.device("cpu")
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def made(space):
    return action_vectors(space, temperature=10.0, device=CPU)


def test_a_space_has_its_vectors():
    assert isinstance(made(BOX), BoxActions)
    assert isinstance(made(spaces.Discrete(3)), OneHotActions)
    with pytest.raises(ValueError, match="finite bounds"):
        made(spaces.Box(-np.inf, np.inf, (1,)))


@pytest.mark.parametrize("space", [BOX, spaces.Discrete(3, start=5)])
def test_drawn_and_chosen_actions_are_in_the_space(space: gymnasium.Space):
    actions = made(space)
    outputs = 3 * torch.randn(2, 50, actions.width, generator=rng())
    noise = actions.noise((2, 50), rng(1))
    for vectors in (
        actions.draw((2, 50), rng(2)),
        actions.perturbed(outputs, noise, std=0.5),
        actions.perturbed(outputs, None, std=0.5),
    ):
        assert vectors.shape == (2, 50, actions.width)
        for member in actions.to_env(vectors).flatten(0, 1).numpy():
            assert space.contains(member)


def test_drawn_vectors_are_uniform():
    drawn = made(BOX).draw((2, 500), rng())
    assert drawn.shape == (2, 500, 2)
    assert (drawn.abs() <= 1).all()
    assert drawn.mean().abs() < 0.1


def test_greedy_vectors():
    outputs = torch.tensor([[0.5, -3.0, 0.2]])
    assert_close(made(BOX).greedy(outputs), outputs.tanh())
    assert made(spaces.Discrete(3)).greedy(outputs).tolist() == [[1.0, 0.0, 0.0]]


def test_vectors_are_those_of_tanh_and_clipped_noise():
    actions = made(BOX)
    outputs, noise = torch.tensor([[0.5, -3.0]]), torch.tensor([[10.0, -1.0]])
    assert_close(actions.relaxed(outputs, noise), outputs.tanh())
    expected = torch.tensor([[np.tanh(0.5) + 0.3, -1.0]], dtype=torch.float32)
    assert_close(actions.perturbed(outputs, noise, std=0.2, clip=0.3), expected)
    assert_close(actions.to_env(torch.tensor([0.5, 0.5])), torch.tensor([1.0, 0.75]))


def test_choices_have_the_probabilities_of_their_logits():
    actions = made(spaces.Discrete(3))
    outputs = torch.tensor([0.0, 1.0, -1.0]).expand(20_000, 3)
    noise = actions.noise((20_000,), rng())
    drawn = actions.perturbed(outputs, noise, std=0.0)
    assert set(drawn.sum(-1).tolist()) == {1.0}
    assert_close(drawn.mean(0), outputs[0].softmax(-1), atol=0.015, rtol=0)
    relaxed = actions.relaxed(outputs, noise)
    assert_close(relaxed, ops.gumbel_softmax(outputs, noise[:, :3], temperature=10.0))
    assert torch.equal(relaxed.argmax(-1), drawn.argmax(-1))
    assert_close(actions.draw((20_000,), rng()).mean(0), torch.full((3,), 1 / 3), atol=0.015, rtol=0)


def test_the_most_likely_choice_has_no_noise_and_noise_may_change_it():
    actions = made(spaces.Discrete(2, start=1))
    outputs = torch.tensor([[2.0, 0.0]])  # relaxed: 0.55 and 0.45
    assert actions.to_env(actions.perturbed(outputs, None, std=9.0)).tolist() == [1]
    noise = torch.tensor([[0.0, 0.0, -1.0, 1.0]])
    assert actions.to_env(actions.perturbed(outputs, noise, std=0.2)).tolist() == [2]
    assert actions.to_env(actions.perturbed(outputs, noise, std=0.2, clip=0.01)).tolist() == [1]


def test_noise_on_choices_is_in_half_ranges_as_that_on_bounded_actions():
    """Their entries are in [0, 1], those of bounded actions in [-1, 1]; so does the code of the authors of MR.Q."""
    actions = made(spaces.Discrete(2))
    outputs = torch.tensor([[2.0, 0.0]])
    lead = float(actions.relaxed(outputs, None)[0, 0] - actions.relaxed(outputs, None)[0, 1])
    noise = torch.tensor([[0.0, 0.0, -1.0, 1.0]])
    for std, choice in ((0.99 * lead, 0), (1.01 * lead, 1)):
        assert actions.perturbed(outputs, noise, std=std).argmax(-1).tolist() == [choice]
        assert actions.perturbed(outputs, noise, std=9.0, clip=std).argmax(-1).tolist() == [choice]
