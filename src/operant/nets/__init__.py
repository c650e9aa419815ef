"""Networks and policy heads, stacked along the seed axis."""

from operant.nets.action_bounds import Bounded, is_bounded, is_continuous
from operant.nets.actor_critic import ActorCritic, BoundActorCritic, Pass, Spec
from operant.nets.cnn import StackedCNN, TorsoName
from operant.nets.compiled import Program, compilable, compiler, missing_tool, one_by_one, programs
from operant.nets.cuda_graphs import Graph
from operant.nets.ensemble import BoundEnsemble, Ensemble, EnsemblePass
from operant.nets.factory import Encoder, encoders, network_for, network_of_vectors
from operant.nets.gru import Memory, StackedGRU
from operant.nets.heads import CategoricalHead, GaussianHead, Head, MultiCategoricalHead, head_for
from operant.nets.image_coder import StackedImageDecoder, StackedImageEncoder
from operant.nets.jacobian import Jacobian
from operant.nets.matmul import set_precision
from operant.nets.mlp import Activation, StackedMLP
from operant.nets.module import MakeModule, ModuleError, StackedModule
from operant.nets.normed_mlp import Slot, Slots, StackedNormedMLP, normed, shares
from operant.nets.optim import OPTIMIZERS, OptimizerName, StackedAdam, StackedLaProp, StackedRMSprop

__all__ = [
    "OPTIMIZERS",
    "Activation",
    "ActorCritic",
    "BoundActorCritic",
    "BoundEnsemble",
    "Bounded",
    "CategoricalHead",
    "Encoder",
    "Ensemble",
    "EnsemblePass",
    "GaussianHead",
    "Graph",
    "Head",
    "Jacobian",
    "MakeModule",
    "Memory",
    "ModuleError",
    "MultiCategoricalHead",
    "OptimizerName",
    "Pass",
    "Program",
    "Slot",
    "Slots",
    "Spec",
    "StackedAdam",
    "StackedCNN",
    "StackedGRU",
    "StackedImageDecoder",
    "StackedImageEncoder",
    "StackedLaProp",
    "StackedMLP",
    "StackedModule",
    "StackedNormedMLP",
    "StackedRMSprop",
    "TorsoName",
    "compilable",
    "compiler",
    "encoders",
    "head_for",
    "is_bounded",
    "is_continuous",
    "missing_tool",
    "network_for",
    "network_of_vectors",
    "normed",
    "one_by_one",
    "programs",
    "set_precision",
    "shares",
]
