"""Names of hyperparameters and algorithms in 0.1: accepted with a notice for one release."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)

ALGORITHMS: Mapping[str, str] = {
    "prioritised-dqn": "prioritized-dqn",
    "prioritised-sweeping": "prioritized-sweeping",
}
"""New names of algorithms by their old ones."""

FIELDS: Mapping[str, Mapping[str, str]] = {
    "A2CConfig": {
        "environments": "num_envs",
        "steps": "num_steps",
        "anneal": "lr_schedule",
        "optimizer_epsilon": "adam_eps",
        "n": "n_step",
        "lam": "gae_lambda",
        "value_coefficient": "vf_coef",
        "entropy_coefficient": "ent_coef",
        "normalise_advantages": "normalize_advantage",
        "critics": "critic_ensemble_size",
        "hidden": "hidden_sizes",
        "shared": "share_features",
        "torso": "encoder",
        "log_std": "log_std_init",
        "normalise_observations": "normalize_obs",
        "normalise_rewards": "normalize_reward",
    },
    "A3CConfig": {
        "environments": "num_envs",
        "slice_steps": "steps_per_iteration",
    },
    "OffPolicyConfig": {
        "environments": "num_envs",
        "warmup": "learning_starts",
        "steps": "train_freq",
        "updates": "gradient_steps",
        "rounds": "rounds_per_iteration",
        "batch": "batch_size",
        "capacity": "buffer_size",
        "hidden": "hidden_sizes",
    },
    "BaseConfig": {
        "steps": "steps_per_iteration",
    },
    "CriticConfig": {
        "lam": "gae_lambda",
        "value_coefficient": "vf_coef",
        "value_clip": "clip_range_vf",
    },
    "DPOConfig": {
        "batch": "batch_size",
        "precompute": "precompute_ref_log_probs",
    },
    "DQNConfig": {
        "environments": "num_envs",
        "updates": "gradient_steps",
        "batch": "batch_size",
        "capacity": "buffer_size",
        "warmup": "learning_starts",
        "sync": "target_update_interval",
        "anneal": "lr_schedule",
        "n": "n_step",
        "priority": "per_alpha",
        "beta": "per_beta",
        "epsilon_start": "exploration_initial_eps",
        "epsilon_end": "exploration_final_eps",
        "epsilon_fraction": "exploration_fraction",
        "hidden": "hidden_sizes",
        "torso": "encoder",
        "scale_observations": "scale_obs",
        "adam_epsilon": "adam_eps",
    },
    "DiscreteSACConfig": {
        "target_entropy": "target_entropy_scale",
        "alpha": "ent_coef",
    },
    "DreamerConfig": {
        "batch_length": "sequence_length",
        "gae_lambda": "td_lambda",
    },
    "DynaQConfig": {
        "planning": "planning_steps",
    },
    "DynaQPlusConfig": {
        "kappa": "bonus_coef",
    },
    "EpsilonGreedyConfig": {
        "epsilon": "exploration_rate",
    },
    "ExploringConfig": {
        "epsilon": "exploration_initial_eps",
        "epsilon_schedule": "exploration_schedule",
        "epsilon_final": "exploration_final_eps",
        "epsilon_span": "exploration_span",
        "epsilon_factor": "exploration_factor",
    },
    "GRPOConfig": {
        "prompts": "prompts_per_batch",
        "group": "num_generations",
        "minibatches": "num_minibatches",
        "epochs": "num_iterations",
        "clip_low": "epsilon",
        "clip_high": "epsilon_high",
        "weights": "loss_aggregation",
        "scale": "group_loss_scale",
        "overlong_filter": "mask_truncated_completions",
        "kl_coefficient": "beta",
        "reset_every": "ref_reset_interval",
    },
    "IMPALAConfig": {
        "trace_lambda": "td_lambda",
    },
    "IterativeGRPOConfig": {
        "weights": "loss_aggregation",
        "kl_coefficient": "beta",
        "reset_every": "ref_reset_interval",
        "reward_batch": "reward_batch_size",
    },
    "LambdaReturnConfig": {
        "lam": "td_lambda",
    },
    "LanguageConfig": {
        "train_rows": "train_examples",
        "max_prompt": "max_prompt_length",
        "max_completion": "max_completion_length",
        "schedule": "lr_schedule",
        "warmup": "warmup_ratio",
    },
    "MBIEEBConfig": {
        "beta": "bonus_coef",
    },
    "MBPOConfig": {
        "imagined_size": "model_buffer_size",
    },
    "ModelOptions": {
        "lora_rank": "lora_r",
        "lora_targets": "lora_target_modules",
    },
    "NStepSarsaConfig": {
        "n": "n_step",
    },
    "NStepTDConfig": {
        "n": "n_step",
    },
    "OneStepConfig": {
        "bonus": "bonus_coef",
    },
    "PETSConfig": {
        "temperature": "planning_temperature",
    },
    "PPOConfig": {
        "environments": "num_envs",
        "steps": "num_steps",
        "epochs": "num_epochs",
        "minibatches": "num_minibatches",
        "anneal": "lr_schedule",
        "lam": "gae_lambda",
        "clip_low": "clip_range",
        "clip_high": "clip_range_high",
        "beta": "kl_coef",
        "beta_target": "kl_coef_target",
        "beta_rounds": "kl_coef_rounds",
        "value_coefficient": "vf_coef",
        "entropy_coefficient": "ent_coef",
        "normalise_advantages": "normalize_advantage",
        "value_clip": "clip_range_vf",
        "hidden": "hidden_sizes",
        "shared": "share_features",
        "torso": "encoder",
        "log_std": "log_std_init",
        "adam_epsilon": "adam_eps",
        "normalise_observations": "normalize_obs",
        "normalise_rewards": "normalize_reward",
    },
    "PrioritizedSweepingConfig": {
        "planning": "planning_steps",
    },
    "RLHFConfig": {
        "prompts": "prompts_per_batch",
        "group": "num_generations",
        "epochs": "num_iterations",
        "minibatches": "num_minibatches",
        "clip_low": "epsilon",
        "clip_high": "epsilon_high",
        "beta": "kl_coef",
        "beta_target": "kl_coef_target",
        "entropy_coefficient": "ent_coef",
        "weights": "loss_aggregation",
        "whiten_advantages": "normalize_advantage",
        "kl_coefficient": "beta",
        "kl_target": "beta_target",
        "kl_horizon": "beta_horizon",
        "delta": "target_kl",
        "damping": "cg_damping",
    },
    "RecurrentPPOConfig": {
        "environments": "num_envs",
        "steps": "num_steps",
        "epochs": "num_epochs",
        "minibatches": "num_minibatches",
        "shared": "share_features",
        "memory": "rnn_hidden_size",
    },
    "ReinforceConfig": {
        "environments": "num_envs",
        "psi": "advantage_kind",
        "lam": "gae_lambda",
        "standardise": "normalize_advantage",
        "entropy_coefficient": "ent_coef",
        "max_steps": "max_episode_steps",
        "hidden": "hidden_sizes",
        "torso": "encoder",
        "log_std": "log_std_init",
    },
    "RewardModelConfig": {
        "batch": "batch_size",
        "centre": "centering_examples",
    },
    "SACConfig": {
        "alpha": "ent_coef",
    },
    "SFTConfig": {
        "batch": "batch_size",
        "weights": "loss_aggregation",
    },
    "SamplingConfig": {
        "engine_rows": "engine_batch_size",
        "correction": "importance_sampling_correction",
        "correction_cap": "importance_sampling_cap",
    },
    "SarsaLambdaConfig": {
        "lam": "td_lambda",
    },
    "StrategyConfig": {
        "steps": "steps_per_iteration",
    },
    "TD3Config": {
        "critics": "n_critics",
        "delay": "policy_delay",
        "exploration": "exploration_noise",
        "smoothing": "target_policy_noise",
        "smoothing_clip": "target_noise_clip",
    },
    "TDLambdaConfig": {
        "lam": "td_lambda",
    },
    "TRPOConfig": {
        "environments": "num_envs",
        "steps": "num_steps",
        "delta": "target_kl",
        "cg_iterations": "cg_max_steps",
        "damping": "cg_damping",
        "fisher_every": "sub_sampling_factor",
        "backtrack": "line_search_shrinking_factor",
        "max_backtracks": "line_search_max_iter",
        "lam": "gae_lambda",
        "normalise_advantages": "normalize_advantage",
        "value_epochs": "critic_epochs",
        "value_minibatches": "critic_minibatches",
        "value_learning_rate": "critic_learning_rate",
        "hidden": "hidden_sizes",
        "log_std": "log_std_init",
        "normalise_observations": "normalize_obs",
        "normalise_rewards": "normalize_reward",
    },
    "UCBConfig": {
        "scale": "bonus_coef",
    },
    "WorldModelsConfig": {
        "temperature": "dream_temperature",
        "vae_torso": "vae_encoder",
    },
}
"""New names of fields by the declaring configuration and their old names."""

SCHEDULES: Mapping[str, Mapping[str, str]] = {
    "none": {"lr_schedule": "constant", "clip_range_schedule": "constant"},
    "learning_rate": {"lr_schedule": "linear", "clip_range_schedule": "constant"},
    "both": {"lr_schedule": "linear", "clip_range_schedule": "linear"},
}
"""New values of `anneal`."""

SCOPES: Mapping[bool, str] = {True: "batch", False: "none"}
"""New values for true and false in `normalize_advantage`."""


def algorithm(name: str) -> str:
    """Return the name of an algorithm from its name or old name."""
    return _noticed(name, ALGORITHMS[name]) if name in ALGORITHMS else name


def current(kind: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of a configuration with the current names.

    A few names have changed their meaning. A table with an old name that is no longer in use is treated as entirely
    old.

    Args:
        kind: the dataclass.
        table: its fields by name.

    Raises:
        ValueError: if a field is given under its old name and its new one.
    """
    known = {field.name for field in dataclasses.fields(kind)}
    if kind.__name__ == "Settings" and isinstance(table.get("algorithm"), str):
        table = {**table, "algorithm": algorithm(table["algorithm"])}
    renamed = names(kind)
    if not any(name in renamed and name not in known for name in table):
        return dict(table)
    values: dict[str, Any] = {}
    for name, value in table.items():
        new = _values(name, renamed[name], value, known) if name in renamed else {name: value}
        if name in renamed:
            _noticed(name, renamed[name])
        twice = sorted(new.keys() & values.keys())
        if twice:
            raise ValueError(f"{twice[0]} is given twice, under an old name and the new one; leave out the old one")
        values |= new
    return values


