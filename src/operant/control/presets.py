"""Presets that several algorithms share."""

from collections.abc import Mapping
from math import inf
from typing import Any

ATARI: Mapping[str, Any] = {
    "num_envs": 8,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 2.5e-4,
    "lr_schedule": "linear",
    "clip_range_schedule": "linear",
    "clip_range": 0.1,
    "ent_coef": 0.01,
    "hidden_sizes": (512,),
    "activation": "relu",
    "share_features": True,
}
"""PPO on Atari (Schulman et al. 2017, table 5), with two values from their code: 4 epochs (the paper has 3), and a
quarter of the paper's weight of the value loss (c1 = 1 and no ½)."""


CATCH: Mapping[str, Any] = {
    "num_envs": 32,
    "num_steps": 9,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 3e-3,
    "lr_schedule": "linear",
    "ent_coef": 0.01,
    "hidden_sizes": (64,),
    "activation": "relu",
    "share_features": True,
}
"""PPO on `operant/PixelCatch-v0`."""

MINIGRID: Mapping[str, Any] = {
    "num_envs": 16,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 8,
    "learning_rate": 7e-4,
    "lr_schedule": "linear",
    "ent_coef": 0.01,
    "hidden_sizes": (128, 128),
    "activation": "relu",
}
"""PPO on MiniGrid, whose observations are grids of object codes."""

DQN_ATARI: Mapping[str, Any] = {
    "num_envs": 8,
    "train_freq": 4,
    "gradient_steps": 8,
    "buffer_size": 100_000,
    "learning_starts": 100_000,
    "target_update_interval": 250,
    "learning_rate": 1e-4,
    "max_grad_norm": 10.0,
    "exploration_final_eps": 0.01,
    "exploration_fraction": 0.1,
    "hidden_sizes": (512,),
}
"""RL Baselines3 Zoo's DQN on Atari, with 8 environments instead of one and the same number of gradient steps per
environment step; a target update every 1000 environment steps is one every 250 gradient steps. The replay buffer of a
seed takes 0.8 GB, and twice that while a checkpoint is written."""

DQN_CATCH: Mapping[str, Any] = {
    "num_envs": 8,
    "train_freq": 4,
    "gradient_steps": 16,
    "batch_size": 64,
    "buffer_size": 10_000,
    "learning_starts": 1000,
    "target_update_interval": 64,
    "learning_rate": 1e-3,
    "lr_schedule": "linear",
    "gamma": 0.95,
    "n_step": 9,
    "exploration_final_eps": 0.05,
    "exploration_fraction": 0.4,
    "hidden_sizes": (128,),
}
"""DQN on `operant/PixelCatch-v0`, with episodes of 9 steps, for a budget of about 8000 steps."""

_MUJOCO: Mapping[str, Any] = {
    "num_envs": 8,
    "num_steps": 256,
    "lr_schedule": "linear",
    "normalize_advantage": "none",
    "normalize_obs": True,
    "normalize_reward": True,
}
_WIDE: Mapping[str, Any] = {
    "num_envs": 64,
    "num_epochs": 4,
    "num_minibatches": 8,
    "lr_schedule": "linear",
    "clip_range_schedule": "linear",
}
PPO: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {**_WIDE, "num_steps": 32, "learning_rate": 7e-3, "hidden_sizes": (32, 32)},
    "Acrobot-v1": {**_WIDE, "num_steps": 128, "learning_rate": 2.5e-3},
    "Pendulum-v1": {
        "num_envs": 32,
        "num_steps": 64,
        "num_epochs": 10,
        "num_minibatches": 16,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "gamma": 0.95,
        "activation": "relu",
    },
    "MountainCar-v0": {
        "num_envs": 16,
        "num_steps": 16,
        "vf_coef": 1.0,
        "num_epochs": 4,
        "num_minibatches": 4,
        "gae_lambda": 0.98,
        "normalize_obs": True,
        "normalize_reward": True,
    },
    "LunarLander-v3": {
        "num_envs": 16,
        "num_steps": 1024,
        "vf_coef": 1.0,
        "num_epochs": 4,
        "num_minibatches": 256,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "ent_coef": 0.01,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Hopper-v5": _MUJOCO,
    "Walker2d-v5": _MUJOCO,
    "ALE/*": ATARI,
    "MiniGrid-*": MINIGRID,
    "operant/PixelCatch-v0": CATCH,
    "zoo": {
        "num_envs": 8,
        "num_steps": 32,
        "vf_coef": 1.0,
        "num_epochs": 20,
        "num_minibatches": 1,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "clip_range_schedule": "linear",
        "gamma": 0.98,
        "gae_lambda": 0.8,
    },
}
"""Presets: by task or pattern, selected automatically, or by name. Other fields keep their defaults.

`zoo` has RL Baselines3 Zoo's hyperparameters for CartPole-v1; those of MountainCar-v0 and LunarLander-v3 are the zoo's,
too. Its value loss has the weight 0.5 and no factor ½, which equals a weight of 1 here. MuJoCo presets follow Tianshou.
"""

DQN_BIT_FLIP: Mapping[str, Any] = {
    "num_envs": 8,
    "train_freq": 2,
    "gradient_steps": 4,
    "batch_size": 128,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 1,
    "tau": 0.05,
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "exploration_final_eps": 0.1,
    "exploration_fraction": 0.2,
    "hidden_sizes": (256,),
    "reward_range": (-1.0, 0.0),
}
"""DQN on `operant/BitFlip-v0`: network, learning rate, γ, τ and batch size of Andrychowicz et al. (2017,
appendix A), who update targets less often."""

