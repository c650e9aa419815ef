import dataclasses
import importlib
import logging

import pytest

from operant import catalog
from operant.build import check_names
from operant.catalog.old_names import ALGORITHMS, FIELDS, algorithm, current, current_flags, names, upgraded
from operant.control import A2CConfig, PPOConfig, ReinforceConfig, TRPOConfig
from operant.language.grpo import GRPOConfig
from operant.runtime.configuration import configuration
from operant.runtime.settings import Settings
from operant.runtime.tables import from_table
from operant.tabular import OneStepConfig


def kinds():
    modules = {entry.config: importlib.import_module(entry.module) for entry in catalog.ALGORITHMS}
    return {name: getattr(module, name) for name, module in modules.items()}


@pytest.mark.parametrize("name", sorted(kinds()))
def test_every_new_name_is_a_field(name):
    kind = kinds()[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert set(names(kind).values()) <= fields
    assert len(set(names(kind).values())) == len(names(kind))


def test_every_declaring_class_is_one():
    declaring = {base.__name__ for kind in kinds().values() for base in kind.__mro__}
    assert set(FIELDS) <= declaring


def test_a_table_with_old_names_is_read_with_a_notice(caplog):
    table = {"environments": 3, "lam": 0.5, "gamma": 0.9}
    with caplog.at_level(logging.WARNING):
        config = from_table(PPOConfig, table)
    assert (config.num_envs, config.gae_lambda, config.gamma) == (3, 0.5, 0.9)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "environments is now num_envs",
        "lam is now gae_lambda",
    ]


def test_a_table_with_new_names_is_read_without_a_warning(caplog):
    assert from_table(PPOConfig, {"num_envs": 3}).num_envs == 3
    assert not caplog.records


def test_a_field_given_twice_is_an_error():
    with pytest.raises(ValueError, match="num_envs is given twice"):
        from_table(PPOConfig, {"environments": 3, "num_envs": 4})


@pytest.mark.parametrize(
    ("old", "lr", "clip"),
    [("none", "constant", "constant"), ("learning_rate", "linear", "constant"), ("both", "linear", "linear")],
)
def test_annealing_became_two_schedules(old, lr, clip):
    base = PPOConfig(lr_schedule="linear", clip_range_schedule="linear")
    config = from_table(PPOConfig, {"anneal": old}, base=base)
    assert (config.lr_schedule, config.clip_range_schedule) == (lr, clip)
    flags = current_flags(PPOConfig, ["--anneal", old, "--gamma", "0.5"])
    assert flags == ["--lr-schedule", lr, "--clip-range-schedule", clip, "--gamma", "0.5"]
    assert current_flags(PPOConfig, [f"--anneal={old}"]) == flags[:4]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(A2CConfig, "normalise_advantages"), (TRPOConfig, "normalise_advantages"), (ReinforceConfig, "standardise")],
)
def test_switches_became_scopes(kind, name):
    for value, scope in ((True, "batch"), (False, "none")):
        assert from_table(kind, {name: value, "num_envs": 2}).normalize_advantage == scope
    dashed = name.replace("_", "-")
    assert current_flags(kind, [f"--{dashed}"]) == ["--normalize-advantage", "batch"]
    assert current_flags(kind, [f"--no-{dashed}"]) == ["--normalize-advantage", "none"]
    assert current_flags(PPOConfig, ["--normalise-advantages", "none"]) == ["--normalize-advantage", "none"]


def test_a_bonus_of_a_table_is_translated_only_if_it_is_a_number():
    assert current_flags(OneStepConfig, ["--bonus", "0.1"]) == ["--bonus-coef", "0.1"]
    assert current_flags(OneStepConfig, ["--bonus=0.1"]) == ["--bonus-coef=0.1"]
    for flags in (["--bonus", "rnd"], ["--bonus=rnd(weight=0.1)"], ["--bonus"]):
        assert current_flags(OneStepConfig, flags) == flags


def test_flags_are_translated_with_their_values():
    flags = ["--environments", "3", "--lam=0.5", "--no-shared", "--normalise_rewards", "-h", "x"]
    expected = ["--num-envs", "3", "--gae-lambda=0.5", "--no-share-features", "--normalize-reward", "-h", "x"]
    assert current_flags(PPOConfig, flags) == expected


def test_names_that_changed_their_meaning_are_old_in_an_old_table_alone():
    rlhf = kinds()["RLHFConfig"]
    old = from_table(
        rlhf, {"objective": "penalty", "kl_coefficient": 0.3, "beta": 2.0, "beta_target": 0.1, "kl_target": 5.0}
    )
    assert (old.beta, old.kl_coef, old.kl_coef_target, old.beta_target) == (0.3, 2.0, 0.1, 5.0)
    new = from_table(rlhf, {"beta": 0.3, "beta_target": 5.0})
    assert (new.beta, new.beta_target) == (0.3, 5.0)


def test_keyword_arguments_may_be_old():
    check_names(catalog.find("ppo"), ["environments", "num_minibatches"])
    config = configuration(catalog.find("ppo"), "no preset", environments=2, minibatches=1)
    assert (config.num_envs, config.num_minibatches) == (2, 1)


@pytest.mark.parametrize(("old", "new"), sorted(ALGORITHMS.items()))
def test_algorithms_are_found_by_their_old_names(old, new, caplog):
    assert catalog.find(old).name == algorithm(old) == new
    assert from_table(Settings, {"algorithm": old, "task": "x"}).algorithm == new
    assert f"{old} is now {new}" in caplog.text


def test_a_table_without_old_names_is_copied():
    table = {"gamma": 0.5}
    assert current(PPOConfig, table) == table
    assert current(PPOConfig, table) is not table


@pytest.mark.parametrize(
    ("older", "rounds"),
    [
        ({"num_envs": 4, "train_freq": 64, "target_update_interval": 100}, 16),
        ({"environments": 4, "train_every": 64, "sync": 100}, 16),
        ({"num_envs": 4, "train_freq": 2, "rounds_per_iteration": 50}, 2),  # a name of another learner
    ],
)
def test_a_file_of_an_earlier_version_counts_the_steps_of_all_environments_in_dqn(older, rounds):
    newer = upgraded(older, 1)
    assert newer["train_freq"] == rounds
    assert "train_every" not in newer
    assert newer.keys() - {"train_freq"} == older.keys() - {"train_freq", "train_every"}
    assert upgraded(newer, 2) == newer


@pytest.mark.parametrize("version", [1, 2])
def test_the_weight_of_an_estimate_that_must_not_have_it_is_left_out(version):
    older = {"kl_estimator": "k2", "kl_weighted": True, "beta": 0.1}
    assert GRPOConfig(**upgraded(older, version)) == GRPOConfig(kl_estimator="k2", beta=0.1)
    kept = {"kl_estimator": "k3", "kl_weighted": True, "beta": 0.1}
    assert upgraded(kept, version) == kept
    GRPOConfig(**kept)


def test_a_damaged_file_of_an_earlier_version_is_left_to_its_reader():
    for damaged in ({}, {"num_envs": 0, "train_freq": 4}, {"train_freq": 4}, {"num_envs": 2, "train_freq": "4"}):
        assert upgraded({"target_update_interval": 1, **damaged}, 1) == {"target_update_interval": 1, **damaged}
