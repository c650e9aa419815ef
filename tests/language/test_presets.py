import importlib

import pytest

from operant import catalog
from operant.language.presets import SMALL, configuration

SFT, GRPO = catalog.find("sft"), catalog.find("grpo")


def test_small_models_get_values_of_their_own():
    assert configuration(SFT, "arithmetic").learning_rate == SMALL["sft"]["learning_rate"]
    for name in ("tiny", "tiny-qwen3", "small"):
        assert configuration(GRPO, "arithmetic", model=name).learning_rate == SMALL["grpo"]["learning_rate"]
    assert configuration(GRPO, "arithmetic", model="org/large").learning_rate == 1e-6
    assert configuration(SFT, "rows.jsonl", model="org/large").learning_rate == 2e-5


def test_the_paper_is_the_defaults_alone():
    assert configuration(SFT, "arithmetic", "paper") == importlib.import_module(SFT.module).SFTConfig()


def test_a_preset_wins_over_what_small_models_want_and_single_values_over_all():
    found = configuration(GRPO, "arithmetic", "dapo", num_generations=4, num_minibatches=2)
    assert found.filter == "refill"
    assert found.epsilon_high == 0.28
    assert (found.num_generations, found.num_minibatches) == (4, 2)
    assert found.learning_rate == SMALL["grpo"]["learning_rate"]
    assert configuration(GRPO, "arithmetic", "dapo", learning_rate=0.5).learning_rate == 0.5


@pytest.mark.parametrize("name", sorted(SMALL))
def test_what_small_models_want_are_fields_of_the_algorithm(name):
    found = configuration(catalog.find(name), "arithmetic")
    assert {field: getattr(found, field) for field in SMALL[name]} == dict(SMALL[name])


def test_values_may_be_taken_away():
    assert configuration(GRPO, "arithmetic", dual_clip=3.0).dual_clip == 3.0
    assert configuration(GRPO, "arithmetic", dual_clip=None).dual_clip is None


@pytest.mark.parametrize(
    ("preset", "values", "message"),
    [
        ("dappo", {}, r"grpo has no preset 'dappo'; there are: paper, grpo, dr-grpo, dapo"),
        (None, {"groups": 3}, "groups"),
        (None, {"num_generations": 1}, "num_generations"),
    ],
)
def test_what_there_is_not_is_refused(preset, values, message):
    with pytest.raises(ValueError, match=message):
        configuration(GRPO, "arithmetic", preset, **values)
