"""Agreement of annotators, for `operant label RUN --agreement`."""

import math
from typing import TYPE_CHECKING, Any

from operant.cli.output import table

if TYPE_CHECKING:
    from operant.language.preferences.agreement import Agreement


def agreement_text(report: "Agreement") -> str:
    """Return the counts of labels and a table of the annotators' agreement."""
    rows = [["statistic", "value", "95 % interval", "comparisons"]]
    rows += [
        [name, _number(e.value), f"[{_number(e.low)}, {_number(e.high)}]", str(e.count)]
        for name, e in report.statistics.items()
    ]
    labels = ", ".join(f"{count} {outcome}" for outcome, count in report.labels.items()) or "none"
    return f"labels: {labels}\n\n{table(rows, '<>>>')}"


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}"


def agreement_fields(report: "Agreement") -> dict[str, Any]:
    """Return the annotators' agreement for `--json`."""
    from operant.language.preferences.agreement import Estimate as Statistic

    plain = {name: vars(value) if isinstance(value, Statistic) else value for name, value in vars(report).items()}
    kappas = [{"annotators": list(pair), **vars(kappa)} for pair, kappa in report.kappas.items()]
    parts = {"repeats": report.repeats, "gold": report.gold}
    by_name = {part: {name: vars(each) for name, each in named.items()} for part, named in parts.items()}
    return plain | {"kappas": kappas} | by_name
