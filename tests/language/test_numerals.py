"""Numbers in all notations of answers, right and wrong ones."""

import importlib.util
import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from operant.language.numerals import after_mark, answer_number, first_number, last_box, last_number, stated_number
from operant.language.verifiers import find

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k_train.jsonl"
GOLDS = [0, 1, 2, 5, 7, 10, 18, 25, 36, 72, 99, 100, 110, 243, 500, 624, 999, 1000, 1080, 2250, 15620, 70000, 109200000]
GOLDS += [-1, -5, -12, -70000]


def golds(share: int) -> list[int]:
    """Return every `share`-th right answer of GSM8K and the numbers above, or only these if the file is missing."""
    if not GSM8K.is_file():
        return GOLDS
    lines = GSM8K.read_text(encoding="utf-8").splitlines()[::share]
    return GOLDS + [int(json.loads(line)["answer"].rpartition("####")[2].replace(",", "")) for line in lines]


def grouped(n: int, separator: str) -> str:
    return f"{n:,}".replace(",", separator)


Dress = Callable[[int], str]
BOXED: dict[str, Dress] = {
    "plain": str,
    "spaces": lambda n: f" {n} ",
    "decimal": lambda n: f"{n}.0",
    "cents": lambda n: f"{n}.00",
    "full stop": lambda n: f"{n}.",
    "dollar": lambda n: f"${n}",
    "escaped dollar": lambda n: rf"\${n}",
    "dollar and separators": lambda n: rf"\${grouped(n, '{,}')}.00",
    "percent": lambda n: rf"{n}\%",
    "bare percent": lambda n: f"{n}%",
    "text unit": lambda n: rf"{n}\text{{ dollars}}",
    "mbox unit": lambda n: rf"{n} \mbox{{ apples}}",
    "mathrm unit": lambda n: rf"{n}\,\mathrm{{cm}}",
    "squared unit": lambda n: rf"{n}\text{{ m}}^2",
    "square unit in text": lambda n: rf"{n}\ \text{{cm}}^{{2}}",
    "degrees": lambda n: rf"{n}^\circ",
    "unit": lambda n: f"{n} miles per hour",
    "equals": lambda n: f"= {n}",
    "named": lambda n: f"x = {n}",
    "sum": lambda n: f"{n - 1} + 1 = {n}",
    "comma": lambda n: grouped(n, ","),
    "braced comma": lambda n: grouped(n, "{,}"),
    "comma with a kern": lambda n: grouped(n, r",\!"),
    "thin space of LaTeX": lambda n: grouped(n, r"\,"),
    "narrow space": lambda n: grouped(n, "\N{NARROW NO-BREAK SPACE}"),
    "no-break space": lambda n: grouped(n, "\N{NO-BREAK SPACE}"),
    "thin space": lambda n: grouped(n, "\N{THIN SPACE}"),
    "minus sign": lambda n: str(n).replace("-", "\N{MINUS SIGN}"),
    "en dash": lambda n: str(n).replace("-", "\N{EN DASH}"),
    "fraction": lambda n: rf"\frac{{{2 * n}}}{{2}}",
    "display fraction": lambda n: rf"\dfrac{{{3 * n}}}{{3}}",
    "slash": lambda n: f"{2 * n}/2",
    "bold": lambda n: rf"\mathbf{{{n}}}",
    "text": lambda n: rf"\text{{{n}}}",
    "double braces": lambda n: f"{{{n}}}",
}
TEXTS: dict[str, Dress] = {
    "bare": str,
    "sentence": lambda n: f"First 3 and then 4. The answer is {n}.",
    "dollars": lambda n: f"So she earns ${grouped(n, ',')} every day.",
    "markdown": lambda n: f"The answer is **{n}**",
    "markdown with a unit": lambda n: f"Total: **{n} apples**.",
    "code": lambda n: f"`{n}`",
    "mark": lambda n: f"2 + 3 = 5\n#### {n}",
    "mark, separators and a unit": lambda n: f"2 + 3 = 5\n#### {grouped(n, ',')} dollars\n",
    "inline math": lambda n: f"The answer is ${n}$.",
    "parentheses of LaTeX": lambda n: rf"The answer is \({n}\)",
    "display": lambda n: rf"\[ x = {grouped(n, ',')} \]",
    "box, then words": lambda n: rf"So \boxed{{{n}}}. There were 3 steps.",
    "box after another": lambda n: rf"Not \boxed{{{n + 1}}} but \boxed{{{n}}}",
    "boxed mark": lambda n: rf"#### \boxed{{{n}}}",
    "display box": lambda n: rf"$$\boxed{{{n}}}$$",
}
# Each has its value: if that equals the right answer (18/1, -0), it is not a wrong answer.
WRONG: dict[str, Callable[[int], tuple[str, Fraction | None]]] = {
    "denominator": lambda n: (rf"\frac{{1}}{{{n}}}", Fraction(1, n) if n else None),
    "numerator": lambda n: (rf"\frac{{{n}}}{{7}}", Fraction(n, 7)),
    "after a slash": lambda n: (f"5/{n}", Fraction(5, n) if n else None),
    "before a slash": lambda n: (f"{n}/5", Fraction(n, 5)),
    "mixed": lambda n: (rf"{n}\frac{{1}}{{2}}", None),
    "one more": lambda n: (str(n + 1), Fraction(n + 1)),
    "one less": lambda n: (str(n - 1), Fraction(n - 1)),
    "other sign": lambda n: (str(-n), Fraction(-n)),
    "other sign, by a dash": lambda n: (f"\N{EN DASH}{n}" if n >= 0 else str(-n), Fraction(-n)),
    "a digit more": lambda n: (f"{n}0", Fraction(10 * n)),
    "a digit before": lambda n: (f"{'-' * (n < 0)}1{abs(n)}", None),
    "decimals": lambda n: (f"{n}.5", None),
    "tenth": lambda n: (f"{n / 10}", Fraction(n, 10)),
    "more separators": lambda n: (f"{n}{{,}}000", Fraction(1000 * n)),
    "root": lambda n: (rf"\sqrt{{{n}}}", Fraction(n) if n in (0, 1) else None),
    "exponent": lambda n: (rf"2^{{{n}}}", Fraction(2) ** n if abs(n) < 99 else None),
    "scaled": lambda n: (f"{n} thousand", Fraction(1000 * n)),
    "power of ten": lambda n: (rf"{n} \times 10^{{3}}", Fraction(1000 * n)),
}
ONLY_BOXED: dict[str, Dress] = {
    "variable": lambda n: f"{n or 3}x",
    "two answers": lambda n: f"{n}, {n + 1}",
    "comparison": lambda n: f"x < {n}",
    "product": lambda n: rf"{n or 3}\pi",
    "coefficient": lambda n: f"2x = {n or 3}",
    "nothing": lambda n: "",
}
WRONG_TEXTS: dict[str, Dress] = {
    "second box": lambda n: rf"\boxed{{{n}}} or rather \boxed{{{n + 1}}}",
    "second mark": lambda n: f"#### {n}\nno:\n#### {n + 1}",
    "last sentence": lambda n: f"One could think {n}, but the answer is {n + 1}.",
    "time": lambda n: f"It is {n % 12}:{n}" if n > 0 else "It is 3:15",
    "words": lambda n: "I do not know.",
}


