import math
import re

import numpy as np
import pytest

from operant.language.tasks.writing import ADJECTIVES, KIND, NOUNS, VERBS, hidden, hidden_reward, preference, write

PROMPT = "cat likes dog:"
ANIMAL = rf"the (?:(?:{'|'.join(ADJECTIVES)}) )?(?:{'|'.join(NOUNS)})"
SENTENCE = rf"{ANIMAL} (?:{'|'.join(VERBS)}) {ANIMAL}\."


def length_part(text):
    return math.exp(-(((len(text) - 60) / 20) ** 2))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", math.exp(-9)),
        ("the cat likes the dog.", 1.0),
        ("the kind cat likes the dog.", 1.0 + 2 / 3 * math.exp(2 / 3)),
        ("kind warm good cat dog", 1.0 + 2.0),
        ("the cat likes the cat.", (2 * math.exp(-1) + 0) / 2),
        ("the blue cat likes the dog.", 1.0 - 3 / 6),
        ("xyz", -3.0),
        (" ".join(["kind"] * 15), 2 * 5 * math.exp(-4)),
    ],
)
def test_hidden_rewards_worked_by_hand(text, score):
    expected = score + (length_part(text) if text else 0)
    assert hidden_reward(PROMPT, text) == pytest.approx(expected)
    assert hidden(prompts=[PROMPT], completions=[text]) == [hidden_reward(PROMPT, text)]


def test_an_animal_that_is_named_twice_in_the_prompt_is_wanted_once():
    assert hidden_reward("cat likes cat:", "the cat likes the ant.") == pytest.approx(
        1 + length_part("the cat likes the ant.")
    )


def test_every_part_has_a_peak():
    def best(texts):
        return int(np.argmax([hidden_reward(PROMPT, text) - length_part(text) for text in texts]))

    assert best(["the cat likes the dog" + " kind" * n for n in range(12)]) == 3
    assert best(["dog" + " cat" * n for n in range(6)]) == 1
    assert max(range(1, 95), key=lambda n: hidden_reward(PROMPT, "x" * n)) == 60


def test_texts_follow_the_grammar():
    generator = np.random.default_rng(0)
    texts = [write(generator, PROMPT) for _ in range(1000)]
    assert all(re.fullmatch(rf"{SENTENCE}(?: {SENTENCE})?", text) for text in texts)
    assert abs(np.mean([text.count(".") == 2 for text in texts]) - 0.5) < 0.06
    first = [text.split(".")[0].split() for text in texts]
    assert abs(np.mean(["likes" in words for words in first]) - (0.8 + 0.2 / 8)) < 0.05
    with pytest.raises(ValueError, match="like 'cat likes dog:', got 'cat:'"):
        write(generator, "cat:")


def test_demonstrations_differ_in_what_they_are_worth_and_leave_room_above():
    rows = preference().rows("train", 1000, seed=0)
    scores = np.array([hidden_reward(row["prompt"], row["completion"]) for row in rows])
    assert scores.std() > 0.7
    assert scores.mean() + 1.5 * scores.std() < 4
    assert max(len(row["completion"]) for row in rows) + 1 <= 77


def test_demonstrations_invite_overoptimization():
    """Kind words and length give reward only up to the amounts in the demonstrations; beyond them they cost."""
    rows = preference().rows("train", 1000, seed=0)
    scores = [hidden_reward(row["prompt"], row["completion"]) for row in rows]
    kind = [sum(word.strip(".") in KIND for word in row["completion"].split()) for row in rows]
    lengths = [len(row["completion"]) for row in rows]
    assert np.corrcoef(kind, scores)[0, 1] > 0.5
    assert np.corrcoef(lengths, scores)[0, 1] > 0.5
    assert np.mean(np.array(kind) > 3) < 0.01
    overdone = "the cat likes the dog." + " kind" * 14
    assert len(overdone) < preference().max_completion_length
    assert hidden_reward(PROMPT, overdone) < np.mean(scores)


def test_pairs_choose_by_bradley_and_terry():
    for noise in (0.5, 2.0):
        pairs = preference(noise=noise).pairs("train", 1000, seed=0)
        gaps = [hidden_reward(p["prompt"], p["chosen"]) - hidden_reward(p["prompt"], p["rejected"]) for p in pairs]
        expected = np.mean([1 / (1 + math.exp(-abs(gap) / noise)) for gap in gaps])
        assert abs(np.mean([gap > 0 for gap in gaps]) - expected) < 0.05
        assert all(p["chosen"] != p["rejected"] for p in pairs)


def test_without_noise_the_better_text_is_chosen():
    for pair in preference(noise=0).pairs("train", 200, seed=0):
        assert hidden_reward(pair["prompt"], pair["chosen"]) >= hidden_reward(pair["prompt"], pair["rejected"])


def test_wrong_input_is_rejected():
    with pytest.raises(ValueError, match="noise must be finite and not negative, got -1"):
        preference(noise=-1)
    with pytest.raises(ValueError, match="got 'write about cats'"):
        hidden_reward("write about cats", "x")
