"""Hyperparameters that several algorithms share for a kind of task."""

from collections.abc import Mapping
from math import inf
from typing import Any

ATARI: Mapping[str, Any] = {
    "environments": 8,
    "steps": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,
    "anneal": "both",
    "clip_low": 0.1,
    "entropy_coefficient": 0.01,
    "hidden": (512,),
    "activation": "relu",
    "shared": True,
}
"""Those of PPO on Atari (Schulman et al. 2017, table 5), but for two that are as in their code: 4 epochs, where the
paper says 3, and the weight of the value loss, where the paper says four times as much (c1 = 1 and no ½)."""


CATCH: Mapping[str, Any] = {
    "environments": 32,
    "steps": 9,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 3e-3,
    "anneal": "learning_rate",
    "entropy_coefficient": 0.01,
    "hidden": (64,),
    "activation": "relu",
    "shared": True,
}
"""Those of PPO on `operant/PixelCatch-v0`."""

DQN_ATARI: Mapping[str, Any] = {
    "environments": 8,
    "train_every": 32,
    "updates": 8,
    "capacity": 100_000,
    "warmup": 100_000,
    "sync": 250,
    "learning_rate": 1e-4,
    "max_grad_norm": 10.0,
    "epsilon_end": 0.01,
    "epsilon_fraction": 0.1,
    "hidden": (512,),
}
"""What RL Baselines3 Zoo uses for DQN on Atari, with 8 environments in place of one and as many gradient steps for each
step in them; a copy every 1000 environment steps is one every 250 gradient steps. The memory of a seed takes 0.8 GB,
and twice that while a checkpoint is written."""

DQN_CATCH: Mapping[str, Any] = {
    "environments": 8,
    "train_every": 32,
    "updates": 16,
    "batch": 64,
    "capacity": 10_000,
    "warmup": 1000,
    "sync": 64,
    "learning_rate": 1e-3,
    "anneal": "learning_rate",
    "gamma": 0.95,
    "n": 9,
    "epsilon_end": 0.05,
    "epsilon_fraction": 0.4,
    "hidden": (128,),
}
"""Those of DQN on `operant/PixelCatch-v0`, whose episodes have 9 steps, for a budget of some 8000."""

_MUJOCO: Mapping[str, Any] = {
    "environments": 8,
    "steps": 256,
    "anneal": "learning_rate",
    "normalise_advantages": "none",
    "normalise_observations": True,
    "normalise_rewards": True,
}
_WIDE: Mapping[str, Any] = {"environments": 64, "epochs": 4, "minibatches": 8, "anneal": "both"}
PPO: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {**_WIDE, "steps": 32, "learning_rate": 7e-3, "hidden": (32, 32)},
    "Acrobot-v1": {**_WIDE, "steps": 128, "learning_rate": 2.5e-3},
    "Pendulum-v1": {
        "environments": 32,
        "steps": 64,
        "epochs": 10,
        "minibatches": 16,
        "learning_rate": 1e-3,
        "anneal": "learning_rate",
        "gamma": 0.95,
        "activation": "relu",
    },
    "MountainCar-v0": {
        "environments": 16,
        "steps": 16,
        "value_coefficient": 1.0,
        "epochs": 4,
        "minibatches": 4,
        "lam": 0.98,
        "normalise_observations": True,
        "normalise_rewards": True,
    },
    "LunarLander-v3": {
        "environments": 16,
        "steps": 1024,
        "value_coefficient": 1.0,
        "epochs": 4,
        "minibatches": 256,
        "gamma": 0.999,
        "lam": 0.98,
        "entropy_coefficient": 0.01,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Hopper-v5": _MUJOCO,
    "Walker2d-v5": _MUJOCO,
    "ALE/*": ATARI,
    "operant/PixelCatch-v0": CATCH,
    "zoo": {
        "environments": 8,
        "steps": 32,
        "value_coefficient": 1.0,
        "epochs": 20,
        "minibatches": 1,
        "learning_rate": 1e-3,
        "anneal": "both",
        "gamma": 0.98,
        "lam": 0.8,
    },
}
"""Configuration by task, which selects its own, or by name; what is not named keeps its default.

`zoo` is what RL Baselines3 Zoo uses for CartPole-v1; MountainCar-v0 and LunarLander-v3 are its, too. Its weight of the
value loss is 0.5 without the ½ that the loss has here, which is 1 with it. Those of MuJoCo follow Tianshou.
"""

