import json
import shutil
import signal

import imageio.v3 as iio
import pytest

pytest.importorskip("optuna", reason="the extra tune")

from operant.cli import output

FLAGS = ["q-learning", "CliffWalking-v1", "--budget", "8000", "--seeds", "2", "--fresh-seeds", "3"]


def test_a_search_its_continuation_and_the_winner(cli, answer, tmp_path):
    path = tmp_path / "study"
    status, out, err = cli("tune", *FLAGS, "--trials", 2, "--gamma", 1.0, "--run", path)
    assert status == 0, err
    assert "trial 2 of 2: complete" in err
    assert "On the 2 seeds of the search, 1000 to 1001:" in out
    assert "On 3 new seeds:" in out
    assert "gamma" not in out  # values on the command line are not tuned
    assert iio.imread(path / "study.png").shape[1] == 1425
    found = answer("tune", path, "--trials", 3)
    assert sum(found["trials"].values()) == 3
    assert found["search"]["seeds"] == [1000, 1001]
    assert found["fresh"]["seeds"] == [0, 1, 2]
    assert found["search"]["score"] >= found["search"]["score_before"]
    assert set(found["values"]) == set(found["values_before"]) >= {"step_size", "exploration_initial_eps"}
    words = found["command"].split()
    assert words[:3] == ["operant", "train", "q-learning"]
    run = tmp_path / "winner"
    assert cli(*words[1:], "--run", run, "--progress", "silent")[0] == 0
    scores = answer("compare", run)["runs"][0]["per_seed_scores"]
    assert scores == found["fresh"]["tuned"]["per_seed_scores"]


def test_a_custom_space_without_fresh_seeds(cli, tmp_path):
    space = tmp_path / "space.toml"
    space.write_text("[step_size]\nlow = 0.01\nhigh = 1.0\nlog = true\n")
    flags = [*FLAGS[:-1], 0, "--trials", 2, "--space", space, "--run", tmp_path / "study"]
    status, out, err = cli("tune", *flags)
    assert status == 0, err
    assert err.startswith("operant: tuning step_size in ")
    assert "The best of many scores is biased upward" in out


def test_values_of_flags_with_old_names_are_not_tuned(cli, tmp_path):
    flags = ["--epsilon", 0.2, "--trials", 1, "--budget", 800, "--run", tmp_path / "study"]
    status, _, err = cli("tune", *FLAGS[:-1], 0, *flags)
    assert status == 0, err
    assert "step_size=" in err
    assert "exploration_initial_eps" not in err


def test_the_discount_of_shaped_rewards_is_not_tuned(cli, tmp_path):
    file = tmp_path / "shaping.py"
    file.write_text(
        "from operant.explore import Shaping\n\n\n"
        "class Position(Shaping):\n    def potential(self, obs):\n        return obs[:, 0]\n"
    )
    flags = ["--wrapper", f"{file}:Position", "--trials", 1, "--budget", 128, "--seeds", 1, "--fresh-seeds", 0]
    task = ["MountainCar-v0", "--num-envs", 4, "--num-steps", 32, "--num-minibatches", 4]
    status, out, err = cli("tune", "ppo", *task, *flags, "--run", tmp_path / "study")
    assert status == 0, err
    assert "operant: gamma is not tuned, since a wrapper shapes the rewards with its own" in err
    assert "gamma " not in out
    (space := tmp_path / "space.toml").write_text("[gamma]\nlow = 0.9\nhigh = 0.999\n")
    status, _, err = cli("tune", "ppo", *task, *flags, "--space", space, "--run", tmp_path / "other")
    assert status == 2
    assert f"leave space.gamma out, since the wrapper {file}:Position has its own gamma" in err
    assert not (tmp_path / "other").exists()


def test_an_interrupted_search_answers_in_json(start, tmp_path):
    path = tmp_path / "study"
    flags = ["--fresh-seeds", 0, "--budget", 900_000_000, "--run", path, "--json"]
    process = start("tune", "q-learning", "CliffWalking-v1", *flags)
    assert process.stderr.readline().startswith("operant: tuning")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert (process.returncode, found["study"], found["outcome"]) == (75, str(path), "interrupted")
    assert found["trials"]["complete"] == 0


