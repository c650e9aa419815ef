import json
from collections import Counter

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.language.data import ACCEPTS, COLUMNS, compare, kind, order, read_rows, same_prompts, split_rows, unused

USER = {"role": "user", "content": "hi"}
GOOD = {"role": "assistant", "content": "good"}
BAD = {"role": "assistant", "content": "bad"}
HH = "\n\nHuman: Where?\n\nAssistant:"
ROWS = {
    "preference": {"prompt": "p", "chosen": "c", "rejected": "r"},
    "stepwise": {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]},
    "ranking": {"prompt": "p", "completions": ["a", "b", "c"]},
    "unpaired": {"prompt": "p", "completion": "c", "label": True},
    "prompt-completion": {"prompt": "p", "completion": "c"},
    "language-modeling": {"text": "t"},
    "prompt-only": {"prompt": "p"},
}


# Kinds

ANSWERS = (("assistant", "4"), ("assistant", "5"))


def test_every_kind_is_tried():
    assert ROWS.keys() == COLUMNS.keys()
    assert {name for names in ACCEPTS.values() for name in names} == COLUMNS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_kinds_are_recognized_by_their_columns(name):
    row = ROWS[name]
    assert kind([row, row]) == name
    assert kind([{**row, "answer": 3, "tools": None}]) == name
    assert kind([{**row, **dict.fromkeys({"label", "labels", "chosen", "messages", "rejected"} - row.keys())}]) == name


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, "preference"),
        ({"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD], "messages": [USER, GOOD]}, "preference"),
        ({"prompt": [USER], "completion": [GOOD]}, "prompt-completion"),
        ({"messages": [USER, GOOD]}, "language-modeling"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"type": "function"}]}]}, "language-modeling"),
        ({"prompt": [USER]}, "prompt-only"),
        ({"prompt": [USER], "completions": [[GOOD], [BAD]], "ranks": [1, 2]}, "ranking"),
        ({"prompt": "p", "completions": ["a"], "labels": [0.5]}, "stepwise"),
        ({"prompt": "p", "label": "a class that the reward function knows", "text": None}, "prompt-only"),
        ({"prompt": "p", "answer": "2", "completions": None}, "prompt-only"),
    ],
)
def test_kinds_of_conversations_and_of_rows_with_more_columns(row, name):
    assert kind([row]) == name


def test_unknown_columns_are_named_with_what_is_expected():
    with pytest.raises(ValueError, match="no known kind") as error:
        kind([{"question": "1+1", "answer": "2", "prompt": None}])
    message = str(error.value)
    assert "['answer', 'question']" in message
    assert "prompt-completion has `prompt` + `completion`" in message
    assert "language-modeling has `messages` or `text`" in message
    assert "dpo takes preference, ranking" in message


def test_a_kind_that_an_algorithm_does_not_take_is_rejected():
    with pytest.raises(
        ValueError, match=r"\['completion', 'prompt'\], which are of the kind prompt-completion"
    ) as error:
        kind([ROWS["prompt-completion"]], accept=("preference",))
    assert "Expected: preference has `chosen` + `rejected`." in str(error.value)
    assert "sft takes language-modeling, prompt-completion" in str(error.value)
    with pytest.raises(ValueError, match="Expected: ranking has") as error:
        kind([ROWS["prompt-completion"]], accept=("ranking", "preference", "ranking"))
    assert str(error.value).count("ranking has") == 1
    assert kind([ROWS["preference"]], accept=("ranking", "preference")) == "preference"


@pytest.mark.parametrize(
    ("row", "algorithm", "name"),
    [
        ({**ROWS["preference"], "prompt_id": "3", "messages": [USER, GOOD]}, "sft", "language-modeling"),
        ({**ROWS["preference"], "prompt_id": "3", "messages": [USER, GOOD]}, "dpo", "preference"),
        (ROWS["unpaired"], "sft", "prompt-completion"),
        ({**ROWS["unpaired"], "label": -1}, "sft", "prompt-completion"),
        ({**ROWS["ranking"], "completion": "c"}, "sft", "prompt-completion"),
        ({**ROWS["unpaired"], "chosen": 1, "rejected": 2}, "reward-model of steps", "unpaired"),
        ({"prompt": "p", "text": "t"}, "grpo", "prompt-only"),
        ({"prompt": 3, "text": "t"}, "sft", "language-modeling"),
    ],
)
def test_the_kind_is_one_that_the_algorithm_accepts(row, algorithm, name, tmp_path):
    accept = ACCEPTS[algorithm]
    assert kind([row, row], accept=accept) == name
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row))
    rows = read_rows(path, accept=accept)
    assert split_rows([*rows, *rows], 2, 0, accept=accept)
    assert rows == [row, row]
    assert same_prompts(rows, rows, accept=accept) == 2


