"""Action selection in a search tree: pUCT, and planning with Gumbel noise.

A node has A actions, `[..., A]`, with visit counts, `visits`, and mean values, `q`, which are undefined at 0 visits.
AlphaZero selects actions by pUCT (Silver et al. 2018, doi:10.1126/science.aar6404; MuZero, Schrittwieser et al. 2020,
arXiv 1911.08265, App. B). Gumbel AlphaZero (Danihelka et al. 2022, ICLR, "Policy improvement by planning with Gumbel")
needs few simulations: its policy improves on the prior from two simulations on.
"""

import math

import torch
from jaxtyping import Float, Num
from torch import Tensor

PUCT_BASE, PUCT_INIT = 19652.0, 1.25
"""Constants c_2 and c_1 of pUCT (MuZero, appendix B)."""

VISIT_OFFSET = 50.0
"""Constant c_visit of the transformation σ (Danihelka et al. 2022)."""


def puct(
    q: Float[Tensor, "*B A"],
    prior: Float[Tensor, "*B A"],
    visits: Num[Tensor, "*B A"],
    total: Num[Tensor, "*B"],
    *,
    base: float = PUCT_BASE,
    init: float = PUCT_INIT,
) -> Float[Tensor, "*B A"]:
    """Compute upper bounds of action values: q + P sqrt(N) / (1 + n) (c_1 + log((N + c_2 + 1) / c_2)) (MuZero, eq. 2).

    Args:
        q: Values of the actions, scaled to [0, 1].
        prior: Prior probabilities of the actions.
        visits: Visit counts, n.
        total: Visits of the node, N. The paper uses Σ n; with the node's own visit added, the first choice depends on
            the prior.
        base: c_2; larger values make exploration grow more slowly with the visits.
        init: c_1, initial exploration.
    """
    weight = init + torch.log((total + base + 1) / base)
    return q + prior * (total.sqrt() * weight).unsqueeze(-1) / (1 + visits)


def mixed_value(
    value: Float[Tensor, "*B"],
    q: Float[Tensor, "*B A"],
    prior: Float[Tensor, "*B A"],
    visits: Num[Tensor, "*B A"],
) -> Float[Tensor, "*B"]:
    """Compute the mixed value of a node, from its network and its visited actions (Danihelka et al. 2022, eq. 33).

    v = (v̂ + ΣN · Σ_{tried} P q / Σ_{tried} P) / (1 + ΣN).

    Args:
        value: Value predicted by the network, v̂.
        q: Values of the actions; ignored for unvisited ones.
        prior: Probabilities of the actions.
        visits: Visit counts.
    """
    tried = visits > 0
    prior = prior.clamp(min=torch.finfo(prior.dtype).tiny) * tried
    shares = prior / prior.sum(-1, keepdim=True).masked_fill(~tried.any(-1, keepdim=True), 1.0)
    total = visits.sum(-1)
    return (value + total * (shares * q.masked_fill(~tried, 0.0)).sum(-1)) / (1 + total)


def completed_q(
    value: Float[Tensor, "*B"],
    q: Float[Tensor, "*B A"],
    prior: Float[Tensor, "*B A"],
    visits: Num[Tensor, "*B A"],
) -> Float[Tensor, "*B A"]:
    """Complete the action values: q for visited actions, `mixed_value` for others (Danihelka et al. 2022, eq. 10).

    So the advantage of an unvisited action is zero.
    """
    return torch.where(visits > 0, q, mixed_value(value, q, prior, visits).unsqueeze(-1))


def sigma(
    q: Float[Tensor, "*B A"], visits: Num[Tensor, "*B A"], *, visit_offset: float = VISIT_OFFSET, scale: float = 1.0
) -> Float[Tensor, "*B A"]:
    """Transform values to logits by σ(q) = (c_visit + max_b n_b) c_scale q (Danihelka et al. 2022, eq. 8).

    The more visits, the more weight values have relative to the prior.

    Args:
        q: Values of the actions, scaled to [0, 1].
        visits: Visit counts.
        visit_offset: c_visit.
        scale: c_scale; the paper has 1 for board games and 0.1 for Atari.
    """
    return (visit_offset + visits.amax(-1, keepdim=True)) * scale * q


def sequential_halving(considered: int, simulations: int) -> list[int]:
    """Return the schedule of sequential halving: the visit count to select from, per simulation (Karnin et al. 2013).

    The simulations are divided among log2(m) phases. Each phase visits the remaining actions equally often, and the
    better half continues.

    Args:
        considered: Initial number of actions, m, at least 1.
        simulations: Number of simulations, at least 1.

    Raises:
        ValueError: If one of them is not positive.
    """
    if considered < 1 or simulations < 1:
        raise ValueError(f"considered and simulations must be at least 1, got {considered} and {simulations}")
    if considered == 1:
        return list(range(simulations))
    phases, left = math.ceil(math.log2(considered)), considered
    visits, sequence = [0] * considered, list[int]()
    while len(sequence) < simulations:
        for _ in range(max(1, int(simulations / (phases * left)))):
            sequence += visits[:left]
            visits[:left] = [n + 1 for n in visits[:left]]
        left = max(2, left // 2)
    return sequence[:simulations]


def least_visited_for(policy: Float[Tensor, "*B A"], visits: Num[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
    """Compute the difference between a policy and the visits: π - n / (1 + Σ n) (Danihelka et al. 2022, eq. 14).

    Selecting the argmax at every visit deterministically distributes the visits according to the policy.
    """
    return policy - visits / (1 + visits.sum(-1, keepdim=True))
