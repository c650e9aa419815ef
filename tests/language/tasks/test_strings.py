import pytest

from operant.language.options import Choices
from operant.language.tasks.strings import reverse, sort


def test_reverse():
    rows = reverse(length=Choices((2, 5))).rows("train", 100, seed=0)
    for row in rows:
        text = row["prompt"].removeprefix("reverse ").removesuffix(":")
        assert row["completion"] == row["answer"] == "".join(reversed(text))
        assert text.isalpha()
    assert {len(row["answer"]) for row in rows} == {2, 5}


@pytest.mark.parametrize(("of", "kind"), [("digits", str.isdigit), ("letters", str.islower)])
def test_sort(of, kind):
    rows = sort(of=of).rows("train", 100, seed=0)
    for row in rows:
        text = row["prompt"].removeprefix("sort ").removesuffix(":")
        assert kind(text)
        assert sorted(row["answer"]) == sorted(text)
        assert all(first <= second for first, second in zip(row["answer"], row["answer"][1:], strict=False))
    assert {len(row["answer"]) for row in rows} == {3, 4, 5, 6}


def test_options_out_of_range_are_rejected():
    with pytest.raises(ValueError, match="reverse needs lengths of at least 1, got 0/1"):
        reverse(length=Choices((0, 1)))
    with pytest.raises(ValueError, match="digits or of letters, got of='words'"):
        sort(of="words")
