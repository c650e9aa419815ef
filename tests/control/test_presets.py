import pytest

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
