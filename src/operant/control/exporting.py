"""Networks of greedy policies for `operant.runtime.exporting`: `network_of`, `module_of_policy`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from operant.control.agent import Agent
from operant.control.dqn import DQN
from operant.control.replay_collector import Experience
from operant.control.sac import SAC
from operant.control.sac_discrete import DiscreteSAC
from operant.control.scaled_experience import CLIP, ScaledExperience
from operant.control.td3 import TD3
from operant.nets import module_of
from operant.nets.action_bounds import Bounded
from operant.nets.heads import GaussianHead
from operant.nets.lookup import StackedLookup
from operant.nets.mlp import Layers, StackedMLP
from operant.runtime.exporting import require_bare
from operant.runtime.learner import HasAgent, HasPolicyModule

Parts = tuple[Any, Layers, dict[str, Any], dict[str, Tensor]]
"""The shape of a stack of networks, its layers, and its pre- and postprocessing as numbers and tensors."""


def network_of(experiment: Any, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the network of the seed at an index, as numbers and tensors for `runtime.exported_policy`.

    Args:
        experiment: experiment of deep control.
        index: index of the seed.

    Raises:
        ValueError: if the network is not a perceptron of one vector (it reads images or dictionaries, or is recurrent),
            or wrappers have learned weights.
    """
    if isinstance(experiment.learner, HasPolicyModule):
        raise ValueError(_refusal(experiment.learner))
    mlp, layers, facts, tensors = _parts(experiment, index)
    if type(mlp) not in (StackedMLP, StackedLookup):
        raise ValueError(_refusal(mlp))
    own = {f"layers.{layer}.weight": weight[index] for layer, (weight, _) in enumerate(layers)}
    own |= {f"layers.{layer}.bias": bias[index, 0] for layer, (_, bias) in enumerate(layers)}
    return {"layers": len(layers), "activation": mlp.activation, **facts}, own | tensors


def module_of_policy(experiment: Any, index: int) -> tuple[nn.Module, dict[str, Any], dict[str, Tensor]]:
    """Return the policy with its network as a torch module.

    Args:
        experiment: experiment of deep control.
        index: index of the seed.

    Raises:
        ValueError: if the policy is not a function of one observation, or wrappers have learned weights.
    """
    if isinstance(experiment.learner, HasPolicyModule):
        require_bare(experiment.env)
        module, facts, tensors = experiment.learner.policy_module(index)
        return module, dict(facts), dict(tensors)
    mlp, layers, facts, tensors = _parts(experiment, index)
    return module_of(mlp, layers, index), facts, tensors


def _parts(experiment: Any, index: int) -> Parts:
    require_bare(experiment.env)
    learner = experiment.learner
    if isinstance(learner, DQN):
        if learner.online.prior is not None:
            raise ValueError(
                f"export supports policies of one network, but that of {type(learner).__name__} is a vote of several: "
                "use `operant.load(run).predict`"
            )
        shape, skipped = learner.online.shape, int(learner.online.shape.dueling)
        affine = {} if shape.affine is None else {"affine.shift": shape.affine[0], "affine.scale": shape.affine[1]}
        return (
            shape.mlp,
            learner.online.layers,
            of_choices([shape.actions], skipped=skipped, scores="advantages" if skipped else "values"),
            affine,
        )
    if isinstance(learner, DiscreteSAC | SAC | TD3):
        facts, tensors = _scaling(learner.experience, index)
        if isinstance(learner, DiscreteSAC):
            facts |= of_choices(learner.head.choices)
        else:
            form, bounds = of_box(learner.bounds, squashed=True)
            facts, tensors = facts | form, tensors | bounds
        return learner.actor.shape.mlp, learner.actor.layers, facts, tensors
    agent = learner.agent if isinstance(learner, HasAgent) else None
    if not isinstance(agent, Agent) or agent.networks.shape.masked:
        kind = type(learner).__name__
        what = f"{kind} with action masks" if isinstance(agent, Agent) else f"{kind}, which has no such agent"
        raise ValueError(
            f"export supports agents of feed-forward networks (operant.control.agent.Agent), got {what}: use "
            "`operant.load(run).predict`"
        )
    facts: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    if agent.normalizer is not None:
        facts, tensors = {"clip": agent.normalizer.clip}, agent.normalizer.scaling(index)
    if isinstance(agent.head, GaussianHead):
        form, bounds = of_box(agent.head)
        facts, tensors = facts | form, tensors | bounds
    else:
        facts |= of_choices(agent.head.choices)
    return agent.networks.shape.mlp, agent.networks.actor, facts, tensors


def _scaling(experience: Experience, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return how observations are scaled; nothing if they are not."""
    if not isinstance(experience, ScaledExperience):
        return {}, {}
    return {"clip": CLIP}, experience.scaling(index)


def of_choices(choices: Sequence[int], *, skipped: int = 0, scores: str = "logits") -> dict[str, Any]:
    """Return the meaning of outputs that are a score of each choice, the highest of which acts.

    Args:
        choices: numbers of choices of the components of an action.
        skipped: number of outputs before the scores.
        scores: the scores: `logits`, or a word for others.
    """
    end = skipped + sum(choices)
    return {"kind": "choices", "choices": list(choices), "outputs": [skipped, end], "scores": scores}


def of_box(bounds: Bounded | GaussianHead, *, squashed: bool = False) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the meaning of outputs that are an action in half ranges of its space, after tanh if it is squashed.

    Args:
        bounds: bounds of the action space.
        squashed: whether the action is the tanh of the outputs.
    """
    facts = {"kind": "squashed" if squashed else "box", "outputs": [0, bounds.low.numel()]}
    return facts, {"middle": bounds.middle, "half": bounds.half, "low": bounds.low, "high": bounds.high}


def _refusal(what: object) -> str:
    return (
        f"export supports perceptrons of one vector, got {type(what).__name__}: use --format onnx or torchscript for "
        "other networks, and `operant.load(run).predict` for dictionaries or recurrent policies"
    )
