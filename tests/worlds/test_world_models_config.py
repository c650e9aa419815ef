"""Hyperparameters of World Models: errors."""

import pytest

from operant.worlds.world_models_config import PRESETS, WorldModelsConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"buffer_size": 200}, "buffer_size must hold num_envs .* = 272 steps, got 200"),
        ({"collect_steps": 200}, "collect_steps must be at least .* = 272, .* got 200"),
        ({"train_in": "environment"}, "num_envs must be a multiple of population_size, which is 32, .* got 16"),
        (
            {"train_in": "environment", "num_envs": 96},
            "rollouts must be a multiple of num_envs / population_size = 3 .* got 32",
        ),
        ({"dream_temperature": 0.0}, "dream_temperature"),
        ({"population_size": 1}, r"population_size must be in \[2, inf\), got 1"),
        ({"vae_encoder": "impala"}, "vae_encoder must be .*nature.*small.* got 'impala'"),
        ({"free_nats": -1.0}, "free_nats"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        WorldModelsConfig(**values)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name):
    assert WorldModelsConfig(**PRESETS[name]) != WorldModelsConfig()
