"""Every hyperparameter has an effect: another value leads to other parameters."""

import dataclasses
import importlib
from functools import cache

import pytest
import torch

from control.learners import build
from operant import catalog

NETWORK = {"hidden_sizes": (8,), "activation": "tanh"}
ON_POLICY = {"num_envs": 4, "num_steps": 16, **NETWORK}
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
PPO = {**ON_POLICY, "num_epochs": 2, "num_minibatches": 2, "learning_rate": 0.01}
ALTERNATING = {
    "learning_starts": 32,
    "rounds_per_iteration": 4,
    "batch_size": 16,
    "gradient_steps": 2,
    "learning_rate": 0.01,
    **NETWORK,
}

BASES = {
    "dqn": {
        "train_freq": 8,
        "batch_size": 16,
        "buffer_size": 200,
        "learning_starts": 32,
        "learning_rate": 0.01,
        "target_update_interval": 2,
        **NETWORK,
    },
    "reinforce": {"num_envs": 4, "advantage_kind": "gae", "learning_rate": 0.01, **NETWORK},
    "a2c": {**ON_POLICY, "num_steps": 5},
    "ppo": PPO,
    "recurrent-ppo": {**PPO, "rnn_hidden_size": 8},
    "trpo": {**ON_POLICY, "sub_sampling_factor": 2, "critic_epochs": 2, "critic_minibatches": 2},
    "sac": ALTERNATING,
    "sac-discrete": ALTERNATING,
    "td3": ALTERNATING,
}
"""Small configurations by algorithm."""

BUDGETS = {"reinforce": 1000}
IDLE = {
    "encoder": "for images alone",
    **dict.fromkeys(("network", "actor_network", "critic_network"), "see test_whole_networks"),
    "rounds_per_iteration": "changes how often metrics are reported, no more",
    "max_episode_steps": "an error where it is too low",
    "buffer_size": "of a replay buffer that does not get full",
    "share_features": "recurrent networks are",
}
"""Fields that change no parameters here, with the reason."""
REFUSED = {"recurrent-ppo": {"use_sde", "sde_sample_freq"}}
"""Inherited fields that an algorithm does not support."""

SHARED = {
    "num_envs": 2,
    "learning_rate": 0.02,
    "gamma": 0.5,
    "hidden_sizes": (9,),
    "activation": "relu",
    "max_grad_norm": 1e-3,
    "log_std_init": -1.0,
    "normalize_obs": True,
    "normalize_reward": True,
}
CHANNELS = {"reward": {"gamma": 0.5}}
OF_PPO = {
    "num_steps": 8,
    "reward_channels": CHANNELS,
    "num_epochs": 3,
    "num_minibatches": 1,
    "lr_schedule": "linear",
    "clip_range_schedule": ("linear", {"clip_range": 0.001}),
    "gae_lambda": 0.5,
    "clip_range": 0.001,
    "clip_range_high": 0.001,
    "objective": "penalty",
    "kl_coef": (3.0, {"objective": "penalty"}),
    "kl_coef_target": (1e-6, {"objective": "penalty"}),
    "kl_coef_rounds": (2, {"objective": "penalty", "kl_coef_target": 1e-6}),
    "vf_coef": (1.0, {"share_features": True}),
    "ent_coef": 0.1,
    "normalize_advantage": "batch",
    "clip_range_vf": 0.001,
    "target_kl": 1e-9,
    "adam_eps": 0.1,
}
STATE_NOISE = {
    "use_sde": (True, {"task": "Pendulum-v1"}),
    "sde_sample_freq": (2, {"use_sde": True, "task": "Pendulum-v1"}),
}
OFF_POLICY_NOISE = {"use_sde": True, "sde_sample_freq": (2, {"use_sde": True, "train_freq": 8})}
FAR = {"target_kl": 1.0, "task": "Pendulum-v1"}
OFF_POLICY = {
    "learning_starts": 48,
    "train_freq": 2,
    "gradient_steps": 1,
    "batch_size": 8,
    "tau": 0.5,
    "random_exploration": 0.5,
}


def replay(task):
    """Return other values of the fields of replay, in a task with goals."""
    future = {"hindsight": "future", "task": task}
    return {
        "hindsight": ("future", {"task": task}),
        "hindsight_ratio": (0.5, future),
        "reward_range": ((-0.001, 0.0), {"task": task}),
    }