DQN: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "environments": 4,
        "train_every": 64,
        "updates": 32,
        "batch": 64,
        "capacity": 100_000,
        "warmup": 1024,
        "sync": 100,
        "learning_rate": 1e-3,
        "anneal": "learning_rate",
        "huber_delta": inf,
        "max_grad_norm": 10.0,
        "epsilon_end": 0.05,
        "epsilon_fraction": 0.2,
        "hidden": (128, 128),
    },
    "Acrobot-v1": {
        "train_every": 32,
        "updates": 16,
        "batch": 64,
        "capacity": 50_000,
        "warmup": 1024,
        "sync": 128,
        "learning_rate": 1e-3,
        "anneal": "learning_rate",
        "epsilon_end": 0.05,
        "epsilon_fraction": 0.2,
        "hidden": (64, 64),
    },
    "MountainCar-v0": {
        "train_every": 16,
        "updates": 16,
        "batch": 64,
        "capacity": 50_000,
        "warmup": 1000,
        "sync": 100,
        "learning_rate": 2e-3,
        "anneal": "learning_rate",
        "huber_delta": inf,
        "max_grad_norm": 10.0,
        "epsilon_end": 0.07,
        "epsilon_fraction": 0.05,
        "hidden": (64, 64),
        "scale_observations": True,
    },
    "LunarLander-v3": {
        "train_every": 4,
        "updates": 4,
        "batch": 128,
        "capacity": 50_000,
        "warmup": 1000,
        "sync": 250,
        "learning_rate": 6.3e-4,
        "anneal": "learning_rate",
        "max_grad_norm": 10.0,
        "epsilon_end": 0.1,
        "epsilon_fraction": 0.12,
    },
    "ALE/*": DQN_ATARI,
    "operant/PixelCatch-v0": DQN_CATCH,
    "*": {
        "environments": 4,
        "train_every": 16,
        "updates": 8,
        "batch": 64,
        "capacity": 100_000,
        "warmup": 1000,
        "sync": 250,
        "learning_rate": 5e-4,
        "anneal": "learning_rate",
        "max_grad_norm": 10.0,
        "epsilon_end": 0.05,
        "epsilon_fraction": 0.2,
    },
    "zoo": {
        "train_every": 256,
        "updates": 128,
        "batch": 64,
        "capacity": 100_000,
        "warmup": 1000,
        "sync": 128,
        "learning_rate": 2.3e-3,
        "max_grad_norm": 10.0,
        "epsilon_end": 0.04,
        "epsilon_fraction": 0.16,
    },
}
"""Configuration by task, which selects its own, or by name; what is not named keeps its default.

`zoo` is what RL Baselines3 Zoo uses for CartPole-v1, where the target network is copied every 10 environment steps:
with 128 gradient steps in a row that is once before each of these rows. LunarLander-v3 is the zoo's too, with a
learning rate that falls and random actions before the first training.
"""

_TRPO_MUJOCO: Mapping[str, Any] = {
    "environments": 8,
    "steps": 256,
    "fisher_every": 4,
    "value_minibatches": 16,
    "normalise_observations": True,
    "normalise_rewards": True,
}
TRPO: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {"environments": 16, "steps": 64, "fisher_every": 4, "value_minibatches": 8},
    "Acrobot-v1": {"environments": 16, "steps": 128, "fisher_every": 4, "value_minibatches": 16},
    "Pendulum-v1": {
        "environments": 16,
        "steps": 200,
        "delta": 0.02,
        "damping": 0.01,
        "fisher_every": 4,
        "gamma": 0.95,
        "value_minibatches": 16,
    },
    "MountainCar-v0": {
        "environments": 16,
        "steps": 128,
        "fisher_every": 4,
        "lam": 0.98,
        "value_minibatches": 16,
        "normalise_observations": True,
        "normalise_rewards": True,
    },
    "LunarLander-v3": {
        "environments": 16,
        "steps": 256,
        "fisher_every": 4,
        "gamma": 0.999,
        "lam": 0.98,
        "normalise_rewards": True,
    },
    "HalfCheetah-v5": _TRPO_MUJOCO,
    "Hopper-v5": _TRPO_MUJOCO,
    "Walker2d-v5": _TRPO_MUJOCO,
}
"""Configuration by task, which selects its own, or by name; what is not named keeps its default.

All environments of Pendulum-v1 are cut at the same time, after 200 steps. A rollout of fewer would hold but a part of
every episode, and an update within the trust region of those states is free to forget what to do in the others.
"""
