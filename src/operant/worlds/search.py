"""Batched Monte Carlo tree search: `search`, by pUCT or with Gumbel noise.

Trees are arrays: node 0 of each is its root, and every simulation adds one node to every tree, so B searches take as
many tensor operations as one. Trees are independent. The rules, or a learned model, are a function (`Model`) from the
state of a node and an action to the state that follows; equations are those of `operant.ops.search`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from operant import ops

UNSEEN = -1
"""The child of an unvisited action."""

States = tuple[Tensor, ...]
"""A model's states of nodes: tensors `[B, ...]`."""


class Expansion(NamedTuple):
    """Outputs of a model for new nodes.

    Attributes:
        states: of the nodes, `[B, ...]` each.
        logits: `[B, A]` of the policy there; -inf for masked actions.
        value: `[B]` of the nodes, for the player to move.
        reward: `[B]` of the transition, for the player who moved.
        discount: `[B]` of the value: γ; -γ where the other player moves next; 0 where the game has ended.
    """

    states: States
    logits: Tensor
    value: Tensor
    reward: Tensor
    discount: Tensor


Model = Callable[[States, Tensor], Expansion]
"""Maps states and actions `[B]` to outputs."""


@dataclass(frozen=True)
class Tree:
    """B search trees of at most M nodes.

    Attributes:
        children: `[B, M, A]` index of the child of each action, or `UNSEEN`.
        parents: `[B, M]` index of the parent.
        actions: `[B, M]` that led here.
        visits: `[B, M]` visit counts, including the first.
        values: `[B, M]` mean backed-up values.
        raw_values: `[B, M]` values by the model.
        logits: `[B, M, A]` of the policy.
        rewards: `[B, M]` of the transition to the node.
        discounts: `[B, M]` of its value, as seen from its parent.
        states: of the nodes, `[B, M, ...]` each.
    """

    children: Tensor
    parents: Tensor
    actions: Tensor
    visits: Tensor
    values: Tensor
    raw_values: Tensor
    logits: Tensor
    rewards: Tensor
    discounts: Tensor
    states: States

    @classmethod
    def of(cls, root: Expansion, nodes: int) -> "Tree":
        """Return trees with their roots, and capacity for all nodes."""
        batch, actions = root.logits.shape
        integers = root.value.new_zeros((batch, nodes), dtype=torch.int64)
        numbers = root.value.new_zeros((batch, nodes))
        found = cls(
            children=torch.full((batch, nodes, actions), UNSEEN, device=root.value.device),
            parents=integers,
            actions=integers.clone(),
            visits=numbers,
            values=numbers.clone(),
            raw_values=numbers.clone(),
            logits=root.logits.new_zeros((batch, nodes, actions)),
            rewards=numbers.clone(),
            discounts=numbers.clone(),
            states=tuple(part.new_zeros((batch, nodes, *part.shape[1:])) for part in root.states),
        )
        found.put(0, root)
        found.values[:, 0], found.visits[:, 0] = root.value, 1
        return found

    @property
    def rows(self) -> Tensor:
        """`[B]` the index of each tree."""
        return torch.arange(len(self.parents), device=self.parents.device)

    def put(self, node: int, found: Expansion) -> None:
        """Store the model's outputs for one node of every tree."""
        self.logits[:, node], self.raw_values[:, node] = found.logits, found.value
        self.rewards[:, node], self.discounts[:, node] = found.reward, found.discount
        for kept, part in zip(self.states, found.states, strict=True):
            kept[:, node] = part

    def at(self, nodes: Tensor) -> "Node":
        """Return the statistics of one node `[B]` of every tree."""
        rows = self.rows
        children = self.children[rows, nodes]
        seen, index = children != UNSEEN, children.clamp(min=0)
        across = rows.unsqueeze(1)
        q = self.rewards[across, index] + self.discounts[across, index] * self.values[across, index]
        return Node(
            logits=self.logits[rows, nodes],
            value=self.values[rows, nodes],
            raw_value=self.raw_values[rows, nodes],
            total=self.visits[rows, nodes],
            visits=self.visits[across, index] * seen,
            q=q * seen,
        )