@pytest.mark.parametrize(
    ("row", "name", "columns"),
    [
        ({"prompt": "p", "text": "t"}, "language-modeling", ["prompt"]),
        ({"prompt": None, "text": "t", "label": 3}, "language-modeling", []),
        ({"text": "t", "messages": [USER, GOOD]}, "language-modeling", ["text"]),
        (ROWS["unpaired"], "prompt-completion", ["label"]),
        ({**ROWS["preference"], "margin": 1.0, "answer": "a"}, "preference", []),
        ({**ROWS["preference"], "messages": [USER, GOOD]}, "preference", ["messages"]),
        ({**ROWS["preference"], "messages": [USER, GOOD]}, "language-modeling", ["chosen", "rejected", "prompt"]),
    ],
)
def test_columns_of_other_kinds_are_unused(row, name, columns):
    assert unused(row, name) == columns


def test_steps_are_no_ranking():
    with pytest.raises(ValueError, match="which are of the kind stepwise"):
        kind([ROWS["stepwise"]], accept=ACCEPTS["reward-model"])


def test_empty_data_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="no rows"):
        kind([])
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.jsonl.* has no rows"):
        read_rows(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("prompt-completion", {"completion": None}, r"columns \['prompt'\], expected `prompt` \+ `completion` as in"),
        ("prompt-only", {"prompt": 3}, "column 'prompt': found 3, expected a string or a list of messages"),
        ("prompt-only", {"prompt": []}, r"column 'prompt': found \[\], expected a string"),
        ("prompt-only", {"prompt": [USER, {"role": "user"}]}, r"column 'prompt': found {'role': 'user'} as message 2"),
        (
            "prompt-only",
            {"prompt": [{"from": "a", "value": "b"}]},
            "column 'prompt': found {'from': 'a', 'value': 'b'} as",
        ),
        ("prompt-completion", {"completion": [GOOD]}, "column 'completion': found another form than `prompt` has"),
        ("preference", {"rejected": [BAD]}, "column 'rejected': found another form than `chosen` has"),
        ("preference", {"prompt": 1}, "column 'prompt': found 1"),
        ("preference", {"margin": "much"}, "column 'margin': found 'much', expected a finite number"),
        ("preference", {"margin": float("nan")}, "column 'margin': found nan"),
        ("language-modeling", {"text": [USER]}, "column 'text': found a list, expected a string"),
        ("language-modeling", {"messages": "hi"}, "column 'messages': found a str, expected a list of messages"),
        ("unpaired", {"label": "good"}, "column 'label': found 'good', expected true or false"),
        ("stepwise", {"labels": [True]}, r"column 'labels': found \[True\], expected a list of 2 numbers"),
        ("stepwise", {"labels": [True, "no"]}, r"column 'labels': found \[True, 'no'\]"),
        ("stepwise", {"labels": [-1, 0]}, r"column 'labels': found \[-1, 0\], expected probabilities .* PRM800K rates"),
        ("stepwise", {"labels": [0.5, 1.01]}, r"column 'labels': found \[0.5, 1.01\], expected probabilities from 0"),
        ("stepwise", {"completions": []}, r"column 'completions': found \[\], expected a list of at least 1"),
        ("stepwise", {"completions": ["a", [GOOD]]}, "column 'completions': found messages, expected strings"),
        ("ranking", {"completions": ["a"]}, r"column 'completions': found \['a'\], expected a list of at least 2"),
        ("ranking", {"completions": ["a", 1]}, "column 'completions': found 1, expected strings or messages"),
        ("ranking", {"ranks": [1, 2]}, r"column 'ranks': found \[1, 2\], expected a list of 3 numbers"),
    ],
)
def test_rows_that_do_not_fit_are_named(name, change, message, tmp_path):
    rows = [ROWS[name], {**ROWS[name], **change}]
    with pytest.raises(ValueError, match=f"row 2(, |: ){message}"):
        kind(rows)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 3(, |: ){message}"):
        read_rows(path)


def test_columns_that_a_kind_does_not_use_are_not_looked_at():
    assert kind([{**ROWS["preference"], "text": [1], "messages": "?", "completion": 3}]) == "preference"


