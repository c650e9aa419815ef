import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from cli.conftest import SPEAKING, TINY
from operant import catalog
from operant.cli.output import seed_table
from operant.cli.training import course_fields, development, health, next_commands, updates_of
from operant.envs.tensor.board_games import BoardGame
from operant.runtime.course import Course, Point
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import RecordWriter
from operant.runtime.run import Run

JSON_KEYS = (
    "algorithm task seeds budget run outcome consumed per_seed_scores mean iqm interval env_steps_per_second "
    "skipped_updates skipped_share wall_seconds"
)

# Many short iterations, so that there is time to send a signal during training.
SLOW = ["train", "ppo", "CartPole-v1", "--seeds", 2, "--num-envs", 1, "--num-steps", 8, "--num-minibatches", 1]
SLOW += ["--num-epochs", 1, "--budget", 3_000, "--evaluate-every", 3_000, "--evaluate-episodes", 2]
SLOW += ["--progress", "silent"]


def eventually(condition, process):
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("waited a minute in vain")


def size(path):
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize(
    ("algorithm", "command"),
    [
        ("process-reward-model", "train grpo TASK --init RUN --supervision process --reward-model runs/r "),
        ("reward-model", "train rlhf TASK --init RUN --reward-model runs/r "),
    ],
)
def test_the_next_command_uses_a_reward_model_as_it_was_trained(algorithm, command):
    process = algorithm == "process-reward-model"
    assert command in next_commands("runs/r", catalog.find(algorithm), process=process)


def test_mistakes_are_counted_on_small_boards_only():
    entry = catalog.find("alphazero")
    small, large = (next_commands("runs/r", entry, game=BoardGame.connect_four(*size)) for size in ((5, 4), (7, 6)))
    assert "evaluate runs/r --exact" in small
    assert "--exact" not in large
    assert "play runs/r" in large
    assert "--exact" not in next_commands("runs/r", entry, game=BoardGame(5, 5, 4, gravity=False))
    assert "play" not in next_commands("runs/r", entry)


def test_the_next_commands_leave_out_what_the_run_cannot_do(cli, tmp_path):
    arms = ["train", "thompson", "operant/TwoArms-v0", "--budget", 100, "--seeds", 1, "--run", tmp_path / "arms"]
    status, out, err = cli(*arms)
    assert status == 0, err
    assert "operant show" in out
    assert "operant watch" not in out

    pairs, run = tmp_path / "pairs.jsonl", tmp_path / "dpo"
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "0"} for n in range(10)]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    status, out, err = cli("train", "dpo", pairs, "--budget", 4, "--batch-size", 4, "--run", run)
    assert status == 0, err
    assert "operant chat" in out
    assert "--samples" not in out
    status, _, err = cli("evaluate", run, "--samples", 8)
    assert status == 2
    assert "this run of dpo has no reward function for answers" in err


def test_the_next_command_of_a_reward_model_whose_supervision_is_changed(cli, tmp_path):
    arguments = ["--supervision", "process", "--budget", 8, "--train-examples", 16, "--held-out", 4, "--batch-size", 8]
    status, out, err = cli("train", "reward-model", "steps", *arguments, "--seeds", 1, "--run", tmp_path / "run")
    assert status == 0, err
    assert "train grpo TASK --init RUN --supervision process --reward-model" in out


def newest(path):
    checkpoint, consumed = Run.open(path).checkpoints.latest()
    return consumed, {file.name: file.read_bytes() for file in checkpoint.iterdir()}


