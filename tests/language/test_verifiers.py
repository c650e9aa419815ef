import importlib.util
from fractions import Fraction

import pytest

from operant.language import verifiers
from operant.language.rewards import RewardError, check_columns, combine, name_of
from operant.language.sandbox import SandboxError
from operant.language.verifiers import VERIFIERS, find, last_box, last_number


def rate(verifier, completions, ids=None, **columns):
    ids = [[0] * len(str(c)) for c in completions] if ids is None else ids
    return verifier(prompts=["p"] * len(completions), completions=completions, completion_ids=ids, **columns)


def test_exact():
    completions = ["132", " 132\n", "133", "0132", ""]
    assert rate(find("exact"), completions, answer=["132"] * 5) == [1, 1, 0, 0, 0]
    assert rate(find("exact"), ["132", "x"], answer=[132, None]) == [1, None]
    assert rate(find("exact:column=solution"), ["a"], solution=["a"]) == [1]


def test_exact_compares_whole_floats_as_integers():
    completions = ["4", "4.0", "5", "4.5", "4"]
    assert rate(find("exact"), completions, answer=[4.0, 4.0, 4.0, 4.5, 4.5]) == [1, 1, 0, 1, 0]


def test_nothing_behind_the_mark_is_no_correct_answer():
    gold = "I do not know ####"
    check_columns([find("exact")], [{"prompt": "p", "answer": gold}])
    assert rate(find("exact"), ["", gold], answer=[gold] * 2) == [0, 1]


@pytest.mark.parametrize(
    ("name", "gold"), [("exact", " "), ("boxed", ""), ("boxed", "$"), ("boxed", r"\boxed{}"), ("boxed", "none ####")]
)
def test_empty_correct_answers_are_found_before_training(name, gold):
    rows = [{"prompt": "p", "answer": answer} for answer in ("3", None, gold)]
    with pytest.raises(ValueError, match=f"{name}: the column 'answer' must contain .* not empty, got .* \\(row 3, "):
        check_columns([find(name)], rows)


def test_conversations_are_read_too():
    assert rate(find("exact"), [[{"role": "assistant", "content": "5"}]], answer=["5"]) == [1]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("132", 132),
        ("the answer is 1,234.5.", Fraction("1234.5")),
        ("1/2", Fraction(1, 2)),
        ("3.0", 3),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("x=-7", -7),
        ("12-7", 7),
        ("12 - 7", 7),
        ("(3)-4", 4),
        ("\N{MINUS SIGN}7", -7),
        ("+3", 3),
        ("1.5e-3", Fraction("0.0015")),
        ("2E3", 2000),
        ("first 3 then 4 apples", 4),
        ("1,2", 2),
        ("1,234,567", 1234567),
        ("-3/4", Fraction(-3, 4)),
        ("$42$", 42),
        ("a1", 1),
        ("", None),
        ("none", None),
        ("1/0", None),
        ("1e999999999", None),
        ("9" * 1000, None),
    ],
)
def test_the_last_number(text, number):
    assert last_number(text) == number


def test_numeric():
    completions = ["so it is 1,234.50", "1234.5", "1234.6", "none", "2469/2", "1/0"]
    assert rate(find("numeric"), completions, answer=["1234.5"] * 6) == [1, 1, 0, 0, 1, 0]
    assert rate(find("numeric"), ["3", "4"], answer=[3.0, None]) == [1, None]
    near = find("numeric:tolerance=0.01")
    assert rate(near, ["101", "102", "99", "0.009", "0.02"], answer=[100, 100, 100, 0, 0]) == [1, 0, 1, 1, 0]
    with pytest.raises(ValueError, match="column 'answer' must contain numbers, got 'x'"):
        rate(near, ["3"], answer=["x"])


def test_correct_answers_that_are_no_numbers_are_found_before_training():
    rows = [{"prompt": "p", "answer": answer} for answer in ("3", None, "see #### 4", "none")]
    check_columns([find("numeric"), find("exact")], rows[:3])
    with pytest.raises(ValueError, match=r"numeric: the column 'answer' must contain numbers, got 'none'.* \(row 4, "):
        check_columns([find("numeric")], rows)