# Reading


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_read_as_they_are(name, tmp_path):
    rows = [{**ROWS[name], "answer": str(i)} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_rows(tmp_path / "rows.jsonl") == read_rows(datasets.Dataset.from_list(rows)) == read_rows(rows) == rows


def test_rows_of_no_known_kind_can_be_read():
    assert read_rows([{"question": "q"}]) == [{"question": "q"}]


def test_rankings_in_another_form_get_the_same_columns():
    completions = [{"rank": 2, "completion": [BAD]}, {"rank": 1, "completion": [GOOD]}]
    (row,) = read_rows([{"context": [USER], "completions": completions, "source": "a"}])
    assert row == {"prompt": [USER], "completions": [[BAD], [GOOD]], "ranks": [2, 1], "source": "a"}
    assert kind([row]) == "ranking"


# Implicit prompts


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("the sky is blue", "the sky is green", ("the sky is", " blue", " green")),
        ("Human: a\n\nAssistant: yes", "Human: a\n\nAssistant: no", ("Human: a\n\nAssistant:", " yes", " no")),
        ("47+85=132", "47+85=131", ("47+85=", "132", "131")),
        ("a cat", "a car", ("a", " cat", " car")),
        ("the sky", "the", ("", "the sky", "the")),
        ("so: the sky", "so: the", ("so:", " the sky", " the")),
        ("the sky is", "the sky, not", ("the sky", " is", ", not")),
        ("q:\nyes", "q:\nno", ("q:\n", "yes", "no")),
        ("yes", "no", ("", "yes", "no")),
        ("a cat.", "a cats", ("a", " cat.", " cats")),
        ("a cats", "a cat.", ("a", " cats", " cat.")),
        (f"{HH} Put it in a box.", f"{HH} Put it in a bag.", (HH, " Put it in a box.", " Put it in a bag.")),
        (f"{HH} a{HH} b", f"{HH} a{HH} c", (f"{HH} a{HH}", " b", " c")),
        (f"{HH} a", f"{HH} b{HH} c", (HH, " a", f" b{HH} c")),
    ],
)
def test_the_implicit_prompt_of_strings(chosen, rejected, expected):
    assert compare({"chosen": chosen, "rejected": rejected}) == expected


def test_pairs_of_one_implicit_prompt_are_held_out_together():
    answers = [" Put it in a box", " Put it in a bag", " Put it here", " No"]
    pairs = [(one, other) for one in answers for other in answers if one != other]
    texts = [HH, HH.replace("Where", "How")]
    rows = [{"chosen": text + one, "rejected": text + other} for text in texts for one, other in pairs]
    train, held_out = split_rows(rows, len(pairs), 0)
    assert {row["chosen"][: len(HH) - 2] for row in train}.isdisjoint(row["chosen"][: len(HH) - 2] for row in held_out)
    assert len(train) == len(held_out) == len(pairs)


@settings(deadline=None, max_examples=200)
@given(left=st.text("ab .", max_size=8), right=st.text("ab .", max_size=8))
def test_an_implicit_prompt_takes_nothing_away(left, right):
    prompt, chosen, rejected = compare({"chosen": left, "rejected": right})
    assert (prompt + chosen, prompt + rejected) == (left, right)
    if left.strip() and right.strip() and left != right:
        assert chosen
        assert rejected


def test_the_implicit_prompt_of_conversations():
    turns = [USER, GOOD, USER]
    assert compare({"chosen": [*turns, GOOD], "rejected": [*turns, BAD]}) == (turns, [GOOD], [BAD])
    assert compare({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}) == ([USER], [GOOD], [GOOD])


