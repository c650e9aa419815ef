import io
import os
import pty
import subprocess
import sys
import time

import pytest

import operant
from operant.cli import output
from operant.runtime.generations import latest_samples
from operant.runtime.run import Run


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """Return the folder of a run of a reward model."""
    path = tmp_path_factory.mktemp("runs") / "judge"
    sizes = {"train_examples": 32, "held_out": 4, "batch_size": 8, "budget": 16, "evaluate_every": 16}
    operant.train("reward-model", "preference", seeds=1, run=path, progress="silent", **sizes)
    return path


@pytest.fixture
def typed(monkeypatch, cli):
    """Return a function that runs `operant chat` on lines from a pipe."""

    def call(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return cli("chat", *arguments)

    return call


def test_the_answers_are_those_of_the_evaluation(typed, spoken):
    greedy = [s for s in latest_samples(Run.open(spoken)) if not s["temperature"]]
    lines = "\n\n".join(sample["prompt"] for sample in greedy) + "\n"
    status, out, err = typed(lines, spoken, "--temperature", 0, "--max-tokens", 6)
    assert (status, err) == (0, "")
    assert out == "".join(f"{sample['completion']}\n" for sample in greedy)


def test_chance_belongs_to_the_seed(typed, spoken):
    lines = "1+1=\n" * 8
    answers = [typed(lines, spoken, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_an_exported_model_is_the_same(typed, cli, spoken, tmp_path):
    status, out, err = cli("export", spoken, tmp_path / "model")
    assert (status, out) == (0, f"{tmp_path / 'model'}\n")
    assert "model.safetensors" in err
    flags = ["--temperature", 0, "--max-tokens", 20]
    assert typed("12+34=\n", tmp_path / "model", *flags)[1] == typed("12+34=\n", spoken, *flags)[1]


def test_an_unreadable_line_is_reported_and_the_next_one_answered(typed, spoken):
    status, out, err = typed("café\n1+1=\n", spoken, "--max-tokens", 3)
    assert status == 1
    assert "no token for 'é'" in err
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nothing"], "./nothing contains neither a run nor a model"),
        ([""], "name a run or a model, got ''"),
        (["tiny", "--seed-index", "x"], "--seed-index"),
        (["tiny", "--temperature", "-1"], "temperature must be at least 0"),
        (["tiny", "--max-tokens", "0"], "max_tokens must be at least 1"),
        (["tiny", "--top-p", "0"], "top_p in (0, 1]"),
        (["tiny", "tiny", "tiny"], "give one or two runs or models, got 3"),
        (["tiny", "--seed-index", "0", "1"], "--seed-index takes one index for each model, got 2"),
    ],
)
def test_wrong_use(typed, arguments, message):
    status, out, err = typed("1+1=\n", *arguments)
    assert (status, out) == (2, "")
    assert message in " ".join(err.replace("│", " ").split())


def test_a_message_names_no_flag_that_chat_lacks(typed, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, _, err = typed("", "nope")
    assert status == 2
    assert "nope cannot be loaded" in err
    assert "--model" not in err


def test_a_policy_in_an_environment_does_not_speak(typed, run):
    status, _, err = typed("", run)
    assert status == 2
    assert "a run of ppo, which trains no generative model" in err


def test_without_the_extra(typed, spoken, monkeypatch):
    monkeypatch.setattr(output, "missing", list)
    status, _, err = typed("", spoken)
    assert status == 2
    assert 'pip install "operant[language]"' in err


def test_prompts_of_the_command_line_are_those_of_lines(typed, spoken):
    piped = typed("1+1=\n12+3=\n", spoken, "--seed", 5)[1]
    assert typed("", spoken, "--seed", 5, "--prompt", "1+1=", "--prompt", "12+3=") == (0, piped, "")


def test_two_models_answer_next_to_each_other_and_are_scored(typed, spoken, judge):
    flags = ["--max-tokens", 6, "--prompt", "1+1=", "--prompt", "2+3="]
    own = [typed("", model, *flags)[1].splitlines() for model in (spoken, "tiny")]
    status, out, err = typed("", spoken, "tiny", *flags, "--reward-model", judge)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[::4] == [f"[{spoken}] {text}" for text in own[0]]
    assert lines[2::4] == [f"[tiny] {text}" for text in own[1]]
    scores = [float(line.rpartition("reward: ")[2]) for line in lines[1::2]]
    assert len({*scores}) == 4, "every answer has its own score"
    assert typed("", spoken, *flags, "--reward-model", judge)[1].splitlines()[1::2] == [
        line.partition("] ")[2] for line in lines[1::4]
    ]


def test_a_policy_is_no_reward_model(typed, spoken):
    status, _, err = typed("", spoken, "--reward-model", spoken, "--prompt", "1+1=")
    assert status == 2
    assert "which trains no reward model" in err


TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches this process
from operant.cli import main
sys.exit(main(sys.argv[1:]))
"""


def read_until(master, text, seconds=90):
    """Read the output of a terminal up to a text, and return it."""
    shown, end = b"", time.monotonic() + seconds
    while text not in shown:
        assert time.monotonic() < end, shown
        shown += os.read(master, 4096)
    return shown


def test_a_conversation_in_a_terminal():
    master, slave = pty.openpty()
    flags = ["tiny", "--temperature", "0", "--max-tokens", "2000"]
    command = [sys.executable, "-c", TERMINAL, "chat", *flags]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        assert b"Ctrl-C stops an answer" in read_until(master, b"> ")
        os.write(master, b"1+1=\n")
        read_until(master, b"1+1=\r\n")
        os.read(master, 1)  # the answer has started, and is long
        os.write(master, b"\x03")
        read_until(master, b"> ", 20)
        os.write(master, b"\x04")
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_the_best_weights_of_a_run_answer(typed, spoken):
    status, out, _ = typed("1+1=\n", spoken, "--best", "--max-tokens", 3)
    assert status == 0
    assert typed("1+1=\n", spoken / "best", "--max-tokens", 3)[:2] == (0, out)
    status, _, err = typed("1+1=\n", "tiny", "--best")
    assert status == 2
    assert "--best needs a run, got tiny" in err
