"""Configurations of MR.Q: errors and presets."""

import pytest

from operant import configure
from operant.worlds.mrq_config import PRESETS, MRQConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 64}, "bins must be odd, so that one atom is 0, got 64"),
        ({"learning_starts": 4}, r"learning_starts must be at least max\(encoder_horizon, n_step\) \* num_envs = 5"),
        ({"n_step": 8, "num_envs": 2, "learning_starts": 15}, "num_envs = 16, for a complete window"),
        ({"buffer_size": 4}, "buffer_size must hold .* = 5 steps, got 4"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\], got 1.5"),
    ],
)
def test_a_configuration_that_cannot_be_raises(options, message):
    with pytest.raises(ValueError, match=message):
        MRQConfig(**options)


def test_presets_are_configurations():
    for values in PRESETS.values():
        MRQConfig(**values)
    assert configure("mrq", "CartPole-v1", preset="paper").latent_size == 512
    assert configure("mrq", "CartPole-v1") == MRQConfig()