BITS, REACH = replay("operant/BitFlip-v0"), replay("operant/Reach-v0")
OTHERS = {
    "dqn": {
        **BITS,
        "train_freq": 4,
        "gradient_steps": 2,
        "batch_size": 8,
        "learning_starts": 48,
        "target_update_interval": 1,
        "tau": 0.5,
        "lr_schedule": "linear",
        "n_step": 3,
        "double": (True, {"target_update_interval": 30, "gradient_steps": 4, "learning_rate": 0.05}),
        "dueling": True,
        "per_alpha": 0.6,
        "per_beta": (1.0, {"per_alpha": 0.6}),
        "huber_delta": 0.01,
        "exploration_initial_eps": (0.0, {"exploration_fraction": 1.0}),
        "exploration_final_eps": 1.0,
        "exploration_fraction": 1.0,
        "scale_obs": True,
        "adam_eps": 0.1,
    },
    "reinforce": {
        "advantage_kind": "baseline",
        "gae_lambda": 0.5,
        "discount_steps": True,
        "target": "bootstrap",
        "critic_steps": 2,
        "critic_learning_rate": 0.1,
        "normalize_advantage": "batch",
        "ent_coef": 0.1,
    },
    "a2c": {
        "num_steps": 8,
        "reward_channels": CHANNELS,
        "optimizer": "adam",
        "lr_schedule": "constant",
        "adam_eps": 0.1,
        "estimator": "gae",
        "n_step": 2,
        "gae_lambda": (0.5, {"estimator": "gae"}),
        "target": "monte-carlo",
        "vf_coef": (1.0, {"share_features": True}),
        "ent_coef": 0.1,
        "normalize_advantage": "batch",
        "critic_ensemble_size": 2,
        "share_features": True,
        **STATE_NOISE,
    },
    "ppo": {**OF_PPO, "share_features": True, **STATE_NOISE},
    "recurrent-ppo": {**OF_PPO, "rnn_hidden_size": 9},
    "trpo": {
        "num_steps": 8,
        "target_kl": 0.1,
        "cg_max_steps": 1,
        "cg_damping": 1.0,
        "sub_sampling_factor": 1,
        "line_search": (False, FAR),
        "line_search_shrinking_factor": (0.3, FAR),
        "line_search_max_iter": (1, FAR),
        "gae_lambda": 0.5,
        "normalize_advantage": "none",
        "critic_epochs": 3,
        "critic_minibatches": 1,
        "critic_learning_rate": 0.1,
        "sampling": "vine",
        "vine_points": (2, {"sampling": "vine", "vine_steps": 4}),
        "vine_actions": (3, {"sampling": "vine", "vine_steps": 4, "task": "Pendulum-v1"}),
        "vine_steps": (3, {"sampling": "vine", "vine_steps": 4}),
        "vine_common": (False, {"sampling": "vine", "vine_steps": 4}),
    },
    "sac": {**OFF_POLICY, **REACH, **OFF_POLICY_NOISE, "target_entropy": -3.0, "ent_coef": 0.5},
    "sac-discrete": {**OFF_POLICY, **BITS, "target_entropy_scale": 0.5, "ent_coef": 0.5},
    "td3": {
        **OFF_POLICY,
        **REACH,
        **OFF_POLICY_NOISE,
        "n_critics": 1,
        "policy_delay": 1,
        "exploration_noise": 0.5,
        "target_policy_noise": 0.5,
        "target_noise_clip": 0.1,
        "action_penalty": 0.5,
    },
}
"""Another value of each field, and the other settings that it requires."""


def fields(algorithm):
    entry = catalog.find(algorithm)
    return [field.name for field in dataclasses.fields(getattr(importlib.import_module(entry.module), entry.config))]


def others(algorithm):
    return {name: value for name, value in SHARED.items() if name in fields(algorithm)} | OTHERS[algorithm]


def trained(algorithm, **values):
    """Return the parameters after training with a configuration."""
    entry = catalog.find(algorithm)
    module = importlib.import_module(entry.module)
    continuous = algorithm in ("sac", "td3") or "log_std_init" in values or "use_sde" in values
    task = values.pop("task", "Pendulum-v1" if continuous else "CartPole-v1")
    config = getattr(module, entry.config)(**{**BASES[algorithm], **values})
    budget = BUDGETS.get(algorithm, 192)
    learner = build(getattr(module, entry.learner), config, task, (0,), budget=budget)
    while learner.consumed < budget:
        learner.iterate()
    return {name: tensor.clone() for name, tensor in learner.learned.items()}


@cache
def baseline(algorithm, needs):
    return trained(algorithm, **dict(needs))


@pytest.mark.parametrize("algorithm", BASES)
def test_every_field_is_looked_at(algorithm):
    assert (
        set(fields(algorithm)) - IDLE.keys() - REFUSED.get(algorithm, set())
        <= others(algorithm).keys()
        <= set(fields(algorithm))
    )


@pytest.mark.parametrize(
    ("algorithm", "field"), [(algorithm, field) for algorithm in BASES for field in others(algorithm)]
)
def test_another_value_teaches_something_else(algorithm, field):
    value = others(algorithm)[field]
    value, needs = value if isinstance(value, tuple) and isinstance(value[-1], dict) else (value, {})
    if field == "log_std_init":
        needs = {"log_std_init": 0.0}
    before = baseline(algorithm, tuple(needs.items()))
    after = trained(algorithm, **{**needs, field: value})
    assert before.keys() != after.keys() or any(
        before[name].shape != after[name].shape or not torch.equal(before[name], after[name]) for name in before
    )


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "recurrent-ppo", "trpo"])
def test_rewards_are_normalized_with_the_discount_of_the_returns(algorithm):
    near, far = (trained(algorithm, normalize_reward=True, gamma=gamma) for gamma in (0.1, 0.9))
    assert float(near["rewards.mean"]) < 1.2
    assert float(far["rewards.mean"]) > 2.0


@pytest.mark.parametrize("algorithm", [name for name in BASES if "max_grad_norm" in fields(name)])
def test_the_largest_gradient_norm_bounds_each_step(algorithm, monkeypatch):
    """Use a limit far below the norms of gradients, so that Adam or RMSProp receive gradients of exactly that norm."""
    seen = []

    def watched(step):
        def stepped(self, gradient, **options):
            norm = step(self, gradient, **options)
            seen.append((self.second.clone(), float(norm.max())))
            return norm

        return stepped

    optim = importlib.import_module("operant.nets.optim")
    for kind in (optim.StackedAdam, optim.StackedRMSprop):
        monkeypatch.setattr(kind, "step", watched(kind.step))
    trained(algorithm, max_grad_norm=1e-4, **({"optimizer": "adam"} if algorithm == "a2c" else {}))
    clipped = [second for second, norm in seen if norm > 1e-3]
    assert len(clipped) > len(seen) / 2
    # Adam's second moment is an average of squared gradients, whose sum is the squared norm.
    assert all(float(second.sum(1).max()) <= 1.01e-8 for second, _ in seen)
