import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from operant import catalog
from operant.tabular import configuration, learner_for
from operant.tabular.configs import BaseConfig, ControlConfig, ExploringConfig, TableConfig

from .models import corridor

ENTRIES = [entry for entry in catalog.ALGORITHMS if entry.package == "tabular"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_preset_is_a_configuration(entry):
    import importlib

    for name, values in importlib.import_module(entry.module).PRESETS.items():
        config = configuration(entry, "no such task", name)
        assert {key: getattr(config, key) for key in values} == values


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (BaseConfig, {"steps_per_iteration": 0}, r"steps_per_iteration must be in \[1, inf\), got 0"),
        (BaseConfig, {"gamma": 1.1}, r"gamma must be in \[0, 1\], got 1.1"),
        (BaseConfig, {"gamma": float("nan")}, r"gamma must be in \[0, 1\], got nan"),
        (ExploringConfig, {"exploration_initial_eps": 2.0}, r"exploration_initial_eps must be in \[0, 1\], got 2.0"),
        (
            ExploringConfig,
            {"exploration_schedule": "visits"},
            "exploration_schedule must be constant, linear or exponential",
        ),
        (TableConfig, {"step_size": -1.0}, r"step_size must be in \[0, 1\], got -1.0"),
        (TableConfig, {"initial_value": float("inf")}, "initial_value must be a finite number, got inf"),
        (ControlConfig, {"schedule_unit": "days"}, "schedule_unit must be episodes or steps, got 'days'"),
        (ControlConfig, {"step_size_factor": 0.0}, r"step_size_factor must be in \(0, 1\], got 0.0"),
        (ControlConfig, {"step_size_schedule": "sudden"}, "must be constant, linear, exponential or visits, got 'sud"),
        (ControlConfig, {"step_size_power": 1.1}, r"step_size_power must be in \[0, 1\], got 1.1"),
        (ControlConfig, {"exploration_final_eps": -0.1}, r"exploration_final_eps must be in \[0, 1\], got -0.1"),
        (ControlConfig, {"exploration_span": 0.0}, r"exploration_span must be in \(0, inf\), got 0.0"),
        (ControlConfig, {"exploration_factor": 1.1}, r"exploration_factor must be in \(0, 1\], got 1.1"),
    ],
)
def test_values_out_of_range_are_rejected(kind, values, message):
    with pytest.raises(ValueError, match=message):
        kind(**values)


def test_a_rule_has_what_the_kernels_read():
    config = ControlConfig(gamma=0.7, step_size=0.2, exploration_initial_eps=0.4, schedule_unit="steps")
    rule = config.rule(np.array([[True, False], [False, True]]))
    assert (rule.gamma, rule.step_size.initial, rule.epsilon.initial, rule.count_steps) == (0.7, 0.2, 0.4, True)
    assert rule.choices.options[:, 0].tolist() == [0, 1]
    plain = BaseConfig().rule(np.ones((1, 1), bool))
    assert (plain.step_size.initial, plain.epsilon.initial, plain.count_steps) == (1.0, 0.0, False)


@pytest.mark.parametrize(("unit", "expected"), [("steps", [0.8, 0.6, 0.4]), ("episodes", [1.0, 0.8, 0.8])])
def test_schedules_count_steps_or_episodes(unit, expected):
    """Episodes of the corridor are truncated after two steps."""
    values = {
        "exploration_initial_eps": 1.0,
        "exploration_schedule": "linear",
        "exploration_span": 5.0,
        "schedule_unit": unit,
    }
    learner = learner_for("q-learning", corridor(5, max_steps=2), seeds=(0,), steps_per_iteration=1, **values)
    found = [float(learner.iterate()["schedule/epsilon"][0]) for _ in range(3)]
    np.testing.assert_allclose(found, expected)


def test_the_documentation_names_defaults_that_differ():
    text = (Path(__file__).parents[2] / "docs" / "tabular.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    found = rows.keys() & {field.name for field in fields(ControlConfig)}
    assert found >= {"gamma", "step_size_schedule"}
    for name in found:
        given, _, others = rows[name].partition("; ")
        for entry in ENTRIES:
            default = getattr(entry.config_class, name, None)
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            if entry.family != "bandit" and default is not None and shown != given:
                assert entry.title.lower() in others.lower(), (entry.name, name)
                assert shown in others, (entry.name, name)
