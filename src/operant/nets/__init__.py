"""Networks and policy heads, stacked along the seed axis."""

from operant.nets.actor_critic import ActorCritic, BoundActorCritic, Pass, Spec
from operant.nets.heads import CategoricalHead, GaussianHead, Head, head_for
from operant.nets.mlp import Activation, StackedMLP
from operant.nets.optim import StackedAdam

__all__ = [
    "Activation",
    "ActorCritic",
    "BoundActorCritic",
    "CategoricalHead",
    "GaussianHead",
    "Head",
    "Pass",
    "Spec",
    "StackedAdam",
    "StackedMLP",
    "head_for",
]
