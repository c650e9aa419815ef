import importlib
import math

import pytest

from operant import api, catalog
from operant.language import tasks
from operant.language.grpo import GRPOConfig
from operant.language.presets import LEARNED_REWARD, SMALL, STEP_SIZES, configuration, step_size
from operant.language.sft import SFTConfig
from operant.runtime.course import change
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import read_records

SFT, GRPO = catalog.find("sft"), catalog.find("grpo")


def test_small_models_have_separate_values():
    assert configuration(SFT, "arithmetic").learning_rate == SMALL["sft"]["learning_rate"]
    for name in ("tiny", "tiny-qwen3", "small"):
        found = configuration(GRPO, "arithmetic", model=name)
        assert found.learning_rate == pytest.approx(1.4e-4)
        assert (found.lr_schedule, found.warmup_ratio, found.betas) == ("linear", 0.2, (0.9, 0.99))
    for preset in (None, "dapo"):
        large = configuration(GRPO, "arithmetic", preset, model="org/large")
        assert (large.learning_rate, large.lr_schedule) == (1e-6, GRPOConfig.lr_schedule)
        assert (large.warmup_ratio, large.betas) == (GRPOConfig.warmup_ratio, GRPOConfig.betas)
    assert configuration(GRPO, "arithmetic", model="org/large", reward_model="runs/rm").beta == GRPOConfig.beta
    assert configuration(SFT, "rows.jsonl", model="org/large").learning_rate == 2e-5


@pytest.mark.parametrize(
    ("name", "preset", "values", "answers"),
    [
        ("grpo", None, {}, 32 * 8),
        ("grpo", "dapo", {}, 32 * 16 / 16),
        ("grpo", "dapo", {"num_generations": 4, "num_minibatches": 2}, 32 * 4 / 2),
        ("grpo", None, {"prompts_per_batch": 128, "num_iterations": 4}, 128 * 8),
        ("iterative-grpo", None, {"prompts_per_batch": 8, "num_generations": 4}, 8 * 4),
        ("rlhf", None, {}, 64 / 4),
        ("rlhf", "instructgpt", {}, 64 / 8),
        ("rlhf", None, {"num_generations": 4, "num_minibatches": 1}, 64 * 4),
    ],
)
def test_step_sizes_of_policies_go_with_the_root_of_the_answers_of_a_step(name, preset, values, answers):
    found = configuration(catalog.find(name), "arithmetic", preset, **values)
    base = 2e-4 if name == "rlhf" else 1.4e-4
    assert found.learning_rate == pytest.approx(base * math.sqrt(answers / 256))
    assert found.learning_rate == pytest.approx(step_size(STEP_SIZES[name], answers))


@pytest.mark.parametrize(
    ("name", "preset", "values", "expected"),
    [
        ("rlhf", None, {"prompts_per_batch": 1}, 1),
        ("rlhf", None, {"prompts_per_batch": 3}, 3),
        ("rlhf", None, {"prompts_per_batch": 5}, 4),
        ("rlhf", None, {"prompts_per_batch": 3, "num_minibatches": 2}, 2),
        ("rlhf", "paper", {"prompts_per_batch": 2}, 1),
        ("rlhf", "instructgpt", {"prompts_per_batch": 6}, 6),
        ("grpo", "dapo", {"prompts_per_batch": 8}, 8),
        ("grpo", "dapo", {"prompts_per_batch": 8, "model": "org/large"}, 8),
        ("grpo", None, {"prompts_per_batch": 8}, 1),
        ("iterative-grpo", None, {"prompts_per_batch": 8}, 1),
    ],
)
def test_few_prompts_per_batch_bound_the_minibatches_that_were_not_chosen(name, preset, values, expected):
    assert configuration(catalog.find(name), "arithmetic", preset, **values).num_minibatches == expected


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"prompts_per_batch": 2, "num_minibatches": 3}, "num_minibatches must be in \\[1, 2\\], got 3"),
        ({"prompts_per_batch": 0}, "prompts_per_batch must be .*, got 0"),
    ],
)
def test_chosen_numbers_of_minibatches_and_prompts_are_not_changed(values, field):
    with pytest.raises(ValueError, match=field):
        configuration(catalog.find("rlhf"), "arithmetic", **values)


@pytest.mark.parametrize("name", sorted(STEP_SIZES))
def test_a_step_size_that_is_named_wins(name):
    values = {"learning_rate": 0.5, "prompts_per_batch": 8, "num_minibatches": 2}
    found = configuration(catalog.find(name), "arithmetic", **values)
    assert (found.learning_rate, found.lr_schedule) == (0.5, "linear")


@pytest.mark.parametrize("name", sorted(STEP_SIZES))
def test_a_learned_reward_has_a_price_for_leaving_the_reference(name):
    found = configuration(catalog.find(name), "arithmetic", reward_model="runs/rm")
    assert found.beta == LEARNED_REWARD["beta"] == 0.15
    assert configuration(catalog.find(name), "arithmetic", reward_model="runs/rm", beta=0.01).beta == 0.01


