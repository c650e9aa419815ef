import numpy as np
import pytest
import torch

from operant import streams
from operant.runtime.acting import draw_noise
from operant.tabular import OneStepConfig, QLearning
from operant.tabular.player import Player, shares

from .models import corridor


def test_shares_are_uniform_over_a_mask():
    assert shares(np.array([[True, False, True], [False, False, False]])).tolist() == [[0.5, 0, 0.5], [0, 0, 0]]


def test_acting_follows_the_policies():
    made = QLearning(OneStepConfig(), corridor(3), seeds=(0, 1))
    made.q[0, :, 1], made.q[1, :, 0] = 1.0, 1.0
    made.agent.table.epsilon[:] = 0.5
    obs = torch.zeros(2, 4000, dtype=torch.int64)
    actions, hidden_state = made.act(obs, None, None)
    assert hidden_state is None
    assert actions.dtype == torch.int64
    assert (actions[0] == 1).all()
    assert (actions[1] == 0).all()
    noise = draw_noise(made, 4000, streams.of_seeds(made.seeds, "test"))
    assert made.act(obs, None, noise)[0].double().mean(1).tolist() == pytest.approx([0.75, 0.25], abs=0.03)
    made.q[:] = 0.0
    first, second = (Player(made).act(obs, None, None)[0] for _ in range(2))
    assert torch.equal(first, second), "a player starts with the same random numbers"
    assert first.double().mean().item() == pytest.approx(0.5, abs=0.03)
