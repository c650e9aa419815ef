import dataclasses
import importlib

import pytest

from operant import catalog
from operant.catalog.names import _ANSWERS, Suggestion, _options, hint, suggest
from operant.runtime.settings import Settings

PPO, Q_LEARNING, GRPO = catalog.find("ppo"), catalog.find("q-learning"), catalog.find("grpo")
FIELDS = {"learning_rate", "gamma", "num_envs", "num_steps", "ent_coef"}


def fields_of(package):
    """Return the fields of all configurations of a package."""
    found = set()
    for algorithm in catalog.ALGORITHMS:
        if algorithm.package == package:
            kind = getattr(importlib.import_module(algorithm.module), algorithm.config)
            found |= {field.name for field in dataclasses.fields(kind)}
    return found


@pytest.mark.parametrize("package", ["control", "tabular", "language"])
def test_every_foreign_name_leads_to_a_field_of_ours(package):
    table = {name: _options(answer) for name, answer in _ANSWERS[package].items()}
    ours = {field.name for field in dataclasses.fields(Settings)} | {"seed", "run", "init", "preset", "progress"}
    ours |= fields_of(package)
    assert {name: own for name, own in table.items() if not set(own) <= ours} == {}
    assert {name: own for name, own in table.items() if name in own} == {}


@pytest.mark.parametrize(
    ("word", "package", "own"),
    [
        ("lr", "control", "learning_rate"),
        ("--n-envs", "control", "num_envs"),
        ("--total-timesteps", "control", None),
        ("N_STEPS", "control", "num_steps"),
        ("entropy_coeff", "control", "ent_coef"),
        ("lr", "tabular", None),
        ("lr", "", None),
    ],
)
def test_names_of_other_libraries(word, package, own):
    assert suggest(word, FIELDS, package) == (own and Suggestion(own, foreign=True))


@pytest.mark.parametrize(
    ("word", "known", "own"),
    [
        ("clip_ratio", {"epsilon", "epsilon_high"}, "epsilon"),
        ("clip_ratio", {"epsilon_high"}, "epsilon_high"),
        ("train_batch_size", {"prompts_per_batch"}, "prompts_per_batch"),
        ("delta", {"target_kl", "step"}, "target_kl"),
        ("logging_steps", {"step", "model"}, None),
        ("load_in_4bit", {"lora_r"}, None),
    ],
)
def test_of_an_answer_about_language_models_the_options_count(word, known, own):
    assert suggest(word, known, "language") == (own and Suggestion(own, foreign=True))


def test_the_first_field_that_the_algorithm_has_counts():
    assert suggest("n_steps", {"num_steps", "n_step"}, "control").name == "num_steps"
    assert suggest("n_steps", {"n_step"}, "control").name == "n_step"


@pytest.mark.parametrize(("word", "own"), [("learn", "learning_rate"), ("gama", "gamma"), ("--ent", "ent_coef")])
def test_abbreviations_and_misspellings(word, own):
    assert suggest(word, FIELDS) == Suggestion(own, foreign=False)


def test_hints_of_errors():
    assert hint("lr", FIELDS, PPO) == ": PPO calls it learning_rate"
    assert hint("--lr", FIELDS, PPO, flags=True) == ": PPO calls it --learning-rate"
    assert hint("alpha", {"step_size"}, Q_LEARNING) == ": q-learning calls it step_size"
    assert hint("gama", FIELDS, PPO) == "; did you mean gamma?"
    assert hint("xyz", {"b", "a"}) == "; known are: a, b"


def test_hints_for_options_of_other_libraries():
    known = {"model", "ref_reset_interval", "step"}
    assert hint("packing", known, GRPO) == ": always on"
    assert hint("--ref-model", known, GRPO, flags=True).startswith(": the model that training starts from; ")
    assert hint("packing", FIELDS, PPO).startswith("; known are: ")


