# pyright: standard
# (Kernels have no types here: numba infers them at every call.)
"""The inner loops of the tree search, compiled: expansion, backup, and action selection down the trees.

Between two calls of the model there is one call of `advance`. Formulas are those of `operant.ops.search`, one function
each; they compute in float64 on float32 arrays. Kernels allocate no memory (`_nrt=False`), and trees are independent.
"""

from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

import operant.ops
from operant.ops.search import PUCT_BASE, PUCT_INIT, VISIT_OFFSET
from operant.runtime.kernel_cache import keyed_by_sources, njit

_compile = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)
compiled: Any = keyed_by_sources(_compile, Path(__file__).parent, Path(operant.ops.__file__).parent)
"""Decorator of every kernel and every called function. Compiled code contains the constants of `operant.ops`."""

UNSEEN = -1
"""The child of an unvisited action."""

TINY = float(np.finfo(np.float32).tiny)
"""Minimum prior probability of a visited action."""

Integers = NDArray[np.int64]
Numbers = NDArray[np.float32]
Int = TypeVar("Int")
Float = TypeVar("Float")


class Trees(NamedTuple, Generic[Int, Float]):
    """B trees of at most M nodes, with A actions each: arrays, or the tensors that share their memory.

    Attributes:
        children: `[B, M, A]` index of the child of each action, or `UNSEEN`.
        parents: `[B, M]` index of the parent.
        actions: `[B, M]` actions that led to the nodes.
        visits: `[B, M]` visit counts, including the first.
        values: `[B, M]` mean backed-up values.
        raw_values: `[B, M]` values predicted by the model.
        logits: `[B, M, A]` policy logits; -inf for masked actions.
        priors: `[B, M, A]` probabilities of the policy.
        rewards: `[B, M]` rewards of the transitions to the nodes.
        discounts: `[B, M]` discounts of the values, relative to the parents.
        action_visits: `[B, M, A]` visit counts of the actions.
        action_values: `[B, M, A]` mean values of the actions; 0 if unvisited.
    """

    children: Int
    parents: Int
    actions: Int
    visits: Float
    values: Float
    raw_values: Float
    logits: Float
    priors: Float
    rewards: Float
    discounts: Float
    action_visits: Float
    action_values: Float


ArrayTrees = Trees[Integers, Numbers]
"""Trees as the kernels take them."""


class Rules(NamedTuple):
    """Rules of action selection.

    Attributes:
        gumbel: whether to use Gumbel noise and sequential halving; otherwise pUCT.
        scale: c_scale of σ.
        ranged: whether the range of values is known.
        low: minimum of this range.
        high: maximum of this range.
        noise: `[B, A]` Gumbel noise at the roots.
        schedule: `[considered + 1, simulations]` schedules of sequential halving, by the number of root actions.
        scores: `[A]`, scratch memory.
    """

    gumbel: bool
    scale: float
    ranged: bool
    low: float
    high: float
    noise: Numbers
    schedule: Integers
    scores: NDArray[np.float64]


class Outputs(NamedTuple):
    """Outputs of a model for one new node of every tree, without its states.

    Attributes:
        logits: `[B, A]` policy logits.
        value: `[B]` values.
        reward: `[B]` rewards of the transitions to the nodes.
        discount: `[B]` discounts of the values.
    """

    logits: Numbers
    value: Numbers
    reward: Numbers
    discount: Numbers


class Results(NamedTuple):
    """Results at the roots.

    Attributes:
        actions: `[B]` selected actions.
        policy: `[B, A]`, the improved policy (Gumbel) or the visit distribution (pUCT).
        value: `[B]`, means over all simulations.
        prior_value: `[B]`, the mixed value.
    """

    actions: Integers
    policy: Numbers
    value: Numbers
    prior_value: Numbers


