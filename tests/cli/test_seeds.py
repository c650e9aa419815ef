import re

import pytest

from operant.cli.arguments import parse_training
from operant.cli.seeds import require_number_of_seeds

CONFIG = "below [settings] in a file, and add --config FILE"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 0-4", "--seeds is the number of seeds, got 0-4: for the seeds 0 to 4 write --seed 0 --seeds 5"),
        ("--seeds=10..12", "got 10..12: for the seeds 10 to 12 write --seed 10 --seeds 3"),
        ("--seeds 1000-1000", "got 1000-1000: for the seed 1000 write --seed 1000 --seeds 1"),
        ("--budget 9 --seed 3-7", "--seed is the first seed, got 3-7: for the seeds 3 to 7 write --seed 3 --seeds 5"),
        ("--seeds 0,1,2 --budget 9", "got 0,1,2: for the seeds 0 to 2 write --seed 0 --seeds 3"),
        ("--seeds 4 5", "got 4 5: for the seeds 4 to 5 write --seed 4 --seeds 2"),
        ("--seeds [1,5,9]", f"got [1,5,9]: for these seeds write seeds = [1, 5, 9] {CONFIG}"),
        ("--seeds 5 1 5", f"got 5 1 5: for these seeds write seeds = [5, 1] {CONFIG}"),
    ],
)
def test_ranges_and_lists_are_answered_by_the_flags_to_write(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_training(["ppo", "CartPole-v1", *words.split()])


@pytest.mark.parametrize("words", ["--seeds 5", "--seeds 1e3 --seed 7", "--seeds x", "--seeds", "--hidden-sizes 1 2"])
def test_other_words_are_left_to_the_parser(words):
    require_number_of_seeds(words.split())


def test_the_file_of_the_message_works(tmp_path):
    file = tmp_path / "seeds.toml"
    file.write_text("[settings]\nseeds = [1, 5, 9]\n")
    options, _ = parse_training(["ppo", "CartPole-v1", "--config", str(file)])
    assert options.chosen_seeds() == (1, 5, 9)