def test_a_prompt_next_to_whole_conversations_is_not_repeated():
    row = {"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]}
    assert compare(row) == ([USER], [GOOD], [BAD])


def test_a_prompt_of_messages_that_both_completions_repeat_is_removed_from_them():
    turns = [{"role": "system", "content": "be brief"}, USER]
    row = {"prompt": turns, "chosen": [*turns, GOOD], "rejected": [*turns, BAD]}
    assert compare(row) == (turns, [GOOD], [BAD])
    assert compare({**row, "rejected": [BAD]}) == (turns, [*turns, GOOD], [BAD])
    assert compare({**row, "rejected": turns}) == (turns, [*turns, GOOD], turns)


def test_a_prompt_next_to_answers_is_the_users_message():
    assert compare({"prompt": "hi", "chosen": [GOOD], "rejected": [BAD]}) == ([USER], [GOOD], [BAD])


def test_a_prompt_follows_a_system_message_that_both_completions_begin_with():
    system, four, five = ({"role": role, "content": text} for role, text in (("system", "be nice"), *ANSWERS))
    row = {"prompt": "2+2?", "chosen": [system, four], "rejected": [system, five]}
    assert compare(row) == ([system, {"role": "user", "content": "2+2?"}], [four], [five])


def test_strings_next_to_a_prompt_of_messages_are_answers_of_the_assistant():
    assert compare({"prompt": [USER], "chosen": "good", "rejected": "bad"}) == ([USER], [GOOD], [BAD])
    assert compare({"prompt": [USER], "chosen": "good one", "rejected": "good two"}).prompt == [USER]


def test_an_explicit_prompt_stays():
    assert compare({"prompt": "p", "chosen": "a b", "rejected": "a c"}) == ("p", "a b", "a c")
    assert compare({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}) == ([USER], [GOOD], [BAD])


# Splitting and order


def test_a_split_loses_nothing_and_keeps_the_order():
    rows = [{"prompt": f"{i}"} for i in range(50)]
    train, held_out = split_rows(rows, 0.2, 3)
    assert (len(train), len(held_out)) == (40, 10)
    assert sorted([*train, *held_out], key=lambda row: int(row["prompt"])) == rows
    for part in (train, held_out):
        numbers = [int(row["prompt"]) for row in part]
        assert numbers == sorted(numbers)


def test_a_split_depends_on_the_seed_alone():
    rows = [{"prompt": f"{i}"} for i in range(50)]
    assert split_rows(rows, 10, 3) == split_rows(list(rows), 0.2, 3)
    assert split_rows(rows, 10, 3) != split_rows(rows, 10, 4)
    assert split_rows(rows, 0, 3) == (rows, [])


@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": [{"role": "user", "content": str(i // 5)}], "completion": [GOOD]} for i in range(50)],
        [{"chosen": f"question {i // 5}: yes {i}", "rejected": f"question {i // 5}: no {i}"} for i in range(50)],
        [{"text": f"{i // 5}"} for i in range(50)],
        [{"messages": [{"role": "user", "content": f"{i // 5}"}, GOOD | {"content": f"{i}"}]} for i in range(50)],
        [{"question": f"{i // 5}"} for i in range(50)],
    ],
)
def test_rows_on_one_prompt_stay_together(rows):
    train, held_out = split_rows(rows, 0.18, 0)
    assert (len(train), len(held_out)) == (40, 10)
    group_of = {json.dumps(row): i // 5 for i, row in enumerate(rows)}
    assert not {group_of[json.dumps(row)] for row in train} & {group_of[json.dumps(row)] for row in held_out}


@pytest.mark.parametrize("others", [3, 10, 60])
def test_a_frequent_prompt_is_held_out_only_if_that_is_near_what_is_wanted(others):
    rows = [{"prompt": "frequent", "answer": str(i)} for i in range(90)] + [{"prompt": f"{i}"} for i in range(others)]
    for seed in range(5):
        train, held_out = split_rows(rows, 0.2, seed)
        assert len(held_out) == min(round(0.2 * len(rows)), others)
        assert sum(row["prompt"] == "frequent" for row in train) == 90


@pytest.mark.parametrize("prompts", [1, 2])
def test_rows_are_held_out_one_by_one_if_no_prompt_has_few_enough(prompts, caplog):
    rows = [{"prompt": f"{i % prompts}", "completion": str(i)} for i in range(20)]
    train, held_out = split_rows(rows, 4, 0)
    assert (len(train), len(held_out)) == (16, 4)
    assert "Held out 4 of 20 rows whose prompts are trained on, too: no prompt has few enough rows" in caplog.text
    assert f"({prompts} prompts); --eval-dataset gives other rows" in caplog.text


@pytest.mark.parametrize("held_out", [-1, -0.5, 1.0, 1.5])
def test_invalid_shares_are_rejected(held_out):
    with pytest.raises(ValueError, match=f"held_out is {held_out}, expected a fraction"):
        split_rows([{"prompt": "a"}, {"prompt": "b"}], held_out, 0)


@pytest.mark.parametrize(("count", "held_out"), [(2, 2), (2, 5), (1, 1)])
def test_something_must_be_left_to_train_on(count, held_out):
    with pytest.raises(ValueError, match=f"leaves none of the {count} rows"):
        split_rows([{"prompt": str(i)} for i in range(count)], held_out, 0)


def test_orders_never_change():
    # Changing these numbers breaks resume of every run.
    assert order(8, 0, 0).tolist() == [6, 4, 3, 5, 2, 7, 0, 1]
    assert order(8, 1, 0).tolist() == [2, 5, 3, 0, 7, 6, 1, 4]
    assert order(8, 0, 1).tolist() == [1, 7, 6, 5, 3, 0, 2, 4]


def test_every_order_is_another_permutation():
    orders = [order(100, epoch, seed) for epoch in range(3) for seed in range(3)]
    assert all((np.sort(one) == np.arange(100)).all() for one in orders)
    assert len({tuple(one) for one in orders}) == 9
    assert (order(100, 2, 1) == orders[7]).all()
    assert order(0, 0, 0).tolist() == []


def test_every_place_is_as_likely_in_every_epoch():
    first = Counter(int(order(4, epoch, 0)[0]) for epoch in range(2000))
    assert all(abs(first[i] - 500) < 100 for i in range(4))  # five standard deviations
