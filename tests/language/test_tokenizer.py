import logging
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from operant.language import encoding
from operant.language.tokenizer import (
    character_tokenizer,
    decode,
    encode_pair,
    encode_prompt,
    encode_steps,
    encode_text,
    stop_ids,
)

PRINTABLE = st.text([*map(chr, range(0x20, 0x7F)), "\n"], max_size=40)
TOKENIZER = character_tokenizer()
PAD, BOS, EOS = 0, 1, 2
END, TURN_END, START = 0, 2, 3  # of the tokenizer of words: <|end|>, <|im_end|>, <s>
QUESTION = {"role": "user", "content": "the cat"}
ANSWER = {"role": "assistant", "content": "sat on"}
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"


@pytest.fixture(autouse=True)
def _warnings_are_given_again():
    encoding._warn_merged.cache_clear()


def trained(encoded):
    return [token for token, counts in zip(*encoded, strict=True) if counts]


# The character tokenizer


def test_characters_are_tokens(characters):
    assert len(characters) == characters.vocab_size == 99
    assert (characters.pad_token_id, characters.bos_token_id, characters.eos_token_id) == (PAD, BOS, EOS)
    assert characters.convert_ids_to_tokens([0, 1, 2, 3, 4, 98]) == ["<pad>", "<bos>", "<eos>", "\n", " ", "~"]
    assert encode_prompt(characters, "1+1=\n") == [1, 21, 15, 21, 33, 3]


@settings(deadline=None, max_examples=100)
@given(text=PRINTABLE)
def test_texts_survive_the_way_there_and_back(text):
    ids = encode_prompt(TOKENIZER, text)
    assert ids[0] == BOS
    assert len(ids) == len(text) + 1
    assert decode(TOKENIZER, ids) == text


def test_special_tokens_that_are_typed_are_characters(characters):
    ids = encode_prompt(characters, "<eos><bos><pad>")
    assert len(ids) == 16
    assert min(ids[1:]) > EOS
    assert decode(characters, [*ids, EOS, PAD]) == "<eos><bos><pad>"


def test_unknown_characters_are_rejected(characters):
    with pytest.raises(ValueError, match=r"'é' \(U\+00E9\), character 3"):
        encode_prompt(characters, "café")
    with pytest.raises(ValueError, match=r"'\\t' \(U\+0009\)"):
        encode_prompt(characters, [{"role": "user", "content": "a\tb"}])


@pytest.mark.parametrize("cls", [AutoTokenizer, type(TOKENIZER)])
def test_a_saved_tokenizer_is_the_same(characters, tmp_path, cls):
    characters.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path)
    for prompt in ("a <eos>\n b", [{"role": "user", "content": "<eos>  ."}]):
        assert encode_prompt(loaded, prompt) == encode_prompt(characters, prompt)
        assert decode(loaded, encode_prompt(loaded, prompt)) == decode(characters, encode_prompt(characters, prompt))
    assert stop_ids(loaded) == stop_ids(characters)
    with pytest.raises(ValueError, match="no token for 'é'"):
        encode_prompt(loaded, "é")


# Ends of completions


def test_all_ends_are_found(words):
    assert stop_ids(words) == {TURN_END}
    assert stop_ids(words, GenerationConfig(eos_token_id=[TURN_END, END])) == {TURN_END, END}
    assert stop_ids(words, GenerationConfig(eos_token_id=END)) == {TURN_END, END}
    assert stop_ids(words, GenerationConfig()) == {TURN_END}


def test_without_any_end_there_is_an_error(make_words):
    words = make_words(eos=None)
    with pytest.raises(ValueError, match="no EOS"):
        stop_ids(words)
    assert stop_ids(words, GenerationConfig(eos_token_id=0)) == {0}


@pytest.mark.parametrize("end", ["<|im_end|>", "<|end|>"])
def test_any_of_several_ends_is_an_end(words, end):
    _, completion = encode_pair(words, "the", " cat" + end, eos_ids={TURN_END, END})
    assert words.decode(completion) == " cat" + end


def test_the_end_that_is_added_is_the_tokenizers_own(words):
    assert encode_pair(words, "the", " cat", eos_ids={TURN_END, END})[1][-1] == TURN_END
    assert encode_pair(words, "the", " cat", eos_ids={5, 7})[1][-1] == 5


# BOS and EOS


