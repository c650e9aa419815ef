"""Advice for runs in which training makes the policy worse: `hints_of`, `advice`."""

from typing import Any, Literal, Protocol, runtime_checkable

from operant.runtime.course import Hints
from operant.runtime.run import Run


@runtime_checkable
class HasStep(Protocol):
    """A configuration of a policy whose steps may be other ones than those of PPO."""

    @property
    def step(self) -> Literal["ppo", "vpg", "trpo"]:
        """Steps of the policy: several on minibatches, one gradient step, or one natural step of limited divergence."""
        ...


def hints_of(run: Run, *, kept: bool) -> Hints | None:
    """Return hints for a run whose policy may become worse than at its start; None if it started from scratch.

    Args:
        run: the run in training.
        kept: whether its best weights are saved.
    """
    entry = run.entry
    speaks = entry.package == "language"
    if not speaks and "init" not in run.resolved():
        return None
    config = run.config(entry.config_class)
    penalty = "beta" if speaks and hasattr(config, "beta") else ""
    return Hints(entry.unit, kept=kept, advice=advice(config, penalty), penalty=f"--{penalty}" if penalty else "")


def advice(config: Any, penalty: str = "") -> str:
    """Return advice for a policy that becomes worse in training; empty if there is none.

    Args:
        config: configuration of the algorithm.
        penalty: field with the coefficient of the penalty on the divergence from the start; empty: none.
    """
    found: list[str] = []
    step = _step_of(config)
    if step == "trpo":
        found.append(f"a smaller --target-kl (now {config.target_kl:g})")  # which limits the step
    elif hasattr(config, "learning_rate"):
        found.append(f"a smaller --learning-rate (now {config.learning_rate:g})")
    if penalty:
        found.append(f"a larger --{penalty.replace('_', '-')} (now {getattr(config, penalty):g})")
    # With other steps there is one per batch, and minibatches and passes are those of the critic.
    steps = ("num_minibatches", "num_epochs", "num_iterations") if step == "ppo" else ()
    counts = {name.replace("_", "-"): getattr(config, name, 1) for name in steps}
    if several := [f"--{name} (now {count})" for name, count in counts.items() if count > 1]:
        found.append(f"fewer {' or '.join(several)}")
    return ", ".join(found[:-1]) + " or " * (len(found) > 1) + "".join(found[-1:])


def _step_of(config: object) -> Literal["ppo", "vpg", "trpo"]:
    return config.step if isinstance(config, HasStep) else "ppo"
