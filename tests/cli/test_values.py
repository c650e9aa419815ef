import re
from dataclasses import dataclass, field

import pytest

from operant.cli.arguments import parse, parse_training
from operant.cli.values import parameters, sizes, whole

TASK = "CartPole-v1"


@pytest.mark.parametrize(
    ("word", "number"), [("100000", 100_000), ("1e5", 100_000), ("1.5e6", 1_500_000), ("1_000", 1000)]
)
def test_whole_numbers_are_read_as_people_write_them(word, number):
    assert whole(word) == number
    options, config = parse_training(["ppo", TASK, "--budget", word, "--num-epochs", word])
    assert (options.budget, config.num_epochs) == (number, number)
    assert isinstance(options.budget, int)


@pytest.mark.parametrize("word", ["1.5", "1e-3", "inf", "nan", "1e999999999", "many"])
def test_values_other_than_whole_numbers_are_rejected(word):
    with pytest.raises(ValueError, match=r"^--budget: expected a whole number") as caught:
        parse_training(["ppo", TASK, "--budget", word])
    assert str(caught.value) == (
        f"--budget: expected a whole number such as 100000 or 1e5, got {word}; see `operant train ppo {TASK} --help`"
    )


@pytest.mark.parametrize("word", ["1e30", "9223372036854775808"])
def test_the_bound_of_whole_numbers_is_named(word):
    with pytest.raises(
        ValueError, match=rf"^--budget: expected a whole number below 2\*\*63, about 9\.2e18, got {word}"
    ):
        parse_training(["ppo", TASK, "--budget", word])
    assert whole(str(2**63 - 1)) == 2**63 - 1


def test_sizes_of_layers_are_read_from_words():
    assert sizes(["64", "1e2"]) == (64, 100)
    assert parse_training(["ppo", TASK, "--hidden-sizes", "32"])[1].hidden_sizes == (32,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected at least one size; for no hidden layers, such as in a linear policy, write none"),
        (["64,64"], "separated by spaces, without commas and brackets, got ['64,64']"),
        (["64", "x"], "expected a whole number such as 100000 or 1e5, got x"),
    ],
)
def test_words_that_are_no_sizes_are_rejected(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sizes(words)


def test_a_linear_network_is_asked_for_by_a_word_or_in_a_file(tmp_path):
    assert parse_training(["ppo", TASK, "--hidden-sizes", "none"])[1].hidden_sizes == ()
    file = tmp_path / "config.toml"
    file.write_text("[config]\nhidden_sizes = []\n")
    assert parse_training(["ppo", TASK, "--config", str(file)])[1].hidden_sizes == ()


def test_parameters_of_an_environment_are_read_from_words(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("S.G\n")
    words = ["size=30", "slip=0.5", "wet=false", "dry=True", "name=8x8", "sides=[1, 2]", "none=None", f"map=@{file}"]
    expected = {"size": 30, "slip": 0.5, "wet": False, "dry": True, "name": "8x8", "sides": [1, 2], "none": None}
    assert parameters(words) == {**expected, "map": "S.G\n"}
    options, _ = parse_training(["ppo", "FrozenLake-v1", "--env-kwargs", *words[:3], "--budget", "7"])
    assert options.settings()["env_kwargs"] == {"size": 30, "slip": 0.5, "wet": False}
    assert options.settings()["budget"] == 7


@pytest.mark.parametrize("words", [["size"], ["=3"], ["a b=3"], ["a=1", "a=2"], ["a=@/no/such/file"]])
def test_words_that_are_no_parameters_are_rejected(words):
    with pytest.raises(ValueError, match=r"expected parameters such as|cannot be read: No such file"):
        parameters(words)


@dataclass
class Base:
    width: int = 3
    """Number of columns of the board, counted from the left side to the right one, both included, as in the
    paper: a second line begins as the first one ends."""


@dataclass
class Options(Base):
    height: int = 4
    """Number of rows.

    Another paragraph."""
    depth: int = 5


def test_the_lines_of_a_help_text_are_joined_and_its_paragraphs_are_not(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        parse(Options, ["--help"], "play")
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    first = lines.index("-h, --help    show this help message and exit") + 1
    assert lines[first : first + 5] == [
        "--width INT   Number of columns of the board, counted from the left side to the right one, both included, "
        "as in the paper: a second line begins as the first one ends. (default: 3)",
        "--height INT  Number of rows.",
        "",
        "Another paragraph. (default: 4)",
        "--depth INT   (default: 5)",
    ]


@dataclass(frozen=True)
class Derived:
    width: int = field(default=3, metadata={"help": "Number of columns."})
    area: int = field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "area", self.width**2)


def test_fields_that_a_dataclass_computes_are_no_flags(capsys):
    assert parse(Derived, ["--width", "4"], "play").area == 16
    assert parse(Derived, [], "play", default=Derived(5)).area == 25
    with pytest.raises(ValueError, match="unknown flag --area; `operant play --help` lists the flags"):
        parse(Derived, ["--area", "4"], "play")
    with pytest.raises(SystemExit):
        parse(Derived, ["--help"], "play")
    assert "Number of columns. (default: 3)" in capsys.readouterr().out