@compiled
def advance(  # noqa: PLR0917 - see its docstring
    children,
    parents,
    actions,
    visits,
    values,
    raw_values,
    logits,
    priors,
    rewards,
    discounts,
    action_visits,
    action_values,
    gumbel,
    scale,
    ranged,
    low,
    high,
    noise,
    schedule,
    scores,
    new_logits,
    new_values,
    new_rewards,
    new_discounts,
    edges,
    new,
):
    """Add node `new` to every tree, back it up, and descend to the edge where the next node will be.

    Arguments are the fields of `Trees`, `Rules` and `Outputs` one by one: a call with named tuples takes three
    microseconds, and this one a third of it. `edges`, int64 `[2, B]`, receives the index b M + parent of the parents of
    the next nodes, and their actions; `new` is 0 for the roots.
    """
    trees = Trees(
        children,
        parents,
        actions,
        visits,
        values,
        raw_values,
        logits,
        priors,
        rewards,
        discounts,
        action_visits,
        action_values,
    )
    rules = Rules(gumbel, scale, ranged, low, high, noise, schedule, scores)
    outputs = Outputs(new_logits, new_values, new_rewards, new_discounts)
    batch, nodes = parents.shape
    for b in range(batch):
        expand(trees, outputs, b, new)
        if new > 0:
            back_up(trees, b, new)
        if new + 1 < nodes:
            parent, action = descend(trees, rules, b, new)
            parents[b, new + 1], actions[b, new + 1] = parent, action
            edges[0, b], edges[1, b] = b * nodes + parent, action


@compiled
def expand(trees, outputs, b, new):
    """Store the model's outputs for a new node."""
    softmax(outputs.logits[b], trees.priors[b, new])
    for a in range(outputs.logits.shape[1]):
        trees.logits[b, new, a] = outputs.logits[b, a]
    trees.raw_values[b, new], trees.rewards[b, new] = outputs.value[b], outputs.reward[b]
    trees.discounts[b, new] = outputs.discount[b]
    trees.values[b, new], trees.visits[b, new] = outputs.value[b], 1


@compiled
def back_up(trees, b, new):
    """Link a new node to its parent, and back up its value to all its ancestors."""
    trees.children[b, trees.parents[b, new], trees.actions[b, new]] = new
    value, node = np.float64(trees.values[b, new]), new
    while node > 0:
        parent, action = trees.parents[b, node], trees.actions[b, node]
        value = trees.rewards[b, node] + trees.discounts[b, node] * value
        trees.action_visits[b, parent, action] = trees.visits[b, node]
        trees.action_values[b, parent, action] = (
            trees.rewards[b, node] + np.float64(trees.discounts[b, node]) * trees.values[b, node]
        )
        mean, visits = np.float64(trees.values[b, parent]), trees.visits[b, parent]
        trees.values[b, parent] = mean + (value - mean) / (visits + 1)
        trees.visits[b, parent] = visits + 1
        node = parent


@compiled
def descend(trees, rules, b, simulation):
    """Follow the chosen actions from the root to an unvisited one; return its node and the action."""
    node = 0
    while True:
        if not rules.gumbel:
            action = upper_bound(trees, rules, b, node)
        elif node == 0:
            action = halved(trees, rules, b, rules.schedule[considered(trees, rules, b), simulation])
        else:
            action = lagging(trees, rules, b, node)
        child = trees.children[b, node, action]
        if child == UNSEEN:
            return node, action
        node = child


@compiled
def considered(trees, rules, b):
    """Return how many root actions sequential halving begins with."""
    allowed = 0
    for a in range(trees.logits.shape[2]):
        allowed += trees.logits[b, 0, a] > -np.inf
    return min(allowed, len(rules.schedule) - 1)


@compiled
def halved(trees, rules, b, visits):
    """Return the best root action among those with the given visits, by prior, noise and value."""
    improve(trees, rules, b, 0, rules.scores)
    best, action = -np.inf, 0
    for a in range(len(rules.scores)):
        if trees.action_visits[b, 0, a] == visits and trees.logits[b, 0, a] > -np.inf:
            score = max(rules.noise[b, a] + rules.scores[a], -1e9)
            if score > best:
                best, action = score, a
    return action


@compiled
def lagging(trees, rules, b, node):
    """Return the action with the largest deficit relative to the improved policy, below the root."""
    improve(trees, rules, b, node, rules.scores)
    softmax(rules.scores, rules.scores)
    visits = trees.action_visits[b, node]
    total, best, action = visits.sum(), -np.inf, 0
    for a in range(len(visits)):
        if trees.logits[b, node, a] > -np.inf:
            score = least_visited_for(rules.scores[a], visits[a], total)
            if score > best:
                best, action = score, a
    return action