@pytest.mark.parametrize("prompt", ["the cat", "<s>the cat", ""])
def test_a_string_gets_exactly_one_bos(make_words, prompt):
    ids = encode_prompt(make_words(bos=True), prompt)
    assert ids[0] == START
    assert ids.count(START) == 1


@pytest.mark.parametrize("kind", [models.WordLevel, partial(models.BPE, merges=[])])  # one raises, one drops an "a"
def test_a_tokenizer_of_digits_adds_its_bos(kind):
    digits = Tokenizer(kind(vocab={token: i for i, token in enumerate(["<s>", "</s>", *"0123456789+="])}))
    digits.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    digits.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=digits, **{"bos_token": "<s>", "eos_token": "</s>"})
    assert encode_prompt(made, "1+2=") == [0, 3, 12, 4, 13]


def test_a_tokenizer_that_adds_no_bos_gets_none(words):
    assert START not in encode_prompt(words, "the cat")
    assert encode_prompt(words, "") == []


def test_a_template_and_a_tokenizer_add_one_bos_together(make_words):
    words = make_words(bos=True, template=WITH_BOS)
    assert encode_prompt(words, [QUESTION]).count(START) == 1
    prompt, completion = encode_pair(words, [QUESTION], [ANSWER], eos_ids={TURN_END})
    assert [*prompt, *completion].count(START) == 1
    assert encode_text(words, [QUESTION, ANSWER], eos_ids={TURN_END}).ids.count(START) == 1


@pytest.mark.parametrize("completion", [" sat", " sat<|im_end|>", " sat<|im_end|><|im_end|>", " sat<|im_end|>\n"])
def test_a_completion_ends_in_exactly_one_eos(words, completion):
    _, ids = encode_pair(words, "the cat", completion, eos_ids={TURN_END})
    assert words.decode(ids) == " sat<|im_end|>"


@pytest.mark.parametrize("end", ["", "<|im_end|>", "<|im_end|>\n", "<|im_end|>\n<|im_end|> \n"])
def test_a_completion_keeps_the_text_after_an_eos_inside(words, end):
    _, ids = encode_pair(words, "the", " cat<|im_end|>\n sat<|im_end|> on" + end, eos_ids={TURN_END})
    assert words.decode(ids) == " cat<|im_end|>\n sat<|im_end|> on<|im_end|>"
    _, steps = encode_steps(words, "the", ["cat", "sat<|im_end|> on" + end], eos_ids={TURN_END})
    assert words.decode(steps[-1]) == "sat<|im_end|> on<|im_end|>"


def test_any_of_several_ends_may_follow_the_first(words):
    _, ids = encode_pair(words, "the", " cat<|end|> sat<|im_end|>\n<|end|>", eos_ids={TURN_END, END})
    assert words.decode(ids) == " cat<|end|> sat<|im_end|>"


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TYPED = {"role": "assistant", "content": "sat<|im_end|> on"}
WITHOUT_EOS = "{% for m in messages %}{{ m.content + '\n' }}{% endfor %}"
WITH_SUFFIX = "{% for m in messages %}{{ m.content + eos_token + ' the\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [(CHATML, "sat<|im_end|> on"), (WITH_SUFFIX, "sat<|im_end|> on"), (WITHOUT_EOS, "sat<|im_end|> on\n")],
)
def test_a_message_keeps_the_text_after_an_eos_in_its_content(make_words, template, expected):
    words = make_words(template=template)
    _, ids = encode_pair(words, [QUESTION], [TYPED], eos_ids={TURN_END})
    assert words.decode(ids) == expected + "<|im_end|>"
    encoded = encode_text(words, [QUESTION, ANSWER, QUESTION, TYPED], eos_ids={TURN_END})
    before = "sat on\n" if template == WITHOUT_EOS else "sat on<|im_end|>"
    assert words.decode(trained(encoded)) == before + expected + "<|im_end|>"


def test_a_message_that_ends_with_an_eos_gets_no_second_one(words):
    ended = {"role": "assistant", "content": "sat on<|im_end|>"}
    assert words.decode(encode_pair(words, [QUESTION], [ended], eos_ids={TURN_END})[1]) == "sat on<|im_end|>"
    encoded = encode_text(words, [QUESTION, ended, QUESTION, ended], eos_ids={TURN_END})
    assert words.decode(trained(encoded)) == "sat on<|im_end|>" * 2
    assert encoded.ids[-2:] != [TURN_END] * 2