GRID = """
algorithm = "q-learning"
task = "FrozenLake-v1"
seeds = [1000, 1001]
budget = 400

[grid]
step_size = [0.1, 0.2, 5e-4]

[config]
gamma = 0.9
step_size_schedule = "constant"

[settings]
evaluate_episodes = 2
"""


def test_the_cells_of_a_sweep_are_trials(cli, answer, tmp_path):
    grid, sweep, study = tmp_path / "grid.toml", tmp_path / "sweep", tmp_path / "study"
    grid.write_text(GRID)
    assert cli("sweep", grid, "--out", sweep, "--executor", "inline")[0] == 0
    shutil.rmtree(sweep / "runs" / "q-learning-FrozenLake-v1-step_size-0.2")  # not begun
    flags = ["q-learning", "FrozenLake-v1", "--budget", 400, "--seeds", 2, "--evaluate-episodes", 2]
    flags += ["--gamma", 0.9, "--step-size-schedule", "constant", "--fresh-seeds", 0, "--trials", 1, "--run", study]
    status, _, err = cli("tune", *flags, "--seed", 2000, "--from", sweep)
    assert (status, study.exists()) == (2, False)
    assert err.count("does not fit: it has 2 seeds, 1000 to 1001, and a trial 2 seeds, 2000 to 2001\n") == 2
    assert "operant: error: none of 3 earlier runs fits the study, the first one because it has 2 seeds" in err
    status, out, err = cli("tune", *flags, "--from", sweep)
    assert status == 0, err
    assert "step_size-0.2 does not fit: " in err
    assert "is not the folder of a run" in err
    assert "step_size-0.0005 does not fit: its step_size is 0.0005, outside the search space\n" in err
    assert "operant: 1 of the trials from earlier runs, before the 1 of the study\n" in err
    assert "trial 2 of 2: complete" in err
    assert "2 trials: 2 complete; 1 of them earlier run." in out
    found = answer("tune", study, "--trials", 2)
    assert sum(found["trials"].values()) == 3
    assert found["from"] == [str((sweep / "runs" / "q-learning-FrozenLake-v1-step_size-0.1").resolve())]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name an algorithm and a task first: operant tune ppo CartPole-v1"),
        (["runs/none"], "there is no study in runs/none: name the folder of one"),
        (["q-learning", "CliffWalking-v1", "--seed", "3"], "seeds [3, 4, 5, 6] are both trial seeds and new seeds"),
        (["q-learning", "CliffWalking-v1", "--trials", "0"], "trials must be in [1, inf), got 0"),
        (["q-learning", "CliffWalking-v1", "--trial", "3"], "unknown flag --trial; did you mean --trials?"),
        (
            ["ppo", "CartPole-v1", "--bonus", "rnd"],
            "--bonus is not for operant tune, whose trials have no --bonus, --fsdp",
        ),
        (["ppo", "CartPole-v1", "--ray_address=auto"], "--ray_address is not for operant tune"),
        (["ppo", "CartPole-v1", "--fsdp"], "--fsdp is not for operant tune"),
    ],
)
def test_wrong_use(flags, message, cli, tmp_path):
    status, out, err = cli("tune", *flags, *(["--run", tmp_path / "study"] if flags else []))
    assert (status, out) == (2, "")
    assert message in err


def test_a_space_that_cannot_be_read(cli, tmp_path):
    space = tmp_path / "space.toml"
    space.write_text("[step_size")
    status, _, err = cli("tune", *FLAGS, "--space", space, "--run", tmp_path / "study")
    assert status == 2
    assert f"{space} cannot be read" in err


def test_help_names_the_options_of_the_algorithm(cli):
    status, out, _ = cli("tune", "ppo", "CartPole-v1", "--help")
    assert status == 0
    assert "--fresh-seeds" in out
    assert "--clip-range" in out


def test_without_the_extra(cli, monkeypatch):
    monkeypatch.setattr(output, "missing", list)
    status, _, err = cli("tune", *FLAGS)
    assert status == 2
    assert err == 'operant: error: operant tune needs optuna: pip install "operant[tune]"\n'
