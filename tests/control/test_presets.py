import importlib

import pytest

from operant import catalog, configure
from operant.control import PPOConfig
from operant.control.ppo import PRESETS
from operant.control.presets import ATARI, CATCH, PPO


def test_presets_are_configurations():
    atari, catch = PPOConfig(**ATARI), PPOConfig(**CATCH)
    assert atari.environments * atari.steps == 1024
    assert atari.environments * atari.steps // atari.minibatches == 256
    assert (atari.shared, catch.shared) == (True, True)


@pytest.mark.parametrize("task", PPO)
def test_every_preset_of_ppo_is_a_configuration(task):
    assert PPOConfig(**PPO[task]) != PPOConfig()


def test_ppo_takes_them_by_task():
    assert PRESETS is PPO
    assert PRESETS["ALE/*"] is ATARI
    assert PRESETS["operant/PixelCatch-v0"] is CATCH


DEFINED = {
    "double-dqn": {"double": True, "dueling": False, "priority": 0.0},
    "dueling-dqn": {"double": False, "dueling": True, "priority": 0.0},
    "prioritised-dqn": {"double": False, "dueling": False, "priority": 0.6},
    "reinforce": {"psi": "total", "standardise": False, "discount_steps": False},
    "reinforce-to-go": {"psi": "to-go", "standardise": False, "discount_steps": False},
    "reinforce-baseline": {"psi": "baseline", "standardise": False, "discount_steps": False},
    "vpg": {"psi": "gae", "critic_steps": 40, "standardise": False, "discount_steps": False},
    "actor-critic": {"steps": 1, "estimator": "n-step", "target": "advantage", "normalise_advantages": False},
    "ppo-penalty": {"objective": "penalty", "beta_target": 0.01, "target_kl": None, "value_clip": None},
    "npg": {"line_search": False, "sampling": "single-path"},
    "ddpg": {"critics": 1, "delay": 1, "smoothing": 0.0},
}
"""What makes a variant what its paper says, whatever the task."""


def test_every_variant_says_what_defines_it():
    assert {entry.name for entry in catalog.CONTROL if entry.values} == DEFINED.keys()


@pytest.mark.parametrize("name", DEFINED)
def test_no_preset_changes_what_defines_a_variant(name):
    for preset in [*importlib.import_module(catalog.find(name).module).PRESETS, "no task of this name"]:
        config = configure(name, preset)
        assert {field: getattr(config, field) for field in DEFINED[name]} == DEFINED[name], preset
