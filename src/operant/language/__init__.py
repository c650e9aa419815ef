"""Language models: from supervised fine-tuning to reinforcement learning from verifiers and preferences."""

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
