import logging

import pytest

from operant.language import encoding
from operant.language.examples import Pair, Stepwise, demonstrations, pairs, prompts, rankings, stepwise

BOS, EOS = 1, 2
USER = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "yes"}
NO = {"role": "assistant", "content": "no"}
ENDS = {EOS}


@pytest.fixture(autouse=True)
def _warnings_are_given_again():
    encoding._warn_merged.cache_clear()


@pytest.fixture
def text(characters):
    """Return a function that turns ids of characters into text, including special tokens."""
    return characters.decode


# Prompts


def test_prompts_keep_their_rows(characters, text):
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]
    examples = prompts(characters, rows)
    assert [text(example.prompt) for example in examples] == ["<bos>1+1=", "<bos>2+2="]
    assert [example.row for example in examples] == rows


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER]},
        {"prompt": [USER], "completion": [YES], "label": False},
        {"prompt": [USER], "messages": [USER, YES]},
        {"chosen": [USER, YES], "rejected": [USER, NO]},
        {"prompt": "hi", "chosen": [YES], "rejected": [NO]},
        {"prompt": [USER], "completions": ["a"], "labels": [1]},
    ],
)
def test_all_rows_with_a_prompt_have_prompts(characters, text, row):
    (example,) = prompts(characters, [row])
    assert text(example.prompt) == "<bos>user: hi\nassistant: "


def test_columns_that_a_row_lacks_are_none_in_its_prompt(characters):
    rows = [{"prompt": "a", "level": 1}, {"prompt": "b", "answer": 2}]
    found = prompts(characters, rows, columns=("prompt", "answer", "level"))
    assert [prompt.row for prompt in found] == [rows[0] | {"answer": None}, rows[1] | {"level": None}]


def test_rows_without_a_prompt_are_rejected(characters):
    with pytest.raises(ValueError, match="of the kind language-modeling"):
        prompts(characters, [{"text": "a"}])
    with pytest.raises(
        ValueError, match=r"row 2: columns .*expected `prompt` as in the first row: add what is missing"
    ):
        prompts(characters, [{"prompt": "a", "text": "b"}, {"text": "b"}])


def test_a_long_prompt_loses_its_beginning_but_not_its_bos(characters, text, caplog):
    with caplog.at_level(logging.WARNING):
        first, second = prompts(characters, [{"prompt": "abcdefgh"}, {"prompt": "abc"}], max_prompt_length=4)
    assert text(first.prompt) == "<bos>fgh"
    assert text(second.prompt) == "<bos>abc"
    assert "Cut 1 prompts on the left, to 4 tokens." in caplog.text


def test_a_long_prompt_without_bos_keeps_its_end(words):
    (example,) = prompts(words, [{"prompt": "the cat sat on"}], max_prompt_length=2)
    assert words.decode(example.prompt) == " sat on"


def test_the_common_beginning_of_two_texts_is_no_prompt_to_sample_for(words):
    turn = "the cat\n\nAssistant:"
    rows = [{"chosen": f"{turn} sat on", "rejected": f"{turn} sat yes"}]
    (example,) = prompts(words, rows)
    assert words.decode(example.prompt) == turn
    with pytest.raises(ValueError, match="row 2: no prompt, and the common beginning of `chosen` and `rejected` may"):
        prompts(words, [*rows, {"chosen": "the cat sat on", "rejected": "the cat sat yes"}])


THINKS = (
    "{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' if thinking else 'assistant:no ' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("convert", "columns"),
    [
        (demonstrations, {"completion": [{"role": "assistant", "content": "no cat"}]}),
        (pairs, {side: [{"role": "assistant", "content": f"no {side}"}] for side in ("chosen", "rejected")}),
        (stepwise, {"completions": ["no cat"], "labels": [1]}),
        (prompts, {}),
    ],
)
def test_variables_are_given_to_the_template(make_words, convert, columns):
    words = make_words(template=THINKS)
    ends = {} if convert is prompts else {"eos_ids": words.all_special_ids}
    given = ({"thinking": True}, '{"thinking": false}', None)
    rows = [{"prompt": [USER], **columns, "chat_template_kwargs": kwargs} for kwargs in given]
    found = [words.decode(example.prompt) for example in convert(words, rows, **ends)]
    assert [text.endswith("assistant:no ") for text in found] == [False, True, True]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ([1], r"row 2: chat_template_kwargs is \[1\], expected an object"),
        ({"tokenize": True}, "row 2: chat_template_kwargs has 'tokenize', which is set for every row"),
        ({1: True}, "row 2: chat_template_kwargs has 1,"),
    ],
)
def test_wrong_variables_of_a_template_are_named(words, kwargs, message):
    rows = [{"prompt": [USER], "chat_template_kwargs": each} for each in (None, kwargs)]
    with pytest.raises(ValueError, match=message):
        prompts(words, rows)


