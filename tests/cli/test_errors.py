import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from operant.cli.errors import explain, ran_out_of_memory, report_bug
from operant.runtime.run import RUN_NOTE, TRAINING_NOTE, Run, RunError
from operant.runtime.settings import Settings

SHORT = ["--budget", 64, "--num-envs", 2, "--progress", "silent"]


def raised(function, *arguments):
    """Return the exception that a call raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        function(*arguments)
    return caught.value


@pytest.mark.parametrize(
    ("error", "said", "status"),
    [
        (ValueError("a"), "a", 2),
        (RunError("a"), "a", 2),
        (OSError("a"), "a", 1),
        (SyntaxError("invalid syntax", ("file.py", 3, 1, "def f(:")), "file.py, line 3: invalid syntax", 2),
        (
            MemoryError(),
            "out of memory (MemoryError); lower --num-envs, --num-steps, --num-minibatches, --hidden-sizes or --seeds",
            1,
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), "out of memory", 1),
    ],
)
def test_an_error_is_one_line_with_a_status(error, said, status):
    message, found = explain(error, ["train", "ppo", "CartPole-v1"])
    assert said in message
    assert found == status


def test_an_error_of_operant_itself_is_not_explained():
    assert explain(KeyError("a")) is None
    assert not ran_out_of_memory(RuntimeError("a"))


def test_an_error_in_code_of_the_user_names_the_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def fail():\n    raise KeyError('nope')\n")
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)  # noqa: S102 - the test's own text
    assert explain(raised(names["fail"])) == (f"{path}, line 2: KeyError: 'nope'; --debug shows the traceback", 1)


def test_missing_arguments_of_an_environment_are_passed_at_its_registration():
    class Sized:
        def __init__(self, size):
            self.size = size

    gymnasium.register("OperantTestNeedy-v0", Sized)
    error = raised(gymnasium.make, "OperantTestNeedy-v0")
    del gymnasium.registry["OperantTestNeedy-v0"]
    in_gymnasium = error.__traceback__.tb_next  # without the frame of this file
    message, status = explain(error.with_traceback(in_gymnasium))
    assert (status, "kwargs={...}" in message) == (2, True)
    assert explain(TypeError("E.__init__() missing 1 required positional argument: 'size'")) is None


ALGORITHM = """
import torch
from operant.control import A2C
from operant.envs import Wrapper


class Fails(A2C):
    def iterate(self):
        {iterate}
        return super().iterate()


class Wrong(Wrapper):
    def observation(self, obs):
        raise ValueError("boom")


class Needy(A2C):
    def __init__(self, config, env, size, *, seeds, budget):
        super().__init__(config, env, seeds=seeds, budget=budget)