@pytest.mark.parametrize(
    ("algorithm", "word", "said"),
    [
        ("sft", "--ref-model", ": no equivalent; this algorithm has no reference model"),
        ("reward-model", "--ref-model", ": no equivalent; this algorithm has no reference model"),
        ("dpo", "--ref-model", ": the model that training starts from, which does not change"),
        (
            "sft",
            "--loss-type",
            ": no equivalent; the loss is the negative log-likelihood, weighted by --loss-aggregation",
        ),
        ("reward-model", "--loss-type", ": reward-model calls it --ranking-loss"),
        ("rlhf", "--loss-type", ": RLHF calls it --objective and --loss-aggregation"),
        ("rlhf", "--importance-sampling-level", ": no equivalent; ratios are those of tokens"),
        ("sac", "--policy-lr", ": SAC calls it --learning-rate"),
        ("grpo", "--logging-steps", ": no equivalent; metrics are recorded at most once per half second"),
        (
            "grpo",
            "--steps-per-generation",
            "--num-minibatches (steps_per_generation / gradient_accumulation_steps of TRL)",
        ),
        ("grpo", "--per-device-train-batch-size", ": GRPO calls it --prompts-per-batch (--prompts-per-batch x --num-"),
        ("sft", "--per-device-train-batch-size", ": SFT calls it --batch-size (in TRL of each device)"),
        (
            "grpo",
            "--gradient-accumulation-steps",
            "TRL's steps become that many times larger: multiply the batch size)",
        ),
    ],
)
def test_hints_are_those_of_the_algorithm(algorithm, word, said):
    entry = catalog.find(algorithm)
    config = getattr(importlib.import_module(entry.module), entry.config)
    assert said in hint(word, [field.name for field in dataclasses.fields(config)], entry, flags=True)


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("--report-to", {"track"}, "GRPO calls it --track (tensorboard, wandb or trackio; every run also keeps its"),
        ("--cliprange", {"epsilon", "epsilon_high"}, "GRPO calls it --epsilon and --epsilon-high"),
        ("--cliprange", {"epsilon_high"}, "GRPO calls it --epsilon-high"),
        ("--max-length", {"max_prompt_length", "max_completion_length"}, "--max-prompt-length and --max-completion-"),
        ("--ppo-mini-batch-size", {"num_minibatches"}, "GRPO calls it --num-minibatches (their number, not size)"),
        ("--scale-rewards", {"advantage"}, "GRPO calls it --advantage (group, batch or mean)"),
        ("--warmup-steps", {"warmup_ratio"}, "GRPO calls it --warmup-ratio (a share of the budget)"),
        ("--missing-eos-penalty", {"missing_eos"}, "--missing-eos (the score of a truncated answer, such as -1, not"),
        ("--center-rewards-coefficient", {"centering_examples"}, ": no equivalent coefficient of a loss; training"),
        ("--center-rewards-coefficient", {"centering_examples"}, "on --centering-examples answers"),
        ("--loss-type", {"loss_aggregation", "objective", "preset"}, "--loss-aggregation, --objective or --preset ("),
        ("--generation-batch-size", {"prompts_per_batch", "num_generations"}, "(times --num-generations)"),
    ],
)
def test_hints_name_all_options_that_the_algorithm_has_and_explain_them(word, known, said):
    assert said in hint(word, known, GRPO, flags=True)
    assert said.replace("--", "").replace("-", "_") in hint(word, known, GRPO).replace("-", "_")


@pytest.mark.parametrize(
    ("algorithm", "word", "said"),
    [
        ("ppo", "--batch-size", "--num-minibatches (their number: --num-envs * --num-steps / batch size)"),
        ("ppo", "--minibatch-size", "--num-minibatches (their number: --num-envs * --num-steps / batch size)"),
        ("dqn", "--minibatch-size", "DQN calls it --batch-size"),
        ("sac", "--polyak", "SAC calls it --tau (1 - polyak)"),
        ("sac", "--alpha-init", ": no equivalent; the learned temperature starts at 1, and --ent-coef fixes it"),
        ("ppo", "--kl-target", "PPO calls it --kl-coef-target"),
        ("trpo", "--kl-target", "TRPO calls it --target-kl"),
        ("dqn", "--epsilon-decay", "--exploration-fraction (a share of the budget, not a factor per step)"),
        ("dqn", "--target-network-frequency", "--target-update-interval (gradient steps, not environment steps)"),
        ("ppo", "--save-freq", "--checkpoint-seconds (seconds, not steps)"),
        ("ppo", "--resume-from", ": `operant resume RUN`"),
        ("q-learning", "--resume-from", ": `operant resume RUN`"),
    ],
)
def test_hints_convert_other_quantities(algorithm, word, said):
    entry = catalog.find(algorithm)
    kind = getattr(importlib.import_module(entry.module), entry.config)
    known = {field.name for field in (*dataclasses.fields(kind), *dataclasses.fields(Settings))}
    assert hint(word, known, entry, flags=True).endswith(said)
