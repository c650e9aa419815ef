import json
import math

import pytest

from operant.cli.output import (
    Updates,
    faulty,
    print_json,
    require_extra,
    score_fields,
    seed_table,
    summary,
    table,
)
from operant.language.grpo import GRPOConfig
from operant.runtime.evaluation import Evaluation
from operant.runtime.run_paths import location


def test_columns_are_aligned():
    assert table([("name", "n"), ("a", "10")], "<>") == "name   n\na     10"


def test_json_has_no_nan(capsys):
    print_json({"a": [1.5, math.nan], "b": (math.inf,), "c": {"d": "x"}})
    assert json.loads(capsys.readouterr().out) == {"a": [1.5, None], "b": [None], "c": {"d": "x"}}


def test_places_are_relative_where_that_is_shorter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert location(tmp_path / "runs" / "a") == "runs/a"
    assert location(tmp_path / "with space") == "'with space'"
    assert location(tmp_path.parent / "b") == str(tmp_path.parent / "b")


def test_the_seed_table():
    evaluation = Evaluation.of([[470.0, 500.0], [100.0, 200.0]])
    lines = seed_table((3, 7), evaluation, threshold=475.0).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["seed", "score", "worst", "best", "episodes", "solved"],
        ["3", "485", "470", "500", "2", "yes"],
        ["7", "150", "100", "200", "2", "no"],
    ]
    assert lines[4] == "mean 317.5, IQM 317.5, 95 % interval of the IQM [150, 485]"


def test_many_seeds_have_few_rows():
    lines = seed_table(range(1000), Evaluation.of([[float(seed)] for seed in range(1000)])).splitlines()
    assert lines[10].split()[:2] == ["9", "9"]
    assert lines[11] == "... and 990 more seeds; --json lists all"
    assert lines[13].startswith("mean 499.5, ")
    assert len(seed_table(range(30), Evaluation.of([[1.0]] * 30)).splitlines()) == 33


@pytest.mark.parametrize("episodes", [[math.nan, 1.0], [1.0, math.nan]])
def test_an_episode_without_a_number_is_not_hidden(episodes):
    row = seed_table((0,), Evaluation.of([episodes])).splitlines()[1]
    assert row.split() == ["0", "nan", "nan", "nan", "2"]


def test_skipped_updates_have_a_column_where_there_are_some():
    evaluation = Evaluation.of([[470.0], [100.0]])
    assert "skipped" not in seed_table((3, 7), evaluation, updates=[Updates(90.0, 0.0)] * 2)
    lines = seed_table((3, 7), evaluation, updates=[Updates(90.0, 0.0), Updates(32.0, 12.0)]).splitlines()
    assert lines[0].endswith("episodes  skipped updates")
    assert [line.split("  ")[-1].strip() for line in lines[1:3]] == ["0", "12 (38 %)"]


@pytest.mark.parametrize(
    ("updates", "cell"),
    [
        (Updates(1000.0, 4.0), "4 (< 1 %)"),
        (Updates(10.0, 10.0), "10 (100 %)"),
        (Updates(math.nan, 3.0), "3"),  # a file of an older version
        (Updates(math.nan, 0.0), "0"),
    ],
)
def test_the_share_of_skipped_updates(updates, cell):
    assert updates.cell() == cell


def test_a_score_of_nan_is_reported(capsys):
    assert not faulty((3, 7), Evaluation.of([[1.0], [2.0]]))
    assert capsys.readouterr().err == ""
    assert faulty((3, 7), Evaluation.of([[1.0], [math.nan]]))
    assert "the last score of seed 7 is NaN" in capsys.readouterr().err
    assert faulty((3, 7), Evaluation.of([[math.inf], [math.nan]]))
    assert "the last score of seed 3, 7 is NaN or Inf" in capsys.readouterr().err


def test_a_score_of_answers_without_rewards_names_the_functions(capsys):
    nothing = Evaluation.of([[1.0, 2.0], [math.nan, math.nan]], optional=True)
    assert faulty((3, 7), nothing, GRPOConfig(rewards=("rew.py:f", "exact"), reward_model="runs/rm"))
    error = capsys.readouterr().err
    assert "seed 7 is NaN: none of the 2 answers has a reward, since rew.py:f, exact, runs/rm returned None" in error
    assert "Inf" not in error
    assert faulty((3, 7), nothing)
    assert "since the reward function returned None, failed or timed out" in capsys.readouterr().err


def test_one_seed_is_no_result():
    assert summary(Evaluation.of([[1.0]])) == "1 with one seed, which is not a reliable result: use 5 or more"


def test_a_missing_extra_is_named():
    require_extra("plots", "a plot", ["json"])
    with pytest.raises(ModuleNotFoundError, match=r'a plot needs no_such_module: pip install "operant\[plots\]"'):
        require_extra("plots", "a plot", ["json", "no_such_module"])


def test_examples_without_a_reward_are_counted_and_left_out():
    evaluation = Evaluation.of([[1.0, math.nan, 0.0], [math.nan] * 3], optional=True)
    assert evaluation.missing == (1, 3)
    head, first, second = (line.split("  ") for line in seed_table((0, 1), evaluation).splitlines()[:3])
    assert "without a reward" in [cell.strip() for cell in head]
    assert [cell.strip() for cell in first if cell.strip()] == ["0", "0.5", "0", "1", "2", "1"]
    assert [cell.strip() for cell in second if cell.strip()] == ["1", "nan", "nan", "nan", "0", "3"]
    full = seed_table((0,), Evaluation.of([[1.0, 0.0]], optional=True))
    assert "without a reward" not in full


def test_the_share_of_episodes_that_reached_their_goal_has_a_column():
    evaluation = Evaluation.of([[1.0, 2.0], [3.0, 4.0]], (), {"rollout/success_rate": [0.5, 1.0]})
    lines = seed_table((3, 7), evaluation, threshold=2.0).splitlines()
    assert lines[0].split() == ["seed", "score", "worst", "best", "episodes", "success", "solved"]
    assert lines[1].split()[5:] == ["50.0%", "no"]
    assert score_fields(evaluation)["success_rate"] == (0.5, 1.0)
    assert "success_rate" not in score_fields(Evaluation.of([[1.0]]))