"""


@pytest.mark.parametrize(
    ("iterate", "said"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("Wrong()", "TypeError: Wrapper.__init__() missing 1 required positional argument: 'env'"),
        ("torch.zeros(2).view(3)", "RuntimeError: shape '[3]' is invalid for input of size 2"),
    ],
)
def test_an_error_of_an_own_algorithm_in_training_names_its_line(iterate, said, cli, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(ALGORITHM.format(iterate=iterate))
    status, _, err = cli("train", f"{path}:Fails", "CartPole-v1", *SHORT, "--run", tmp_path / "run")
    assert (status, err.splitlines()[-1]) == (
        1,
        f"operant: error: {path}, line 9: {said}; --debug shows the traceback",
    )


def test_errors_before_a_run_is_created_are_wrong_use_with_a_place(cli, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(ALGORITHM.format(iterate="pass"))
    status, _, err = cli("train", "a2c", "CartPole-v1", *SHORT, "--wrapper", f"{path}:Wrong", "--run", tmp_path / "run")
    assert (status, f"{path}, line 15: ValueError: boom" in err) == (2, True)
    status, _, err = cli("train", f"{path}:Needy", "CartPole-v1", *SHORT, "--run", tmp_path / "run")
    assert (status, "own.py:Needy cannot be called with (config, env, seeds=..., budget=...): missing" in err) == (
        2,
        True,
    )
    assert not (tmp_path / "run").exists()


def test_the_traceback_is_kept_in_the_folder_of_the_run_or_a_temporary_file(tmp_path):
    error = KeyError("nope")
    told = report_bug(error)
    path = Path(re.search(r"in (\S+operant-\S+\.txt)$", told)[1])
    assert told.startswith("KeyError: 'nope'; run again with --debug for the traceback")
    assert "KeyError" in path.read_text()
    path.unlink()
    error.add_note(f"{RUN_NOTE}{tmp_path}")
    assert report_bug(error).endswith(f"in {tmp_path / 'traceback.txt'}")
    assert "KeyError: 'nope'" in (tmp_path / "traceback.txt").read_text()


def test_an_error_while_a_run_is_trained_knows_its_folder(tmp_path):
    run = Run.create(tmp_path / "run", Settings("ppo", "CartPole-v1"), Settings("ppo", "CartPole-v1"))

    def fail():
        with run.lock(), run.lock():
            raise KeyError("nope")

    assert raised(fail).__notes__ == [f"{RUN_NOTE}{run.path}"]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("run.json", ["evaluate", "{run}"]),
        ("config.toml", ["evaluate", "{run}"]),
        ("deep.toml", ["train", "ppo", "CartPole-v1", "--config", "{run}/deep.toml"]),
        ("deep.json", ["solve", "--mdp", "{run}/deep.json"]),
        ("deep.jsonl", ["train", "sft", "--dataset", "{run}/deep.jsonl", "--run", "{run}/new"]),
    ],
)
def test_a_file_that_is_nested_too_deeply(name, arguments, run, tmp_path, cli):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / name).write_text(("a = " if name.endswith("toml") else "") + DEEP)
    status, out, err = cli(*(word.format(run=copy) for word in arguments))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert name in err


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("raise RuntimeError('boom')\n", "RuntimeError: boom", 2),
        ("def f(:\n", "SyntaxError: invalid syntax", 2),
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name'", 2),
        ("x = 1\n", "has no 'f'; it defines no function", 2),
        ("def f(prompts, completions, **_):\n    return nonsense\n", "name 'nonsense' is not defined", 1),
    ],
)
def test_a_reward_file_at_fault(text, said, expected, tmp_path, cli):
    (tmp_path / "reward.py").write_text(text)
    flags = [
        "--rewards",
        f"{tmp_path / 'reward.py'}:f",
        "--prompts-per-batch",
        4,
        "--num-generations",
        2,
        "--budget",
        4,
        "--held-out",
        4,
    ]
    status, out, err = cli("train", "grpo", "arithmetic", *flags, "--progress", "silent", "--run", tmp_path / "run")
    assert (status, out) == (expected, "")
    assert said in err.splitlines()[-1]
    assert "reward.py" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_an_error_after_training_has_begun_is_no_wrong_use(tmp_path):
    for kind in (ValueError, FileNotFoundError, RunError):
        error = kind("lost")
        assert explain(error) == ("lost", 2)
        error.add_note(TRAINING_NOTE)
        assert explain(error) == ("lost", 1)


def test_training_does_not_make_a_removed_folder_again(cli, tmp_path):
    path, folder = tmp_path / "own.py", tmp_path / "run"
    path.write_text(ALGORITHM.format(iterate=f"__import__('shutil').rmtree({str(folder)!r}, ignore_errors=True)"))
    status, _, err = cli("train", f"{path}:Fails", "CartPole-v1", *SHORT, "--run", folder)
    assert status == 1, err
    assert not folder.exists()


def test_output_that_the_encoding_lacks_is_escaped():
    text = "from operant.cli import main, listing; listing.list_algorithms = lambda _: print('V\u2192') or 0; "
    words = [sys.executable, "-c", f"import sys; {text} sys.exit(main(['list']))"]
    found = subprocess.run(words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (0, b"V\\u2192\n"), found.stderr
    assert explain(UnicodeEncodeError("ascii", "\u2192", 0, 1, "ordinal not in range"))[1] == 1