REACH: Mapping[str, Any] = {
    "learning_starts": 500,
    "gradient_steps": 2,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "tau": 0.05,
    "buffer_size": 100_000,
    "hidden_sizes": (64, 64),
    "reward_range": (-1.0, 0.0),
}
"""SAC, TD3 and DDPG on `operant/Reach-v0` and FetchReach."""

PUSH: Mapping[str, Any] = {
    "num_envs": 2,
    "train_freq": 50,
    "gradient_steps": 40,
    "rounds_per_iteration": 5,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "tau": 0.01,
    "hidden_sizes": (128, 128),
    "normalize_obs": True,
    "random_exploration": 0.3,
    "exploration_noise": 0.2,
    "action_penalty": 0.05,
    "reward_range": (-1.0, 0.0),
}
"""TD3 and DDPG on FetchPush: 40 updates after two episodes, exploration and scaled observations of Andrychowicz et al.
(2017, appendix A) and their code, with smaller networks, faster targets, a smaller γ and a smaller action penalty."""

DQN: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 4,
        "train_freq": 16,
        "gradient_steps": 32,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1024,
        "target_update_interval": 100,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "huber_delta": inf,
        "max_grad_norm": 10.0,
        "exploration_final_eps": 0.05,
        "exploration_fraction": 0.2,
        "hidden_sizes": (128, 128),
    },
    "Acrobot-v1": {
        "train_freq": 32,
        "gradient_steps": 16,
        "batch_size": 64,
        "buffer_size": 50_000,
        "learning_starts": 1024,
        "target_update_interval": 128,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "exploration_final_eps": 0.05,
        "exploration_fraction": 0.2,
        "hidden_sizes": (64, 64),
    },
    "MountainCar-v0": {
        "train_freq": 16,
        "gradient_steps": 16,
        "batch_size": 64,
        "buffer_size": 50_000,
        "learning_starts": 1000,
        "target_update_interval": 100,
        "learning_rate": 2e-3,
        "lr_schedule": "linear",
        "huber_delta": inf,
        "max_grad_norm": 10.0,
        "exploration_final_eps": 0.07,
        "exploration_fraction": 0.05,
        "hidden_sizes": (64, 64),
        "scale_obs": True,
    },
    "LunarLander-v3": {
        "train_freq": 4,
        "gradient_steps": 4,
        "batch_size": 128,
        "buffer_size": 50_000,
        "learning_starts": 1000,
        "target_update_interval": 250,
        "learning_rate": 6.3e-4,
        "lr_schedule": "linear",
        "max_grad_norm": 10.0,
        "exploration_final_eps": 0.1,
        "exploration_fraction": 0.12,
    },
    "ALE/*": DQN_ATARI,
    "operant/BitFlip-v0": DQN_BIT_FLIP,
    "operant/PixelCatch-v0": DQN_CATCH,
    "*": {
        "num_envs": 4,
        "train_freq": 4,
        "gradient_steps": 8,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1000,
        "target_update_interval": 250,
        "learning_rate": 5e-4,
        "lr_schedule": "linear",
        "max_grad_norm": 10.0,
        "exploration_final_eps": 0.05,
        "exploration_fraction": 0.2,
    },
    "zoo": {
        "train_freq": 256,
        "gradient_steps": 128,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1000,
        "target_update_interval": 128,
        "learning_rate": 2.3e-3,
        "max_grad_norm": 10.0,
        "exploration_final_eps": 0.04,
        "exploration_fraction": 0.16,
    },
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults.

`zoo` has RL Baselines3 Zoo's hyperparameters for CartPole-v1, with a target update every 10 environment steps: with 128
consecutive gradient steps, that is once before each phase. LunarLander-v3 is also the zoo's, with a decaying learning
rate and random actions before training starts.
"""

_TRPO_MUJOCO: Mapping[str, Any] = {
    "num_envs": 8,
    "num_steps": 256,
    "sub_sampling_factor": 4,
    "critic_minibatches": 16,
    "normalize_obs": True,
    "normalize_reward": True,
}
TRPO: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {"num_envs": 16, "num_steps": 64, "sub_sampling_factor": 4, "critic_minibatches": 8},
    "Acrobot-v1": {"num_envs": 16, "num_steps": 128, "sub_sampling_factor": 4, "critic_minibatches": 16},
    "Pendulum-v1": {
        "num_envs": 16,
        "num_steps": 200,
        "target_kl": 0.02,
        "cg_damping": 0.01,
        "sub_sampling_factor": 4,
        "gamma": 0.95,
        "critic_minibatches": 16,
    },
    "MountainCar-v0": {
        "num_envs": 16,
        "num_steps": 128,
        "sub_sampling_factor": 4,
        "gae_lambda": 0.98,
        "critic_minibatches": 16,
        "normalize_obs": True,
        "normalize_reward": True,
    },
    "LunarLander-v3": {
        "num_envs": 16,
        "num_steps": 256,
        "sub_sampling_factor": 4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "normalize_reward": True,
    },
    "HalfCheetah-v5": _TRPO_MUJOCO,
    "Hopper-v5": _TRPO_MUJOCO,
    "Walker2d-v5": _TRPO_MUJOCO,
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults.

All environments of Pendulum-v1 end together, after 200 steps. A shorter rollout would contain only a part of every
episode, and an update within a trust region over these states could degrade the policy in others.
"""
