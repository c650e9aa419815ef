"""Every hyperparameter does what it says it does, as far as it does anything: another value teaches something else."""

import dataclasses
import importlib
from functools import cache

import pytest
import torch

from control.learners import build
from operant import catalog

NETWORK = {"hidden": (8,), "activation": "tanh"}
ON_POLICY = {"environments": 4, "steps": 16, **NETWORK}
NORMALISED = {"normalise_observations": True, "normalise_rewards": True}
PPO = {**ON_POLICY, "epochs": 2, "minibatches": 2, "learning_rate": 0.01}
ALTERNATING = {"warmup": 32, "rounds": 4, "batch": 16, "updates": 2, "learning_rate": 0.01, **NETWORK}

BASES = {
    "dqn": {"train_every": 8, "batch": 16, "capacity": 200, "warmup": 32, "learning_rate": 0.01, "sync": 2, **NETWORK},
    "reinforce": {"environments": 4, "psi": "gae", "learning_rate": 0.01, **NETWORK},
    "a2c": {**ON_POLICY, "steps": 5},
    "ppo": PPO,
    "recurrent-ppo": {**PPO, "memory": 8},
    "trpo": {**ON_POLICY, "fisher_every": 2, "value_epochs": 2, "value_minibatches": 2},
    "sac": ALTERNATING,
    "sac-discrete": ALTERNATING,
    "td3": ALTERNATING,
}
"""Small configurations by algorithm."""

BUDGETS = {"reinforce": 1000}
IDLE = {
    "torso": "for pictures alone",
    "rounds": "changes how often metrics are reported, no more",
    "max_steps": "an error where it is too low",
    "capacity": "of a memory that does not get full",
    "shared": "recurrent networks are",
}
"""Fields that need change nothing here, and why."""

SHARED = {
    "environments": 2,
    "learning_rate": 0.02,
    "gamma": 0.5,
    "hidden": (9,),
    "activation": "relu",
    "max_grad_norm": 1e-3,
    "log_std": -1.0,
    "normalise_observations": True,
    "normalise_rewards": True,
}
OF_PPO = {
    "steps": 8,
    "epochs": 3,
    "minibatches": 1,
    "anneal": "learning_rate",
    "lam": 0.5,
    "clip_low": 0.001,
    "clip_high": 0.001,
    "objective": "penalty",
    "beta": (3.0, {"objective": "penalty"}),
    "beta_target": (1e-6, {"objective": "penalty"}),
    "beta_rounds": (2, {"objective": "penalty", "beta_target": 1e-6}),
    "value_coefficient": (1.0, {"shared": True}),
    "entropy_coefficient": 0.1,
    "normalise_advantages": "batch",
    "value_clip": 0.001,
    "target_kl": 1e-9,
    "adam_epsilon": 0.1,
}
FAR = {"delta": 1.0, "task": "Pendulum-v1"}
OFF_POLICY = {"warmup": 48, "steps": 2, "updates": 1, "batch": 8, "tau": 0.5}
OTHERS = {
    "dqn": {
        "train_every": 4,
        "updates": 2,
        "batch": 8,
        "warmup": 48,
        "sync": 1,
        "tau": 0.5,
        "anneal": "learning_rate",
        "n": 3,
        "double": (True, {"sync": 30, "updates": 4, "learning_rate": 0.05}),
        "dueling": True,
        "priority": 0.6,
        "beta": (1.0, {"priority": 0.6}),
        "huber_delta": 0.01,
        "epsilon_start": (0.0, {"epsilon_fraction": 1.0}),
        "epsilon_end": 1.0,
        "epsilon_fraction": 1.0,
        "scale_observations": True,
        "adam_epsilon": 0.1,
    },
    "reinforce": {
        "psi": "baseline",
        "lam": 0.5,
        "discount_steps": True,
        "target": "bootstrap",
        "critic_steps": 2,
        "critic_learning_rate": 0.1,
        "standardise": True,
        "entropy_coefficient": 0.1,
    },
    "a2c": {
        "steps": 8,
        "optimizer": "adam",
        "anneal": "none",
        "optimizer_epsilon": 0.1,
        "estimator": "gae",
        "n": 2,
        "lam": (0.5, {"estimator": "gae"}),
        "target": "monte-carlo",
        "value_coefficient": (1.0, {"shared": True}),
        "entropy_coefficient": 0.1,
        "normalise_advantages": True,
        "critics": 2,
        "shared": True,
    },
    "ppo": {**OF_PPO, "shared": True},
    "recurrent-ppo": {**OF_PPO, "memory": 9},
    "trpo": {
        "steps": 8,
        "delta": 0.1,
        "cg_iterations": 1,
        "damping": 1.0,
        "fisher_every": 1,
        "line_search": (False, FAR),
        "backtrack": (0.3, FAR),
        "max_backtracks": (1, FAR),
        "lam": 0.5,
        "normalise_advantages": False,
        "value_epochs": 3,
        "value_minibatches": 1,
        "value_learning_rate": 0.1,
        "sampling": "vine",
        "vine_points": (2, {"sampling": "vine", "vine_steps": 4}),
        "vine_actions": (3, {"sampling": "vine", "vine_steps": 4, "task": "Pendulum-v1"}),
        "vine_steps": (3, {"sampling": "vine", "vine_steps": 4}),
        "vine_common": (False, {"sampling": "vine", "vine_steps": 4}),
    },
    "sac": {**OFF_POLICY, "target_entropy": -3.0, "alpha": 0.5},
    "sac-discrete": {**OFF_POLICY, "target_entropy": 0.5, "alpha": 0.5},
    "td3": {**OFF_POLICY, "critics": 1, "delay": 1, "exploration": 0.5, "smoothing": 0.5, "smoothing_clip": 0.1},
}
"""Another value of each field, and what else it needs to do anything."""