class Node(NamedTuple):
    """A node of every tree.

    Attributes:
        logits: `[B, A]` of the policy.
        value: `[B]` mean of all visits.
        raw_value: `[B]` value by the model.
        total: `[B]` its visits.
        visits: `[B, A]` visit counts of the actions.
        q: `[B, A]` mean values; 0 if unvisited.
    """

    logits: Tensor
    value: Tensor
    raw_value: Tensor
    total: Tensor
    visits: Tensor
    q: Tensor

    @property
    def allowed(self) -> Tensor:
        """`[B, A]` action mask."""
        return self.logits > -torch.inf


@dataclass(frozen=True)
class Planner:
    """Settings of a search.

    Attributes:
        kind: "gumbel" or "puct".
        simulations: number of nodes added to a tree.
        considered: maximum number of root actions in Gumbel's sequential halving.
        scale: c_scale of σ.
        value_range: least and greatest value, to scale values to [0, 1]; None: those seen in the search, of a node and
            its children.
        exploration: share of Dirichlet noise in the prior of the root, for pUCT.
        concentration: of that noise.
    """

    kind: Literal["gumbel", "puct"] = "gumbel"
    simulations: int = 32
    considered: int = 16
    scale: float = 1.0
    value_range: tuple[float, float] | None = None
    exploration: float = 0.25
    concentration: float = 0.3

    def noise(self, shape: tuple[int, ...], stream: torch.Generator) -> Tensor:
        """Draw the noise `[..., A]` of searches: of the Gumbel distribution, or of the Dirichlet distribution."""
        if self.kind == "gumbel":
            uniform = torch.rand(shape, generator=stream, device=stream.device).clamp(1e-12, 1 - 1e-7)
            return -(-uniform.log()).log()
        gamma = torch._standard_gamma(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - what torch.distributions calls, without a generator
            torch.full(shape, self.concentration, device=stream.device), generator=stream
        )
        return gamma / gamma.sum(-1, keepdim=True).clamp(min=1e-12)


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        actions: `[B]` to take.
        policy: `[B, A]` training target: the improved policy (Gumbel) or the visit distribution (pUCT).
        value: `[B]` of the roots, the mean over all simulations, including poor actions.
        prior_value: `[B]` of the roots under the prior policy, from visited actions (`operant.ops.mixed_value`).
        tree: the complete tree.
    """

    actions: Tensor
    policy: Tensor
    value: Tensor
    prior_value: Tensor
    tree: Tree


def search(planner: Planner, root: Expansion, model: Model, noise: Tensor | None) -> Found:
    """Search from `B` roots.

    Args:
        planner: settings.
        root: outputs at the roots; rewards and discounts are not read.
        model: returns the next outputs.
        noise: `[B, A]`; for "gumbel" draws of the standard Gumbel distribution, for "puct" of a Dirichlet distribution.
            None: no noise, for the strongest play.
    """
    gumbel = planner.kind == "gumbel"
    if noise is None:
        noise = torch.zeros_like(root.logits)
    elif not gumbel:
        root = root._replace(logits=_mixed(root.logits, noise, planner.exploration))
    tree = Tree.of(root, planner.simulations + 1)
    schedule = _schedule(planner, root.logits) if gumbel and planner.simulations else None

    for simulation in range(planner.simulations):
        node = torch.zeros_like(tree.rows)
        path: list[tuple[Tensor, Tensor]] = []  # node, and the trees still descending
        walking, taken = torch.ones_like(node, dtype=torch.bool), node
        first = True
        while bool(walking.any()):
            here = tree.at(node)
            if schedule is not None and first:
                action = _halved(planner, here, noise, schedule[simulation])
            elif gumbel:
                action = _lagging(planner, here)
            else:
                action = _upper_bound(planner, here)
            path.append((node, walking))
            child = tree.children[tree.rows, node, action]
            taken = torch.where(walking, action, taken)
            walking = walking & (child != UNSEEN)
            node, first = torch.where(walking, child, node), False
        _expand(tree, simulation + 1, node, taken, model)
        _back_up(tree, simulation + 1, path)

    here = tree.at(torch.zeros_like(tree.rows))
    mixed = ops.mixed_value(here.raw_value, here.q, here.logits.softmax(1), here.visits)
    if not gumbel:
        policy = here.visits / here.visits.sum(1, keepdim=True)
        return Found(here.visits.masked_fill(~here.allowed, -1).argmax(1), policy, here.value, mixed, tree)
    policy = (here.logits + _sigma(planner, here)).softmax(1)
    return Found(_halved(planner, here, noise, here.visits.amax(1)), policy, here.value, mixed, tree)


def _expand(tree: Tree, new: int, parents: Tensor, actions: Tensor, model: Model) -> None:
    """Add one node to every tree, as a child."""
    rows = tree.rows
    found = model(tuple(part[rows, parents] for part in tree.states), actions)
    tree.put(new, found)
    tree.parents[:, new], tree.actions[:, new] = parents, actions
    tree.children[rows, parents, actions] = new
    tree.values[:, new], tree.visits[:, new] = found.value, 1


def _back_up(tree: Tree, leaf: int, path: list[tuple[Tensor, Tensor]]) -> None:
    """Back up the value of the new nodes to all their ancestors."""
    rows = tree.rows
    below = torch.full_like(rows, leaf)
    value = tree.values[:, leaf]
    for node, on_path in reversed(path):
        value = torch.where(on_path, tree.rewards[rows, below] + tree.discounts[rows, below] * value, value)
        visits, mean = tree.visits[rows, node], tree.values[rows, node]
        tree.values[rows, node] = torch.where(on_path, mean + (value - mean) / (visits + 1), mean)
        tree.visits[rows, node] = visits + on_path
        below = torch.where(on_path, node, below)


def _mixed(logits: Tensor, noise: Tensor, share: float) -> Tensor:
    """Return logits of a prior mixed with noise, over allowed actions."""
    allowed = logits > -torch.inf
    noise = noise * allowed
    noise = noise / noise.sum(1, keepdim=True).clamp(min=1e-12)
    return ((1 - share) * logits.softmax(1) + share * noise).log().masked_fill(~allowed, -torch.inf)


def _schedule(planner: Planner, logits: Tensor) -> list[Tensor]:
    """Return for each simulation the visits `[B]` of the root actions that it may take."""
    counts = (logits > -torch.inf).sum(1).clamp(max=planner.considered)
    table = torch.tensor(
        [ops.sequential_halving(max(1, m), planner.simulations) for m in range(planner.considered + 1)],
        device=logits.device,
    )
    return list(table[counts].T)


def _scaled(planner: Planner, q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return values in [0, 1]: by their possible range, or the observed one."""
    if planner.value_range is not None:
        least, greatest = planner.value_range
        return (q - least) / (greatest - least)
    return (q - low.unsqueeze(1)) / (high - low).clamp(min=1e-8).unsqueeze(1)


