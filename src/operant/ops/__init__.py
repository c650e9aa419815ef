"""The equations: pure functions on tensors, each written once.

Shapes are time first, `[T, B, ...]`; leading dimensions are independent problems; losses are per element and to be
minimised; logarithms are natural. Nothing here knows of devices, files, configurations or random generators.
"""

from operant.ops.distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_log_prob_entropy,
    categorical_mode,
    categorical_sample,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_mode,
    gaussian_sample,
    tanh_gaussian_log_prob,
    tanh_gaussian_mode,
    tanh_gaussian_sample,
    tanh_gaussian_sample_log_prob,
)
from operant.ops.group import (
    group_advantages,
    has_signal,
    leave_one_out,
    overlong_penalty,
    process_advantages,
)
from operant.ops.kl import (
    adapt_horizon,
    adapt_penalty,
    categorical_kl,
    cross_entropy,
    gaussian_kl,
    kl_estimate,
)
from operant.ops.moments import (
    explained_variance,
    standardise,
    weighted_mean,
)
from operant.ops.off_policy import (
    perturbed_action,
    soft_value,
    temperature_loss,
)
from operant.ops.policy import (
    approximate_kl,
    clip_fraction,
    clipped_surrogate,
    penalised_surrogate,
    policy_gradient,
    surrogate,
    truncated_weights,
)
from operant.ops.preference import (
    bradley_terry,
    dpo,
    plackett_luce,
)
from operant.ops.returns import (
    discounted_returns,
    episode_totals,
    gae,
    lambda_returns,
    n_step_returns,
)
from operant.ops.trust_region import (
    LineSearch,
    backtrack,
    categorical_fisher,
    conjugate_gradient,
    fisher_operator,
    fisher_vector_product,
    gaussian_fisher,
    natural_step,
)
from operant.ops.value import (
    clipped_double_q,
    double_q,
    dueling,
    huber_loss,
    importance_weights,
    q_target,
    soft_q,
    value_loss,
)
from operant.ops.weights import (
    aggregate,
    token_weights,
)

__all__ = [
    "LineSearch",
    "adapt_horizon",
    "adapt_penalty",
    "aggregate",
    "approximate_kl",
    "backtrack",
    "bradley_terry",
    "categorical_entropy",
    "categorical_fisher",
    "categorical_kl",
    "categorical_log_prob",
    "categorical_log_prob_entropy",
    "categorical_mode",
    "categorical_sample",
    "clip_fraction",
    "clipped_double_q",
    "clipped_surrogate",
    "conjugate_gradient",
    "cross_entropy",
    "discounted_returns",
    "double_q",
    "dpo",
    "dueling",
    "episode_totals",
    "explained_variance",
    "fisher_operator",
    "fisher_vector_product",
    "gae",
    "gaussian_entropy",
    "gaussian_fisher",
    "gaussian_kl",
    "gaussian_log_prob",
    "gaussian_mode",
    "gaussian_sample",
    "group_advantages",
    "has_signal",
    "huber_loss",
    "importance_weights",
    "kl_estimate",
    "lambda_returns",
    "leave_one_out",
    "n_step_returns",
    "natural_step",
    "overlong_penalty",
    "penalised_surrogate",
    "perturbed_action",
    "plackett_luce",
    "policy_gradient",
    "process_advantages",
    "q_target",
    "soft_q",
    "soft_value",
    "standardise",
    "surrogate",
    "tanh_gaussian_log_prob",
    "tanh_gaussian_mode",
    "tanh_gaussian_sample",
    "tanh_gaussian_sample_log_prob",
    "temperature_loss",
    "token_weights",
    "truncated_weights",
    "value_loss",
    "weighted_mean",
]