def test_a_template_that_fails_names_the_row(make_words):
    template = "{% for m in messages %}{{ m.content if m.content else raise_exception('no content') }}{% endfor %}"
    rows = [{"prompt": [{"role": "user", "content": content}]} for content in ("a", "")]
    with pytest.raises(ValueError, match=r"row 2: the chat template cannot render .* no content"):
        prompts(make_words(template=template), rows)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tools": "hammer"}, "row 1: tools is 'hammer', expected JSON, .*rename the column"),
        ({"tools": '{"name": "a"}'}, "row 1: tools is {'name': 'a'}, expected a list of tools"),
        ({"chat_template_kwargs": "{"}, "row 1: chat_template_kwargs is '{', expected JSON"),
    ],
)
def test_invalid_inputs_of_the_template_are_named(words, columns, message):
    with pytest.raises(ValueError, match=message):
        prompts(words, [{"prompt": [USER], **columns}])


def test_tools_are_given_to_the_template(make_words):
    words = make_words(template="{{ tools[0].name if tools else 'none' }}{{ messages[0].content }}")
    rows = [{"prompt": [USER], "tools": tools} for tools in ([{"name": "a"}], '[{"name": "b"}]', None, "")]
    assert [words.decode(example.prompt) for example in prompts(words, rows)] == ["ahi", "bhi", *["nonehi"] * 2]


# Demonstrations


def test_a_demonstration_ends_in_eos(characters, text):
    (example,) = demonstrations(characters, [{"prompt": "1+1=", "completion": "2"}], eos_ids=ENDS)
    assert (text(example.prompt), text(example.completion), example.mask) == ("<bos>1+1=", "2<eos>", None)


def test_a_demonstration_that_is_cut_has_no_eos(characters, text, caplog):
    rows = [{"prompt": "p", "completion": completion} for completion in ("abcdef", "abc", "abcd")]
    with caplog.at_level(logging.WARNING):
        examples = demonstrations(characters, rows, eos_ids=ENDS, max_completion_length=4)
    assert [text(example.completion) for example in examples] == ["abcd", "abc<eos>", "abcd"]
    assert "Cut 2 completions on the right, to 4 tokens. Text of 2 of 3 rows (67 %) is lost: raise" in caplog.text
    assert "raise --max-completion-length to keep it" in caplog.text


def test_the_share_of_rows_that_are_cut_counts_each_once(characters, caplog):
    rows = [
        {"prompt": "pppp", "chosen": "abcdef", "rejected": "xyzxyz"},
        *[{"prompt": "", "chosen": "a", "rejected": "b"}] * 3,
    ]
    with caplog.at_level(logging.WARNING):
        pairs(characters, rows, eos_ids=ENDS, max_prompt_length=3, max_completion_length=4)
    assert "Text of 1 of 4 rows (25 %) is lost: raise --max-prompt-length and --max-completion-length" in caplog.text


def test_rows_without_a_completion_are_left_out_and_counted(characters, caplog):
    rows = [{"prompt": "p", "completion": completion} for completion in ("", "a", "")]
    with caplog.at_level(logging.WARNING):
        assert len(demonstrations(characters, rows, eos_ids=ENDS)) == 1
    assert "Left out 2 of 3 rows: 2 with an empty completion." in caplog.text


def test_nothing_to_learn_from_is_an_error(characters):
    with pytest.raises(ValueError, match="none of the 2 rows is usable: 2 with an empty completion"):
        demonstrations(characters, [{"prompt": "p", "completion": ""}] * 2, eos_ids=ENDS)


def test_texts_are_predicted_from_their_first_token(characters, words, text):
    (example,) = demonstrations(characters, [{"text": "abc"}], eos_ids=ENDS)
    assert (text(example.prompt), text(example.completion), example.mask) == ("<bos>", "abc<eos>", None)
    (example,) = demonstrations(words, [{"text": "the cat sat"}], eos_ids=ENDS)
    assert (words.decode(example.prompt), words.decode(example.completion)) == ("the", " cat sat<|im_end|>")


def test_empty_texts_are_left_out(characters, words):
    for tokenizer in (characters, words):
        assert len(demonstrations(tokenizer, [{"text": ""}, {"text": "the cat"}], eos_ids=ENDS)) == 1


