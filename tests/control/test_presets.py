from operant.control import PPOConfig
from operant.control.ppo import PRESETS
from operant.control.presets import ATARI, CATCH


def test_presets_are_configurations():
    atari, catch = PPOConfig(**ATARI), PPOConfig(**CATCH)
    assert atari.environments * atari.steps == 1024
    assert atari.environments * atari.steps // atari.minibatches == 256
    assert (atari.shared, catch.shared) == (True, True)


def test_ppo_takes_them_by_task():
    assert PRESETS["ALE/*"] is ATARI
    assert PRESETS["operant/PixelCatch-v0"] is CATCH
