from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from operant import catalog
from operant.cli.arguments import parse, parse_training
from operant.cli.flags import Parser, flags_of, read_path, unknown


@dataclass
class Files:
    files: tyro.conf.Positional[tuple[Path, ...]]
    out: Path | None = None


def test_paths_begin_in_the_home_folder_after_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    home = tmp_path / "zz.png"
    found = parse(Files, ["a~", "~/zz.png", "--out=~/zz.png"], "compare")
    assert (found.files, found.out) == ((Path("a~"), home), home)
    parser = Parser("operant files", description="")
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path)
    found = parser.parse_args(["~/zz.png", "--out=~/zz.png"])
    assert (found.file, found.out) == (home, home)
    with pytest.raises(ValueError, match="argument file: expected a path, got an empty one"):
        parser.parse_args([""])
    with pytest.raises(ValueError, match=r"the home folder in ~no-such-user/a is unknown; a file .* is \./~no"):
        read_path("~no-such-user/a")
    (tmp_path / "ppo.toml").write_text("[config]\nnum_epochs = 3\n", encoding="utf-8")
    assert parse_training(["ppo", "CartPole-v1", "--config=~/ppo.toml"])[1].num_epochs == 3


@dataclass
class Options:
    path: tyro.conf.Positional[str]
    hidden: Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress] = 0
    count: Annotated[int, tyro.conf.arg(name="seeds")] = 1
    learning_rate: float = 1.0


def test_flags_are_the_fields_that_can_be_given():
    assert flags_of(Options) == ["seeds", "learning_rate"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "3"], "unknown flag --lr: PPO calls it --learning-rate"),
        (["--lr=3"], "unknown flag --lr: PPO calls it --learning-rate"),
        (["3", "--learning-rat"], "unknown flag --learning-rat; did you mean --learning-rate?"),
        (["--num-seeds"], "unknown flag --num-seeds: PPO calls it --seeds"),
        (["--xyz"], "unknown flag --xyz; `operant train ppo --help` lists the flags"),
        (["x"], "unexpected argument 'x'; see `operant train ppo --help`"),
        (
            ["True"],
            "unexpected argument 'True': a switch has no value, --NAME is on and --no-NAME off; see `operant train ppo "
            "--help`",
        ),
    ],
)
def test_unknown_arguments_are_reported_with_a_hint(words, said):
    assert unknown(words, flags_of(Options), "train ppo", catalog.find("ppo")) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "ppo", "CartPole-v1", "--lr", "1"], "unknown flag --lr: PPO calls it --learning-rate"),
        (
            ["train", "ppo", "CartPole-v1", "--n-timesteps", "1"],
            "unknown flag --n-timesteps: PPO calls it --budget",
        ),
        (
            ["train", "q-learning", "FrozenLake-v1", "--alpha", "1"],
            "unknown flag --alpha: q-learning calls it --step-size",
        ),
        (
            ["train", "ppo", "CartPole-v1", "--tensorboard-log", "x"],
            "unknown flag --tensorboard-log: PPO calls it --track (tensorboard)",
        ),
        (
            ["train", "grpo", "arithmetic", "--rloo-k", "4"],
            "unknown flag --rloo-k: GRPO calls it --num-generations",
        ),
        (["train", "grpo", "arithmetic", "--packing", "true"], "unknown flag --packing: always on"),
        (["solve", "FrozenLake-v1", "--gama", "1"], "unknown flag --gama; did you mean --gamma?"),
        (
            ["train", "sac", "Pendulum-v1", "--ent-coef", "auto"],
            "--ent-coef: could not convert string to float: 'auto'; for Stable-Baselines3's auto give none, with which "
            "sac learns the coefficient; see `operant train sac Pendulum-v1 --help`",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--ent-coef", "auto_0.1"],
            "--ent-coef: could not convert string to float: 'auto_0.1'; for Stable-Baselines3's auto_0.1 give none, "
            "with which sac learns the coefficient, from 1 on; see `operant train sac Pendulum-v1 --help`",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--target-entropy", "auto"],
            "--target-entropy: could not convert string to float: 'auto'; for Stable-Baselines3's auto give none: "
            "minus the number of action dimensions; see `operant train sac Pendulum-v1 --help`",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--learning-rate", "lin_0.001"],
            "--learning-rate: could not convert string to float: 'lin_0.001'; give 0.001, which stays constant: this "
            "algorithm has no schedule for it; see `operant train sac Pendulum-v1 --help`",
        ),
        (
            ["train", "ppo", "CartPole-v1", "--learning-rate", "lin_0.001"],
            "--learning-rate: could not convert string to float: 'lin_0.001'; give 0.001, and --lr-schedule linear; "
            "see `operant train ppo CartPole-v1 --help`",
        ),
        (
            ["train", "ppo_lstm", "CartPole-v1"],
            "no algorithm is called 'ppo_lstm'; use recurrent-ppo, whose cells are gated recurrent units",
        ),
        (["list", "--jason"], "unknown flag --jason; did you mean --json?"),
        (["list", "--js"], "unknown flag --js; did you mean --json?"),
        (["doctor", "now"], "unexpected argument 'now'; see `operant doctor --help`"),
    ],
)
def test_every_command_reports_errors_in_one_line(arguments, said, cli):
    assert cli(*arguments) == (2, "", f"operant: error: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate"], "missing: PATH Folder of the run; see `operant evaluate --help`"),
        (["evaluate", "run", "--episodes", "0"], "episodes must be at least 1, got 0; see `operant evaluate --help`"),
        (["solve", "--method", "guess"], "invalid choice 'guess' for argument '--method'. Expected one of ('auto', "),
        (["solve", "model.csv"], "expected the id of an environment, got a file: use --mdp model.csv; see"),
        (["resume", "run", "--budget", "abc"], "--budget: expected a whole number such as 100000 or 1e5, got abc; see"),
        (["watch", "run", "--out", "."], "out must end in .gif or .mp4, got .; see `operant watch --help`"),
        (["copy", "ppo", "nowhere/mine.py"], "nowhere/mine.py: No such file or directory"),
    ],
)
def test_an_error_is_reported_in_one_line(cli, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    status, out, err = cli(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"operant: error: {said}")
