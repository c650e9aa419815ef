"""Exact solvers for known models."""

from operant.mdp.analysis import (
    advantages,
    enumerate_policies,
    expected_return,
    max_kl,
    mixture,
    mixture_bound,
    occupancy,
    performance_difference,
    policy_chain,
    policy_gradient,
    softmax_policy,
    surrogate,
    trust_region_bound,
)
from operant.mdp.average import AverageSolution, relative_value_iteration
from operant.mdp.average_evaluation import AverageEvaluation, average_policy_evaluation, stationary_distributions
from operant.mdp.bounds import certified_bounds
from operant.mdp.evaluation import Evaluation, policy_evaluation
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.files import load, save
from operant.mdp.horizon import FiniteHorizonSolution, backward_induction
from operant.mdp.iterate import Sweep, sweeps
from operant.mdp.linear_programming import linear_programming
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy
from operant.mdp.policy_iteration import inexact_policy_iteration, modified_policy_iteration, policy_iteration
from operant.mdp.rtdp import asynchronous_value_iteration
from operant.mdp.simulation import Trajectory, simulate
from operant.mdp.solution import Solution, action_values
from operant.mdp.solving import solve
from operant.mdp.stepwise import Step, evaluation_sweeps, steps
from operant.mdp.sweeping import prioritized_sweeping
from operant.mdp.value_iteration import q_value_iteration, value_iteration
from operant.mdp.value_lost import ValueLost, value_lost

__all__ = [
    "MDP",
    "AverageEvaluation",
    "AverageSolution",
    "Evaluation",
    "FiniteHorizonSolution",
    "Solution",
    "Step",
    "Sweep",
    "Trajectory",
    "ValueLost",
    "action_values",
    "advantages",
    "asynchronous_value_iteration",
    "average_policy_evaluation",
    "backward_induction",
    "certified_bounds",
    "check_policy",
    "enumerate_policies",
    "evaluation_sweeps",
    "expected_return",
    "inexact_policy_iteration",
    "linear_programming",
    "load",
    "max_kl",
    "mixture",
    "mixture_bound",
    "modified_policy_iteration",
    "occupancy",
    "performance_difference",
    "policy_chain",
    "policy_evaluation",
    "policy_gradient",
    "policy_iteration",
    "prioritized_sweeping",
    "q_value_iteration",
    "random_model",
    "relative_value_iteration",
    "save",
    "simulate",
    "slippery_grid",
    "softmax_policy",
    "solve",
    "stationary_distributions",
    "steps",
    "surrogate",
    "sweeps",
    "trust_region_bound",
    "value_iteration",
    "value_lost",
]
