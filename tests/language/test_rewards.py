import asyncio
import copy
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from operant import ops
from operant.language.rewards import (
    START,
    RewardError,
    check_columns,
    combine,
    mean_by_name,
    name_of,
    required,
    text_of,
)
from operant.language.verifiers import find

PROMPTS, COMPLETIONS, IDS = ["p", "q", "r"], ["a", "bb", "ccc"], [[1], [1, 1], [1, 1, 1]]


def lengths(completions, **_):
    return [float(len(completion)) for completion in completions]


def where_known(completions, answer, **_):
    return [None if right is None else float(right == c) for c, right in zip(completions, answer, strict=True)]


def returning(result):
    def reward(**_):
        return result

    return reward


def ask(*functions, weights=None, **columns):
    return combine(functions, weights)(PROMPTS, COMPLETIONS, IDS, **columns)


def test_the_total_is_the_weighted_sum_over_what_applies():
    rewards = ask(lengths, where_known, weights=[0.5, 10], answer=["a", None, "x"])
    assert rewards.names == ("lengths", "where_known")
    assert rewards.table.nan_to_num(nan=-1).tolist() == [[1, 1], [2, -1], [3, 0]]
    assert rewards.total.tolist() == [10.5, 1.0, 1.5]
    assert rewards.valid.tolist() == [True] * 3
    assert rewards.total.dtype == torch.float32


def test_without_weights_each_counts_once():
    assert ask(lengths, lengths).total.tolist() == [2, 4, 6]


def test_functions_of_one_name_are_distinguished():
    assert ask(lengths, lengths, lengths).names == ("lengths", "lengths_2", "lengths_3")

    def lengths_2(completions):
        return lengths(completions)

    assert ask(lengths, lengths, lengths_2).names == ("lengths", "lengths_2", "lengths_2_2")


def test_functions_are_given_prompts_completions_tokens_and_columns():
    seen = {}

    def note(prompts, completions, completion_ids, **columns):
        seen.update(columns, prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [0, 0, 0]

    ask(note, answer=[1, 2, 3])
    assert {seen.pop(name) for name in ("log_metric", "log_extra")}
    assert vars(seen.pop("trainer_state")) == START
    assert seen == {"prompts": PROMPTS, "completions": COMPLETIONS, "completion_ids": IDS, "answer": [1, 2, 3]}


def test_a_row_to_which_nothing_applies_is_invalid_and_named_once():
    combined = combine([where_known])
    with pytest.warns(RuntimeWarning, match=r"row 1 \(prompt 'q'\): where_known returned None"):
        rewards = combined(PROMPTS, COMPLETIONS, IDS, answer=["a", None, "x"])
    assert rewards.valid.tolist() == [True, False, True]
    assert rewards.total.isnan().tolist() == [False, True, False]
    combined(PROMPTS, COMPLETIONS, IDS, answer=[None] * 3)  # no second warning, which would be an error here


@pytest.mark.filterwarnings("ignore:no reward function applies")
def test_invalid_rows_get_no_advantage():
    rewards = ask(where_known, answer=["a", None, "x"])
    advantages = ops.group_advantages(rewards.total[None], valid=rewards.valid[None], eps=0.0)
    torch.testing.assert_close(advantages, torch.tensor([[0.5**0.5, 0.0, -(0.5**0.5)]]))
    nothing = ask(where_known, answer=[None] * 3)
    assert ops.group_advantages(nothing.total[None], valid=nothing.valid[None]).tolist() == [[0, 0, 0]]


def test_asynchronous_functions_are_awaited():
    async def later(completions, **_):
        await asyncio.sleep(0)
        return lengths(completions)

    assert ask(later).total.tolist() == [1, 2, 3]


def test_asynchronous_functions_are_awaited_next_to_a_running_loop():
    async def later(completions, **_):
        await asyncio.sleep(0)
        return lengths(completions)

    async def inside():
        return ask(later).total.tolist()

    assert asyncio.run(inside()) == [1, 2, 3]


@pytest.mark.parametrize(
    "result", [[1, True, 0.5], (1, 1, 0.5), np.array([1, 1, 0.5]), torch.tensor([1, 1, 0.5]), [np.float32(1), 1, 0.5]]
)
def test_rewards_may_be_any_numbers(result):
    assert ask(returning(result)).total.tolist() == [1.0, 1.0, 0.5]


def test_equal_rewards_give_equal_totals():
    totals = ask(returning([1.1] * 3), returning([0.7] * 3), weights=[0.3, 0.9]).total
    assert ops.group_advantages(totals[None]).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1, math.nan, 1], "reward of reward for row 1 is nan, expected a finite number"),
        ([1, 1, math.inf], "row 2 is inf"),
        ([1, 10**400, 1], "row 1 is inf"),
        ([1, 1e39, 1], r"weighted sum of the rewards for row 1, \[1e\+39\], exceeds .* float32, 3\.4e\+38"),
        ([1, "2", 1], "row 1 must be a number or None, got '2'"),
        ([1, [2], 1], r"row 1 must be a number or None, got \[2\]"),
        ([1, 1], "reward must return 3 rewards, one per completion, got 2"),
        (1.0, "list of 3 rewards, got 1.0"),
        (None, "list of 3 rewards, got None"),
    ],
)
def test_wrong_results_are_errors_that_name_the_place(result, message):
    with pytest.raises(RewardError, match=message):
        ask(returning(result))