def test_small_differences_of_a_reward_model_are_not_enlarged():
    iterative = catalog.find("iterative-grpo")
    assert configuration(iterative, "preference").advantage == "mean"
    assert configuration(iterative, "preference", advantage="group").advantage == "group"
    assert configuration(iterative, "preference", model="org/large").advantage == GRPOConfig.advantage == "group"


@pytest.mark.parametrize("name", sorted(STEP_SIZES))
def test_policies_see_prompts_that_were_not_imitated(name):
    asked = configuration(catalog.find(name), "arithmetic").train_examples
    assert len(tasks.find("arithmetic").rows("train", asked, seed=0)) == asked > SFTConfig.train_examples
    few = "steps:terms=2,digits=2,operators=+"
    asked = configuration(catalog.find(name), few).train_examples
    assert len(tasks.find(few).rows("train", asked, seed=0)) == asked == SFTConfig.train_examples
    assert configuration(catalog.find(name), "sort").train_examples == SFTConfig.train_examples
    assert configuration(catalog.find(name), "arithmetic", train_examples=7).train_examples == 7
    assert configuration(catalog.find(name), "arithmetic", model="org/large").train_examples == SFTConfig.train_examples


def test_a_reward_that_was_not_learned_has_none():
    assert configuration(GRPO, "arithmetic").beta == 0
    assert configuration(GRPO, "arithmetic", reward_model="").beta == 0
    assert configuration(GRPO, "arithmetic", "prorl", reward_model="runs/rm").beta == 1e-4  # the value of the preset


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_paper_is_the_defaults_alone(name):
    algorithm = catalog.find(name)
    kind = getattr(importlib.import_module(algorithm.module), algorithm.config)
    assert configuration(algorithm, "arithmetic", "paper") == kind(**dict(algorithm.values))
    given = {"reward_model": "runs/rm"} if name in STEP_SIZES else {}
    assert configuration(algorithm, "arithmetic", "paper", **given) == kind(**dict(algorithm.values), **given)


def test_a_preset_wins_over_what_small_models_want_and_single_values_over_all():
    found = configuration(GRPO, "arithmetic", "dapo", num_generations=4, num_minibatches=2)
    assert found.filter == "refill"
    assert found.epsilon_high == 0.28
    assert (found.num_generations, found.num_minibatches) == (4, 2)
    assert found.learning_rate == pytest.approx(1.4e-4 * math.sqrt(32 * 4 / 2 / 256))
    assert configuration(GRPO, "arithmetic", "dapo", learning_rate=0.5).learning_rate == 0.5


@pytest.mark.parametrize("name", sorted(SMALL))
def test_values_of_small_models_are_fields_of_the_algorithm(name):
    found = configuration(catalog.find(name), "arithmetic")
    assert {field: getattr(found, field) for field in SMALL[name]} == dict(SMALL[name])


def test_values_may_be_taken_away():
    assert configuration(GRPO, "arithmetic", dual_clip=3.0).dual_clip == 3.0
    assert configuration(GRPO, "arithmetic", dual_clip=None).dual_clip is None


@pytest.mark.parametrize(
    ("preset", "values", "message"),
    [
        ("dappo", {}, r"grpo has no preset 'dappo'; presets: paper, grpo, dr-grpo, dapo"),
        (None, {"groups": 3}, "groups"),
        (None, {"num_generations": 1}, "num_generations"),
    ],
)
def test_unknown_presets_are_rejected(preset, values, message):
    with pytest.raises(ValueError, match=message):
        configuration(GRPO, "arithmetic", preset, **values)


# --- whole runs: the first twentieth of the default budget, as a user would start them


@pytest.fixture(scope="module")
def imitated(tmp_path_factory):
    """Return the model from which the commands of the README start."""
    run = tmp_path_factory.mktemp("imitated") / "run"
    api.train("sft", "arithmetic", seeds=[1000], run=run, threads=1, evaluate_every=20_000, progress="silent")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["grpo", "dr-grpo", "dapo", "prorl", "rloo", "gspo", "cispo"])
def test_no_preset_loses_what_was_imitated(preset, imitated, tmp_path):
    """After 2 000 prompts of the default budget the score is not below the start by more than its noise."""
    enough = False

    def report(record):
        nonlocal enough
        enough = enough or ("scores" in record and record["consumed"] >= 2000)

    common = {"init": str(imitated), "run": tmp_path / "run", "seeds": [1000], "threads": 1, "progress": "silent"}
    api.train(
        "grpo",
        "arithmetic",
        preset=preset,
        evaluate_every=2000,
        interrupted=lambda: enough,
        report=report,
        **common,
    )
    first, last = (
        Evaluation.of_record(record) for record in read_records(tmp_path / "run" / "eval" / "evaluations.jsonl")
    )
    assert first.mean > 0.4
    found = change(first, last)
    assert found is not None
    assert found.high >= 0, f"{first.mean} became {last.mean}"