def cases() -> tuple[dict[str, list[Dress]], dict[str, list[Callable[[int], str | None]]]]:
    """Return right and wrong completions by verifier."""

    def boxed(dress):
        return lambda n: rf"The answer is \boxed{{{dress(n)}}}."

    def said(dress):
        return lambda n: f"The answer is {dress(n)}"

    def wrong(dress, around):
        def made(n):
            text, value = dress(n)
            return None if value == n else around(lambda _: text)(n)

        return made

    in_box, in_text = [boxed(d) for d in BOXED.values()], [said(d) for d in BOXED.values()]
    not_box = [wrong(d, boxed) for d in WRONG.values()] + [boxed(d) for d in ONLY_BOXED.values()]
    not_text = [wrong(d, said) for d in WRONG.values()] + list(WRONG_TEXTS.values())
    texts = list(TEXTS.values())
    right = {"boxed": in_box, "numeric": in_box + in_text + texts, "accuracy": in_box + texts}
    return right, {"boxed": not_box, "numeric": not_box + not_text, "accuracy": not_box + not_text}


def rate(verifier, completions, gold):
    answers = [gold] * len(completions)
    return verifier(prompts=answers, completions=completions, completion_ids=[[]] * len(completions), answer=answers)


@pytest.mark.parametrize(("name", "share"), [("numeric", 150), ("boxed", 150), ("accuracy", 2000)])
def test_every_dress_of_every_right_answer(name, share):
    if name == "accuracy" and importlib.util.find_spec("math_verify") is None:
        pytest.skip("math-verify is not installed")
    verifier, (right, wrong) = find(name), cases()
    refused, taken = [], []
    for n in dict.fromkeys(golds(share)):
        texts = [dress(n) for dress in right[name]]
        others = [text for dress in wrong[name] if (text := dress(n)) is not None]
        found = rate(verifier, texts + others, n)
        refused += [text for text, reward in zip(texts, found[: len(texts)], strict=True) if reward != 1]
        taken += [(n, text) for text, reward in zip(others, found[len(texts) :], strict=True) if reward != 0]
    assert refused == []
    assert taken == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"18 \text{ m}^2", 18),
        ("-$5", -5),
        ("$-5$", -5),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        ("17 1/2", Fraction(35, 2)),
        ("12 - 7", 7),
        ("18 million", 18_000_000),
        ("18k", 18_000),
        ("18kg", 18),
        (r"-\frac{36}{2}", -18),
        ("x/18", None),
        ("18π", None),
        ("3/4/2026", None),
        ("1:18", None),
        ("_-18_", -18),
        (r"18\ (\text{cm})^2", 18),
        ("(-2)^2", None),
        (r"\left(\frac{1}{2}\right)^3", None),
        ("9^{1/2}", None),
        (r"9^{\frac12}", None),
        ("9^(1/2)", None),
        ("2^{2^3}", None),
        ("4^0.5", None),
        ("4^2.", 16),
    ],
)
def test_numbers_in_a_text(text, number):
    assert last_number(text) == number


