import imageio.v3 as iio
import pytest

from cli.conftest import SPEAKING, TINY
from operant.cli import output


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Give a run of the same protocol as `run`, with another configuration and another number of seeds."""
    from operant.cli import main

    path = tmp_path_factory.mktemp("runs") / "other"
    flags = [*TINY, "--seeds", "3", "--learning-rate", "1e-5", "--budget", "1024", "--run", str(path)]
    assert main(["train", "ppo", "CartPole-v1", *flags]) == 0
    return path


def test_runs_side_by_side(cli, answer, run, other):
    status, out, err = cli("compare", run, other)
    assert (status, err) == (0, "")
    assert "CartPole-v1, 1024 environment steps a seed, 4 greedy episodes a seed" in out
    report = answer("compare", run, other)
    first, second = report["runs"]
    assert (first["run"], second["run"]) == ("trained", "other")
    assert set(report["settings"]) == {"learning_rate"}
    assert "setting        trained" in out
    assert second["difference_interval"][0] <= second["difference"] <= second["difference_interval"][1]
    assert (first["probability_of_improvement"], len(second["per_seed_scores"])) == (0.5, 3)
    assert f"other: {' '.join(f'{score:.5g}' for score in sorted(second['per_seed_scores']))}" in out
    assert first["curve"]["consumed"][-1] == 1024
    assert first["curve"]["iqm"][-1] == first["iqm"]
    rows = [line.split() for line in out.splitlines() if line.startswith(("trained ", "other "))]
    assert [row[2] for row in rows] == ["2", "3"]
    assert out.splitlines()[-1].endswith("1024 environment steps")


def test_one_run_alone(cli, run):
    status, out, _ = cli("compare", run)
    assert status == 0
    assert "P: probability" not in out


def test_the_picture(cli, run, other, tmp_path):
    path = tmp_path / "new" / "compare.png"
    status, _, err = cli("compare", run, other, "--out", path)
    assert status == 0
    assert err == f"drawn: {path}\n"
    assert iio.imread(path).shape[1] == 1425


def test_runs_of_another_protocol_are_refused(cli, run, tmp_path):
    flags = [*TINY, "--budget", "512", "--evaluate-episodes", "2", "--env-backend", "gymnasium"]
    assert cli("train", "ppo", "CartPole-v1", *flags, "--run", tmp_path / "short")[0] == 0
    status, out, err = cli("compare", run, tmp_path / "short")
    assert (status, out) == (2, "")
    assert "cannot be compared: --env-backend is tensor and gymnasium;" in err
    assert "--evaluate-episodes is 4 and 2" in err


@pytest.mark.parametrize("arguments", [[], ["--out", "picture.jpeg"]])
def test_wrong_use(arguments, cli, run):
    assert cli("compare", *([run] if arguments else []), *arguments)[0] == 2


def test_language_models(cli, spoken, tmp_path):
    other = tmp_path / "other"
    flags = [
        "--prompts-per-batch",
        16,
        "--num-generations",
        2,
        "--held-out",
        12,
        "--max-completion-length",
        6,
        "--progress",
        "silent",
    ]
    flags += ["--budget", 64, "--evaluate-every", 32, "--run", other]
    assert cli("train", "grpo", "arithmetic", *flags)[0] == 0
    status, out, err = cli("compare", spoken, other, "--out", tmp_path / "compare.png")
    assert status == 0, err
    assert out.startswith("arithmetic, 64 demonstrations or prompts a seed, 12 held-out examples\n")
    assert (tmp_path / "compare.png").exists()
    few = tmp_path / "few"
    flags = ["--held-out", 6, "--budget", 64, "--evaluate-every", 32, "--run", few]
    assert cli("train", "sft", "arithmetic", *SPEAKING, *flags)[0] == 0
    status, _, err = cli("compare", spoken, few)
    assert status == 2
    assert "cannot be compared: --held-out is 12 and 6;" in err


def test_the_same_run_twice(cli, run):
    status, _, err = cli("compare", run, run)
    assert status == 2
    assert "different runs are needed" in err


def test_without_the_extra(cli, run, monkeypatch):
    monkeypatch.setattr(output, "missing", list)
    status, _, err = cli("compare", run, "--out", "compare.png")
    assert status == 2
    assert err == 'operant: error: a plot needs matplotlib: pip install "operant[plots]"\n'