def test_only_the_assistant_is_imitated_in_conversations(characters, text):
    (example,) = demonstrations(characters, [{"messages": [USER, YES, USER, NO]}], eos_ids=ENDS)
    assert text(example.prompt) == "<bos>user: hi\nassistant: "
    assert text(example.completion) == "yes<eos>\nuser: hi\nassistant: no<eos>"
    kept = [token for token, counts in zip(example.completion, example.mask, strict=True) if counts]
    assert text(kept) == "yes<eos>no<eos>"


def test_a_conversation_that_is_cut_keeps_its_mask(characters, text):
    rows = [{"messages": [USER, YES, USER, NO]}]
    (example,) = demonstrations(characters, rows, eos_ids=ENDS, max_completion_length=6, max_prompt_length=12)
    assert (text(example.prompt), text(example.completion)) == ("<bos>assistant: ", "yes<eos>\nu")
    assert example.mask == [True, True, True, True, False, False]
    (example,) = demonstrations(characters, rows, eos_ids=ENDS, max_completion_length=4)
    assert example.mask is None


def test_a_row_that_cannot_be_tokenized_is_named(characters):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "é"}]
    with pytest.raises(ValueError, match=r"row 2: the tokenizer has no token for 'é' \(U\+00E9\)") as caught:
        demonstrations(characters, rows, eos_ids=ENDS)
    assert str(caught.value).endswith("counted among these 2 rows; it starts with {'prompt': 'a', 'completion': 'é'}")


def test_a_prompt_that_gives_nothing_to_start_from_is_left_out(words, characters):
    rows = [{"prompt": "", "completion": "the"}, {"prompt": "the", "completion": " cat"}]
    assert len(demonstrations(words, rows, eos_ids=ENDS)) == 1
    assert len(demonstrations(characters, rows, eos_ids=ENDS)) == 2


# Pairs


def test_pairs(characters, text):
    rows = [{"prompt": "q ", "chosen": "yes", "rejected": "no"}, {"chosen": "q a", "rejected": "q b", "margin": 2}]
    first, second = pairs(characters, rows, eos_ids=ENDS)
    assert [text(ids) for ids in first[:3]] == ["<bos>q ", "yes<eos>", "no<eos>"]
    assert [text(ids) for ids in second[:3]] == ["<bos>q", " a<eos>", " b<eos>"]
    assert (first.margin, second.margin) == (0.0, 2.0)


def test_pairs_of_conversations(words):
    (pair,) = pairs(words, [{"chosen": [USER, YES], "rejected": [USER, NO]}], eos_ids=ENDS)
    assert words.decode(pair.prompt).endswith("hi<|im_end|>\n<|im_start|>assistant\n")
    assert (words.decode(pair.chosen), words.decode(pair.rejected)) == ("yes<|im_end|>", "no<|im_end|>")


def test_both_sides_of_a_pair_have_the_prompt_of_generation(words):
    row = {"prompt": "the ", "chosen": "cat", "rejected": "?"}  # one side shares a token with the prompt
    (pair,) = pairs(words, [row], eos_ids=ENDS)
    (example,) = prompts(words, [row])
    assert pair.prompt == example.prompt
    assert [words.decode(side) for side in pair[1:3]] == ["cat<|im_end|>", "?<|im_end|>"]


def test_pairs_that_are_the_same_or_empty_within_the_limits_are_left_out(characters, caplog):
    sides = [("abcX", "abcY"), ("ab", "ac"), ("ab", "ab"), ("", "a"), ("a", "")]
    rows = [{"prompt": "p", "chosen": chosen, "rejected": rejected} for chosen, rejected in sides]
    with caplog.at_level(logging.WARNING):
        assert pairs(characters, rows, eos_ids=ENDS, max_completion_length=3) == [
            Pair([BOS, *characters("p").input_ids[1:]], *([*characters(s).input_ids[1:], EOS] for s in ("ab", "ac")))
        ]
    assert "Left out 4 of 5 rows: " in caplog.text
    assert "2 with two sides that are the same within the limits" in caplog.text
    assert "2 with an empty completion" in caplog.text


def test_an_end_alone_tells_two_sides_apart(characters, text):
    (pair,) = pairs(
        characters, [{"prompt": "p", "chosen": "ab", "rejected": "abc"}], eos_ids=ENDS, max_completion_length=3
    )
    assert (text(pair.chosen), text(pair.rejected)) == ("ab<eos>", "abc")


# Rankings


