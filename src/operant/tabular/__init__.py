"""Tabular reinforcement learning from samples.

Everything runs along the seed axis: a learner holds the tables of `S` seeds, which act and learn in a model
(`operant.mdp.MDP`) inside a compiled kernel, or in a Gymnasium environment with finite spaces.
"""

from operant.runtime.configuration import configuration
from operant.tabular.bandit_factory import BanditExperiment, arms_of
from operant.tabular.bandits import Arms, BanditLearner, lai_robbins
from operant.tabular.double import DoubleQLearning, DoubleQLearningConfig
from operant.tabular.dyna import DynaQ, DynaQConfig, DynaQPlus, DynaQPlusConfig
from operant.tabular.enumeration import enumerated
from operant.tabular.episodic import (
    LambdaReturn,
    LambdaReturnConfig,
    MonteCarlo,
    MonteCarloConfig,
    MonteCarloPrediction,
    MonteCarloPredictionConfig,
)
from operant.tabular.evaluation import Sampled, exact_values, expected_returns, sampled_returns
from operant.tabular.factory import Experiment, assemble, known_model, learner_for
from operant.tabular.learner import History, TabularLearner
from operant.tabular.model_based_exploration import MBIEEB, MBIEEBConfig, RMax, RMaxConfig
from operant.tabular.n_step import NStepSarsa, NStepSarsaConfig, NStepTD, NStepTDConfig
from operant.tabular.one_step import ExpectedSarsa, OneStepConfig, QLearning, Sarsa
from operant.tabular.prediction import Prediction
from operant.tabular.prioritized_sweeping import PrioritizedSweeping, PrioritizedSweepingConfig
from operant.tabular.random_agent import RandomAgent, RandomConfig
from operant.tabular.strategies import (
    KLUCB,
    UCB1,
    EpsilonGreedy,
    EpsilonGreedyConfig,
    GradientBandit,
    GradientBanditConfig,
    KLUCBConfig,
    UCBConfig,
)
from operant.tabular.thompson import Thompson, ThompsonConfig
from operant.tabular.traces import SarsaLambda, SarsaLambdaConfig, TDLambda, TDLambdaConfig
from operant.tabular.value_errors import ValueErrors, value_errors

__all__ = [
    "KLUCB",
    "MBIEEB",
    "UCB1",
    "Arms",
    "BanditExperiment",
    "BanditLearner",
    "DoubleQLearning",
    "DoubleQLearningConfig",
    "DynaQ",
    "DynaQConfig",
    "DynaQPlus",
    "DynaQPlusConfig",
    "EpsilonGreedy",
    "EpsilonGreedyConfig",
    "ExpectedSarsa",
    "Experiment",
    "GradientBandit",
    "GradientBanditConfig",
    "History",
    "KLUCBConfig",
    "LambdaReturn",
    "LambdaReturnConfig",
    "MBIEEBConfig",
    "MonteCarlo",
    "MonteCarloConfig",
    "MonteCarloPrediction",
    "MonteCarloPredictionConfig",
    "NStepSarsa",
    "NStepSarsaConfig",
    "NStepTD",
    "NStepTDConfig",
    "OneStepConfig",
    "Prediction",
    "PrioritizedSweeping",
    "PrioritizedSweepingConfig",
    "QLearning",
    "RMax",
    "RMaxConfig",
    "RandomAgent",
    "RandomConfig",
    "Sampled",
    "Sarsa",
    "SarsaLambda",
    "SarsaLambdaConfig",
    "TDLambda",
    "TDLambdaConfig",
    "TabularLearner",
    "Thompson",
    "ThompsonConfig",
    "UCBConfig",
    "ValueErrors",
    "arms_of",
    "assemble",
    "configuration",
    "enumerated",
    "exact_values",
    "expected_returns",
    "known_model",
    "lai_robbins",
    "learner_for",
    "sampled_returns",
    "value_errors",
]
