"""Batched Monte Carlo tree search: `search`, by pUCT or with Gumbel noise.

Trees are arrays: node 0 of each is its root, and every simulation adds one node to every tree. The rules, or a learned
model, are a function (`Model`) from the state of a node and an action to the next state. A simulation of B searches is
one call of it and one call of a compiled kernel (`operant.worlds.tree_kernels`), which expands the new nodes, backs up
their values and selects actions down to the next ones. Trees are independent and on the CPU; states stay on the device
of the model, and only its outputs for new nodes are copied.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant import ops
from operant.tensors import from_numpy
from operant.worlds import tree_kernels as kernels

States = tuple[Tensor, ...]
"""A model's states of nodes: tensors `[B, ...]`."""


class Expansion(NamedTuple):
    """Outputs of a model for new nodes.

    Attributes:
        states: states of the nodes, `[B, ...]` each.
        logits: `[B, A]` policy logits; -inf for masked actions.
        value: `[B]` values of the nodes, for the player to move.
        reward: `[B]` rewards of the transitions, for the player who moved.
        discount: `[B]` discounts of the values: γ; -γ if the other player moves next; 0 after the end of the game.
    """

    states: States
    logits: Tensor
    value: Tensor
    reward: Tensor
    discount: Tensor


Model = Callable[[States, Tensor], Expansion]
"""Function from states and actions `[B]` to outputs, without gradients. The actions are overwritten after the call."""


EXPLORATION = 0.25
"""Share of Dirichlet noise in the prior of the root, for pUCT."""


class SearchConfig(Protocol):
    """Hyperparameters of searches, as AlphaZero and MuZero have them."""

    @property
    def search(self) -> Literal["gumbel", "puct"]:
        """Action selection."""
        ...

    @property
    def simulations(self) -> int:
        """Number of simulations per search."""
        ...

    @property
    def max_considered_actions(self) -> int:
        """Number of actions considered at the root."""
        ...

    @property
    def value_scale(self) -> float:
        """c_scale of σ."""
        ...

    @property
    def dirichlet_alpha(self) -> float:
        """Concentration of the Dirichlet noise of pUCT."""
        ...