def test_turns_that_a_template_does_not_mark_are_no_turns_with_an_eos_inside(make_words):
    words = make_words(
        template="{% for m in messages %}{% if m.role == 'assistant' and loop.last %}"
        "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    )
    encoded = encode_text(words, [QUESTION, ANSWER, QUESTION, TYPED], eos_ids={TURN_END})
    assert words.decode(trained(encoded)) == "sat<|im_end|> on<|im_end|>"


def test_an_answer_ends_with_the_first_eos_of_its_template(words):
    prompt, completion = encode_pair(words, [QUESTION], [ANSWER], eos_ids={TURN_END})
    assert words.decode(completion) == "sat on<|im_end|>"
    assert prompt == encode_prompt(words, [QUESTION])
    assert prompt.count(TURN_END) == 1


def test_a_template_without_eos_gets_one(make_words):
    words = make_words(template="{% for m in messages %}{{ m.content + '\\n' }}{% endfor %}")
    assert words.decode(encode_pair(words, [QUESTION], [ANSWER], eos_ids={TURN_END})[1]) == "sat on\n<|im_end|>"
    encoded = encode_text(words, [QUESTION, ANSWER], eos_ids={TURN_END})
    assert words.decode(trained(encoded)) == "sat on\n<|im_end|>"


def test_that_padding_is_eos_changes_nothing(make_words):
    padded, plain = make_words(), make_words()
    plain.add_special_tokens({"pad_token": "<|end|>"})
    assert padded.pad_token_id == padded.eos_token_id != plain.pad_token_id
    for words in (padded, plain):
        assert encode_pair(words, "the cat", " sat", eos_ids={TURN_END})[1][-1] == TURN_END
        assert encode_text(words, "the cat", eos_ids={TURN_END}).trained == [True, True, True]


# Prompts and completions


def test_a_pair_of_strings_is_the_tokens_of_the_joined_string(words):
    prompt, completion = encode_pair(words, "the cat", " sat on", eos_ids={TURN_END})
    assert words.decode(prompt) == "the cat"
    assert [*prompt, *completion] == [*words("the cat sat on").input_ids, TURN_END]


def test_a_prompt_is_given_the_tokens_that_generation_gives_it(make_words, caplog):
    words = make_words(bos=True)
    with caplog.at_level(logging.WARNING):
        prompt, completion = encode_pair(words, "the ", "cat", eos_ids={TURN_END})
    assert prompt == encode_prompt(words, "the ")
    assert words.decode(completion) == "cat<|im_end|>"
    assert "tokenized separately" in caplog.text


@settings(deadline=None, max_examples=50)
@given(prompt=PRINTABLE, completion=PRINTABLE)
def test_pairs_of_characters(prompt, completion):
    ids = encode_pair(TOKENIZER, prompt, completion, eos_ids={EOS})
    assert ids == (encode_prompt(TOKENIZER, prompt), [*encode_prompt(TOKENIZER, completion)[1:], EOS])


def test_a_template_that_changes_the_prompt_is_rejected(make_words):
    words = make_words(template="{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ValueError, match="rewrites earlier text: '1the cat' in the prompt becomes '2the cat"):
        encode_pair(words, [QUESTION], [ANSWER], eos_ids={TURN_END})


@pytest.mark.parametrize(
    ("prompt", "completion", "message"),
    [
        ("the", [ANSWER], "a str and the completion a list"),
        ([QUESTION], "sat", "a list and the completion a str"),
        ([QUESTION], [ANSWER, QUESTION], r"messages of \['assistant', 'user'\], expected one of the assistant"),
        ([QUESTION], [], r"messages of \[\]"),
    ],
)
def test_invalid_pairs_are_rejected(words, prompt, completion, message):
    with pytest.raises(ValueError, match=message):
        encode_pair(words, prompt, completion, eos_ids={TURN_END})


def test_a_prompt_that_ends_in_an_answer_is_rejected(words):
    with pytest.raises(ValueError, match="ends with an assistant message"):
        encode_prompt(words, [QUESTION, ANSWER])


# Steps


def test_steps_are_the_solution_cut_after_each_separator(characters):
    prompt, steps = encode_steps(characters, "12+7+5=", ["12+7=19", "19+5=24", "24"], eos_ids={EOS})
    assert [characters.decode(step) for step in steps] == ["12+7=19\n", "19+5=24\n", "24<eos>"]
    solution = [token for step in steps for token in step]
    assert (prompt, solution) == encode_pair(characters, "12+7+5=", "12+7=19\n19+5=24\n24", eos_ids={EOS})


def test_steps_of_a_solution_that_was_broken_off_end_in_the_separator(characters):
    _, steps = encode_steps(characters, "q", ["a", "b"], eos_ids={EOS}, separator="; ", finished=False)
    assert [characters.decode(step) for step in steps] == ["a; ", "b; "]


def test_steps_that_share_a_token_are_tokenized_apart(words, caplog):
    with caplog.at_level(logging.WARNING):
        _, steps = encode_steps(words, "the", [" cat", "sat"], eos_ids={TURN_END}, separator=" ")
    assert [words.decode(step) for step in steps] == [" cat ", "sat<|im_end|>"]
    assert "tokenized separately" in caplog.text


def test_steps_follow_a_conversation(words):
    prompt, steps = encode_steps(words, [QUESTION], ["the cat", "sat"], eos_ids={TURN_END})
    assert prompt == encode_prompt(words, [QUESTION])
    assert [words.decode(step) for step in steps] == ["the cat\n", "sat<|im_end|>"]


# Texts and conversations


def test_of_a_text_all_is_trained_but_bos(make_words):
    for words, before in ((make_words(bos=True), [False]), (make_words(), [])):
        encoded = encode_text(words, "the cat", eos_ids={TURN_END})
        assert encoded.trained == [*before, True, True, True]
        assert words.decode(trained(encoded)) == "the cat<|im_end|>"


@pytest.mark.parametrize("text", ["", "<s>", "the", "the<|im_end|>"])
def test_a_text_ends_in_exactly_one_eos(make_words, text):
    ids, _ = encode_text(make_words(bos=True), text, eos_ids={TURN_END})
    assert (ids[0], ids.count(START), ids[-1], ids.count(TURN_END)) == (START, 1, TURN_END, 1)


def test_a_bos_that_equals_the_eos_is_not_an_end(make_words):
    words = make_words(bos=True, eos="<s>")
    assert encode_text(words, "", eos_ids={START}) == ([START, START], [False, True])


def test_every_turn_of_the_assistant_is_trained_with_its_end(words):
    conversation = [QUESTION, ANSWER, QUESTION, {"role": "assistant", "content": "yes"}]
    encoded = encode_text(words, conversation, eos_ids={TURN_END})
    assert words.decode(trained(encoded)) == "sat on<|im_end|>yes<|im_end|>"
    assert encoded.ids[-1] == TURN_END


def test_an_end_that_the_marks_of_a_template_leave_out_is_trained(make_words):
    words = make_words(
        template="{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{{ '<|im_end|>' }}{% endfor %}"
    )
    encoded = encode_text(words, [QUESTION, ANSWER, QUESTION, ANSWER], eos_ids={TURN_END})
    assert words.decode(trained(encoded)) == "sat on<|im_end|>sat on<|im_end|>"


def test_text_after_the_end_token_is_not_trained(make_words):
    words = make_words(
        template="{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content + '<|im_end|>' + '\\n' }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    )
    encoded = encode_text(words, [QUESTION, ANSWER, QUESTION, ANSWER], eos_ids={TURN_END})
    assert words.decode(trained(encoded)) == "sat on<|im_end|>sat on<|im_end|>"


def test_a_conversation_of_characters(characters):
    encoded = encode_text(characters, [QUESTION, ANSWER, QUESTION, ANSWER], eos_ids={EOS})
    assert characters.decode(encoded.ids) == "<bos>" + "\n".join(["user: the cat\nassistant: sat on<eos>"] * 2)
    assert characters.decode(trained(encoded)) == "sat on<eos>sat on<eos>"


def test_a_conversation_without_an_answer_is_rejected(words):
    with pytest.raises(ValueError, match=r"messages of \['user'\]"):
        encode_text(words, [QUESTION], eos_ids={TURN_END})


def test_decoding_leaves_spaces_as_they_are(characters, words):
    assert decode(characters, encode_prompt(characters, "a , b .  c 's")) == "a , b .  c 's"
    assert decode(words, encode_prompt(words, "the , cat .  sat <|im_end|>")) == "the , cat .  sat "
