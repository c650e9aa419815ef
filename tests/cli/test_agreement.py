import math

from operant.cli.agreement import agreement_fields, agreement_text
from operant.language.preferences import Agreement, Estimate

SURE, UNDEFINED = Estimate(1.0, 0.9, 1.0, 3), Estimate(math.nan, math.nan, math.nan, 0)
REPORT = Agreement(
    labels={"tie": 2},
    percent=SURE,
    alpha=UNDEFINED,
    kappas={("ann", "bob"): SURE},
    first_shown=UNDEFINED,
    repeats={"ann": SURE},
    gold={},
)
NAMES = ("percent agreement", "Krippendorff's alpha", "Cohen's kappa, ann and bob")


def test_statistics_stand_in_a_table():
    lines = agreement_text(REPORT).splitlines()
    assert lines[0] == "labels: 2 tie"
    shown = {name: next(line for line in lines if line.startswith(name)) for name in NAMES}
    assert "1.000" in shown["percent agreement"]
    assert "undefined" in shown["Krippendorff's alpha"]


def test_fields_are_plain():
    fields = agreement_fields(REPORT)
    assert fields["percent"] == {"value": 1.0, "low": 0.9, "high": 1.0, "count": 3}
    assert fields["kappas"] == [{"annotators": ["ann", "bob"], "value": 1.0, "low": 0.9, "high": 1.0, "count": 3}]
    assert fields["repeats"] == {"ann": {"value": 1.0, "low": 0.9, "high": 1.0, "count": 3}}
    assert fields["gold"] == {}
