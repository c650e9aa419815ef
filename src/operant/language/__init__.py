"""Language models: from supervised fine-tuning to reinforcement learning from verifiers and preferences."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operant.language.dpo import DPO, DPOConfig
    from operant.language.factory import Experiment, assemble
    from operant.language.grpo import GRPO, GRPOConfig
    from operant.language.inputs import pin
    from operant.language.iterative import IterativeGRPO, IterativeGRPOConfig
    from operant.language.objects import stored
    from operant.language.presets import configuration
    from operant.language.reward_model import RewardModel, RewardModelConfig
    from operant.language.rlhf import RLHF, RLHFConfig
    from operant.language.runs import built_in, check_code
    from operant.language.sft import SFT, SFTConfig

__all__ = [
    "DPO",
    "GRPO",
    "RLHF",
    "SFT",
    "DPOConfig",
    "Experiment",
    "GRPOConfig",
    "IterativeGRPO",
    "IterativeGRPOConfig",
    "RLHFConfig",
    "RewardModel",
    "RewardModelConfig",
    "SFTConfig",
    "assemble",
    "built_in",
    "check_code",
    "configuration",
    "pin",
    "stored",
]

_HOMES = {
    "dpo": ("DPO", "DPOConfig"),
    "factory": ("Experiment", "assemble"),
    "grpo": ("GRPO", "GRPOConfig"),
    "inputs": ("pin",),
    "iterative": ("IterativeGRPO", "IterativeGRPOConfig"),
    "objects": ("stored",),
    "presets": ("configuration",),
    "reward_model": ("RewardModel", "RewardModelConfig"),
    "rlhf": ("RLHF", "RLHFConfig"),
    "runs": ("built_in", "check_code"),
    "sft": ("SFT", "SFTConfig"),
}
"""Public names by the module that defines them; these modules import torch."""


def __getattr__(name: str) -> Any:
    """Import the algorithms, and torch, only when they are used, since labeling does not need them."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"operant.language.{module}"), name)
    raise AttributeError(f"module 'operant.language' has no attribute {name!r}")
