from operant.cli.answers import COMPLETION_WIDTH, PROMPT_WIDTH, SHOWN, answer_table, as_text, sampled_table, visible
from operant.language.evaluation import Sampled


def record(prompt="1+1=", completion="2", reward=1.0, **more):
    return {"seed": 0, "prompt": prompt, "completion": completion, "reward": reward, "truncated": False, **more}


def test_nothing_can_steer_the_terminal():
    assert visible("\x1b[2J\r\u202ea\n") == "\\x1b[2J\\r\\u202ea\\n"
    assert visible("a\tb\n\x07", keep="\n\t") == "a\tb\n\\x07"
    assert visible("naïve\u00a0字 \u3000é") == "naïve\u00a0字 \u3000é"


def test_a_conversation_as_text():
    assert as_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]) == (
        "system: Be brief.\nuser: Hi"
    )


def test_answers_as_a_table():
    samples = [
        record("12+3=", "15", 1.0, temperature=0.0),
        record("a\nb", "", 0.0, temperature=0.0, truncated=True),
        record("12+3=", "99", 0.0, temperature=1.0),
        record("12+3=", "14", 0.5) | {"seed": 1},
    ]
    assert answer_table(samples).splitlines() == [
        "prompt  completion         reward",
        "12+3=   15                      1",
        "a\\nb    (empty) (cut off)       0",
    ]


def test_long_answers_are_cut_and_many_left_out():
    long = record("p" * 100 + "=", "c" * 100 + "!")
    lines = answer_table([long] * 20).splitlines()
    prompt, completion, _ = lines[1].split()
    assert len(lines) == SHOWN + 1
    assert (len(prompt), prompt[0], prompt[-2:]) == (PROMPT_WIDTH, "…", "p=")
    assert (len(completion), completion[-1], completion[0]) == (COMPLETION_WIDTH, "…", "c")


def test_nothing_to_show():
    assert answer_table([]) == ""
    assert answer_table([record(temperature=1.0)]) == ""


def test_sampled_answers_as_a_table():
    found = [Sampled(0.25, (0.125, 0.5), {1: 0.25, 2: 0.4375}, 2), Sampled(1.0, (1.0, 1.0), {1: 1.0, 2: 1.0}, 2)]
    assert [line.split() for line in sampled_table((3, 5), found).splitlines()] == [
        ["seed", "avg@2", "95", "%", "interval", "pass@1", "pass@2"],
        ["3", "0.25", "[0.125,", "0.5]", "0.25", "0.4375"],
        ["5", "1", "[1,", "1]", "1", "1"],
    ]