def test_functions_that_change_their_arguments_change_nothing_else():
    """They may remove EOS from the tokens, or collect words in a list of the data."""

    def rude(completions, completion_ids, tags, **_):
        for ids, words in zip(completion_ids, tags, strict=True):
            ids.pop()
            words["all"].append("z")
        completions[0][0]["content"] = ""
        completions.clear()
        return [0.0, 0.0]

    seen = []

    def after(completions, completion_ids, tags):
        seen.append((completions, completion_ids, tags))
        return [1.0, 1.0]

    said = [[{"role": "assistant", "content": text}] for text in "ab"]
    ids, tags = [[1, 2], [3, 2]], [{"all": ["x"]}, {"all": []}]
    expected = copy.deepcopy((said, ids, tags))
    combine([rude, after])(["p", "q"], said, ids, tags=tags)
    assert (said, ids, tags) == expected
    assert seen == [expected]


def failing(completions, **_):
    raise KeyError("gold")


async def failing_later(completions, **_):
    raise KeyError("gold")


@pytest.mark.parametrize("function", [failing, failing_later])
def test_exceptions_are_errors_with_file_and_line(function):
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=rf"raised KeyError: 'gold' \(.*test_rewards\.py, line {line}\)$"):
        ask(function)


def test_exceptions_are_errors_that_name_the_function():
    def broken(**_):
        raise ZeroDivisionError("one by nought")

    with pytest.raises(RewardError, match="function broken raised ZeroDivisionError: one by nought") as raised:
        ask(lengths, broken)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_columns_of_another_length_are_rejected():
    with pytest.raises(ValueError, match="3 completions, but 2 entries of answer"):
        ask(lengths, answer=[1, 2])
    with pytest.raises(ValueError, match="3 completions, but 1 entries of prompts"):
        combine([lengths])(["p"], COMPLETIONS, IDS)


@pytest.mark.parametrize(
    ("functions", "weights", "message"),
    [
        ([], None, "at least one"),
        ([lengths], [1, 2], r"1 reward functions \(lengths\) need one weight each, got \[1, 2\]"),
        ([lengths], [math.nan], "finite"),
    ],
)
def test_wrong_combinations_are_rejected(functions, weights, message):
    with pytest.raises(ValueError, match=message):
        combine(functions, weights)


def test_texts_of_completions():
    assert text_of("a") == "a"
    assert text_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == "b"
    for wrong in ([], [{"role": "assistant"}], 3, [{"content": None}]):
        with pytest.raises(TypeError, match="string or a list of messages"):
            text_of(wrong)


def test_names_of_functions_and_objects():
    class Custom:
        pass

    assert (name_of(lengths), name_of(Custom())) == ("lengths", "Custom")


# Arguments of TRL's functions besides the columns


def test_functions_see_the_trainer_and_log():
    steps = []

    def reward(completions, trainer_state, log_metric, log_extra):
        steps.append((trainer_state.global_step, trainer_state.max_steps))
        log_metric("kept", 1.0)
        log_metric("kept", 3.0)
        log_extra("length", list(map(len, completions)))
        return [0.0] * len(completions)

    rewards = combine([reward])
    found = rewards(PROMPTS, COMPLETIONS, IDS, trainer_state={"global_step": 3, "max_steps": 9})
    assert found.metrics == {"kept": 2.0}
    assert found.extra == {"length": list(map(len, COMPLETIONS))}
    rewards(PROMPTS, COMPLETIONS, IDS)
    assert steps == [(3, 9), (0, 0)], "no call depends on an earlier one"


def test_a_function_cannot_change_what_the_next_one_gets():
    class Hint(NamedTuple):
        words: list[str]

    def spoil(completions, trainer_state, hints, pairs, **_):
        trainer_state.global_step = 0
        for hint, (pair, rest) in zip(hints, pairs, strict=True):
            hint.words.clear()
            pair.clear()
            rest["a"].append(1)
        return [0.0] * len(completions)

    def watch(completions, trainer_state, hints, pairs, **_):
        seen.append((trainer_state.global_step, hints, pairs))
        return [0.0] * len(completions)

    seen = []
    columns = {"hints": [Hint(["x"])] * 3, "pairs": [(["y"], {"a": [2]})] * 3}
    combine([spoil, watch])(PROMPTS, COMPLETIONS, IDS, trainer_state={"global_step": 3}, **columns)
    assert seen == [(3, [Hint(["x"])] * 3, [(["y"], {"a": [2]})] * 3)]


def test_means_are_weighted_and_values_of_weight_0_do_not_count():
    values = [("a", 1.0, 3), ("b", 5.0, 0), ("a", 5.0, 1), ("c", 2.0, 1), ("c", 7.0, 0)]
    assert mean_by_name(values) == {"a": 2.0, "c": 2.0}


def test_a_function_is_given_what_its_signature_names():
    assert ask(lambda completions: [1.0] * len(completions), answer=[1, 2, 3]).total.tolist() == [1, 1, 1]
    assert ask(lambda answer, **_: answer, answer=[1, 2, 3]).total.tolist() == [1, 2, 3]


def test_extra_columns_have_one_entry_a_completion():
    def reward(completions, log_extra, **_):
        log_extra("x", [1])
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match=r"log_extra\('x', ...\) needs 3 values, got 1"):
        ask(reward)


def test_a_missing_column_is_found_by_the_signature():
    def reward(completions, answer, *, level, prompts, log_metric, hint="", **columns):
        return [0.0] * len(completions)

    assert required(reward) == ("answer", "level")
    check_columns([reward, lengths], [{"prompt": "p", "answer": 1, "level": 2}])
    with pytest.raises(ValueError, match=r"reward needs the column 'level', but the data has answer: add it"):
        check_columns([reward], [{"prompt": "p", "answer": 1}])
    with pytest.raises(
        ValueError, match="exact needs the column 'completion', but the data has no columns except prompt"
    ):
        check_columns([find("exact:column=completion")], [{"prompt": "p", "completion": "c"}])  # it is not passed on
    assert required(max) == ()
