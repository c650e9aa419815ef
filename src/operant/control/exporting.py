"""Networks of greedy policies for `operant.runtime.exporting`: `network_of`."""

from typing import Any, cast

from torch import Tensor

from operant.control.agent import Agent
from operant.control.dqn import DQN
from operant.control.sac import SAC
from operant.control.sac_discrete import DiscreteSAC
from operant.control.td3 import TD3
from operant.nets.heads import GaussianHead
from operant.nets.mlp import Layers, StackedMLP
from operant.runtime.exporting import require_bare


def network_of(experiment: Any, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the network of the seed at an index, as numbers and tensors for `runtime.exported_policy`.

    Args:
        experiment: of this package.
        index: of the seed.

    Raises:
        ValueError: the network is no perceptron of one vector (it reads images or dictionaries, or is recurrent), or
            wrappers have learned weights.
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
    agent = getattr(learner, "agent", None)
    if not isinstance(agent, Agent) or agent.networks.shape.masked:
        raise ValueError(_refusal(learner))
    facts, tensors = _perceptron(agent.networks.shape.mlp, agent.networks.actor, index)
    if agent.normalizer is not None:
        facts, tensors = facts | {"clip": agent.normalizer.clip}, tensors | agent.normalizer.scaling(index)
    if isinstance(agent.head, GaussianHead):
        return facts | {"kind": "box", "outputs": [0, agent.head.outputs]}, tensors | _box(agent.head)
    return _choices(list(agent.head.choices), 0, facts), tensors


def _perceptron(mlp: Any, layers: Layers, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if type(mlp) is not StackedMLP:
        raise ValueError(_refusal(mlp))
    tensors = {f"layers.{place}.weight": weight[index] for place, (weight, _) in enumerate(layers)}
    tensors |= {f"layers.{place}.bias": bias[index, 0] for place, (_, bias) in enumerate(layers)}
    return {"layers": len(layers), "activation": mlp.activation}, tensors


def _choices(choices: list[int], skipped: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Name the outputs that are logits or values, and their choices."""
    return facts | {"kind": "choices", "choices": choices, "outputs": [skipped, skipped + sum(choices)]}


def _box(bounds: Any) -> dict[str, Tensor]:
    return {name: cast(Tensor, getattr(bounds, name)) for name in ("middle", "half", "low", "high")}


def _refusal(what: Any) -> str:
    return (
        f"export supports perceptrons of one vector, got {type(what).__name__}: for images, "
        "dictionaries or recurrent policies, use `operant.load(run).predict`"
    )
