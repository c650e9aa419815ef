"""Deep reinforcement learning: networks that learn from environments."""

from operant.control.a2c import A2C, A2CConfig
from operant.control.dqn import DQN, DQNConfig
from operant.control.factory import Experiment, assemble
from operant.control.impala import IMPALA, IMPALAConfig
from operant.control.ppo import PPO, PPOConfig
from operant.control.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from operant.control.reinforce import Reinforce, ReinforceConfig
from operant.control.sac import SAC, SACConfig
from operant.control.sac_discrete import DiscreteSAC, DiscreteSACConfig
from operant.control.td3 import TD3, TD3Config
from operant.control.trpo import TRPO, TRPOConfig
from operant.runtime.configuration import configuration

__all__ = [
    "A2C",
    "DQN",
    "IMPALA",
    "PPO",
    "SAC",
    "TD3",
    "TRPO",
    "A2CConfig",
    "DQNConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "Experiment",
    "IMPALAConfig",
    "PPOConfig",
    "RecurrentPPO",
    "RecurrentPPOConfig",
    "Reinforce",
    "ReinforceConfig",
    "SACConfig",
    "TD3Config",
    "TRPOConfig",
    "assemble",
    "configuration",
]
