import re
from itertools import pairwise

import numpy as np
import pytest

from operant.language.options import Choices
from operant.language.tasks.steps import EARLY, last_line, make_steps, solution, step_rewards, steps


@pytest.mark.parametrize(
    ("prompt", "lines"),
    [
        ("12+7+5=", ["12+7=19", "19+5=24", "24"]),
        ("12-20+5=", ["12-20=-8", "-8+5=-3", "-3"]),
        ("3+4=", ["3+4=7", "7"]),
    ],
)
def test_solutions_worked_by_hand(prompt, lines):
    assert solution(prompt) == lines


@pytest.mark.parametrize("prompt", ["", "12=", "12+7", "a+b=", "12+-7=", "12*7="])
def test_invalid_prompts_are_rejected(prompt):
    with pytest.raises(ValueError, match=r"such as 7\+8-9\+3=, got"):
        solution(prompt)


@pytest.mark.parametrize(
    ("completion", "rewards"),
    [
        ("12+7=19\n19+5=24\n24", [(8, 1), (16, 1), (18, 1)]),
        ("12+7=19\n19+5=24\n24\n", [(8, 1), (16, 1), (19, 0)]),
        ("12+7=18\n18+5=23\n23", [(8, 0), (16, 0), (18, 0)]),
        ("12+7=19\n19+5=23\n24", [(8, 1), (16, 0), (18, 1)]),
        ("24", [(2, 0)]),
        ("12+7=19\n\n24", [(8, 1), (9, 0), (11, 1)]),
        ("12+7=19\n19+5=24\n24\n24", [(8, 1), (16, 1), (19, 0), (21, 0)]),
        ("12+7=19", [(7, 0)]),
        ("12+7=19\n19+5=24", [(8, 1), (15, 0)]),
        ("12+7=19\n19+5=24\n", [(8, 1), (16, 0)]),
        ("12+7=19\x0b", [(8, 0)]),
        ("", [(0, 0)]),
    ],
)
def test_rewards_of_steps(completion, rewards):
    assert step_rewards("12+7+5=", completion) == rewards


@pytest.mark.parametrize("ending", ["", "\n", "\n\n", "\n24", "\n25"])
def test_no_answer_with_only_right_steps_has_a_wrong_outcome(ending):
    completion = "12+7=19\n19+5=24\n24" + ending
    rewards = [reward for _, reward in step_rewards("12+7+5=", completion)]
    assert min(rewards) == (ending == "") <= last_line([completion], ["24"])[0]


def test_the_ends_cut_an_answer_into_its_lines():
    text = "12+7=19\n19+5=24\n24"
    ends = [0, *(end for end, _ in step_rewards("12+7+5=", text))]
    assert [text[a:b] for a, b in pairwise(ends)] == ["12+7=19\n", "19+5=24\n", "24"]


def test_the_outcome_is_the_last_line_alone():
    completions = ["12+7=19\n19+5=24\n24", "24", "nonsense\n24", "24\n25", "24\n", "19+5=24", ""]
    assert last_line(completions=completions, answer=["24"] * 7) == [1, 1, 1, 0, 0, 0, 0]


def test_demonstrations_are_right_in_every_step():
    task = steps(terms=Choices((2, 4, 6)), digits=Choices((1, 3)))
    rows = task.rows("train", 200, seed=0)
    for row in rows:
        rewards = task.step_rewards(row["prompt"], row["completion"])
        assert [reward for _, reward in rewards] == [1.0] * (len(re.findall(r"\d+", row["prompt"])))
        assert rewards[-1][0] == len(row["completion"])
    assert {len(re.findall(r"\d+", row["prompt"])) for row in rows} == {2, 4, 6}
    assert {len(re.match(r"\d+", row["prompt"])[0]) for row in rows} == {1, 3}


def test_counts_that_are_listed_often_come_often():
    rows = steps(terms=Choices((2, 2, 2, 6)), digits=Choices((2,))).rows("train", 2000, seed=0)
    long = np.mean([len(re.findall(r"\d+", row["prompt"])) == 6 for row in rows])
    assert abs(long - 0.25) < 0.04


def test_a_limit_cuts_long_demonstrations_and_spares_short_ones():
    task = steps(terms=Choices(range(2, 7)), digits=Choices((1, 2)), limit=40)
    lengths = [len(row["completion"]) + 1 for row in task.rows("train", 500, seed=0)]
    assert task.max_completion_length == 40
    assert 0.2 < np.mean([length > 40 for length in lengths]) < 0.6


def test_stepwise_rows_have_a_mistake_in_half_of_the_answers():
    rows = steps(terms=Choices((3, 4))).stepwise_rows("train", 400, seed=0)
    early = 0
    for row in rows:
        right = solution(row["prompt"])
        assert len(row["completions"]) == len(row["labels"]) <= len(right)
        same = [one == other for one, other in zip(row["completions"], right, strict=False)]
        if len(same) < len(right):
            early += 1
            assert all(same)
            same[-1] = False  # it ends too early
        assert row["labels"] == same
        assert row["labels"] == sorted(row["labels"], reverse=True)  # steps after a mistake are wrong
    assert abs(np.mean([all(row["labels"]) for row in rows]) - 0.5) < 0.08
    assert abs(early / len(rows) - EARLY) < 0.05
    assert {row["labels"].index(False) for row in rows if not all(row["labels"])} == {0, 1, 2, 3}


def test_no_answer_gains_by_stopping_early():
    right = solution("12+7+5=")
    whole = sum(reward for _, reward in step_rewards("12+7+5=", "\n".join(right)))
    for count in range(len(right)):
        stopped = [reward for _, reward in step_rewards("12+7+5=", "\n".join(right[:count]))]
        assert sum(stopped) < whole
        assert not stopped or stopped[-1] == 0


def test_steps_after_a_planted_mistake_are_correct_given_the_mistake():
    generator = np.random.default_rng(0)
    for row in steps(terms=Choices((4,))).rows("train", 100, seed=0):
        lines = make_steps(generator, row)["completions"]
        totals = [line.rpartition("=")[2] for line in lines]
        wrong = 0
        for before, line in zip([re.match(r"\d+", row["prompt"])[0], *totals], lines[:-1], strict=False):
            total, term, after = re.fullmatch(r"(-?\d+)([-+]\d+)=(-?\d+)", line).groups()
            assert total == before
            wrong += int(total) + int(term) != int(after)
        if len(lines) < 4:
            assert lines == solution(row["prompt"])[: len(lines)]  # it stops early, without another mistake
        else:
            assert wrong + (totals[-1] != totals[-2]) <= 1


@pytest.mark.parametrize(
    "options",
    [{"terms": Choices((1, 3))}, {"digits": Choices((0,))}, {"operators": "*"}, {"operators": ""}, {"limit": -1}],
)
def test_options_out_of_range_are_rejected(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        steps(**options)
