import dataclasses

import pytest

from operant.language.configs import LanguageConfig, ModelOptions, SamplingConfig
from operant.language.dpo import DPOConfig
from operant.language.grpo import PRESETS, GRPOConfig
from operant.language.iterative import IterativeGRPOConfig
from operant.language.reward_model import RewardModelConfig
from operant.language.rlhf import RLHFConfig
from operant.language.sft import SFTConfig
from operant.runtime.tables import from_table, to_table


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
        (
            ModelOptions,
            {"lora_alpha": 32},
            "lora_alpha=32 has an effect only with lora_r above 0, got lora_r=0.*all weig",
        ),
        (SFTConfig, {"lora_target_modules": ("q_proj",)}, "lora_target_modules=.*q_proj.* only with lora_r above 0"),
        (ModelOptions, {"model": " "}, "model must be a folder, a Hub name or a built-in model, got ''"),
        (LanguageConfig, {"model": ""}, "model must be a folder"),
        (LanguageConfig, {"train_examples": 0}, r"train_examples .*0"),
        (
            LanguageConfig,
            {"held_out": 0},
            "held_out is 0, expected at least 1, .* evaluate on other rows with --eval-dataset",
        ),
        (LanguageConfig, {"held_out": -1}, "held_out .*-1"),
        (LanguageConfig, {"max_prompt_length": 0}, r"max_prompt_length .*0"),
        (LanguageConfig, {"max_completion_length": -1}, r"max_completion_length .*-1"),
        (LanguageConfig, {"learning_rate": 0.0}, r"learning_rate .*0"),
        (LanguageConfig, {"learning_rate": float("nan")}, r"learning_rate .*nan"),
        (LanguageConfig, {"lr_schedule": "step"}, r"lr_schedule .*cosine.*step"),
        (LanguageConfig, {"warmup_ratio": 1.5}, r"warmup_ratio .*1.5"),
        (LanguageConfig, {"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\), got \(0.9, 1.0\)"),
        (LanguageConfig, {"betas": (0.9,)}, r"betas must be a tuple of 2 numbers, got \(0.9,\)"),
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


@pytest.mark.parametrize("kind", [DPOConfig, GRPOConfig, IterativeGRPOConfig, RewardModelConfig, RLHFConfig, SFTConfig])
def test_another_default_keeps_the_bounds_of_a_field(kind):
    for name in ("learning_rate", "beta", "weight_decay"):
        if hasattr(kind, name):
            with pytest.raises(ValueError, match=f"{name} must be in .*, got -1"):
                kind(**{name: -1.0})


def test_weights_go_with_rewards():
    assert SamplingConfig(rewards=("exact", "format"), reward_weights=(1.0, 0.1)).reward_weights == (1.0, 0.1)
    assert SamplingConfig(rewards=("exact",), reward_model="runs/rm", reward_weights=(1.0, 0.5)).reward_model
    with pytest.raises(ValueError, match="reward_weights has 1 numbers for 2 rewards: give one weight each"):
        SamplingConfig(rewards=("exact", "format"), reward_weights=(1.0,))
    with pytest.raises(ValueError, match="2 numbers for 2 rewards and a reward model"):
        SamplingConfig(rewards=("exact", "format"), reward_model="runs/rm", reward_weights=(1.0, 1.0))


def test_addresses_are_engines():
    assert SamplingConfig(engine="http://127.0.0.1:8000").engine.endswith("8000")


@pytest.mark.parametrize("kind", [GRPOConfig, RLHFConfig])
def test_the_upper_clip_range_is_the_lower_one_unless_it_is_set(kind):
    assert kind().clip_range == (0.2, 0.2)
    assert kind(epsilon=0.1).clip_range == (0.1, 0.1)
    assert kind(epsilon=0.1, epsilon_high=0.3).clip_range == (0.1, 0.3)
    assert dataclasses.replace(kind(), epsilon=0.1).clip_range == (0.1, 0.1)
    assert from_table(kind, to_table(kind(epsilon=0.1))).clip_range == (0.1, 0.1)
    assert from_table(kind, {"epsilon": 0.1, "epsilon_high": 0.2}).clip_range == (0.1, 0.2)  # a file of an older run


def test_presets_keep_their_clip_ranges():
    ranges = {name: GRPOConfig(**values).clip_range for name, values in PRESETS.items()}
    others = {"dapo": (0.2, 0.28), "prorl": (0.2, 0.4), "gspo": (3e-4, 4e-4), "cispo": (0.2, 4.0)}
    assert ranges == dict.fromkeys(PRESETS, (0.2, 0.2)) | others


@pytest.mark.parametrize(("objective", "values"), [("cispo", {}), ("cispo", {"epsilon": 0.3}), ("sequence", {})])
def test_the_clip_range_of_tokens_is_not_that_of_other_ratios(objective, values):
    with pytest.raises(ValueError, match=f"objective={objective} needs another clip range than the default"):
        GRPOConfig(objective=objective, **values)
    assert GRPOConfig(objective=objective, epsilon_high=0.2, **values).clip_range[1] == 0.2  # also in older files


def test_sequences_have_one_clip_range_if_only_the_lower_one_is_set():
    assert GRPOConfig(objective="sequence", epsilon=3e-4).clip_range == (3e-4, 3e-4)