def current_flags(kind: type, flags: Sequence[str]) -> list[str]:
    """Return flags of a command line with current names; for fields of the dataclass `kind`."""
    known = {field.name for field in dataclasses.fields(kind)}
    renamed = {old: new for old, new in names(kind).items() if old not in known}
    out: list[str] = []
    words = iter(enumerate(flags, 1))
    for after, word in words:
        match = re.fullmatch(r"--(no-)?([a-z][a-z_-]*)(?:=(.*))?", word, re.DOTALL)
        off, name, value = match.groups() if match else (None, "", None)
        name = name.replace("-", "_")
        following = value if value is not None else "".join(flags[after : after + 1])
        if name not in renamed or (name == "bonus" and not _is_number(following)):  # --bonus also names exploration
            out.append(word)
            continue
        new = _noticed(name, renamed[name], dashes=True)
        if name == "anneal":
            value = next(words, (0, ""))[1] if value is None else value
            out += _flags(_values(name, renamed[name], value, known).items())
        elif renamed[name] == "normalize_advantage" and value is None and not _has_scopes(kind):
            out += [f"--{new}", SCOPES[off is None]]
        else:
            out.append(f"--{off or ''}{new}" + ("" if value is None else f"={value}"))
    return out


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def upgraded(config: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the configuration in a file of a run, with current values.

    Up to version 1 DQN counted the steps of all environments of a seed together in `train_freq` (first `train_every`);
    it now counts those of every environment, as the other learners always did. GRPO once weighted all estimates of the
    KL divergence by default, which is wrong for k2.

    Args:
        config: the table of the file.
        version: its `schema_version`.
    """
    values = dict(config)
    if values.get("kl_estimator") == "k2" and values.get("kl_weighted") is True:
        del values["kl_weighted"]
    if version > 1 or not {"target_update_interval", "train_every"} & values.keys():
        return values
    steps = values.pop("train_every", values.get("train_freq"))
    rows = values.get("num_envs", values.get("environments"))
    if isinstance(steps, int) and isinstance(rows, int) and rows > 0:
        steps //= rows
    return values if steps is None else values | {"train_freq": steps}


def names(kind: type) -> dict[str, str]:
    """Return the current names of all renamed fields of a configuration, by the old ones."""
    return {old: new for base in reversed(kind.__mro__) for old, new in FIELDS.get(base.__name__, {}).items()}


def _has_scopes(kind: type) -> bool:
    """Return whether `--normalise-advantages` named a scope, as in PPO, and was not a boolean."""
    return any(base.__name__ == "PPOConfig" for base in kind.__mro__)


def _values(old: str, new: str, value: Any, known: Iterable[str]) -> dict[str, Any]:
    """Return the current fields of an old one."""
    if old == "anneal" and value in SCHEDULES:
        return {name: choice for name, choice in SCHEDULES[value].items() if name in known}
    if new == "normalize_advantage" and isinstance(value, bool):
        return {new: SCOPES[value]}
    return {new: value}


def _flags(values: Iterable[tuple[str, Any]]) -> list[str]:
    return [word for name, value in values for word in (f"--{name.replace('_', '-')}", str(value))]


def _noticed(old: str, new: str, *, dashes: bool = False) -> str:
    """Log that a name is old, and return the new one."""
    if dashes:
        old, new = (f"{name.replace('_', '-')}" for name in (old, new))
    logger.warning("%s is now %s; the old name is accepted for one release", old, new)
    return new
