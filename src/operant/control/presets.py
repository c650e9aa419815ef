"""Hyperparameters that several algorithms share for a kind of task."""

from collections.abc import Mapping
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
"""Those of PPO on Atari (Schulman et al. 2017, table 5), with the value loss weighed as in their code; the paper says
four times as much (c1 = 1 and no ½)."""


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
