import importlib

import pytest

from operant import catalog, configure
from operant.control import PPOConfig
from operant.control.ppo import PRESETS
from operant.control.presets import ATARI, CATCH, PPO


def test_presets_are_configurations():
    atari, catch = PPOConfig(**ATARI), PPOConfig(**CATCH)
    assert atari.num_envs * atari.num_steps == 1024
    assert atari.num_envs * atari.num_steps // atari.num_minibatches == 256
    assert (atari.share_features, catch.share_features) == (True, True)


@pytest.mark.parametrize("task", PPO)
def test_every_preset_of_ppo_is_a_configuration(task):
    assert PPOConfig(**PPO[task]) != PPOConfig()


def test_ppo_takes_them_by_task():
    assert PRESETS is PPO
    assert PRESETS["ALE/*"] is ATARI
    assert PRESETS["operant/PixelCatch-v0"] is CATCH


DEFINED = {
    "double-dqn": {"double": True, "dueling": False, "per_alpha": 0.0},
    "dueling-dqn": {"double": False, "dueling": True, "per_alpha": 0.0},
    "prioritized-dqn": {"double": False, "dueling": False, "per_alpha": 0.6},
    "reinforce": {"advantage_kind": "total", "normalize_advantage": "none", "discount_steps": False},
    "reinforce-to-go": {"advantage_kind": "to-go", "normalize_advantage": "none", "discount_steps": False},
    "reinforce-baseline": {"advantage_kind": "baseline", "normalize_advantage": "none", "discount_steps": False},
    "vpg": {"advantage_kind": "gae", "critic_steps": 40, "normalize_advantage": "none", "discount_steps": False},
    "actor-critic": {"num_steps": 1, "estimator": "n-step", "target": "advantage", "normalize_advantage": "none"},
    "ppo-penalty": {"objective": "penalty", "kl_coef_target": 0.01, "target_kl": None, "clip_range_vf": None},
    "npg": {"line_search": False, "sampling": "single-path"},
    "ddpg": {"n_critics": 1, "policy_delay": 1, "target_policy_noise": 0.0},
}
"""Fields that define a variant in its paper, in every task."""


def test_every_variant_has_its_defining_values():
    assert {entry.name for entry in catalog.CONTROL if entry.values} == DEFINED.keys()


@pytest.mark.parametrize("name", DEFINED)
def test_no_preset_changes_what_defines_a_variant(name):
    for preset in [*importlib.import_module(catalog.find(name).module).PRESETS, "no task of this name"]:
        config = configure(name, preset)
        assert {field: getattr(config, field) for field in DEFINED[name]} == DEFINED[name], preset
