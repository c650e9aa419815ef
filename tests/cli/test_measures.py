import pytest

FLAGS = ["--seeds", "3", "--progress", "silent"]


def test_prediction_reports_the_errors_of_its_values(cli, answer, tmp_path):
    flags = [*FLAGS, "--budget", "2000"]
    status, out, _ = cli("train", "td-lambda", "FrozenLake-v1", *flags, "--run", tmp_path / "td")
    assert status == 0
    assert "The last evaluation, of the given policy, which does not learn:" in out
    assert "greedy" not in out
    assert ["seed", "RMSE", "largest", "error", "in", "state"] in [line.split() for line in out.splitlines()]
    found = answer("train", "td-lambda", "FrozenLake-v1", *flags, "--run", tmp_path / "again")
    assert all(
        0 < rmse < largest for rmse, largest in zip(found["value_rmse"], found["largest_value_error"], strict=True)
    )
    assert answer("evaluate", tmp_path / "td")["value_rmse"] == found["value_rmse"]
    assert f"mean RMSE {sum(found['value_rmse']) / 3:.5g}" in out


def test_bandits_report_their_regret(cli, answer, tmp_path):
    path = tmp_path / "arms"
    found = answer("train", "ucb1", "operant/TwoArms-v0", *FLAGS, "--budget", "100", "--run", path)
    mean = found["regret_mean"]
    assert mean == pytest.approx(sum(found["regret"]) / 3)
    assert found["regret_interval"][0] <= mean <= found["regret_interval"][1]
    status, out, _ = cli("evaluate", path)
    assert status == 0
    assert f"Regret after 100 pulls: mean {mean:.5g}, 95 % interval [" in out
    assert answer("evaluate", path)["regret"] == found["regret"]
    status, out, _ = cli("compare", path, "--metric", "bandit/regret")
    assert status == 0
    assert out.splitlines()[2].split() == ["run", "algorithm", "seeds", "mean", "interval"]
    assert out.splitlines()[3].split()[3] == f"{mean:.5g}"
    assert (
        answer("compare", path, "--metric", "bandit/regret")["runs"][0]["interval_of_mean"] == found["regret_interval"]
    )
    flags = [*FLAGS[2:], "--seeds", "1", "--budget", "100", "--run", tmp_path / "one"]
    assert "with one seed\n" in cli("train", "ucb1", "operant/TwoArms-v0", *flags)[1]


def test_a_thousand_seeds_are_summarized(cli, tmp_path):
    path = tmp_path / "many"
    flags = ["--seeds", "1000", "--budget", "20", "--progress", "silent", "--run", path]
    status, out, _ = cli("train", "thompson", "operant/TwoArms-v0", *flags)
    assert status == 0
    assert len(out.splitlines()) < 40
    status, out, _ = cli("compare", path)
    assert status == 0
    assert max(map(len, out.splitlines())) < 200
    assert "many: 1000 seeds from " in out
