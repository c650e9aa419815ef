"""Hyperparameters of DreamerV3: errors and presets."""

from dataclasses import replace

import pytest

from operant.worlds.dreamer_config import PRESETS, DreamerConfig

SMALL = DreamerConfig(num_envs=4, buffer_size=1000, sequence_length=8, imagined_frames=3, deter=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 20}, "bins must be odd, so that one atom is 0, got 20"),
        ({"blocks": 3}, "blocks must divide deter, which is 16, got 3"),
        ({"imagined_frames": 9}, "imagined_frames must be at most sequence_length, which is 8, got 9"),
        ({"buffer_size": 31}, r"buffer_size must hold num_envs \* sequence_length = 32 steps, got 31"),
    ],
)
def test_a_configuration_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **options)


def test_the_small_model_is_the_default_and_the_paper_begins_everywhere():
    assert DreamerConfig(**PRESETS["tiny"]) == DreamerConfig()
    paper = DreamerConfig(**PRESETS["size12m"])
    assert (paper.deter, paper.stoch, paper.classes, paper.blocks) == (2048, 32, 16, 8)
    assert paper.imagined_frames is None
    assert (paper.ent_coef, paper.free_nats, paper.unimix) == (3e-4, 1.0, 0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name):
    DreamerConfig(**PRESETS[name])
