from dataclasses import fields

import numpy as np
import pytest
import torch

import operant
from operant.cli.arguments import parse
from operant.runtime.settings import Settings, counted_seeds, seeds_in_words, too_many_seeds
from operant.runtime.tables import from_table, to_table


def test_a_file_names_the_settings_that_the_package_has():
    settings = Settings("sft", "arithmetic")
    common = {"algorithm", "task", "seeds", "budget", "device", "threads", "precision", "evaluate_every"}
    common |= {"checkpoint_seconds", "keep_checkpoints", "callbacks", "track"}
    assert set(settings.table("language")) == common | {"shards"}
    assert set(settings.table("control")) == set(settings.table(None)) == {field.name for field in fields(Settings)}
    assert settings.table("tabular").keys() - settings.table("language").keys() == {
        *("env_kwargs", "env_backend", "evaluate_episodes", "evaluate_max_steps", "wrappers"),
    }


@pytest.mark.parametrize("package", ["language", "tabular", "control"])
def test_changed_settings_are_always_in_the_file(package):
    settings = Settings("sft", "arithmetic", num_workers=3, evaluate_episodes=7)
    table = settings.table(package)
    assert (table["num_workers"], table["evaluate_episodes"]) == (3, 7)
    assert from_table(Settings, table) == settings


def test_defaults_are_good():
    settings = Settings("ppo", "CartPole-v1")
    assert settings.seeds == (0,)
    assert settings.checkpoint_seconds == 60.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": " "}, "algorithm must be named"),
        ({"task": ""}, "task must be named"),
        (
            {"task": object()},
            "task must be a name .* of type object; .*gymnasium.register, and give its id",
        ),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, r"different non-negative integers, got \(1, 1\)"),
        ({"seeds": (-1,)}, "seeds"),
        ({"seeds": (0.5,)}, r"seeds must be a tuple of integers, got \(0\.5,\)"),
        ({"budget": 0}, r"budget must be in \[1, inf\), got 0"),
        ({"budget": 2.5}, r"budget must be an integer, got 2\.5"),
        ({"budget": None}, "budget must be an integer, got None"),
        ({"threads": -1}, r"threads must be in \[0, inf\), got -1"),
        ({"evaluate_every": -5}, "evaluate_every"),
        ({"evaluate_episodes": 0}, "evaluate_episodes"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds"),
        ({"checkpoint_seconds": "60"}, r"checkpoint_seconds must be in \[0, inf\), got '60'"),
        ({"worker_seconds": 0.0}, r"worker_seconds must be in \(0, inf\), got 0\.0"),
        ({"clip_rewards": "no"}, "clip_rewards must be true or false, got 'no'"),
        ({"episodic_life": 1}, "episodic_life must be true or false, got 1"),
        ({"vectorization": "threads"}, "vectorization must be sync or async, got 'threads'"),
        ({"precision": "low"}, "precision must be highest, high or medium, got 'low'"),
        ({"compile": "yes"}, "compile must be auto, on or off, got 'yes'"),
        ({"device": "gpu"}, "device must be .*'gpu'"),
    ],
)
def test_bad_values(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**({"algorithm": "ppo", "task": "CartPole-v1"} | changes))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:11", "mps", "xpu:0"])
def test_devices(device):
    assert Settings("ppo", "CartPole-v1", device=device).device == device


def test_every_field_is_explained_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        parse(Settings, ["--help"], "settings")
    text = " ".join(capsys.readouterr().out.split())
    for field in fields(Settings):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "twentieth of the budget" in text
    assert "the maximum training time lost in a crash" in text.replace("│ ", "").replace("\n", " ")


def test_the_command_line_parses_seeds():
    arguments = ["--algorithm", "ppo", "--task", "CartPole-v1", "--seeds", "3", "4"]
    assert parse(Settings, arguments, "settings").seeds == (3, 4)


def test_parameters_of_the_environment_are_what_a_file_gives_back():
    settings = Settings("ppo", "X-v0", env_kwargs={"a": (1, np.float64(2.0)), "b": np.arange(2), "c": {"d": None}})
    assert settings.env_kwargs == {"a": [1, 2.0], "b": [0, 1], "c": {"d": None}}
    assert from_table(Settings, to_table(settings)) == settings
    with pytest.raises(ValueError, match=r"env_kwargs: a must be a number, .* got <object"):
        Settings("ppo", "X-v0", env_kwargs={"a": object()})
    with pytest.raises(ValueError, match="env_kwargs must be a dictionary with names as keys, got 3"):
        Settings("ppo", "X-v0", env_kwargs=3)


def test_numbers_of_numpy_become_those_of_python():
    settings = Settings("ppo", "CartPole-v1", budget=np.int64(64), evaluate_episodes=np.int32(2), shards=np.uint8(1))
    assert [type(value) for value in (settings.budget, settings.evaluate_episodes, settings.shards)] == [int, int, int]
    assert from_table(Settings, to_table(settings)) == settings
    with pytest.raises(ValueError, match=r"budget must be an integer, got 64\.5"):
        Settings("ppo", "CartPole-v1", budget=np.float64(64.5))


def test_seeds_in_words():
    assert seeds_in_words((7,)) == "seed 7"
    assert seeds_in_words(range(1000)) == "1000 seeds, 0 to 999"
    assert seeds_in_words((1, 5, 4)) == "3 seeds: 1, 5, 4"
    assert seeds_in_words(range(0, 24, 2)) == "12 seeds: 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, ..."


def test_the_fix_for_too_many_seeds():
    assert too_many_seeds((5, 6), 0) == "use a machine with more memory; --seeds is their number"
    assert too_many_seeds(range(50), 3).endswith(
        "3 seeds together; --seeds is their number, and --seed 50 --seeds 1 trains seed 50 alone"
    )


def test_absurdly_many_seeds_are_rejected_before_they_fill_the_memory():
    assert counted_seeds(3, 2) == (3, 4)
    with pytest.raises(ValueError, match="a run can have at most 1000000 seeds, got 1000000000"):
        counted_seeds(0, 10**9)
    with pytest.raises(ValueError, match="a run can have at most"):
        operant.train("ppo", "CartPole-v1", seeds=10**9)


def test_a_device_of_torch_is_named():
    assert Settings("ppo", "CartPole-v1", device=torch.device("cpu")).device == "cpu"
    assert Settings("ppo", "CartPole-v1", device=torch.device("cuda", 1)).device == "cuda:1"
    with pytest.raises(ValueError, match=r"device must be auto, cpu, .* got '3'"):
        Settings("ppo", "CartPole-v1", device=3)


def test_wrappers_other_than_names_are_rejected():
    with pytest.raises(ValueError, match=r"expected a name with parameters or without, .*, got 3"):
        Settings("ppo", "CartPole-v1", wrappers=(3,))
