"""Automatic choice of the solver."""

from collections.abc import Callable
from typing import Any, cast

from operant.mdp.linear_programming import linear_programming
from operant.mdp.model import MDP
from operant.mdp.policy_iteration import inexact_policy_iteration, modified_policy_iteration, policy_iteration
from operant.mdp.rtdp import asynchronous_value_iteration
from operant.mdp.solution import Solution
from operant.mdp.sweeping import prioritized_sweeping
from operant.mdp.value_iteration import q_value_iteration, value_iteration

__all__ = ["METHODS", "solve"]

METHODS: dict[str, Callable[..., Solution]] = {
    "value-iteration": value_iteration,
    "q-value-iteration": q_value_iteration,
    "asynchronous-value-iteration": asynchronous_value_iteration,
    "prioritized-sweeping": prioritized_sweeping,
    "policy-iteration": policy_iteration,
    "modified-policy-iteration": modified_policy_iteration,
    "inexact-policy-iteration": inexact_policy_iteration,
    "linear-programming": linear_programming,
}

DIRECT_UP_TO = 500
"""States up to which policy iteration with a factorization is fastest for any structure."""


def solve(
    mdp: MDP,
    *,
    gamma: float,
    method: str = "auto",
    tolerance: float = 1e-6,
    **options: Any,
) -> Solution:
    """Solve a model by an automatically selected or a named method.

    Small models are solved by policy iteration, others by inexact policy iteration: if episodes end, its sweeps and
    Krylov evaluations propagate values over many steps; if none ends, it is modified policy iteration for models that
    mix fast.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        method: `"auto"`, or a name in `METHODS`.
        tolerance: accuracy of every value, in units of reward.
        **options: options of the method.

    Raises:
        ValueError: if the method is unknown, an argument is out of range, or `gamma` is 1 and from some state no policy
            ends the episode.
    """
    if not isinstance(cast(object, mdp), MDP):
        raise ValueError(
            f"mdp must be a model, got {mdp!r:.80}: create one by MDP.from_gymnasium, from_dict, from_table, "
            "from_arrays or from_function"
        )
    if method == "auto":
        method = "policy-iteration" if mdp.states <= DIRECT_UP_TO else "inexact-policy-iteration"
    if method not in METHODS:
        raise ValueError(f"method is {method!r}, expected 'auto' or one of {', '.join(METHODS)}")
    return METHODS[method](mdp, gamma=gamma, tolerance=tolerance, **options)