@pytest.mark.parametrize("name", ["exact", "numeric", "boxed", "accuracy:column=answer"])
def test_a_list_of_correct_answers_is_an_error(name):
    """Its text, "['4']", is what an answer would be compared with."""
    rows = [{"prompt": "p", "answer": answer} for answer in ("4", 4, None, ["4"])]
    check_columns([find(name)], rows[:3])
    with pytest.raises(
        ValueError, match=r"the column 'answer' must contain texts or numbers, got \['4'\]: .* \(row 4, "
    ):
        check_columns([find(name)], rows)


def test_accuracy_without_a_column_finds_a_list_when_it_compares():
    with pytest.raises(ValueError, match=r"'solution' or 'answer' must contain texts or numbers, got \['4'\]"):
        rate(find("accuracy"), ["4"], answer=[["4"]])


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{5}", "5"),
        (r"first \boxed{4}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed {a{b{c}}d} e}", "a{b{c}}d"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{7}", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"\boxed{6", None),
        ("5", None),
    ],
)
def test_the_last_box(text, box):
    assert last_box(text) == box


def test_boxed():
    def reward(text, gold):
        return rate(find("boxed"), [text], answer=[gold])[0]

    assert reward(r"so \boxed{\dfrac{1}{2}}", r"\frac{1}{2}") == 1
    assert reward(r"\boxed{ 1,000 }", 1000) == 1
    assert reward(r"\boxed{0.5}", "1/2") == 1
    assert reward(r"\boxed{\left(1, 2\right)}", "(1,2)") == 1
    assert reward(r"\boxed{5}", r"\boxed{5}") == 1
    assert reward(r"\boxed{x = 5}", "5") == 1
    assert reward(r"\boxed{\text{A}}", "A") == 1
    assert reward(r"\boxed{\textbf{\text{New York}.}}", "New York") == 1
    assert reward(r"\boxed{B}", r"\mathrm{B}") == 1
    assert reward(r"\boxed{\text{A} or \text{B}}", "A or B") == 0
    assert reward(r"\boxed{\text{A}}", "B") == 0
    assert reward(r"\boxed{5x}", "5") == 0
    assert reward(r"\boxed{51}", "5") == 0
    assert reward("5", "5") == 0
    assert reward(r"\boxed{}", "5") == 0
    assert reward(r"\boxed{5}", None) is None


def test_format():
    verifier = find(r"format:pattern=\d{1,3}, .*")
    assert rate(verifier, ["12, a\nb", "1234, a", "x 12, a"]) == [1, 0, 0]
    assert name_of(verifier) == "format"
    with pytest.raises(ValueError, match=r"regular expression, got '\('"):
        find("format:pattern=(")
    with pytest.raises(ValueError, match="format needs pattern"):
        find("format")


def test_think_format():
    completions = [
        "<think>\nreasons\n</think>\nanswer",
        "<think>\nreasons\nanswer",
        "so <think>a</think> b",
        "<think>a<think>b</think>c",
        "<think></think>",
    ]
    assert rate(find("think-format"), completions) == [1, 0, 0, 0, 1]


def test_think_answer_format():
    completions = [
        "<think>a\nb</think>\n<answer>5</answer>\n",
        "<think>a</think>5",
        "<think>a</think><answer>5</answer> more",
        "<think>a</think><answer>5</answer><answer>6</answer>",
        "<answer>5</answer>",
    ]
    assert rate(find("think-answer-format"), completions) == [1, 0, 0, 0, 0]


def test_length():
    ids = [[0] * n for n in (0, 5, 10, 15, 20, 30)]
    assert rate(find("length:target=10"), [""] * 6, ids) == [0, 0.5, 1, 0.5, 0, 0]
    assert rate(find("length:limit=15"), [""] * 6, ids) == [1, 1, 1, 1, 0, 0]
    for options in ({}, {"target": 3, "limit": 3}, {"limit": 0}):
        with pytest.raises(ValueError, match="positive target or a positive limit"):
            verifiers.length(**options)