def test_the_report(cli, tmp_path):
    path = tmp_path / "run"
    status, out, err = cli("train", "ppo", "CartPole-v1", *TINY, "--budget", 512, "--run", path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert any(line.split() == ["seed", "score", "worst", "best", "episodes"] for line in lines)
    assert [line.split()[0] for line in lines if line.endswith("  4")] == ["0", "1"]
    assert "95 % interval of the IQM" in out
    assert "environment steps per second" in out
    for command in ("evaluate", "watch", "compare"):
        assert f"  operant {command} {path}" in out


def test_json_is_one_line_with_these_keys(answer, cli, tmp_path):
    path = tmp_path / "run"
    trained = answer("train", "ppo", "CartPole-v1", *TINY, "--seed", 3, "--budget", 512, "--run", path)
    assert list(trained) == JSON_KEYS.split()
    assert (trained["algorithm"], trained["task"], trained["budget"]) == ("ppo", "CartPole-v1", 512)
    assert trained["seeds"] == [3, 4]
    assert (trained["run"], trained["outcome"], trained["consumed"]) == (str(path), "finished", 512)
    assert len(trained["per_seed_scores"]) == 2
    assert trained["mean"] == sum(trained["per_seed_scores"]) / 2
    assert trained["env_steps_per_second"] > 0
    session = Run.open(path).facts()["sessions"][0]
    assert session["command"][:4] == ["operant", "train", "ppo", "CartPole-v1"]
    resumed = answer("resume", path, "--progress", "silent")
    assert resumed["per_seed_scores"] == trained["per_seed_scores"]
    assert resumed["env_steps_per_second"] is None
    assert "The budget was already used: nothing was trained." in cli("resume", path, "--progress", "silent")[1]


def test_flags_reach_the_configuration(cli, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[config]\ngamma = 0.5\ngae_lambda = 0.25\n")
    flags = ["--config", config, "--gae-lambda", 0.75, "--budget", 128, "--run", tmp_path / "run"]
    assert cli("train", "ppo", "CartPole-v1", *TINY, *flags)[0] == 0
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "\ngamma = 0.5\n" in text
    assert "\ngae_lambda = 0.75\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "pppo", "CartPole-v1"], "no algorithm is called 'pppo'; did you mean 'ppo'?"),
        (["train", "ppo", "CartPol-v1"], "did you mean CartPole-v1"),
        (["train", "grpo", "arithmetix"], "there is no task 'arithmetix' (did you mean 'arithmetic'?)"),
        (["train", "sft", "--dataset", "nothing.jsonl"], "nothing.jsonl"),
        (["train", "sft", "arithmetic", "--init", "nothing"], "is not the folder of a run"),
        (["train", "ppo", "CartPole-v1", "--init", "nothing"], "is not the folder of a run"),
        (["train", "ppo", "FrozenLake-v1", "--normalize-obs"], "only observations of a Box can be normalized"),
        (["train", "ppo", "CartPole-v1", "--preset", "best"], "ppo has no preset 'best'"),
        (["train", "ppo", "CartPole-v1", "--seeds", "0"], "--seeds must be at least 1"),
        (["train", "ppo", "CartPole-v1", "--config", "nothing.toml"], "cannot be read"),
        (["resume", "nothing"], "is not the folder of a run"),
    ],
)
def test_wrong_use_is_one_line_and_leaves_nothing_behind(arguments, message, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("operant: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_callback_of_the_command_line_is_called_again_by_resume(cli, tmp_path):
    (tmp_path / "stop.py").write_text(
        "import operant\n\n\nclass Stop(operant.Callback):\n"
        "    def __init__(self, steps=0):\n        self.steps = steps\n"
        "    def on_evaluation(self, record):\n        1 / self.steps\n"
        "    def should_stop(self, consumed):\n        return consumed >= self.steps > 0\n"
    )
    path, named = tmp_path / "run", f"{tmp_path / 'stop.py'}:Stop"
    flags = ["--budget", 512, "--evaluate-every", 256, "--run", path]
    calls = ["--callback", f"{named}(steps=256)", "--callback", named]
    status, out, err = cli("train", "ppo", "CartPole-v1", *TINY, *flags, *calls)
    assert status == 0
    assert Run.open(path).settings.callbacks == (f"{named}(steps=256)", named)
    (raised, stopped) = [line for line in err.splitlines() if line.startswith("operant: ") and "warning" not in line]
    assert raised.startswith("operant: disabled after an error: callback Stop: ZeroDivisionError")
    assert stopped == f"operant: callback Stop ended training at 256 of 512; `operant resume {path}` continues"
    assert "The last evaluation, with greedy actions:" in out
    (tmp_path / "stop.py").write_text("")
    status, _, err = cli("resume", path, "--progress", "silent")
    assert status == 2
    assert "stop.py has changed" in err
    status, _, err = cli("train", "ppo", "CartPole-v1", *TINY, "--callback", tmp_path / "none.py:Stop")
    assert (status, "there is no file" in err) == (2, True)


def test_a_callback_that_stops_before_the_first_update_ends_with_an_evaluation(cli, tmp_path):
    (tmp_path / "now.py").write_text(
        "import operant\n\n\nclass Now(operant.Callback):\n    def should_stop(self, consumed):\n        return True\n"
    )
    path = tmp_path / "run"
    status, out, err = cli("train", "ppo", "CartPole-v1", *TINY, "--run", path, "--callback", tmp_path / "now.py:Now")
    assert status == 0
    assert re.search(r"callback Now ended training at 0 of \S+; the run cannot continue with it\n", err)
    assert "The last evaluation, with greedy actions:" in out
    assert Run.open(path).outcome() == ("finished", "callback Now stopped it")
    assert Run.open(path).checkpoints.latest()[1] == 0


def test_a_run_begins_with_another(cli, run, tmp_path):
    status, _, _ = cli("train", "ppo", "CartPole-v1", *TINY, "--run", tmp_path / "run", "--init", run)
    assert status == 0
    assert Run.open(tmp_path / "run").resolved()["init"] == str(run)
    status, _, err = cli("train", "ppo", "Acrobot-v1", *TINY, "--run", tmp_path / "other", "--init", run)
    assert status == 2
    assert "do not fit" in err
    assert not (tmp_path / "other").exists()


def test_a_run_is_not_written_over(cli, run):
    status, _, err = cli("train", "ppo", "CartPole-v1", *TINY, "--run", run)
    assert status == 2
    assert f"continue it with `operant resume {run}`" in err


def test_numbers_that_are_not_finite_are_a_failure(cli, tmp_path):
    flags = ["--learning-rate", "1e30", "--budget", 10_000, "--run", tmp_path / "run"]
    status, out, err = cli("train", "ppo", "Pendulum-v1", *TINY, *flags)
    assert (status, out) == (1, "")
    assert "NaN or Inf" in err
    assert err.startswith("operant: error: ")


def test_damaged_checkpoints_are_a_failure(cli, tmp_path):
    path = tmp_path / "run"
    assert cli("train", "ppo", "CartPole-v1", *TINY, "--budget", 128, "--run", path)[0] == 0
    for file in path.glob("checkpoints/*/state.json"):
        file.write_text("{}")
    status, _, err = cli("resume", path)
    assert status == 1
    assert "no checkpoint in" in err


def test_a_stopped_run_resumes_as_if_uninterrupted(cli, start, tmp_path):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    process = start(*SLOW, "--run", stopped, "--json")
    eventually(lambda: size(stopped / "metrics.jsonl"), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75
    found = json.loads(out)
    assert (found["run"], found["outcome"], found["consumed"]) == (str(stopped), "interrupted", newest(stopped)[0])
    assert err == f"operant: interrupted and saved; continue with `operant resume {stopped}`\n"
    assert 0 < newest(stopped)[0] < 3_000
    assert cli("resume", stopped, "--progress", "silent")[0] == 0
    assert cli(*SLOW, "--run", whole)[0] == 0
    assert newest(stopped) == newest(whole)
    assert Run.open(stopped).facts()["sessions"][1]["command"][:2] == ["operant", "resume"]


def test_a_second_interrupt_stops_immediately(start, tmp_path):
    path = tmp_path / "run"
    endless = ["--num-steps", 300_000, "--budget", 300_000, "--num-envs", 1, "--num-minibatches", 1, "--seeds", 1]
    process = start("train", "ppo", "CartPole-v1", *endless, "--run", path)
    eventually((path / "metrics.jsonl").exists, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    err = None
    while err is None:  # all signals during one call of torch count as one
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "operant: stopped"
    assert "Traceback" not in err


def test_json_alone_is_on_standard_output(start, tmp_path):
    flags = [*TINY[:-1], "plain", "--budget", 512, "--run", tmp_path / "run", "--json"]
    process = start("train", "ppo", "CartPole-v1", *flags)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["task"] == "CartPole-v1"
    assert "ppo CartPole-v1  100 %" in err


PRINTING = """
import gymnasium

print("imported")


class World(gymnasium.Env):
    metadata = {"render_modes": []}
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        print("reset")
        return 0, {}

    def step(self, action):
        return 1, 0.0, True, False, {}
"""


@pytest.mark.parametrize("where", ["sync", "async"])
def test_what_an_environment_prints_is_on_standard_error(start, tmp_path, where):
    (tmp_path / "world.py").write_text(PRINTING)
    flags = [*TINY, "--budget", 128, "--run", tmp_path / "run", "--vectorization", where, "--json"]
    for command in (["train", "ppo", f"{tmp_path}/world.py:World", *flags], ["evaluate", tmp_path / "run", "--json"]):
        out, err = start(*command).communicate(timeout=60)
        assert json.loads(out)["run"] == str(tmp_path / "run")
        assert "imported" in err
        assert "reset" in err


def test_the_report_of_a_language_model(cli, answer, tmp_path):
    path = tmp_path / "run"
    flags = [*SPEAKING, "--budget", 32, "--evaluate-every", 16, "--run", path]
    status, out, err = cli("train", "sft", "arithmetic", "--seeds", 2, *flags)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["seed", "score", "start", "worst", "best", "examples"] in lines
    answers = lines[lines.index(["prompt", "completion", "reward"]) + 1 :][:8]
    assert all(row[0].endswith("=") for row in answers)
    assert "demonstrations per second in training" in out
    assert f"  operant chat {path} " in out
    assert "operant watch" not in out
    again = answer("resume", path, "--progress", "silent")
    assert (again["unit"], again["units_per_second"], again["seeds"]) == ("demonstrations", None, [0, 1])
    again = " ".join(cli("resume", path, "--progress", "silent")[1].split())
    assert again.count("prompt completion reward") == 1, "the value is read from the run"


def test_a_data_set_without_rewards(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(20)]
    Path("sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = [*SPEAKING, "--budget", 16, "--evaluate-every", 16]
    status, out, err = cli("train", "sft", "--dataset", "sums.jsonl", *flags)
    assert status == 0, err
    assert "completion  reward" not in out
    assert Path("runs", "sft-sums-1", "config.toml").exists()
    status, out, err = cli("train", "sft", "sums.jsonl", *flags)
    assert status == 0, err
    assert "operant chat runs/sft-sums.jsonl-1" in out


class BadEnd(gymnasium.Env):
    """Environment whose reward in the last of 20 steps is NaN."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        self.t += 1
        ended = self.t == 20
        return np.zeros(2, dtype=np.float32), np.nan if ended else 1.0, ended, False, {}


@pytest.fixture
def bad_end():
    gymnasium.register("OperantTestBadEnd-v0", BadEnd, disable_env_checker=True)
    yield "OperantTestBadEnd-v0"
    del gymnasium.registry["OperantTestBadEnd-v0"]


def test_a_last_score_that_is_not_a_number_is_a_failure(cli, tmp_path, bad_end):
    path = tmp_path / "run"
    status, _, err = cli("train", "ppo", bad_end, *TINY, "--budget", 256, "--run", path)
    assert status == 1
    assert "the last score of seed 0, 1 is NaN" in err
    assert Run.open(path).outcome()[0] == "failed"
    status, _, err = cli("evaluate", path, "--episodes", 4, "--require", 0)
    assert status == 1
    assert "below the required 0: seed 0 scored nan, seed 1 scored nan" in err


def test_skipped_updates_are_counted_over_the_whole_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    copied = Run.open(tmp_path / "run")
    before = updates_of(copied)
    assert all(seed.due > 0 and seed.share == 0 for seed in before)
    with contextlib.closing(RecordWriter(copied.metrics_path)) as writer:
        for counts in ([1.0, 0.0], [2.0, 3.0]):
            writer.write({"consumed": 9999, "health/skipped_updates": counts, "health/updates": [4.0, 4.0]})
    after = updates_of(copied)
    assert [new.skipped - old.skipped for new, old in zip(after, before, strict=True)] == [3.0, 3.0]
    assert [new.due - old.due for new, old in zip(after, before, strict=True)] == [8.0, 8.0]
    with contextlib.closing(RecordWriter(copied.metrics_path)) as writer:
        writer.write({"consumed": 9999, "health/skipped_updates": [1.0, 0.0]})  # written by an older version
    assert [seed.cell() for seed in updates_of(copied)] == ["4", "3"]


# Output at the start of a run


def course(*shares, metrics=()):
    found = Course()
    for consumed, share in shares:
        scores = [[1.0] * share + [0.0] * (200 - share)]
        own = [dict(zip(("eval/rewards/reward_model/mean", "objective/kl_start", "kl_start"), metrics, strict=False))]
        found.points.append(Point(consumed, Evaluation.of(scores, metrics=own)))
    return found


def test_start_end_and_best_in_words():
    told = development(course((0, 135), (3200, 142), (6400, 92)), "prompts", "runs/one").strip().splitlines()
    assert told == [
        "From 0.675 at the start to 0.46 (-0.21, 99 % interval -0.29 to -0.14: worse); "
        "the best was 0.71 at 3,200 prompts.",
        "It ends below its start: use the best weights, such as `operant evaluate runs/one --best`.",
    ]
    assert "(+0, 99 % interval +0 to +0: within noise)" in development(course((0, 9), (10, 9)), "steps", "x")
    told = development(course((0, 9), (10, 99), metrics=(1.9, 3.0, 0.5)), "prompts", "x")
    assert ": better); the best was 0.495 at 10 prompts." in told
    assert "The training reward reward_model of the same answers is 1.9;" in told
    assert "first evaluation's answers was 1.9." in told
    assert told.endswith("KL(policy‖start) is 3 nats per answer, 0.5 per token.")
    assert development(Course(), "steps", "x") == ""
    assert course_fields(Course()) == {}
    assert course_fields(course((0, 9), (10, 99)))["best"] == {"consumed": 10, "mean": 0.495}


def test_the_table_has_start_and_learned_reward():
    found = course((0, 100), (10, 50), metrics=(1.9,))
    shown = seed_table([0], found.points[1].evaluation, start=found.points[0].evaluation, counted="examples")
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["seed", "score", "start", "by", "reward_model", "worst", "best", "examples"]
    assert lines[1][:4] == ["0", "0.25", "0.5", "1.9"]


def test_health_is_reported_if_there_is_a_problem(run):
    trained = SimpleNamespace(run=SimpleNamespace(metrics_path=run / "metrics.jsonl"))
    assert health(trained) == ""


def test_health_counts_over_records_and_seeds(tmp_path):
    records = [
        {"health/empty_batches": [1.0, float("nan")]},
        {"health/empty_batches": 2.0, "health/skipped_updates": 3},
    ]
    writer = RecordWriter(tmp_path / "metrics.jsonl")
    for record in records:
        writer.write(record)
    writer.close()
    trained = SimpleNamespace(run=SimpleNamespace(metrics_path=tmp_path / "metrics.jsonl"))
    assert health(trained) == "Health, all seeds together: 3 empty batches."


def test_ray_without_workers_is_rejected_before_it_starts(cli, tmp_path):
    small = ["--num-envs", 4, "--num-steps", 16, "--num-minibatches", 1, "--budget", 64, "--progress", "silent"]
    train = ["train", "ppo", "CartPole-v1", *small, "--evaluate-episodes", 1, "--run", tmp_path / "run"]
    status, _, error = cli(*train, "--ray")
    assert status == 2
    assert "all environments are in this process: add --vectorization async, or leave out --ray" in error
    assert cli(*train)[0] == 0
    status, _, error = cli("resume", tmp_path / "run", "--ray-address", "127.0.0.1:1")
    assert status == 2
    assert "all environments are in this process: leave out --ray and --ray-address" in error
    status, _, error = cli("train", "impala", "CartPole-v1", "--ray", "--run", tmp_path / "other")
    assert status == 2
    assert "add --workers 4, or leave out --ray" in error
    status, _, error = cli("train", "grpo", "reverse", "--ray", "--run", tmp_path / "other")
    assert status == 2
    assert "this run of grpo has none: leave out --ray and --ray-address" in error
    assert not (tmp_path / "other").exists()