def test_rankings_are_best_first(characters, text):
    rows = [
        {"prompt": "p", "completions": ["a", "b", "c"]},
        {"prompt": "p", "completions": ["a", "b", "c", "d"], "ranks": [3, 1, 2, 2]},
        {"prompt": "p", "completions": ["a", "b"], "ranks": [1, 0]},
    ]
    examples = rankings(characters, rows, eos_ids=ENDS)
    assert [[text(ids)[0] for ids in example.completions] for example in examples] == [
        ["a", "b", "c"],
        ["b", "c", "d", "a"],
        ["b", "a"],
    ]
    assert [example.ranks for example in examples] == [[1, 2, 3], [1, 2, 2, 3], [0, 1]]


def test_a_pair_is_a_ranking_of_two(characters, text):
    (example,) = rankings(characters, [{"prompt": "p", "chosen": "a", "rejected": "b"}], eos_ids=ENDS)
    assert ([text(ids) for ids in example.completions], example.ranks) == (["a<eos>", "b<eos>"], [1, 2])


def test_of_completions_that_are_the_same_the_best_is_kept(characters, text, caplog):
    rows = [
        {"prompt": "p", "completions": ["abX", "b", "abY"], "ranks": [3, 2, 1]},
        {"prompt": "p", "completions": ["abX", "abY"]},
        {"prompt": "p", "completions": ["a", "b"], "ranks": [1, 1]},
    ]
    with caplog.at_level(logging.WARNING):
        (example,) = rankings(characters, rows, eos_ids=ENDS, max_completion_length=2)
    assert ([text(ids) for ids in example.completions], example.ranks) == (["ab", "b<eos>"], [1, 2])
    assert "Left out 2 of 3 rows: 2 with no completion that is better than another" in caplog.text


# Steps


def test_steps_end_where_they_are_scored(characters, text):
    row = {"prompt": "q", "completions": ["a", "bc", "d"], "labels": [True, False, 0.5]}
    (example,) = stepwise(characters, [row], eos_ids=ENDS)
    assert [text(step) for step in example.steps] == ["a\n", "bc\n", "d<eos>"]
    assert example.labels == [1.0, 0.0, 0.5]
    (example,) = stepwise(characters, [row], eos_ids=ENDS, separator=";", finished=False)
    assert [text(step) for step in example.steps] == ["a;", "bc;", "d;"]


@pytest.mark.parametrize(("step", "separator"), [("b\nc", "\n"), ("b\n", "\n"), ("b\n", "\n\n")])
def test_a_step_that_contains_the_separator_is_named(characters, step, separator):
    rows = [{"prompt": "q", "completions": ["a", one, "d"], "labels": [1, 0, 1]} for one in ("b", step)]
    with pytest.raises(ValueError, match=r"^row 2: step 2, 'b.*', contains the separator .*: set --step-separator to"):
        stepwise(characters, rows, eos_ids=ENDS, separator=separator)
    assert len(stepwise(characters, rows, eos_ids=ENDS, separator=";")) == 2


def test_a_labeled_completion_that_would_be_scored_as_several_steps_is_named(characters):
    rows = [{"prompt": "q", "completion": text, "label": True} for text in ("a=1", "a=1\n", "a=1\nb=2")]
    assert [len(example.steps) for example in stepwise(characters, rows[:2], eos_ids=ENDS)] == [1, 1]
    with pytest.raises(
        ValueError, match=r"^row 3: step 1, 'a=1\\nb=2', contains the separator .*: set --step-separator"
    ):
        stepwise(characters, rows, eos_ids=ENDS)
    assert len(stepwise(characters, rows, eos_ids=ENDS, separator=";")) == 3
    asked, said = ([{"role": role, "content": text}] for role, text in (("user", "q"), ("assistant", "a=1\nb=2")))
    with pytest.raises(ValueError, match=r"^row 1: step 1, 'a=1\\nb=2', contains the separator"):
        stepwise(characters, [{"prompt": asked, "completion": said, "label": True}], eos_ids=ENDS)


def test_steps_that_do_not_fit_are_cut_off_with_their_labels(characters, text, caplog):
    row = {"prompt": "q", "completions": ["a", "bc", "d"], "labels": [1, 0, 1]}
    with caplog.at_level(logging.WARNING):
        for limit, kept in ((7, ["a\n", "bc\n", "d<eos>"]), (6, ["a\n", "bc\n"]), (5, ["a\n", "bc\n"]), (4, ["a\n"])):
            (example,) = stepwise(characters, [row], eos_ids=ENDS, max_completion_length=limit)
            assert [text(step) for step in example.steps] == kept
            assert example.labels == [1.0, 0.0, 1.0][: len(kept)]
    with pytest.raises(ValueError, match="1 with no step that fits the limit"):
        stepwise(characters, [row], eos_ids=ENDS, max_completion_length=1)


