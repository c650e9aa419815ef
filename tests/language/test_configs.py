import dataclasses

import pytest

from operant.language.configs import LanguageConfig, ModelOptions, SamplingConfig


@pytest.mark.parametrize("kind", [ModelOptions, LanguageConfig, SamplingConfig])
def test_defaults_are_accepted_and_explained(kind):
    assert kind() == dataclasses.replace(kind())
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().model = "other"


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelOptions, {"dtype": "float16"}, r"dtype .*float32.*bfloat16.*float16"),
        (ModelOptions, {"lora_r": -1}, r"lora_r .*-1"),
        (ModelOptions, {"lora_alpha": -2}, r"lora_alpha .*-2"),
        (ModelOptions, {"model": " "}, "model must be a folder, a Hub name or a built-in model, got ''"),
        (LanguageConfig, {"model": ""}, "model must be a folder"),
        (LanguageConfig, {"train_examples": 0}, r"train_examples .*0"),
        (LanguageConfig, {"held_out": 0}, r"held_out .*0"),
        (LanguageConfig, {"max_prompt_length": 0}, r"max_prompt_length .*0"),
        (LanguageConfig, {"max_completion_length": -1}, r"max_completion_length .*-1"),
        (LanguageConfig, {"learning_rate": 0.0}, r"learning_rate .*0"),
        (LanguageConfig, {"learning_rate": float("nan")}, r"learning_rate .*nan"),
        (LanguageConfig, {"lr_schedule": "step"}, r"lr_schedule .*cosine.*step"),
        (LanguageConfig, {"warmup_ratio": 1.5}, r"warmup_ratio .*1.5"),
        (LanguageConfig, {"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\), got \(0.9, 1.0\)"),
        (LanguageConfig, {"weight_decay": -0.1}, r"weight_decay .*-0.1"),
        (LanguageConfig, {"max_grad_norm": 0.0}, r"max_grad_norm .*0"),
        (LanguageConfig, {"micro_batch_tokens": 0}, r"micro_batch_tokens .*0"),
        (SamplingConfig, {"warmup_ratio": -0.5}, r"warmup_ratio .*-0.5"),
        (SamplingConfig, {"temperature": 0.0}, r"temperature .*0"),
        (SamplingConfig, {"engine_batch_size": 0}, r"engine_batch_size .*0"),
        (
            SamplingConfig,
            {"importance_sampling_correction": "clip"},
            r"importance_sampling_correction .*truncate.*clip",
        ),
        (SamplingConfig, {"importance_sampling_cap": 0.5}, r"importance_sampling_cap .*0.5"),
        (SamplingConfig, {"engine": "vllm"}, "engine must be native, or URLs such as .*got 'vllm'"),
        (SamplingConfig, {"max_staleness": 1}, "max_staleness=1 needs a server .*engine='native'"),
        (SamplingConfig, {"max_staleness": 2}, "max_staleness must be .*2"),
        (SamplingConfig, {"engine": "http://a,native"}, "engine must be native, or .*got 'http://a,native'"),
        (SamplingConfig, {"engine": "http://a,http://a"}, "each URL of an engine must be given once"),
    ],
)
def test_invalid_values_are_rejected_by_name(kind, values, message):
    with pytest.raises(ValueError, match=message):
        kind(**values)


def test_weights_go_with_rewards():
    assert SamplingConfig(rewards=("exact", "format"), reward_weights=(1.0, 0.1)).reward_weights == (1.0, 0.1)
    assert SamplingConfig(rewards=("exact",), reward_model="runs/rm", reward_weights=(1.0, 0.5)).reward_model
    with pytest.raises(ValueError, match="reward_weights has 1 numbers for 2 rewards: give one weight each"):
        SamplingConfig(rewards=("exact", "format"), reward_weights=(1.0,))
    with pytest.raises(ValueError, match="2 numbers for 2 rewards and a reward model"):
        SamplingConfig(rewards=("exact", "format"), reward_model="runs/rm", reward_weights=(1.0, 1.0))


def test_addresses_are_engines():
    assert SamplingConfig(engine="http://127.0.0.1:8000").engine.endswith("8000")
