"""Linear controllers: their actions, their rewards in dreams by hand, and returns of whole episodes."""

from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces
from torch.testing import assert_close

from operant.runtime.rollouts import Rollout
from operant.worlds.action_vectors import action_vectors
from operant.worlds.dreaming import EpisodeReturns, act, dream
from operant.worlds.mixture_rnn import Imagined, MixtureRNNShape, Noise

CPU = torch.device("cpu")


def test_each_controller_acts_for_its_rows():
    """Two controllers of two rows each: one selects the action of the highest feature, the other the last action."""
    actions = action_vectors(spaces.Discrete(3, start=5), device=CPU)
    latent, hidden = torch.tensor([[[3.0], [0.0], [3.0], [0.0]]]), torch.tensor([[[0.0], [2.0], [0.0], [2.0]]])
    weights = torch.zeros(1, 2, 3, 3)
    weights[0, 0, 0, 0] = weights[0, 0, 1, 1] = weights[0, 1, 2, 2] = 1.0
    code = act(actions, latent, hidden, weights)
    assert code.tolist() == [[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]]
    assert actions.to_env(code).tolist() == [[5, 6, 7, 7]]


def test_continuous_actions_fill_their_bounds():
    actions = action_vectors(spaces.Box(np.float32([-1, 0]), np.float32([3, 1])), device=CPU)
    weights = torch.zeros(1, 1, 3, 2)
    weights[..., 2, :] = torch.tensor([-50.0, 50.0])
    code = act(actions, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), weights)
    assert_close(actions.to_env(code), torch.tensor([[[-1.0, 1.0]]]))


def test_a_dream_by_hand():
    """The state counts up to 3, where it ends; action 1 gives 1 per step and action 0 gives 0."""

    class Counting:
        shape = MixtureRNNShape(latent=1, actions=2, units=1, components=1, steps=1)

        def follow(self, latent, actions, hidden):
            return torch.cat((latent + 1, actions[..., 1:]), -1), hidden

        def imagine(self, outputs, noise, temperature):
            assert noise.end.shape == outputs.shape[:-1]
            return Imagined(outputs[..., :1], outputs[..., 1], outputs[..., 0] >= 3)

    actions, weights = action_vectors(spaces.Discrete(2), device=CPU), torch.zeros(1, 2, 3, 2)
    weights[0, 1, 2, 1] = 1.0
    draws = [Noise.draw((10, 2), 1, 1, torch.Generator().manual_seed(0))]
    noise = Noise(*(torch.stack(part, 1) for part in zip(*draws, strict=True)))
    returns, length = dream(Counting(), actions, weights, torch.tensor([[[0.0], [1.0]]]), noise=noise, temperature=1.0)
    assert returns.tolist() == [[0.0, 2.5]]
    assert length.tolist() == [2.5]
    short = Noise(*(part[:1] for part in noise))
    returns, length = dream(Counting(), actions, weights, torch.tensor([[[0.0], [1.0]]]), noise=short, temperature=1.0)
    assert (returns.tolist(), length.tolist()) == ([[0.0, 1.0]], [1.0])


def returns_of(*rollouts):
    episodes = EpisodeReturns(torch.tensor([[True, False, False]]))
    for rollout in rollouts:
        episodes.add(rollout)
    return episodes.means()


def test_returns_of_whole_episodes_by_hand():
    """Row 0: an episode of 3, then one of 4 + 5 that does not end. Row 1 began before; row 2 never ends."""
    rewards = torch.tensor([[1.0, 7.0, 1.0], [2.0, 1.0, 1.0], [4.0, 2.0, 1.0], [5.0, 3.0, 1.0]]).unsqueeze(1)
    ended = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], dtype=torch.bool).unsqueeze(1)
    nothing = torch.zeros_like(ended)
    rollout = Rollout(rewards, rewards, (), rewards, ended, nothing, rewards, None, {})
    returns, counts = returns_of(rollout)
    assert returns.tolist() == [[3, (3 + 3) / 2, 4]]
    assert counts.tolist() == [[1, 2, 1]]
    assert torch.equal(returns_of(replace(rollout, terminated=nothing, truncated=ended))[0], returns)
    parts = [
        replace(rollout, rewards=rewards[part], terminated=ended[part], truncated=nothing[part])
        for part in (slice(0, 1), slice(1, 4))
    ]
    assert torch.equal(returns_of(*parts)[0], returns)


def test_dummy_steps_earn_nothing_and_end_nothing():
    """Row 0: an episode of 3, a dummy step, and one of 4 + 5; row 2: a lost one, whose last step is unknown."""
    rewards = torch.tensor([[3.0, 1.0, 1.0], [torch.nan, 1.0, 2.0], [4.0, 1.0, 7.0], [5.0, 1.0, 7.0]]).unsqueeze(1)
    ended = torch.tensor([[1, 0, 1], [0, 0, 1], [0, 0, 0], [1, 0, 1]], dtype=torch.bool).unsqueeze(1)
    valid = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=torch.bool).unsqueeze(1)
    rollout = Rollout(rewards, rewards, (), rewards, ended, torch.zeros_like(ended), rewards, valid, {})
    returns, counts = returns_of(rollout)
    assert returns.tolist() == [[6, 4, 14]]
    assert counts.tolist() == [[2, 1, 1]]