def test_repetition():
    verifier = find("repetition:ngram_size=2,max_penalty=-0.6")
    # a b, b a, a b: two of three are different; the same word ten times: one of nine.
    completions = ["a b A b", "one two three", "x " * 10, "one", ""]
    assert rate(verifier, completions) == pytest.approx([-0.2, 0, -0.6 * 8 / 9, 0, 0])
    assert rate(find("repetition"), ["a b c"]) == [0]
    with pytest.raises(ValueError, match="ngram_size"):
        find("repetition:ngram_size=0")
    with pytest.raises(ValueError, match=r"max_penalty must be finite and at most 0, got 1\.0"):
        find("repetition:max_penalty=1")


def test_soft_overlong():
    ids = [[0] * n for n in (79, 80, 90, 100, 120)]
    assert rate(find("soft-overlong", max_completion_length=100), [""] * 5, ids) == pytest.approx([0, 0, -0.5, -1, -1])
    assert rate(find("soft-overlong:max_completion_length=50,buffer=10"), ["", ""], ids[:2]) == [-1, -1]
    assert rate(find("soft-overlong:buffer=40", max_completion_length=100), [""] * 2, ids[:2]) == pytest.approx(
        [-19 / 40, -0.5]
    )
    with pytest.raises(ValueError, match="needs max_completion_length"):
        find("soft-overlong")
    with pytest.raises(ValueError, match="buffer must lie in"):
        find("soft-overlong:buffer=101", max_completion_length=100)


def test_accuracy_compares_mathematics_in_another_process():
    pytest.importorskip("math_verify")
    verifier = find("accuracy")
    completions = [r"\boxed{\frac{2}{6}}", r"\boxed{\frac{1}{2}}", "no", "1/3"]
    assert rate(verifier, completions, solution=[r"\frac{1}{3}"] * 3 + [None]) == [1, 0, 0, None]
    assert rate(verifier, ["$(1,2)$"], answer=["$1<x<2$"]) == [1]  # in the other order it would be 0
    with pytest.raises(ValueError, match="reads the column 'answer', which the examples lack; their columns: gold"):
        rate(verifier, ["1"], gold=["1"])


def test_accuracy_checks_its_column_before_anything_is_sampled():
    pytest.importorskip("math_verify")
    for column in ("solution", "answer"):
        check_columns([find("accuracy")], [{"prompt": "p", column: "1"}])
    check_columns([find("accuracy:column=gold")], [{"prompt": "p", "gold": "1"}])
    with pytest.raises(ValueError, match="accuracy needs the column 'solution' or 'answer', but the data has no"):
        check_columns([find("accuracy")], [{"prompt": "p"}])
    with pytest.raises(ValueError, match="accuracy needs the column 'gold', but the data has answer"):
        check_columns([find("accuracy:column=gold")], [{"prompt": "p", "answer": "1"}])


def test_accuracy_checks_the_answers_that_it_compares_before_anything_is_sampled():
    pytest.importorskip("math_verify")
    rows = [{"prompt": "p", "solution": "1", "answer": ["1"]}, {"prompt": "p", "answer": "1"}]
    check_columns([find("accuracy")], rows)
    for row in ({"answer": ["2"]}, {"solution": None, "answer": ["2"]}, {"solution": ["2"], "answer": "2"}):
        with pytest.raises(ValueError, match=r"accuracy: .* must contain texts or numbers, got \['2'\]: .* \(row 3, "):
            check_columns([find("accuracy")], [*rows, {"prompt": "p", **row}])


def test_accuracy_takes_the_column_of_each_row():
    pytest.importorskip("math_verify")
    verifier, completions = find("accuracy"), ["1", "2", "3", "4"]
    columns = {"solution": ["1", None, "4", None], "answer": ["0", "2", "3", None]}
    rewards = rate(verifier, completions, **columns)
    assert rewards == [1, 1, 0, None]
    alone = [rate(verifier, [text], **{n: [c[i]] for n, c in columns.items()}) for i, text in enumerate(completions)]
    assert [reward for (reward,) in alone] == rewards


def test_accuracy_is_stopped_by_its_deadline():
    pytest.importorskip("math_verify")
    verifier = find("accuracy:seconds=1")
    rate(verifier, ["2"], answer=["1"])  # imports the package
    with pytest.warns(RuntimeWarning, match="did not answer within 1 seconds"):
        rewards = rate(verifier, ["$2$", "2"], answer=[r"$\sum_{k=1}^{100000000} \sin(k)$", "2"])
    assert rewards == [None, 1]


