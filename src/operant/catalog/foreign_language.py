"""Other libraries' names of language options: `LANGUAGE`.

Keys are names of TRL, verl, OpenRLHF, NeMo-RL or Hugging Face's trainer with underscores, in lower case; for nested
options the last part and the whole path. Values are our option, or a replacement.
"""

from collections.abc import Mapping

_MODEL: Mapping[str, str] = {
    "model_name_or_path": "model",
    "model_name": "model",
    "pretrain": "model",
    "actor_model_name_or_path": "model",
    "hf_checkpoint": "model",
    "adapter_name_or_path": "model (an adapter's folder loads its base model)",
    "resume_from_checkpoint": "`operant resume RUN`",
    "sft_model_path": "init (the folder of a run) or model",
    "reward_model_path": "reward_model (a run of reward-model, or a sequence classifier)",
    "reward_pretrain": "reward_model (a run of reward-model, or a sequence classifier)",
    "remote_rm_url": "rewards (your own function may call it: path/to/file.py:function)",
    "ref_model": "the model that training starts from; ref_reset_interval updates it",
    "torch_dtype": "dtype",
    "bf16": "dtype (bfloat16)",
    "fp16": "dtype (bfloat16; no other 16-bit floats)",
    "trust_remote_code": "remote_code",
    "use_peft": "lora_r (0 trains all weights)",
    "target_modules": "lora_target_modules",
    "load_in_4bit": "no equivalent; lora_r and gradient_checkpointing save memory",
    "load_in_8bit": "no equivalent; lora_r and gradient_checkpointing save memory",
    "attn_implementation": "no equivalent; attention is packed (operant.language.attention)",
}
_DATA: Mapping[str, str] = {
    "dataset_name": "dataset",
    "dataset_path": "dataset",
    "prompt_data": "dataset",
    "train_files": "dataset",
    "dataset_config": "dataset (owner/name:configuration)",
    "dataset_train_split": "dataset (the split train; save another one as a file)",
    "val_files": "held_out (examples held out from the data set)",
    "prompt_max_len": "max_prompt_length",
    "max_response_length": "max_completion_length",
    "response_length": "max_completion_length",
    "generate_max_len": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "max_length": "max_prompt_length and max_completion_length",
    "max_seq_length": "max_prompt_length and max_completion_length",
    "max_len": "max_prompt_length and max_completion_length",
    "packing": "always on",
    "padding_free": "always on",
    "use_remove_padding": "always on",
}
_OPTIMIZER: Mapping[str, str] = {
    "lr": "learning_rate",
    "actor_learning_rate": "learning_rate",
    "critic_lr": "critic_learning_rate",
    "lr_scheduler_type": "lr_schedule",
    "lr_scheduler": "lr_schedule",
    "lr_warmup_ratio": "warmup_ratio",
    "lr_warmup_steps_ratio": "warmup_ratio",
    "warmup_steps": "warmup_ratio (a share of the budget)",
    "adam_beta1": "betas",
    "adam_beta2": "betas",
    "adam_betas": "betas",
    "max_norm": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "l2": "weight_decay",
    "per_device_train_batch_size": (
        "batch_size (in TRL of each device), prompts_per_batch (prompts_per_batch x num_generations answers; TRL "
        "counts answers of each device)"
    ),
    "train_batch_size": "batch_size (sft, dpo, reward-model), prompts_per_batch (grpo, rlhf)",
    "rollout_batch_size": "prompts_per_batch",
    "generation_batch_size": "prompts_per_batch (times num_generations)",
    "gradient_accumulation_steps": (
        "micro_batch_tokens (which does not change the step; TRL's steps become that many times larger: multiply the "
        "batch size)"
    ),
    "micro_train_batch_size": "micro_batch_tokens",
    "ppo_micro_batch_size_per_gpu": "micro_batch_tokens",
    "ppo_max_token_len_per_gpu": "micro_batch_tokens",
    "per_device_eval_batch_size": "engine_batch_size",
    "num_train_epochs": "budget (total demonstrations, pairs or prompts)",
    "max_epochs": "num_iterations (passes over a batch), budget (in total)",
    "max_steps": "budget (total demonstrations, pairs or prompts)",
    "total_episodes": "budget (total prompts)",
    "num_episodes": "budget (total prompts)",
    "total_epochs": "budget (total prompts)",
    "eval_steps": "evaluate_every",
    "test_freq": "evaluate_every",
    "save_steps": "checkpoint_seconds",
    "output_dir": "run",
    "seed": "seeds",
    "logging_steps": "no equivalent; metrics are recorded at most once per half second",
}
_SAMPLING: Mapping[str, str] = {
    "n_samples_per_prompt": "num_generations",
    "rloo_k": "num_generations",
    "ppo_epochs": "num_iterations",
    "num_ppo_epochs": "num_iterations",
    "num_mini_batches": "num_minibatches",
    "steps_per_generation": "num_minibatches (steps_per_generation / gradient_accumulation_steps of TRL)",
    "ppo_mini_batch_size": "num_minibatches (their number, not size)",
    "use_vllm": "engine (native, or the address of a vLLM server)",
    "vllm_mode": "engine (native, or the address of a vLLM server)",
    "vllm_server_host": "engine (http://HOST:PORT)",
    "vllm_server_port": "engine (http://HOST:PORT)",
    "vllm_server_base_url": "engine",
    "vllm_gpu_memory_utilization": "engine_batch_size (of the native engine; a server has its own option)",
    "vllm_importance_sampling_correction": "importance_sampling_correction",
    "vllm_importance_sampling_mode": "importance_sampling_correction",
    "vllm_importance_sampling_cap": "importance_sampling_cap",
    "vllm_importance_sampling_clip_max": "importance_sampling_cap",
    "enable_vllm_is_correction": "importance_sampling_correction",
    "tis_imp_ratio_cap": "importance_sampling_cap",
    "top_p": "no equivalent: training uses the sampling distribution; only temperature changes it",
    "top_k": "no equivalent: training uses the sampling distribution; only temperature changes it",
    "reward_funcs": "rewards",
    "reward_functions": "rewards",
    "reward_function": "rewards",
    "custom_reward_function": "rewards (path/to/file.py:function)",
    "overlong_filtering": "mask_truncated_completions",
    "overlong_buffer_len": "overlong_buffer",
    "soft_overlong_punishment": "overlong_buffer, or rewards (soft-overlong)",
    "dynamic_filtering": "filter (refill)",
    "filter_groups": "filter",
    "max_num_gen_batches": "max_rounds",
}
_OBJECTIVE: Mapping[str, str] = {
    "kl_coef": "beta",
    "init_kl_coef": "beta",
    "kl_loss_coef": "beta",
    "use_kl_loss": "beta (0: no penalty)",
    "kl_loss_type": "kl_estimator",
    "target_kl": "beta_target (rlhf)",
    "horizon": "beta_horizon (rlhf)",
    "epsilon_low": "epsilon",
    "cliprange": "epsilon and epsilon_high",
    "clip_range": "epsilon and epsilon_high",
    "clip_ratio": "epsilon and epsilon_high",
    "clip_ratio_low": "epsilon",
    "clip_ratio_high": "epsilon_high",
    "eps_clip": "epsilon and epsilon_high",
    "eps_clip_low_high": "epsilon and epsilon_high",
    "clip_ratio_c": "dual_clip",
    "delta": "dual_clip (grpo), target_kl (rlhf with step trpo)",
    "cliprange_value": "clip_range_vf",
    "value_clip_range": "clip_range_vf",
    "entropy_coef": "ent_coef (rlhf)",
    "entropy_coeff": "ent_coef (rlhf)",
    "lambd": "gae_lambda",
    "adv_estimator": "advantage",
    "advantage_estimator": "advantage",
    "scale_rewards": "advantage (group, batch or mean)",
    "loss_agg_mode": "loss_aggregation (token_mean, sequence_mean or constant)",
    "importance_sampling_level": "objective (sequence: GSPO)",
    "loss_type": "loss_aggregation, objective or preset (such as dr-grpo or cispo)",
    "missing_eos_penalty": "missing_eos (the score of a truncated answer, such as -1, not a penalty to subtract)",
    "sync_ref_model": "ref_reset_interval",
    "ref_model_sync_steps": "ref_reset_interval",
    "center_rewards_coefficient": (
        "no equivalent coefficient of a loss; training ends with a shift to mean score 0 on centering_examples answers"
    ),
    "reward_clip_range": "score_clip",
    "freezing_actor_steps": "critic_warmup",
    "critic_warmup_steps": "critic_warmup",
}

LANGUAGE: Mapping[str, str] = {**_MODEL, **_DATA, **_OPTIMIZER, **_SAMPLING, **_OBJECTIVE}
"""Our option, or a replacement, by the name in another library."""

_NO_REFERENCE = "no equivalent; this algorithm has no reference model"
_FIXED_REFERENCE = "the model that training starts from, which does not change"
OF_ALGORITHM: Mapping[str, Mapping[str, str]] = {
    "sft": {
        "ref_model": _NO_REFERENCE,
        "loss_type": "no equivalent; the loss is the negative log-likelihood, weighted by loss_aggregation",
    },
    "reward-model": {"ref_model": _NO_REFERENCE, "loss_type": "ranking_loss"},
    "process-reward-model": {
        "ref_model": _NO_REFERENCE,
        "loss_type": "no equivalent; the loss is the binary cross-entropy of each step",
    },
    "dpo": {"ref_model": _FIXED_REFERENCE},
    "rlhf": {
        "ref_model": _FIXED_REFERENCE,
        "loss_type": "objective and loss_aggregation",
        "importance_sampling_level": "no equivalent; ratios are those of tokens",
    },
}
"""The same where another answer is right for one algorithm, by its name."""