@compiled
def upper_bound(trees, rules, b, node):
    """Return the action with the highest upper bound.

    Unvisited ones count as the minimum of a known range, else as the worst of the visited ones and the node itself.
    """
    q, visits, priors = trees.action_values[b, node], trees.action_visits[b, node], trees.priors[b, node]
    low = high = np.float64(trees.values[b, node])
    for a in range(len(q)):
        if visits[a] > 0:
            low, high = min(low, q[a]), max(high, q[a])
    if rules.ranged:
        low, high = rules.low, rules.high
    best, action = -np.inf, 0
    for a in range(len(q)):
        if trees.logits[b, node, a] > -np.inf:
            known = scaled(q[a] if visits[a] > 0 else low, low, high)
            bound = puct(known, priors[a], visits[a], trees.visits[b, node])
            if bound > best:
                best, action = bound, a
    return action


@compiled
def conclude(trees, rules, results):
    """Write the results at the roots."""
    for b in range(trees.parents.shape[0]):
        visits = trees.action_visits[b, 0]
        results.value[b] = trees.values[b, 0]
        results.prior_value[b] = mixed_value(
            trees.raw_values[b, 0], trees.action_values[b, 0], trees.priors[b, 0], visits
        )
        if rules.gumbel:
            results.actions[b] = halved(trees, rules, b, visits[most_visited(trees, b)])
            softmax(rules.scores, results.policy[b])
        else:
            shares = visits if visits.sum() > 0 else trees.priors[b, 0]
            results.actions[b] = np.argmax(shares)
            for a in range(len(visits)):
                results.policy[b, a] = shares[a] / shares.sum()


@compiled
def most_visited(trees, b):
    """Return the root action with the most visits."""
    best, action = -1.0, 0
    for a in range(trees.logits.shape[2]):
        if trees.logits[b, 0, a] > -np.inf and trees.action_visits[b, 0, a] > best:
            best, action = trees.action_visits[b, 0, a], a
    return action


@compiled
def improve(trees, rules, b, node, scores):
    """Write the logits of the improved policy of a node: its logits + σ(completed values) (equation 11)."""
    q, visits = trees.action_values[b, node], trees.action_visits[b, node]
    mixed = mixed_value(trees.raw_values[b, node], q, trees.priors[b, node], visits)
    logits, low, high, most = trees.logits[b, node], np.inf, -np.inf, 0.0
    for a in range(len(q)):
        scores[a] = q[a] if visits[a] > 0 else mixed
        low, high, most = min(low, scores[a]), max(high, scores[a]), max(most, visits[a])
    if rules.ranged:
        low, high = rules.low, rules.high
    for a in range(len(q)):
        scores[a] = logits[a] + sigma(scaled(scores[a], low, high), most, VISIT_OFFSET, rules.scale)


@compiled
def scaled(q, low, high):
    """Return a value in [0, 1]."""
    return (q - low) / max(high - low, 1e-8)


@compiled
def puct(q, prior, visits, total):
    """Return the upper bound of an action's value (`operant.ops.puct`)."""
    weight = PUCT_INIT + np.log((total + PUCT_BASE + 1.0) / PUCT_BASE)
    return q + prior * np.sqrt(np.float64(total)) * weight / (1.0 + visits)


@compiled
def mixed_value(value, q, prior, visits):
    """Return a node's value from its network and its visited actions `[A]` (`operant.ops.mixed_value`)."""
    total, mass, weighted = 0.0, 0.0, 0.0
    for a in range(len(q)):
        if visits[a] > 0:
            probability = max(np.float64(prior[a]), TINY)
            total, mass, weighted = total + visits[a], mass + probability, weighted + probability * q[a]
    return (value + total * weighted / mass) / (1.0 + total) if total > 0 else np.float64(value)


@compiled
def sigma(q, most, visit_offset, scale):
    """Return σ(q), with `most` visits of the most visited action (`operant.ops.sigma`)."""
    return (visit_offset + most) * scale * q


@compiled
def least_visited_for(probability, visits, total):
    """Return the deficit of an action's visits relative to its probability (`operant.ops.least_visited_for`)."""
    return probability - visits / (1.0 + total)


@compiled
def softmax(logits, out):
    """Write the probabilities of logits `[A]`, in the same array or another."""
    top, total = -np.inf, 0.0
    for a in range(len(logits)):
        top = max(top, logits[a])
    for a in range(len(logits)):
        out[a] = np.exp(logits[a] - top)
        total += out[a]
    for a in range(len(logits)):
        out[a] /= total
