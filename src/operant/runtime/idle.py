"""Hyperparameters and settings without an effect: `warn_of_idle`, `warn_of_idle_in`, `warn_of_idle_settings`."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from operant.catalog import Algorithm
from operant.envs import BatchEnv, is_image, unwrapped
from operant.envs.spaces import is_box
from operant.envs.worlds.games import changing_wrappers, rules_of
from operant.runtime.configuration import configuration
from operant.runtime.settings import Settings

logger = logging.getLogger(__name__)


class Condition(NamedTuple):
    """The values of a field with which other fields have no effect.

    Attributes:
        fields: the other fields.
        field: the field.
        values: its values with which they have none.
        example: a value with which they have one.
    """

    fields: tuple[str, ...]
    field: str
    values: tuple[Any, ...]
    example: str


CONDITIONS = (
    Condition(("gae_lambda",), "estimator", ("n-step",), "gae"),
    Condition(("n_step",), "estimator", ("gae",), "n-step"),
    Condition(("gae_lambda",), "advantage_kind", ("total", "to-go", "baseline", "q", "advantage", "td"), "gae"),
    Condition(("critic_learning_rate", "critic_steps", "target"), "advantage_kind", ("total", "to-go"), "baseline"),
    Condition(("discount_steps",), "advantage_kind", ("total",), "to-go"),
    Condition(("line_search_shrinking_factor", "line_search_max_iter"), "line_search", (False,), "true"),
    Condition(("vine_points", "vine_actions", "vine_steps", "vine_common"), "sampling", ("single-path",), "vine"),
    Condition(("target_noise_clip",), "target_policy_noise", (0.0,), "0.2"),
    Condition(("clip_range", "clip_range_high", "clip_range_schedule"), "objective", ("penalty",), "clip"),
    Condition(("kl_coef", "kl_coef_target", "kl_coef_rounds"), "objective", ("clip",), "clip-and-penalty"),
    Condition(("kl_coef_rounds",), "kl_coef_target", (None,), "0.01"),
    Condition(("sde_sample_freq",), "use_sde", (False,), "true"),
    Condition(("per_beta",), "per_alpha", (0.0,), "0.6"),
    Condition(("hindsight_ratio",), "hindsight", ("none",), "future"),
    Condition(("dirichlet_alpha",), "search", ("gumbel",), "puct"),
    Condition(("max_considered_actions", "value_scale"), "search", ("puct",), "gumbel"),
    Condition(("generations", "dream_temperature"), "train_in", ("environment",), "dream"),
    Condition(("num_elites",), "planner", ("mppi",), "cem"),
    Condition(("planning_temperature",), "planner", ("cem",), "mppi"),
    Condition(("step_size",), "step_size_schedule", ("visits",), "constant"),
    Condition(("step_size_final",), "step_size_schedule", ("constant", "visits"), "exponential"),
    Condition(("step_size_span",), "step_size_schedule", ("constant", "exponential", "visits"), "linear"),
    Condition(("step_size_factor",), "step_size_schedule", ("constant", "linear", "visits"), "exponential"),
    Condition(("step_size_power",), "step_size_schedule", ("constant", "linear", "exponential"), "visits"),
    Condition(("exploration_final_eps",), "exploration_schedule", ("constant",), "exponential"),
    Condition(("exploration_span",), "exploration_schedule", ("constant", "exponential"), "linear"),
    Condition(("exploration_factor",), "exploration_schedule", ("constant", "linear"), "exponential"),
    Condition(("bonus_coef",), "planning_steps", (0,), "50"),
    Condition(("traces",), "td_lambda", (0.0,), "0.9"),
    Condition(("prior_deviation", "noise"), "prior", ("beta",), "gaussian"),
    Condition(("successes", "failures"), "prior", ("gaussian",), "beta"),
    Condition(("kl_estimator", "kl_weighted"), "beta", (0.0,), "0.04"),
    Condition(("overlong_penalty",), "overlong_buffer", (0.0,), "0.2"),
    Condition(("max_rounds",), "filter", ("none", "drop"), "refill"),
    Condition(("importance_sampling_cap",), "importance_sampling_correction", ("none",), "truncate"),
    Condition(("advantage_eps",), "advantage", ("mean", "leave-one-out"), "group"),
    Condition(("epsilon", "dual_clip"), "objective", ("cispo",), "clip"),
    Condition(("beta_horizon",), "beta_target", (None,), "6"),
    Condition(("ranking_loss", "centering_examples"), "supervision", ("process",), "outcome"),
    Condition(("step_separator", "steps_finished"), "supervision", ("outcome",), "process"),
    Condition(("validations",), "keep_best", (False,), "true"),
    Condition(("deadline",), "workers", (0,), "2"),
)


_SCHEDULES = ("step_size_schedule", "exploration_schedule")
_OBJECTIVES = ("clip", "penalty", "clip-and-penalty")
"""PPO's own objectives, whose other conditions are above."""

