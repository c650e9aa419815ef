"""Rewards of steps and the tokens that they belong to."""

import pytest
import tokenizers
import torch
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from operant.language import process_rewards
from operant.language.engines.protocol import Completion
from operant.language.examples import Prompt
from operant.language.process_rewards import join_steps, last_tokens, placed, step_rewards_of, table
from operant.language.tasks import find

PROMPT = "12+7+5="
EOS = 2


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def answer(tokenizer, text, *, cut=False):
    ids = encode(tokenizer, text) + ([] if cut else [EOS])
    return Completion(ids, [0.0] * len(ids), cut)


def judged(tokenizer, *answers):
    prompt = Prompt(encode(tokenizer, PROMPT), {"prompt": PROMPT})
    return step_rewards_of(find("steps"), tokenizer)([prompt] * len(answers), answers)


def test_the_end_of_sequence_belongs_to_the_last_step(characters):
    rewards, ends, exists = judged(characters, answer(characters, "12+7=19\n19+5=24\n24"))
    assert rewards.tolist() == [[1, 1, 1]]
    assert ends.tolist() == [[7, 15, 18]]  # 18 characters, of which two are line breaks, and EOS
    assert exists.all()


def test_an_answer_that_was_cut_off_ends_with_its_last_character(characters):
    rewards, ends, exists = judged(characters, answer(characters, "12+7=19\n19+5=2", cut=True))
    assert rewards.tolist() == [[1, 0]]
    assert ends.tolist() == [[7, 13]]
    assert exists.all()


def test_a_line_break_before_the_end_of_sequence(characters):
    _, ends, _ = judged(characters, answer(characters, "12+7=19\n"), answer(characters, "12+7=19\n", cut=True))
    assert ends.tolist() == [[8], [7]]


def test_the_end_of_an_empty_answer_is_a_wrong_step(characters):
    rewards, ends, exists = judged(characters, answer(characters, ""), answer(characters, "24"))
    assert exists.tolist() == [[True], [True]]
    assert (rewards.tolist(), ends.tolist()) == ([[0], [0]], [[0], [2]])


def test_earlier_steps_stay_where_they_are(characters):
    completion = answer(characters, "ab\ncd")
    assert placed(characters, completion, [(3, 0.5), (5, 0.25)]) == [(0.5, 2), (0.25, 5)]
    assert placed(characters, completion, [(9, 1.0)]) == []  # it has no ninth character


def test_steps_of_tokens_that_have_several_characters(words):
    ids = encode(words, "the cat sat on the mat.")
    assert len(ids) < 15
    found = last_tokens(words, ids, range(1, 25))
    for characters, end in enumerate(found[:23], 1):
        assert len(words.decode(ids[: end + 1])) >= characters > len(words.decode(ids[:end]))
    assert found[23] is None
    completion = Completion([*ids, words.eos_token_id], [0.0] * (len(ids) + 1), False)
    assert placed(words, completion, [(7, 1.0), (23, 0.0)]) == [(1.0, found[6]), (0.0, len(ids))]


def test_characters_of_several_tokens_are_complete_at_their_last_one():
    letters = [f"<0x{byte:02X}>" for byte in range(256)] + list("abcdef\n")
    core = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(letters)}, [], byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    ids = encode(tokenizer, "ab😀\ncd")
    assert [tokenizer.decode([i]) for i in ids[-3:]] == ["\n", "c", "d"]
    assert len(ids) == 9
    assert last_tokens(tokenizer, ids, [1, 2, 3, 4, 5, 6]) == [0, 1, 5, 6, 7, 8]


def test_beginnings_of_an_answer_are_decoded_once_for_all_steps(characters, monkeypatch):
    lengths = []
    decode = process_rewards.decode
    monkeypatch.setattr(process_rewards, "decode", lambda t, ids: lengths.append(len(ids)) or decode(t, ids))
    assert last_tokens(characters, [5] * 64, range(1, 65)) == [*range(64)]
    assert sorted(lengths) == [*range(1, 65)]


def test_a_table_has_the_width_of_its_longest_row():
    rewards, ends, exists = table([[(1.0, 3), (0.5, 6)], [], [(0.25, 2)]])
    torch.testing.assert_close(rewards, torch.tensor([[1, 0.5], [0, 0], [0.25, 0]]))
    assert ends.tolist() == [[3, 6], [0, 0], [2, 0]]
    assert exists.tolist() == [[True, True], [False, False], [True, False]]
    assert [t.shape for t in table([[], []])] == [(2, 1)] * 3


def test_tables_that_are_joined_are_as_wide_as_the_longest_row():
    rows = [[(1.0, 3), (0.5, 6), (0.25, 9)], [], [(0.25, 2)], [(0.5, 1), (1.0, 4)]]
    for cut in range(5):
        for found, expected in zip(join_steps([table(rows[:cut]), table(rows[cut:])]), table(rows), strict=True):
            assert torch.equal(found, expected)
    alone = join_steps([tuple(column[2:3] for column in table(rows))])
    assert [column.tolist() for column in alone] == [[[0.25]], [[2]], [[True]]]


def test_a_task_without_steps(characters):
    with pytest.raises(ValueError, match=r"reverse.* has no step rewards; use the task `steps`"):
        step_rewards_of(find("reverse"), characters)
