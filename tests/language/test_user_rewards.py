"""Reward functions of users, from files."""

import datetime

import pytest

from operant.language.rewards import check_columns, combine, required
from operant.language.sandbox import SandboxError
from operant.language.user_rewards import user_function

TRL = """
def reward(completions, answer, trainer_state, log_metric, log_extra, **kwargs):
    log_metric("right", sum(c[0]["content"] == a for c, a in zip(completions, answer)))
    log_extra("said", [c[0]["content"] for c in completions])
    return [float(trainer_state.global_step)] * len(completions)

def plain(prompts, completions, *, answer, level=None):
    return [1.0 if c == a else None for c, a in zip(completions, answer)]
"""


def rate(function, completions, **columns):
    prompts, ids = ["p"] * len(completions), [[0]] * len(completions)
    return function(prompts=prompts, completions=completions, completion_ids=ids, **columns)


def test_a_function_of_trl_in_a_file(tmp_path):
    (tmp_path / "trl.py").write_text(TRL)
    rewards = combine([user_function(f"{tmp_path / 'trl.py'}:reward")])
    said = [[{"role": "assistant", "content": text}] for text in "ab"]
    state = {"global_step": 4, "max_steps": 9}
    found = rewards([[], []], said, [[1], [2]], trainer_state=state, answer=["a", "x"])
    assert found.total.tolist() == [4.0, 4.0]
    assert (found.metrics, found.extra) == ({"right": 1.0}, {"said": ["a", "b"]})
    plain = user_function(f"{tmp_path / 'trl.py'}:plain")
    assert rate(plain, ["a", "b"], answer=["a", "x"]) == [1.0, None]
    assert required(plain) == ("answer",)
    with pytest.raises(ValueError, match="plain needs the column 'answer'"):
        check_columns([plain], [{"prompt": "p"}])


def test_a_generator_is_no_list_of_rewards(tmp_path):
    (tmp_path / "rew.py").write_text("def gen(completions, **columns):\n    return (1.0 for _ in completions)\n")
    function = user_function(f"{tmp_path / 'rew.py'}:gen")
    expected = r"rew.py:gen must return a list of 2 rewards, got a generator \(.*rew.py, line 1"
    with pytest.raises(SandboxError, match=expected):
        rate(function, ["a", "b"])


TIMES = """
def only(completions, level=None):
    return [float(len(text)) for text in completions]

def every(completions, **columns):
    return [1.0] * len(completions)

def lengths(completions, log_metric):
    log_metric("length", sum(map(len, completions)) / len(completions))
    return [0.0] * len(completions)
"""


def test_a_file_may_be_named_from_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.py").write_text("def reward(completions, answer):\n    return [1.0 for _ in completions]\n")
    reward = user_function("~/mine.py:reward")
    assert vars(reward)["required_columns"] == ["answer"]
    assert reward(completions=["a"], answer=["b"]) == [1.0]


def test_columns_that_a_function_does_not_name_may_have_any_values(tmp_path):
    (tmp_path / "times.py").write_text(TIMES)
    when = [datetime.date(2026, 1, 2)]
    only, every = (user_function(f"{tmp_path / 'times.py'}:{name}") for name in ("only", "every"))
    assert rate(only, ["ab"], when=when) == [2.0]
    with pytest.raises(
        ValueError, match=r"column 'when' has the value datetime.date\(2026, 1, 2\).*or name the columns"
    ):
        rate(every, ["ab"], when=when)
    with pytest.raises(ValueError, match=r"only: the column 'level' has the value .*convert the column \(row 2"):
        check_columns([only], [{"prompt": "p", "level": 1}, {"prompt": "p", "level": when[0]}])


DOUBLE = "def reward(completions, answer):\n    return [2.0 for _ in answer]\n"
WRAP = "def wrap(function):\n    return lambda completions, answer: [2.0 for _ in answer]\n"


@pytest.mark.parametrize(
    ("after", "needed"),
    [
        (DOUBLE, ("answer",)),
        (f"reward = 1\n{DOUBLE}", ("answer",)),
        (f"{WRAP}reward = wrap(reward)\n", ()),
        (f"{WRAP}if True:\n    reward = wrap(reward)\n", ()),
        (f"{WRAP}@wrap\n{DOUBLE}", ()),
        (
            f"import sys, types\nsys.modules['other'] = types.ModuleType('other')\n{DOUBLE}"
            "sys.modules['other'].reward = reward\nfrom other import *\n",
            (),
        ),
    ],
)
def test_the_last_function_of_a_name_counts(after, needed, tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(f"def reward(completions, level):\n    return [1.0 for _ in completions]\n\n{after}")
    function = user_function(f"{path}:reward")
    assert rate(function, ["a", "b"], answer=["a", "x"]) == [2.0, 2.0]
    assert required(function) == needed


def test_metrics_of_several_workers_are_weighted_by_their_answers(tmp_path):
    (tmp_path / "times.py").write_text(TIMES)
    rewards = combine([user_function(f"{tmp_path / 'times.py'}:lengths", workers=2)])
    answers = ["a", "abcd", "abcdefg"]
    found = rewards(["", "", ""], answers, [[1], [1], [1]])
    assert found.metrics["length"] == pytest.approx(4.0)
