import pytest

from operant.cli import main
from operant.envs.worlds.drawings import JUMPS_5X5

FLAGS = ["--seeds", "3", "--progress", "silent"]


@pytest.fixture(scope="module")
def circling(tmp_path_factory):
    """Return a run whose greedy policies never end: after 600 steps of SARSA they still run against walls."""
    path = tmp_path_factory.mktemp("runs") / "circling"
    assert main(["train", "sarsa", "CliffWalking-v1", *FLAGS, "--budget", "600", "--run", str(path)]) == 0
    return path


def test_a_policy_that_never_ends_is_reported(cli, answer, circling):
    status, out, _ = cli("evaluate", circling)
    assert status == 0
    assert "Scores are exact: the expected return within 10,000 steps (the task has no limit)" in out
    assert "Truncated by the step limit: 100 % of the episodes (seed 0 100 %, seed 1 100 %, seed 2 100 %)." in out
    assert "The policy never terminates: seed 0 loops in states " in out
    scored = answer("evaluate", circling)
    assert (scored["exact"], scored["cut"], scored["env_backend"]) == (True, [1.0] * 3, "auto")


def test_a_task_without_an_end_is_reported_as_such(cli, tmp_path):
    drawing = tmp_path / "jumps.txt"
    drawing.write_text(JUMPS_5X5)
    flags = [*FLAGS, "--budget", "100", "--run", tmp_path / "jumps"]
    status, out, _ = cli("train", "q-learning", drawing, *flags)
    assert status == 0
    assert "No episode of this task terminates" in out
    assert "a smaller step size" not in out
    status, _, errors = cli("train", "monte-carlo", drawing, *flags[:-1], tmp_path / "none")
    assert status == 2
    assert "no episode can end: " in errors


def test_the_limit_of_the_settings_is_reported(cli, tmp_path):
    flags = [*FLAGS, "--budget", "100", "--evaluate-max-steps", "50", "--run", tmp_path / "short"]
    _, out, _ = cli("train", "sarsa", "CliffWalking-v1", *flags)
    assert "the expected return within 50 steps (evaluate_max_steps), computed from the model" in out
    assert "an episode truncated after 50 steps (evaluate_max_steps)" in out


def test_episodes_of_gymnasium_that_are_cut_are_counted(cli, tmp_path):
    path = tmp_path / "lake"
    flags = [*FLAGS, "--budget", "1000", "--evaluate-episodes", "10", "--env-backend", "gymnasium"]
    assert cli("train", "q-learning", "FrozenLake-v1", *flags, "--run", path)[0] == 0
    _, out, _ = cli("evaluate", path, "--env-backend", "gymnasium", "--episodes", "20")
    assert "Scores are exact" not in out


def test_a_bandit_is_scored_exactly(cli, tmp_path):
    status, out, _ = cli("train", "ucb1", "operant/TwoArms-v0", *FLAGS, "--budget", "100", "--run", tmp_path / "arms")
    assert status == 0
    assert "Scores are exact: the expected reward of the greedy arm." in out


def test_the_returns_of_training_are_compared(cli, answer, circling, tmp_path):
    path = tmp_path / "other"
    cli("train", "q-learning", "CliffWalking-v1", *FLAGS, "--budget", "6000", "--run", path)
    status, out, _ = cli("compare", path, "--metric", "rollout/episode_return")
    assert status == 0
    assert "rollout/episode_return of the last 300 environment steps" in out
    report = answer("compare", path, "--metric", "rollout/episode_return")
    assert report["metric"] == "rollout/episode_return"
    assert report["runs"][0]["mean"] < -13
    assert cli("compare", path, "--metric", "rollout/episode_retur")[0] == 2
