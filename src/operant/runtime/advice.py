"""What to tell a user whose training makes a policy worse: `hints_of`, `advice`."""

from typing import Any

from operant.runtime.course import Hints
from operant.runtime.run import Run


def hints_of(run: Run, *, kept: bool) -> Hints | None:
    """What to say where training makes a policy worse than it was at the start; None if it started from nothing.

    Args:
        run: is trained.
        kept: whether its best weights are kept.
    """
    entry = run.entry
    speaks = entry.package == "language"
    if not speaks and "init" not in run.resolved():
        return None
    config = run.config(entry.config_class)
    penalty = "beta" if speaks and hasattr(config, "beta") else ""
    return Hints(entry.unit, kept=kept, advice=advice(config, penalty), penalty=f"--{penalty}" if penalty else "")


def advice(config: Any, penalty: str = "") -> str:
    """What to try where training makes a policy worse, as far as its configuration has it; empty: nothing is known.

    Args:
        config: of the algorithm.
        penalty: field that holds the price of leaving the start; empty: there is none.
    """
    found: list[str] = []
    if hasattr(config, "learning_rate"):
        found.append(f"a smaller --learning-rate (now {config.learning_rate:g})")
    if penalty:
        found.append(f"a larger --{penalty.replace('_', '-')} (now {getattr(config, penalty):g})")
    steps = ("num_minibatches", "num_epochs", "num_iterations")
    counts = {name.replace("_", "-"): getattr(config, name, 1) for name in steps}
    if several := [f"--{name} (now {count})" for name, count in counts.items() if count > 1]:
        found.append(f"fewer {' or '.join(several)}")
    return ", ".join(found[:-1]) + " or " * (len(found) > 1) + "".join(found[-1:])