SLOWEST = 10_000
"""Gradient steps in which target networks follow at the slowest without a warning: the interval of copies of DQN's
paper."""


def warn_of_idle(algorithm: Algorithm, task: str, config: Any) -> None:
    """Log a warning for every field that was chosen but has no effect with the values of the others.

    Fields with their default or with a preset's value were not chosen. State-dependent noise for single steps, which
    is independent noise, and target networks that hardly move cause a warning, too.

    Args:
        algorithm: entry of the catalog.
        task: training task, whose preset is considered.
        config: hyperparameters of a new run.
    """
    usual = _usual(algorithm, task)
    _warn(algorithm, config, usual, _idle(config))
    if getattr(config, "use_sde", False) and getattr(config, "train_freq", 0) == 1:
        logger.warning(
            "%s: use_sde with train_freq=1 draws new weights at every step, as independent noise does: set train_freq "
            "to the number of steps with the same weights, for example to 8",
            algorithm.name,
        )
    _warn_of_slow_targets(algorithm, config, usual)


def _idle(config: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield fields without an effect with the values of the others, and the reason with what to do."""
    for condition in CONDITIONS:
        owner, field = getattr(config, condition.field, None), condition.field
        if owner in condition.values:
            yield (
                condition.fields,
                f" with {field}={owner}: leave it out, or set {field}, for example to {condition.example}",
            )
    if hasattr(config, "model_train_freq"):
        reason = ", because an iteration ends with the next fit of the model: leave it out, or set model_train_freq"
        yield ("rounds_per_iteration",), reason
    first, last = (getattr(config, f"exploration_{name}_eps", None) for name in ("initial", "final"))
    if first is not None and first == last:
        reason = (
            f", because exploration_initial_eps and exploration_final_eps are both {first}: leave it out, or set one"
        )
        yield ("exploration_fraction",), f"{reason} of them"
    if (coefficient := getattr(config, "ent_coef", None)) is not None:
        reason = f" with ent_coef={coefficient}, which is then constant: leave out one of them"
        yield ("target_entropy", "target_entropy_scale"), reason
    if (network := getattr(config, "network", None)) is not None:
        reason = f" with network={network}, which has all layers: leave it out"
        yield ("hidden_sizes", "activation", "share_features"), reason
    if all(getattr(config, f"{name}_network", None) is not None for name in ("actor", "critic")):
        reason = " with actor_network and critic_network, which have all layers: leave it out"
        yield ("hidden_sizes", "activation"), reason
    if hasattr(config, "kl_coef_rounds") and config.objective not in _OBJECTIVES:
        reason = f" with objective={config.objective}, which gets kl_coef as a constant beta: leave it out"
        yield ("kl_coef_target", "kl_coef_rounds"), reason
    if all(getattr(config, name, "constant") in ("constant", "visits") for name in _SCHEDULES):
        reason = ", because nothing has a schedule in episodes or steps: leave it out, or set exploration_schedule or "
        yield ("schedule_unit",), f"{reason}step_size_schedule"
    yield from _idle_in_language(config)


def _idle_in_language(config: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield fields of language models without an effect, and the reason."""
    if init := getattr(config, "init", ""):
        yield ("model",), f" with init={init}, whose model is trained further: leave out one of them"
    if dataset := getattr(config, "dataset", ""):
        yield ("train_examples",), f" with dataset={dataset}, whose rows are all used: leave it out"
    elif getattr(config, "supervision", "outcome") == "process":
        yield ("rewards", "reward_weights"), ", because answers are rewarded for their steps alone: leave it out"


def _warn_of_slow_targets(algorithm: Algorithm, config: Any, usual: Sequence[Any]) -> None:
    tau, interval = (getattr(config, name, None) for name in ("tau", "target_update_interval"))
    is_slow = tau is not None and interval is not None and tau < 1 and interval > SLOWEST * tau
    if is_slow and any(_is_chosen(config, name, usual) for name in ("tau", "target_update_interval")):
        logger.warning(
            "%s: with tau=%s and target_update_interval=%s the target network moves by %s of the difference every %s "
            "gradient steps: set target_update_interval to 1 for soft updates at every step, or tau to 1 for copies",
            *(algorithm.name, tau, interval, f"{tau:.3g}", interval),
        )


def warn_of_idle_settings(settings: Settings) -> None:
    """Log a warning for a time limit of worker processes if there are none.

    Args:
        settings: settings of a new run.
    """
    if settings.vectorization == "sync" and settings.worker_seconds != Settings.worker_seconds:
        logger.warning(
            "worker_seconds=%s has no effect, because environments are in this process: leave it out, or use "
            "vectorization='async'",
            settings.worker_seconds,
        )


def warn_of_idle_in(algorithm: Algorithm, task: str, config: Any, env: BatchEnv) -> None:
    """Log a warning for every field that was chosen but has no effect in the environments.

    Args:
        algorithm: entry of the catalog.
        task: training task, whose preset is considered.
        config: hyperparameters of a new run.
        env: its environments.
    """
    usual = [*_usual(algorithm, task), *(configuration(algorithm, task, name) for name in algorithm.preset_values)]
    found = ((names, f", because {reason}: leave it out") for names, reason in _idle_in(task, config, env))
    _warn(algorithm, config, usual, found)


def _idle_in(task: str, config: Any, env: BatchEnv) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield fields without an effect in environments, and the reason."""
    if is_box(env.action_space):
        yield ("gumbel_temperature",), f"the actions of {task} are continuous"
    else:
        yield ("log_std_init",), f"the actions of {task} are not continuous"
    if is_image(env.observation_space):
        yield ("layers",), f"the observations of {task} are images"
    else:
        yield ("depth",), f"the observations of {task} are not images"
    if hasattr(config, "support_size") and hasattr(config, "random_openings"):
        if env is unwrapped(env) and rules_of(env) is not None and not changing_wrappers(env):
            yield ("gamma", "support_size"), f"{task} is learned by self-play, without discount and by its outcomes"
        else:
            yield ("random_openings", "symmetries"), f"{task} is not learned by self-play"


def _warn(
    algorithm: Algorithm, config: Any, usual: Sequence[Any], found: Iterable[tuple[tuple[str, ...], str]]
) -> None:
    """Log a warning for every chosen one of fields without an effect, with the reason."""
    for names, reason in found:
        for name in names:
            if _is_chosen(config, name, usual):
                logger.warning("%s: %s=%s has no effect%s", algorithm.name, name, getattr(config, name), reason)


def _usual(algorithm: Algorithm, task: str) -> list[Any]:
    """Return the configurations whose values were not chosen: the defaults, and those of presets."""
    # The variants of language algorithms are presets, which are chosen by name.
    presets = algorithm.presets if algorithm.package == "language" else ()
    return [algorithm.config_class(), *(configuration(algorithm, task, preset) for preset in (None, *presets))]


def _is_chosen(config: Any, name: str, usual: Sequence[Any]) -> bool:
    """Return whether a configuration has a field, with another value than the usual configurations."""
    return hasattr(config, name) and all(getattr(config, name) != getattr(other, name) for other in usual)
