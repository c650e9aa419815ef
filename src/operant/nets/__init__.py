"""Networks and policy heads, stacked along the seed axis."""

from operant.nets.action_bounds import Bounded, is_bounded, is_continuous
from operant.nets.actor_critic import ActorCritic, BoundActorCritic, Pass, Spec
from operant.nets.agreement import Agreement
from operant.nets.alone import module_of
from operant.nets.cnn import EncoderName, StackedCNN
from operant.nets.compiled import Program, compilable, compiler, missing_tool, one_by_one, programs
from operant.nets.cuda_graphs import Graph
from operant.nets.ensemble import BoundEnsemble, Ensemble, EnsemblePass
from operant.nets.factory import Encoder, encoders, modules, network_for, network_of_vectors, whole_network
from operant.nets.functional import FunctionalModule, ModuleError, untraceable
from operant.nets.gru import Recurrence, StackedGRU
from operant.nets.heads import CategoricalHead, GaussianHead, Head, MultiCategoricalHead, head_for
from operant.nets.image_coder import StackedImageDecoder, StackedImageEncoder
from operant.nets.jacobian import Jacobian, NetworkJacobian, jacobian
from operant.nets.matmul import precision, set_precision
from operant.nets.mlp import Activation, StackedMLP
from operant.nets.module import MakeModule, StackedModule
from operant.nets.network import MakeNetwork, StackedNetwork
from operant.nets.normed_mlp import Slot, Slots, StackedNormedMLP, normed, shares
from operant.nets.optim import OPTIMIZERS, OptimizerName, StackedAdam, StackedLaProp, StackedRMSprop

__all__ = [
    "OPTIMIZERS",
    "Activation",
    "ActorCritic",
    "Agreement",
    "BoundActorCritic",
    "BoundEnsemble",
    "Bounded",
    "CategoricalHead",
    "Encoder",
    "EncoderName",
    "Ensemble",
    "EnsemblePass",
    "FunctionalModule",
    "GaussianHead",
    "Graph",
    "Head",
    "Jacobian",
    "MakeModule",
    "MakeNetwork",
    "ModuleError",
    "MultiCategoricalHead",
    "NetworkJacobian",
    "OptimizerName",
    "Pass",
    "Program",
    "Recurrence",
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
    "StackedNetwork",
    "StackedNormedMLP",
    "StackedRMSprop",
    "compilable",
    "compiler",
    "encoders",
    "head_for",
    "is_bounded",
    "is_continuous",
    "jacobian",
    "missing_tool",
    "module_of",
    "modules",
    "network_for",
    "network_of_vectors",
    "normed",
    "one_by_one",
    "precision",
    "programs",
    "set_precision",
    "shares",
    "untraceable",
    "whole_network",
]