def fields(algorithm):
    entry = catalog.find(algorithm)
    return [field.name for field in dataclasses.fields(getattr(importlib.import_module(entry.module), entry.config))]


def others(algorithm):
    return {name: value for name, value in SHARED.items() if name in fields(algorithm)} | OTHERS[algorithm]


def taught(algorithm, **values):
    """Return what is learned with a configuration."""
    entry = catalog.find(algorithm)
    module = importlib.import_module(entry.module)
    continuous = algorithm in ("sac", "td3") or "log_std" in values
    task = values.pop("task", "Pendulum-v1" if continuous else "CartPole-v1")
    config = getattr(module, entry.config)(**{**BASES[algorithm], **values})
    budget = BUDGETS.get(algorithm, 192)
    learner = build(getattr(module, entry.learner), config, task, (0,), budget=budget)
    while learner.consumed < budget:
        learner.iterate()
    return {name: tensor.clone() for name, tensor in learner.learned.items()}


@cache
def baseline(algorithm, needs):
    return taught(algorithm, **dict(needs))


@pytest.mark.parametrize("algorithm", BASES)
def test_every_field_is_looked_at(algorithm):
    assert set(fields(algorithm)) - IDLE.keys() <= others(algorithm).keys() <= set(fields(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "field"), [(algorithm, field) for algorithm in BASES for field in others(algorithm)]
)
def test_another_value_teaches_something_else(algorithm, field):
    value = others(algorithm)[field]
    value, needs = value if isinstance(value, tuple) and isinstance(value[-1], dict) else (value, {})
    if field == "log_std":
        needs = {"log_std": 0.0}
    before = baseline(algorithm, tuple(needs.items()))
    after = taught(algorithm, **{**needs, field: value})
    assert before.keys() != after.keys() or any(
        before[name].shape != after[name].shape or not torch.equal(before[name], after[name]) for name in before
    )


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "recurrent-ppo", "trpo"])
def test_rewards_are_normalised_with_the_discount_of_the_returns(algorithm):
    near, far = (taught(algorithm, normalise_rewards=True, gamma=gamma) for gamma in (0.1, 0.9))
    assert float(near["rewards.mean"]) < 1.2
    assert float(far["rewards.mean"]) > 2.0


@pytest.mark.parametrize("algorithm", [name for name in BASES if "max_grad_norm" in fields(name)])
def test_the_largest_gradient_norm_bounds_each_step(algorithm, monkeypatch):
    """With it far below what gradients have, Adam or RMSProp see gradients of that very norm."""
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
    taught(algorithm, max_grad_norm=1e-4, **({"optimizer": "adam"} if algorithm == "a2c" else {}))
    clipped = [second for second, norm in seen if norm > 1e-3]
    assert len(clipped) > len(seen) / 2
    # Adam's second moment is an average of squared gradients, whose sum is the squared norm.
    assert all(float(second.sum(1).max()) <= 1.01e-8 for second, _ in seen)
