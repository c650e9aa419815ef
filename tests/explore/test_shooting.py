"""Recorded episodes, their windows and the weights of a fit."""

import gymnasium
import numpy as np
import pytest
import torch

from operant.explore import Trajectories
from operant.explore.shooting import Fit, windows


def counting(*lengths):
    """Return episodes whose observations count on."""
    rows = [(np.arange(length + 1.0)[:, None] + 100 * i, np.arange(length)) for i, length in enumerate(lengths)]
    return Trajectories.of(rows)


def test_episodes_of_any_length_are_taken():
    episodes = [(np.ones((4, 3)), np.zeros((3, 1))), (np.ones((2, 3)), np.zeros((1, 1)))]
    found = Trajectories.of(episodes)
    assert found.lengths.tolist() == [3, 1]
    assert found.observations.shape == (2, 4, 3)


class Counting(gymnasium.Env):
    """Observes the seed and the number of steps; an episode terminates after four."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.seen = np.array([seed, 0.0])
        return self.seen.copy(), {}

    def step(self, action):
        self.seen[1] += 1
        return self.seen.copy(), 0.0, self.seen[1] == 4, False, {}


def test_episodes_are_recorded():
    found = Trajectories.record(Counting(), episodes=2, steps=9, seed=3)
    assert found.lengths.tolist() == [4, 4]
    assert found.observations[..., 1].tolist() == [list(range(5))] * 2
    seeds = found.observations[:, 0, 0]
    assert seeds[0] != seeds[1]
    assert (found.observations[..., 0] == seeds.unsqueeze(1)).all()
    assert found.actions.float().std() > 0
    same, other = (Trajectories.record(Counting(), episodes=2, steps=9, seed=seed) for seed in (3, 4))
    assert torch.equal(found.actions, same.actions)
    assert not torch.equal(found.actions, other.actions)
    short = Trajectories.record(Counting(), episodes=1, steps=3, policy=lambda obs: int(obs[1]) % 3)
    assert short.actions.tolist() == [[0, 1, 2]]
    assert short.lengths.tolist() == [3]
    noisy = Trajectories.record(Counting(), episodes=100, steps=3, noise=0.5, seed=3)
    exact = Trajectories.record(Counting(), episodes=100, steps=3, seed=3)
    assert torch.equal(noisy.actions, exact.actions)
    assert (noisy.observations - exact.observations).std() == pytest.approx(0.5, rel=0.1)


def test_what_cannot_be_recorded_is_rejected():
    with pytest.raises(ValueError, match=r"must be vectors, got Discrete\(16\): .*FlattenObservation"):
        Trajectories.record(gymnasium.make("FrozenLake-v1"), episodes=1, steps=1)
    for name, value in (("episodes", 0), ("steps", 0), ("noise", -0.1), ("noise", np.nan), ("seed", -1)):
        with pytest.raises(ValueError, match=rf"{name} must be in \[., inf\), got {value}"):
            Trajectories.record(Counting(), **{"episodes": 1, "steps": 1, name: value})


def test_windows_by_hand():
    """No observation is in two windows, the action between them is omitted, and a rest of one observation too."""
    obs, actions, seen = windows(counting(5, 3), 2)
    assert obs[..., 0].tolist() == [[0, 1, 2], [3, 4, 5], [100, 101, 102]]
    assert actions.tolist() == [[0, 1], [3, 4], [0, 1]]
    assert seen.all()
    obs, actions, seen = windows(counting(4), 2)
    assert obs[..., 0].tolist() == [[0, 1, 2], [3, 4, 4]]
    assert actions[1, 0] == 3
    assert seen.tolist() == [[True, True, True], [True, True, False]]


def test_reweighted_residuals_have_unit_variance_or_less():
    draw = torch.Generator().manual_seed(0)
    residual = torch.randn(50, 5, 2, generator=draw, dtype=torch.float64) * torch.tensor([3.0, 1e-4]).double()
    seen = torch.ones(50, 10, dtype=torch.bool)
    by_logs = torch.randn(50, 10, 1, generator=draw, dtype=torch.float64)
    by_starts = torch.randn(50, 10, 2, generator=draw, dtype=torch.float64)
    fit = Fit(residual.flatten(1), by_logs, by_starts, torch.tensor([2.0, 1.0], dtype=torch.float64), seen)
    again = fit.reweighted(torch.tensor([1e-3, 1e-3], dtype=torch.float64))
    assert again.scale[0] == pytest.approx(6.0 * (500 / fit.freedom) ** 0.5, rel=0.1)
    assert again.scale[1] == 1e-3
    for before, after in (
        (fit.residual, again.residual),
        (fit.by_logs[..., 0], again.by_logs[..., 0]),
        (fit.by_starts[..., 1], again.by_starts[..., 1]),
    ):
        units = (part.view(50, 5, 2) * each.scale for part, each in ((before, fit), (after, again)))
        torch.testing.assert_close(*units)


def test_wrong_recordings_are_rejected(tmp_path):
    recorded = counting(4, 4)
    broken = recorded.observations.clone()
    broken[1, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="of at least one episode, got"):
        Trajectories.of([])
    with pytest.raises(ValueError, match="episode 1 has NaN or Inf"):
        Trajectories(broken, recorded.actions, recorded.lengths)
    with pytest.raises(ValueError, match=r"lengths are from 1 to 4"):
        Trajectories(recorded.observations, recorded.actions, recorded.lengths * 0)
    with pytest.raises(ValueError, match=r"observations are \[n, T\+1, O\]"):
        Trajectories(recorded.observations[:, 1:], recorded.actions, recorded.lengths)
    np.savez(tmp_path / "x.npz", observations=np.zeros((1, 2, 4)))
    with pytest.raises(ValueError, match="is not a file of trajectories"):
        Trajectories.load(tmp_path / "x.npz")
