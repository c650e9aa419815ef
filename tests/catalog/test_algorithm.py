import dataclasses
import importlib
import subprocess
import sys
from typing import get_type_hints

import pytest

from operant import catalog

EVERY = pytest.mark.parametrize("algorithm", catalog.ALGORITHMS, ids=lambda algorithm: algorithm.name)


def test_every_name_is_there_once():
    names = [algorithm.name for algorithm in catalog.ALGORITHMS]
    assert len(set(names)) == len(names)


@EVERY
def test_an_algorithm_is_where_the_catalog_says(algorithm):
    module = importlib.import_module(algorithm.module)
    places = [algorithm.package, "experimental", *(("explore", "worlds") if algorithm.package == "control" else ())]
    assert algorithm.module.startswith(tuple(f"operant.{place}." for place in places))
    assert dataclasses.is_dataclass(getattr(module, algorithm.config))
    learner = getattr(module, algorithm.learner)
    assert all(callable(getattr(learner, name)) for name in ("iterate", "state_dict", "load_state_dict"))


@EVERY
def test_a_field_with_another_default_keeps_bounds(algorithm):
    kind = algorithm.config_class
    own = get_type_hints(kind, include_extras=True)
    for base in filter(dataclasses.is_dataclass, kind.__mro__):
        for name, hint in get_type_hints(base, include_extras=True).items():
            assert "Interval" not in str(hint) or "Interval" in str(own[name]), (base.__name__, name)


@EVERY
def test_the_description_of_an_algorithm_is_complete(algorithm):
    for field in dataclasses.fields(algorithm):
        if field.type is str or field.type == "str":
            assert getattr(algorithm, field.name).strip(), field.name
    assert algorithm.actions
    assert set(algorithm.actions) <= {"discrete", "multi-discrete", "continuous"}
    assert algorithm.model in ("none", "known", "learned")
    assert algorithm.idea.endswith(".")


@EVERY
def test_every_preset_of_the_catalog_exists(algorithm):
    package = importlib.import_module(f"operant.{algorithm.package}")
    for preset in algorithm.presets:
        package.configuration(algorithm, "no task of this name", preset)


@EVERY
def test_an_algorithm_is_found_by_its_name(algorithm):
    assert catalog.find(algorithm.name) is algorithm


def test_a_near_miss_is_suggested():
    with pytest.raises(ValueError, match=r"no algorithm is called 'Double_DQN'; did you mean 'double-dqn' .*\?"):
        catalog.find("Double_DQN")
    with pytest.raises(ValueError, match=r"no algorithm is called 'pppo'; did you mean .*'ppo'.*\?"):
        catalog.find("pppo")


def test_only_the_case_of_a_name_is_wrong():
    with pytest.raises(ValueError, match=r"no algorithm is called 'PPO'; did you mean 'ppo'\?$"):
        catalog.find("PPO")


def test_a_solver_of_known_models_is_no_algorithm_to_train():
    with pytest.raises(ValueError, match=r"'value-iteration'; known models are solved by `operant solve TASK --method"):
        catalog.find("value-iteration")


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match=r"'wxyz'; there are: .*ppo"):
        catalog.find("wxyz")


def test_algorithms_are_found_by_the_actions_they_choose():
    for kind in ("discrete", "multi-discrete", "continuous"):
        found = [catalog.supporting(kind, observations) for observations in ("none", "finite", "continuous", "text")]
        expected = [a.name for a in catalog.ALGORITHMS if kind in a.actions and a.model != "known"]
        assert sorted(name for names in found for name in names) == sorted(expected)
        assert "ppo" in catalog.supporting(kind, "continuous")


def test_tables_are_for_finite_observations_and_bandits_for_none():
    assert {"q-learning", "random", "td-lambda"} <= set(catalog.supporting("discrete", "finite"))
    assert {"ucb1", "thompson"} <= set(catalog.supporting("discrete", "none"))
    for algorithm in catalog.ALGORITHMS:
        assert (algorithm.observations == "continuous") == (algorithm.package == "control")


def test_language_models_read_text():
    found = set(catalog.supporting("discrete", "text"))
    assert found == {algorithm.name for algorithm in catalog.ALGORITHMS if algorithm.package == "language"}
    assert {"sft", "grpo"} <= found
    assert catalog.supporting("continuous", "text") == []


def test_the_catalog_loads_nothing_heavy():
    code = (
        "import sys, operant.catalog; print([m for m in ('torch', 'numpy', 'gymnasium', 'numba') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_tasks_may_have_budgets_of_their_own():
    sft = catalog.find("sft")
    assert sft.budget_for("sort") == sft.budget
    assert (
        sft.budget_for("arithmetic") == sft.budget_for("arithmetic:digits=3,steps=1") == dict(sft.budgets)["arithmetic"]
    )
    assert sft.budget_for("rows.jsonl") == sft.budget


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("MaskablePPO", "use ppo, which obeys masks that observations contain as the entry action_mask"),
        ("RecurrentPPO", "use recurrent-ppo"),
        ("rainbow", "use dqn with double, dueling, n_step and per_alpha"),
        ("QRDQN", "no distributional values; see dqn"),
    ],
)
def test_algorithms_of_other_libraries_lead_to_ours(name, ours):
    with pytest.raises(ValueError, match=f"no algorithm is called '{name}'; .*{ours}"):
        catalog.find(name)
