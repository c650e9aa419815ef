"""What a network that acts greedily is made of, for `operant.runtime.exporting`: `network_of`."""

from typing import Any

from torch import Tensor

from operant.control.agent import Agent
from operant.control.dqn import DQN
from operant.control.sac import SAC
from operant.control.sac_discrete import DiscreteSAC
from operant.control.td3 import TD3
from operant.nets.action_bounds import Bounded
from operant.nets.heads import GaussianHead
from operant.nets.lookup import StackedLookup
from operant.nets.mlp import Layers, StackedMLP
from operant.runtime.exporting import require_bare
from operant.runtime.learner import HasAgent


def network_of(experiment: Any, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the network of the seed at a place, in numbers and tensors as `runtime.exported_policy` reads them.

    Args:
        experiment: of deep control.
        index: the place of the seed.

    Raises:
        ValueError: it is no perceptron of one vector: it looks at pictures or dictionaries, or has a memory; or it has
            learned in wrappers.
    """
    require_bare(experiment.env)
    learner = experiment.learner
    if isinstance(learner, DQN):
        shape, skipped = learner.online.shape, int(learner.online.shape.dueling)
        found = _perceptron(shape.mlp, learner.online.layers, index)
        affine = {} if shape.affine is None else {"affine.shift": shape.affine[0], "affine.scale": shape.affine[1]}
        return _choices([shape.actions], skipped, found[0]), found[1] | affine
    if isinstance(learner, DiscreteSAC):
        facts, tensors = _perceptron(learner.actor.shape.mlp, learner.actor.layers, index)
        return _choices(list(learner.head.choices), 0, facts), tensors
    if isinstance(learner, SAC | TD3):
        facts, tensors = _perceptron(learner.actor.shape.mlp, learner.actor.layers, index)
        kind = {"kind": "squashed", "outputs": [0, learner.bounds.dimensions]}
        return facts | kind, tensors | _box(learner.bounds)
    agent = learner.agent if isinstance(learner, HasAgent) else None
    if not isinstance(agent, Agent) or agent.networks.shape.masked:
        raise ValueError(_refusal(learner))
    facts, tensors = _perceptron(agent.networks.shape.mlp, agent.networks.actor, index)
    if agent.normalizer is not None:
        facts, tensors = facts | {"clip": agent.normalizer.clip}, tensors | agent.normalizer.scaling(index)
    if isinstance(agent.head, GaussianHead):
        return facts | {"kind": "box", "outputs": [0, agent.head.outputs]}, tensors | _box(agent.head)
    return _choices(list(agent.head.choices), 0, facts), tensors


def _perceptron(mlp: object, layers: Layers, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not isinstance(mlp, StackedMLP) or type(mlp) not in (StackedMLP, StackedLookup):
        raise ValueError(_refusal(mlp))
    tensors = {f"layers.{place}.weight": weight[index] for place, (weight, _) in enumerate(layers)}
    tensors |= {f"layers.{place}.bias": bias[index, 0] for place, (_, bias) in enumerate(layers)}
    return {"layers": len(layers), "activation": mlp.activation}, tensors


def _choices(choices: list[int], skipped: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Say which outputs are logits or values of which choices."""
    return facts | {"kind": "choices", "choices": choices, "outputs": [skipped, skipped + sum(choices)]}


def _box(bounds: Bounded | GaussianHead) -> dict[str, Tensor]:
    return {"middle": bounds.middle, "half": bounds.half, "low": bounds.low, "high": bounds.high}


def _refusal(what: object) -> str:
    return (
        f"export writes perceptrons that look at one vector, and this is a {type(what).__name__}: policies that look "
        "at pictures or dictionaries, or remember, act by `operant.load(run).predict`"
    )