def test_powers_of_expressions_are_compared_as_expressions():
    """Do not read the base as the number."""
    pytest.importorskip("math_verify")
    assert rate(find("accuracy"), [r"\boxed{\left(\frac{1}{2}\right)^3}", r"\boxed{\frac12}"], "1/8") == [1, 0]
    assert rate(find("accuracy"), [r"\boxed{9^{1/2}}", r"\boxed{(3)^2}", r"\boxed{3}"], "3") == [1, 0, 1]
    assert stated_number("(3)^2") is stated_number("9^{1/2}") is None
    assert stated_number(r"3\,\text{cm}^2") == stated_number("3^{1}") == 3


@pytest.mark.parametrize("factor", "xyeruvw")
def test_a_multiple_of_a_variable_is_no_number(factor):
    pytest.importorskip("math_verify")
    assert stated_number(f"6{factor}") is None
    assert rate(find("accuracy"), [rf"\boxed{{6{factor}}}", r"\boxed{6}"], f"6{factor}") == [1, 0]


def test_blanks_after_a_command_take_no_time():
    """Match them in one way only; several take seconds."""
    started = time.perf_counter()
    for command in (r"\sqrt", "^"):
        assert last_number(f"7. {command}" + " " * 50_000) == 7
    assert time.perf_counter() - started < 5


def test_only_closed_boxes_count_and_many_open_ones_take_no_time():
    assert last_box(r"\boxed{1} \boxed{2 \boxed{3} ") == "3"
    assert last_box(r"\boxed{a \boxed{b} c}") == "b"
    assert last_box("\\boxed{" * 50_000) is None
    assert answer_number(r"it is 7, so \boxed{1") == 7


def test_marks():
    assert after_mark("48/2 = 24\n#### 24\nmore") == "24"
    assert after_mark("24") is None
    assert first_number("$1,000 for 3 days") == 1000


@pytest.mark.parametrize(("name", "completion"), [("exact", "72"), ("numeric", "so 72"), ("boxed", r"\boxed{72}")])
def test_a_right_answer_of_gsm8k_is_understood(name, completion):
    assert rate(find(name), [completion, "73"], "48+24 = <<48+24=72>>72 clips.\n#### 72") == [1, 0]


def test_accuracy_is_none_if_the_right_answer_cannot_be_read():
    pytest.importorskip("math_verify")
    assert rate(find("accuracy"), ["18"], "$$") == [None]
    assert rate(find("accuracy"), ["so 72"], "48+24 = 72\n#### 72") == [1]
    assert stated_number("18 or 19") is None