def test_accuracy_names_its_requirements(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "operant\[language\]"'):
        find("accuracy")


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text(
        "import json, time\n"
        "def vowels(completions, **_):\n"
        "    return [sum(c in 'aeiou' for c in text) for text in completions]\n"
        "async def given(prompts, completions, completion_ids, level, **_):\n"
        "    return [len(p) + len(c) + len(i) + x for p, c, i, x in zip(prompts, completions, completion_ids, level)]\n"
        "def hang(**_):\n"
        "    time.sleep(600)\n"
        "def hang_on_x(completions, **_):\n"
        "    time.sleep(600 if 'x' in completions else 0.5)\n"
        "    return [len(completions)] * len(completions)\n"
        "def few(completions, **_):\n"
        "    return [1.0]\n"
        "def wrong(**_):\n"
        "    return 1 / 0\n"
    )
    return path


def test_functions_of_a_file(own):
    vowels = find(f"{own}:vowels")
    assert name_of(vowels) == "vowels"
    assert rate(vowels, ["banana", "rhythm"]) == [3, 0]
    assert rate(find(f"{own}:given"), ["ab"], [[1, 2, 3]], level=[10]) == [1 + 2 + 3 + 10]


def test_errors_in_a_file_are_found_immediately(own):
    with pytest.raises(SandboxError, match=r"has no 'vowel'; it defines .*vowels"):
        find(f"{own}:vowel")
    with pytest.raises(ValueError, match="no file"):
        find("nowhere.py:vowels")
    with pytest.raises(SandboxError, match="ZeroDivisionError"):
        rate(find(f"{own}:wrong"), ["a"])


def test_a_function_that_hangs_does_not_apply(own):
    verifier = verifiers.user_function(f"{own}:hang", seconds=0.3)
    with pytest.warns(RuntimeWarning, match="did not answer"):
        assert rate(verifier, ["a", "b"]) == [None, None]


def test_several_workers_share_a_batch_and_only_the_part_that_hangs_has_no_reward(own):
    verifier = find(f"{own}:hang_on_x", workers=3, timeout=3.0)
    assert rate(verifier, list("abcdefg")) == [2, 2, 2, 2, 3, 3, 3]
    with pytest.warns(RuntimeWarning, match="did not answer within 3 seconds"):
        assert rate(verifier, list("abcxefg")) == [2, 2, None, None, 3, 3, 3]
    assert rate(verifier, ["a"]) == [1]
    with pytest.raises(ValueError, match=r"few must return 2 rewards, one per completion, got \[1.0\]"):
        rate(find(f"{own}:few", workers=2), list("abcd"))


def test_an_exception_in_a_file_is_one_line_that_names_the_place(own):
    with pytest.raises(
        RewardError, match=r"^the reward function wrong failed: .* raised ZeroDivisionError: .*py, line 14\)$"
    ):
        combine([find(f"{own}:wrong")])(["p"], ["a"], [[1]])


def test_verifiers_combine():
    rewards = combine([find("exact"), find("soft-overlong", max_completion_length=10)], [1, 0.5])
    result = rewards(["p", "p"], ["5", "6"], [[0] * 9, [0] * 2], answer=["5", "5"])
    assert result.names == ("exact", "soft_overlong")
    assert result.total.tolist() == [0.75, 0.0]


def test_each_verifier_has_its_registered_name():
    options = {"format": "format:pattern=x", "length": "length:limit=3"}
    for name in VERIFIERS:
        assert name_of(find(options.get(name, name), max_completion_length=10)) == name.replace("-", "_")


def test_unknown_verifiers_and_missing_columns_are_named():
    with pytest.raises(ValueError, match=r"no verifier 'exat' \(did you mean 'exact'\?\)"):
        find("exat")
    with pytest.raises(
        ValueError, match="exact reads the column 'answer', which the examples lack; their columns: solution"
    ):
        rate(find("exact"), ["1"], solution=["1"])
    with pytest.raises(ValueError, match="tolerance must be finite and not negative, got -1"):
        find("numeric:tolerance=-1")