def test_a_labeled_completion_is_a_solution_of_one_step(characters, caplog):
    rows = [{"prompt": "q", "completion": "a", "label": True}, {"prompt": "q", "completion": "long", "label": False}]
    with caplog.at_level(logging.WARNING):
        (example,) = stepwise(characters, rows, eos_ids=ENDS, max_completion_length=3)
    assert example == Stepwise(characters("q").input_ids, [[*characters("a").input_ids[1:], EOS]], [1.0])
    assert "no step that fits the limit" in caplog.text


def test_an_empty_step_has_no_token_to_score(characters):
    rows = [{"prompt": "q", "completions": ["", "a"], "labels": [1, 1]}]
    with pytest.raises(ValueError, match="1 with an empty step"):
        stepwise(characters, rows, eos_ids=ENDS, separator="")


# All


@pytest.mark.parametrize(
    ("convert", "row"),
    [
        (demonstrations, {"prompt": "p", "chosen": "a", "rejected": "b"}),
        (pairs, {"prompt": "p", "completion": "a"}),
        (rankings, {"prompt": "p", "completions": ["a"], "labels": [1]}),
        (stepwise, {"prompt": "p", "completion": "a"}),
    ],
)
def test_rows_of_another_kind_are_rejected(characters, convert, row):
    with pytest.raises(ValueError, match="of the kind"):
        convert(characters, [row], eos_ids=ENDS)


@pytest.mark.parametrize(
    "limits", [{"max_prompt_length": 0}, {"max_completion_length": 0}, {"max_completion_length": -1}]
)
def test_limits_that_leave_no_tokens_are_rejected(characters, limits):
    (name,) = limits
    with pytest.raises(ValueError, match=f"{name} is {limits[name]} tokens, expected at least 1"):
        demonstrations(characters, [{"prompt": "p", "completion": "c"}], eos_ids=ENDS, **limits)


# Truncated prompts of conversations


def test_a_cut_conversation_keeps_its_system_message(words, caplog):
    system = {"role": "system", "content": "answer is yes"}
    row = {"prompt": [system, {"role": "user", "content": "cat " * 40}, YES, USER]}
    whole = prompts(words, [row])[0].prompt
    alone = words.apply_chat_template([system], tokenize=True, return_dict=False)
    with caplog.at_level(logging.WARNING):
        (cut,) = prompts(words, [row], max_prompt_length=len(alone) + 20)
    assert len(cut.prompt) == len(alone) + 20 < len(whole)
    assert cut.prompt[: len(alone)] == alone == whole[: len(alone)]
    assert cut.prompt[len(alone) :] == whole[-20:]
    assert caplog.text.count("Cut 1 prompts on the left after the system message, to") == 1
    with pytest.raises(
        ValueError, match=rf"row 1: the system message has {len(alone)} tokens, which leaves no room for"
    ):
        prompts(words, [row], max_prompt_length=len(alone))


def test_a_cut_conversation_of_a_template_without_a_system_message_loses_its_beginning(make_words):
    template = "{% if messages|length < 2 %}{{ raise_exception('no user') }}{% endif %}"
    words = make_words(template=template + make_words().chat_template)
    row = {"prompt": [{"role": "system", "content": "no"}, {"role": "user", "content": "cat " * 40}]}
    whole = prompts(words, [row])[0].prompt
    assert prompts(words, [row], max_prompt_length=9)[0].prompt == whole[-9:]


def test_the_advice_about_several_messages_depends_on_the_kind(words):
    user, answer = {"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat on"}
    turns = [answer, user, answer]
    with pytest.raises(
        ValueError, match=r"row 1: the completion has messages of .*earlier turns into `prompt`; counted"
    ):
        pairs(words, [{"prompt": [user], "chosen": turns, "rejected": [answer]}], eos_ids={2})
    with pytest.raises(ValueError, match="earlier turns into `prompt`, or pass the whole conversation as `messages`"):
        demonstrations(words, [{"prompt": [user], "completion": turns}], eos_ids={2})


def test_empty_prompts_without_bos_are_reported_with_the_fix(words):
    rows = [{"prompt": "", "completion": "sat"}]
    with pytest.raises(ValueError, match=r"usable: 1 with an empty prompt, .* for sft texts in a column `text`\)"):
        demonstrations(words, rows, eos_ids={2})
    assert demonstrations(words, [{"text": "sat on"}], eos_ids={2})
