from dataclasses import fields

import pytest
import tyro

from operant.runtime.settings import Settings


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
        tyro.cli(Settings, args=["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for field in fields(Settings):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "twentieth of the budget" in text
    assert "what a crash can cost" in text.replace("│ ", "").replace("\n", " ")


def test_the_command_line_parses_seeds():
    arguments = ["--algorithm", "ppo", "--task", "CartPole-v1", "--seeds", "3", "4"]
    assert tyro.cli(Settings, args=arguments).seeds == (3, 4)
