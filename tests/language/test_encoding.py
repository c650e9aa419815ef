import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operant.language import encoding
from operant.language.encoding import encode, encode_parts, shared_length


@pytest.fixture(autouse=True)
def _warnings_are_given_again():
    encoding._warn_merged.cache_clear()


def test_a_text_gets_neither_bos_nor_eos(make_words):
    words = make_words(bos=True)
    assert words.convert_ids_to_tokens(words("the cat").input_ids) == ["<s>", "the", "Ġcat"]
    assert words.convert_ids_to_tokens(encode(words, "the cat")) == ["the", "Ġcat"]


def test_an_unknown_character_is_named(characters):
    with pytest.raises(ValueError, match=r"no token for 'é' \(U\+00E9\), character 3 of 'café au lait'"):
        encode(characters, "café au lait")


def test_long_texts_are_shortened_in_the_error(characters):
    with pytest.raises(ValueError, match=rf"character 100 of '{'a' * 57}\.\.\.': remove it"):
        encode(characters, "a" * 100 + "→")


def test_parts_are_the_tokens_of_the_joined_text(words):
    parts = encode_parts(words, ["the cat", " sat", " on the mat"])
    assert [words.convert_ids_to_tokens(ids) for ids in parts] == [["the", "Ġcat"], ["Ġsat"], ["Ġon", "Ġthe", "Ġmat"]]
    assert [token for ids in parts for token in ids] == encode(words, "the cat sat on the mat")


def test_parts_that_share_a_token_are_tokenized_apart(words, caplog):
    assert words.convert_ids_to_tokens(encode(words, "the cat")) == ["the", "Ġcat"]
    with caplog.at_level(logging.WARNING):
        first, second = encode_parts(words, ["the ", "cat"])
    assert first == encode(words, "the ")
    assert second == encode(words, "cat")
    assert first + second != encode(words, "the cat")
    assert "tokenized separately" in caplog.text


def test_shared_tokens_are_warned_of_once(words, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            encode_parts(words, ["the ", "cat"])
    assert len(caplog.records) == 1


def test_no_parts_have_no_tokens(words, caplog):
    assert encode_parts(words, ["", "the", ""]) == [[], encode(words, "the"), []]
    assert caplog.records == []


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.text("the ca\n", max_size=6), min_size=1, max_size=4))
def test_the_first_part_has_the_ids_that_it_has_alone(words, parts):
    ids = encode_parts(words, parts)
    assert ids[0] == encode(words, parts[0])
    assert words.decode([token for part in ids for token in part]) == "".join(parts)


def test_shared_length():
    assert shared_length("abcd", "abxd") == 2
    assert shared_length([1, 2], [1, 2, 3]) == 2
    assert shared_length("", "a") == 0
    assert shared_length("xa", "ya") == 0