@dataclass(frozen=True)
class Planner:
    """Settings of a search.

    Attributes:
        kind: "gumbel" or "puct".
        simulations: number of nodes added to a tree.
        considered: maximum number of root actions in Gumbel's sequential halving.
        scale: c_scale of σ.
        value_range: minimum and maximum value, for scaling values to [0, 1]; None: those of a node and its children in
            the search.
        concentration: concentration of the Dirichlet noise.

    Raises:
        ValueError: if the kind is unknown, or a number is too small.
    """

    kind: Literal["gumbel", "puct"] = "gumbel"
    simulations: int = 32
    considered: int = 16
    scale: float = 1.0
    value_range: tuple[float, float] | None = None
    concentration: float = 0.3

    def __post_init__(self) -> None:
        """Validate."""
        if self.kind not in ("gumbel", "puct"):
            raise ValueError(f"kind must be 'gumbel' or 'puct', got {self.kind!r}")
        for name, least in (("simulations", 0), ("considered", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    @classmethod
    def of(cls, config: SearchConfig, *, actions: int, value_range: tuple[float, float] | None) -> Self:
        """Return the settings of a configuration, for a task with a number of actions."""
        return cls(
            kind=config.search,
            simulations=config.simulations,
            considered=min(config.max_considered_actions, actions),
            scale=config.value_scale,
            value_range=value_range,
            concentration=config.dirichlet_alpha,
        )

    def noise(self, shape: tuple[int, ...], stream: torch.Generator) -> Tensor:
        """Sample the noise of searches with `shape = [..., A]`.

        Returns:
            `[..., A]` samples of the Gumbel distribution; for pUCT `[..., A + 1]`, samples of the Dirichlet
            distribution and a uniform number that selects the action.
        """
        if self.kind == "gumbel":  # not `streams.gumbel`, whose other formula gives searches other noise
            uniform = torch.rand(shape, generator=stream, device=stream.device).clamp(1e-12, 1 - 1e-7)
            return -(-uniform.log()).log()
        gamma = torch._standard_gamma(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - torch.distributions calls it without a generator
            torch.full(shape, self.concentration, device=stream.device), generator=stream
        )
        chance = torch.rand((*shape[:-1], 1), generator=stream, device=stream.device)
        return torch.cat((gamma / gamma.sum(-1, keepdim=True).clamp(min=1e-12), chance), -1)


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        actions: `[B]` selected actions; for pUCT drawn from the visits, or without noise the most visited.
        policy: `[B, A]` training targets: the improved policy (Gumbel) or the visit distribution (pUCT).
        value: `[B]` values of the roots, means over all simulations.
        prior_value: `[B]` values of the roots under the prior policy, from visited actions
            (`operant.ops.mixed_value`).
        tree: the complete trees, on the CPU.
        states: the model's states of all nodes, `[B, M, ...]` each, on its device.
    """

    actions: Tensor
    policy: Tensor
    value: Tensor
    prior_value: Tensor
    tree: kernels.Trees[Tensor, Tensor]
    states: States


@torch.no_grad()
def search(planner: Planner, root: Expansion, model: Model, noise: Tensor | None) -> Found:
    """Search from `B` roots.

    Args:
        planner: settings of the search.
        root: outputs at the roots; rewards and discounts are ignored.
        model: the rules or the learned model.
        noise: noise of the roots (`Planner.noise`). None: no noise, for the strongest play.

    Raises:
        ValueError: if the noise has another shape.
    """
    _require_noise(planner, root.logits.shape, noise)
    sampled = noise is not None and planner.kind == "puct"
    if noise is not None and sampled:
        root = root._replace(logits=_mixed(root.logits, noise[:, :-1], EXPLORATION))
    (batch, width), nodes, device = root.logits.shape, planner.simulations + 1, root.value.device
    trees, outputs = _empty(batch, width, nodes)
    rules, steps = _rules(planner, root.logits.shape, noise), np.empty((2, batch), np.int64)
    advance = partial(kernels.advance, *trees, *rules, *outputs, steps)
    states = tuple(part.new_empty(len(part), nodes, *part.shape[1:]) for part in root.states)
    flat, slots = [part.flatten(0, 1) for part in states], [part.unbind(1) for part in states]
    received, edges = list(map(from_numpy, outputs)), from_numpy(steps)
    parents, actions = edges.unbind()

    expansion = root
    with torch.inference_mode(device.type == "cpu"):  # saves an eighth of the time with a small network
        for new in range(nodes):
            if new:
                if device.type != "cpu":
                    parents, actions = edges.to(device).unbind()
                expansion = model(tuple([part.index_select(0, parents) for part in flat]), actions)
            buffers = [slot[new] for slot in slots] + received
            torch._foreach_copy_(buffers, [*expansion.states, *expansion[1:]])  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - twice as fast as single copies
            advance(new)

    results = _results(batch, width)
    kernels.conclude(trees, rules, results)
    shared = {name: from_numpy(part) for name, part in trees._asdict().items()}
    returned = {name: from_numpy(part).to(device) for name, part in results._asdict().items()}
    found = Found(**returned, tree=kernels.Trees(**shared), states=states)
    if noise is None or not sampled:
        return found
    visits = found.policy.double().cumsum(1)
    return found._replace(actions=torch.searchsorted(visits, noise[:, -1:] * visits[:, -1:], right=True).squeeze(1))


def _require_noise(planner: Planner, shape: torch.Size, noise: Tensor | None) -> None:
    """Check the shape of the noise, because kernels would read beyond the end of a smaller tensor."""
    batch, actions = shape
    needed = [batch, actions if planner.kind == "gumbel" else actions + 1]
    if noise is not None and list(noise.shape) != needed:
        raise ValueError(f"noise must have the shape {needed}, as from planner.noise, got {list(noise.shape)}")


def _empty(batch: int, actions: int, nodes: int) -> tuple[kernels.ArrayTrees, kernels.Outputs]:
    """Return empty trees, and buffers for the outputs of the model."""
    numbers = np.zeros((5, batch, nodes), np.float32)
    visits, values, raw_values, rewards, discounts = numbers
    logits, priors, action_visits, action_values = np.zeros((4, batch, nodes, actions), np.float32)
    parents, steps = np.zeros((2, batch, nodes), np.int64)
    trees = kernels.Trees(
        children=np.full((batch, nodes, actions), kernels.UNSEEN),
        parents=parents,
        actions=steps,
        visits=visits,
        values=values,
        raw_values=raw_values,
        logits=logits,
        priors=priors,
        rewards=rewards,
        discounts=discounts,
        action_visits=action_visits,
        action_values=action_values,
    )
    return trees, kernels.Outputs(np.empty((batch, actions), np.float32), *np.empty((3, batch), np.float32))


def _results(batch: int, actions: int) -> kernels.Results:
    """Return buffers for the results."""
    value, prior_value = np.empty((2, batch), np.float32)
    return kernels.Results(np.empty(batch, np.int64), np.empty((batch, actions), np.float32), value, prior_value)


def _rules(planner: Planner, shape: torch.Size, noise: Tensor | None) -> kernels.Rules:
    """Return the rules of action selection."""
    gumbel = planner.kind == "gumbel"
    low, high = planner.value_range or (0.0, 1.0)
    drawn = torch.zeros(shape) if noise is None else noise.to("cpu", torch.float32).contiguous()
    return kernels.Rules(
        gumbel=gumbel,
        scale=planner.scale,
        ranged=planner.value_range is not None,
        low=low,
        high=high,
        noise=drawn.numpy(),
        schedule=_halvings(planner.considered if gumbel else 0, planner.simulations),
        scores=np.empty(shape[1]),
    )


@cache
def _halvings(considered: int, simulations: int) -> NDArray[np.int64]:
    """Return the schedules of sequential halving, `[considered + 1, simulations]`."""
    if not simulations:
        return np.zeros((considered + 1, 0), np.int64)
    return np.array([ops.sequential_halving(max(1, m), simulations) for m in range(considered + 1)])


def _mixed(logits: Tensor, noise: Tensor, share: float) -> Tensor:
    """Return logits of a prior mixed with noise, over allowed actions."""
    allowed = logits > -torch.inf
    noise = noise * allowed
    noise = noise / noise.sum(1, keepdim=True).clamp(min=1e-12)
    return ((1 - share) * logits.softmax(1) + share * noise).log().masked_fill(~allowed, -torch.inf)