def _sigma(planner: Planner, node: Node) -> Tensor:
    q = ops.completed_q(node.raw_value, node.q, node.logits.softmax(1), node.visits)
    return ops.sigma(_scaled(planner, q, q.amin(1), q.amax(1)), node.visits, scale=planner.scale)


def _halved(planner: Planner, node: Node, gumbel: Tensor, visits: Tensor) -> Tensor:
    """Return the best actions `[B]` among those with the given visits, by prior, noise and value."""
    score = (gumbel + node.logits + _sigma(planner, node)).clamp(min=-1e9)
    left = (node.visits == visits.unsqueeze(1)) & node.allowed
    return score.masked_fill(~left, -torch.inf).argmax(1)


def _lagging(planner: Planner, node: Node) -> Tensor:
    """Return the actions `[B]` with the largest deficit against the improved policy, below the root."""
    policy = (node.logits + _sigma(planner, node)).softmax(1)
    return ops.least_visited_for(policy, node.visits).masked_fill(~node.allowed, -torch.inf).argmax(1)


def _upper_bound(planner: Planner, node: Node) -> Tensor:
    """Return the actions `[B]` of the greatest upper bounds; unvisited ones count as the worst visited one."""
    tried = node.visits > 0
    known = torch.where(tried, node.q, node.value.unsqueeze(1))
    low, high = torch.minimum(node.value, known.amin(1)), torch.maximum(node.value, known.amax(1))
    if planner.value_range is not None:
        low = torch.full_like(low, planner.value_range[0])
    q = _scaled(planner, torch.where(tried, node.q, low.unsqueeze(1)), low, high)
    bound = ops.puct(q, node.logits.softmax(1), node.visits, node.total)
    return bound.masked_fill(~node.allowed, -torch.inf).argmax(1)
