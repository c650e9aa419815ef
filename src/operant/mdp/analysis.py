r"""Theory of policies, computed exactly on known models.

The return is `J(π) = Σ_s start(s) V_π(s)`. A policy is an int array `[S]` (one action per state; terminal states are
ignored) or a float array `[S, A]` of probabilities. All results are float64. A discount of 1 is allowed if the policy
ends every episode, except in the bounds, which divide by 1 - γ.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # pyright: ignore[reportMissingTypeStubs] - SciPy has none

from operant.mdp import sparse
from operant.mdp.graphs import ending
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy, exits_of, transitions_of
from operant.mdp.solution import action_values
from operant.mdp.validation import Floats, Ints, floats, labeled, raise_if_any

__all__ = [
    "advantages",
    "enumerate_policies",
    "expected_return",
    "max_kl",
    "mixture",
    "mixture_bound",
    "occupancy",
    "performance_difference",
    "policy_chain",
    "policy_gradient",
    "softmax_policy",
    "surrogate",
    "trust_region_bound",
]


class _Softmax(Protocol):
    def __call__(self, scores: Floats, /, *, axis: int) -> Floats: ...


_softmax = cast(_Softmax, special.softmax)  # pyright: ignore[reportUnknownMemberType]


def enumerate_policies(mdp: MDP, *, limit: int = 1_000_000) -> Iterator[Ints]:
    """Return every deterministic policy of a tiny model, each an array `[S]` with -1 in terminal states.

    Args:
        mdp: the model.
        limit: maximum number of policies.

    Raises:
        ValueError: if there are more.
    """
    count = math.prod(int(n) for n in mdp.feasible.sum(axis=1) if n)
    if count > limit:
        raise ValueError(
            f"the model has {count} deterministic policies, expected at most {limit}: enumerate a smaller one"
        )
    choices = [np.flatnonzero(row).tolist() or [-1] for row in mdp.feasible]
    return (np.array(policy, np.int64) for policy in product(*choices))


def softmax_policy(mdp: MDP, logits: ArrayLike) -> Floats:
    """Return `π(a|s) = exp θ(s, a) / Σ_b exp θ(s, b)` over feasible actions, `[S, A]`; 0 in terminal states.

    Raises:
        ValueError: if `logits` has another shape, is NaN or +Inf for a feasible action, or -Inf for all of a state.
    """
    given = floats(logits, "logits")
    if given.shape != mdp.feasible.shape:
        raise ValueError(f"logits has shape {given.shape}, expected {mdp.feasible.shape}, (states, actions)")
    if not (given[mdp.feasible] < np.inf).all():
        raise ValueError("logits must be below infinity for feasible actions, but one is NaN or +Inf")
    scores = np.where(mdp.feasible, given, -np.inf)
    scores[mdp.terminal] = 0.0
    raise_if_any(
        np.all(np.isneginf(scores), axis=1),
        lambda s: f"logits has -Inf for all feasible actions of state {s}, expected a finite number for one of them",
    )
    return _softmax(scores, axis=1) * mdp.feasible


def policy_chain(mdp: MDP, policy: ArrayLike) -> tuple[sparse.Sparse, Floats]:
    """Return the Markov chain of a policy.

    Returns:
        `P_π`, sparse `[S, S]`, of the transitions that do not terminate (rows may sum to less than 1), and the expected
        rewards `R_π`, `[S]`.
    """
    probabilities = check_policy(mdp, policy)
    return transitions_of(mdp, probabilities), _expectation(probabilities, mdp.expected_rewards)


def occupancy(mdp: MDP, policy: ArrayLike, *, gamma: float, normalized: bool = False) -> Floats:
    """Return the state visitation, `ρ(s) = Σ_t γ^t P(s_t = s)`, `[S]`.

    Args:
        mdp: the model, with start distribution `start`.
        policy: `[S]` or `[S, A]`.
        gamma: discount. At 1, ρ counts the expected visits, and its sum is the expected length of an episode.
        normalized: whether to return `ν = (1 - γ) ρ`, which sums to 1 if no episode ends, else to less.

    Raises:
        ValueError: if gamma is not in [0, 1], or is 1 and the result is normalized or the policy does not end every
            episode.
    """
    if normalized and gamma == 1:
        raise ValueError("normalized is true, expected gamma below 1: it multiplies by 1 - gamma, which is 0")
    solver, _ = _system(mdp, policy, gamma)
    return solver.solve(mdp.start, trans="T") * (1 - gamma if normalized else 1.0)


def expected_return(mdp: MDP, policy: ArrayLike, *, gamma: float) -> float:
    """Return `J(π) = E[Σ_t γ^t r_t]` from the start of the model."""
    return float(mdp.start @ _values(mdp, policy, gamma))


def advantages(mdp: MDP, policy: ArrayLike, *, gamma: float) -> Floats:
    """Return `A_π(s, a) = Q_π(s, a) - V_π(s)`, `[S, A]`; minus infinity for infeasible actions.

    Its expectation under the policy is 0 in every state.
    """
    values = _values(mdp, policy, gamma)
    return action_values(mdp, values, gamma=gamma) - values[:, None]


def performance_difference(mdp: MDP, new: ArrayLike, old: ArrayLike, *, gamma: float) -> float:
    """Return `Σ_s ρ_new(s) Σ_a π_new(a|s) A_old(s, a)`, which equals `J(new) - J(old)`.

    The performance-difference lemma of Kakade and Langford (2002, lemma 6.1).
    """
    return float(occupancy(mdp, new, gamma=gamma) @ _gains(mdp, new, old, gamma))


def surrogate(mdp: MDP, new: ArrayLike, old: ArrayLike, *, gamma: float) -> float:
    """Return `L_old(new) = J(old) + Σ_s ρ_old(s) Σ_a π_new(a|s) A_old(s, a)`.

    It replaces the visits of the new policy in `performance_difference` by those of the old one, and equals `J(new)`
    to first order around the old policy (Schulman et al. 2015, arXiv 1502.05477, equations 3 and 4).
    """
    gain = occupancy(mdp, old, gamma=gamma) @ _gains(mdp, new, old, gamma)
    return expected_return(mdp, old, gamma=gamma) + float(gain)


def mixture(mdp: MDP, policy: ArrayLike, other: ArrayLike, *, alpha: float) -> Floats:
    """Return `(1 - α) policy + α other`, `[S, A]`."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}, expected a number in [0, 1]")
    return (1 - alpha) * check_policy(mdp, policy) + alpha * check_policy(mdp, other)


def mixture_bound(mdp: MDP, policy: ArrayLike, other: ArrayLike, *, alpha: float, gamma: float) -> float:
    r"""Return a lower bound on `J(new)` of the conservative mixture `new = (1 - α) policy + α other`.

    `L(new) - 2 ε γ α² / (1 - γ)²` with `ε = max_s |E_{a ~ other} A_policy(s, a)|`: the expectation is over the policy
    that is mixed in, not over the mixture (Kakade and Langford 2002; Schulman et al. 2015, arXiv 1502.05477,
    equation 6).

    Args:
        mdp: the model.
        policy: `[S]` or `[S, A]`.
        other: the other policy.
        alpha: weight of the other policy, in [0, 1].
        gamma: discount, in [0, 1).
    """
    _check_contraction(gamma)
    epsilon = np.abs(_gains(mdp, other, policy, gamma)).max()
    new = mixture(mdp, policy, other, alpha=alpha)
    return surrogate(mdp, new, policy, gamma=gamma) - 2 * float(epsilon) * gamma * alpha**2 / (1 - gamma) ** 2


def trust_region_bound(mdp: MDP, new: ArrayLike, old: ArrayLike, *, gamma: float) -> float:
    r"""Return a lower bound on `J(new)` for any two policies.

    `L_old(new) - 4 ε γ / (1 - γ)² max_s KL(old(.|s) ‖ new(.|s))` with `ε = max_{s, a} |A_old(s, a)|` (Schulman et al.
    2015, arXiv 1502.05477, equation 9); minus infinity if the new policy never takes an action that the old one may
    take.
    """
    _check_contraction(gamma)
    distance = max_kl(mdp, old, new)
    if math.isinf(distance):
        return -math.inf
    epsilon = np.abs(advantages(mdp, old, gamma=gamma)[mdp.feasible]).max()
    return surrogate(mdp, new, old, gamma=gamma) - 4 * float(epsilon) * gamma / (1 - gamma) ** 2 * distance


def max_kl(mdp: MDP, policy: ArrayLike, other: ArrayLike) -> float:
    """Return `max_s KL(policy(.|s) ‖ other(.|s))` in nats; infinity if `other` never takes an action of `policy`."""
    terms = special.rel_entr(check_policy(mdp, policy), check_policy(mdp, other))
    return float(terms.sum(axis=1).max())


def policy_gradient(mdp: MDP, logits: ArrayLike, *, gamma: float) -> Floats:
    """Return `∂J / ∂θ(s, a) = ρ_π(s) π(a|s) A_π(s, a)` of the softmax policy with the parameters θ, `[S, A]`.

    The policy-gradient theorem (Sutton et al. 2000, theorem 1) for tables; `ρ` is not normalized, so there is no
    constant factor.
    """
    policy = softmax_policy(mdp, logits)
    visits = occupancy(mdp, policy, gamma=gamma)[:, None]
    return visits * policy * np.where(mdp.feasible, advantages(mdp, policy, gamma=gamma), 0.0)


def _expectation(probabilities: Floats, table: Floats) -> Floats:
    """Return the expectation of a table `[S, A]` under a policy, `[S]`; entries of probability 0 are ignored."""
    return (probabilities * np.where(probabilities > 0, table, 0.0)).sum(axis=1)


def _gains(mdp: MDP, new: ArrayLike, old: ArrayLike, gamma: float) -> Floats:
    """Return `Σ_a π_new(a|s) A_old(s, a)`, `[S]`."""
    return _expectation(check_policy(mdp, new), advantages(mdp, old, gamma=gamma))


def _values(mdp: MDP, policy: ArrayLike, gamma: float) -> Floats:
    """Return V of a policy, `[S]`."""
    solver, rewards = _system(mdp, policy, gamma)
    return solver.solve(rewards)


def _system(mdp: MDP, policy: ArrayLike, gamma: float) -> tuple[sparse.Factors, Floats]:
    """Return the factors of `I - γ P_π`, and `R_π`."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
    transitions, rewards = policy_chain(mdp, policy)
    if gamma == 1:
        raise_if_any(
            ~ending(transitions.indptr, transitions.indices, exits_of(mdp, check_policy(mdp, policy))),
            lambda s: f"gamma is 1, but from state {labeled(s, mdp.state_names)} the policy never ends an episode",
            "use a smaller gamma, or a policy that ends every episode",
        )
    return sparse.splu((sparse.eye_array(mdp.states) - gamma * transitions).tocsc()), rewards


def _check_contraction(gamma: float) -> None:
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma is {gamma}, expected a number in [0, 1): the bound divides by 1 - gamma")
