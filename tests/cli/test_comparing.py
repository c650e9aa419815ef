import json
import shutil

import imageio.v3 as iio
import pytest

from cli.conftest import SPEAKING, TINY
from operant.cli import output


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Return a run with the protocol of `run`, another configuration and another number of seeds."""
    from operant.cli import main

    path = tmp_path_factory.mktemp("runs") / "other"
    flags = [*TINY, "--seeds", "3", "--learning-rate", "1e-5", "--budget", "1024", "--run", str(path)]
    assert main(["train", "ppo", "CartPole-v1", *flags]) == 0
    return path


def test_runs_side_by_side(cli, answer, run, other):
    status, out, err = cli("compare", run, other)
    assert (status, err) == (0, "")
    assert "CartPole-v1, 1024 environment steps per seed, 4 greedy episodes per seed" in out
    report = answer("compare", run, other)
    first, second = report["runs"]
    assert (first["run"], second["run"]) == (str(run), str(other))
    assert (first["name"], second["name"]) == ("trained", "other")
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


def test_exact_scores_are_no_episodes(cli, tmp_path):
    tables = [tmp_path / name for name in ("q-learning", "sarsa")]
    for path in tables:
        assert cli("train", path.name, "FrozenLake-v1", "--seeds", "2", "--budget", "200", "--run", path)[0] == 0
    _, out, _ = cli("compare", *tables)
    assert out.startswith("FrozenLake-v1, 200 environment steps per seed, exact scores\n")


def test_one_run_alone(cli, run):
    status, out, _ = cli("compare", run)
    assert status == 0
    assert "P: probability" not in out


def test_the_plot_of_a_comparison(cli, run, other, tmp_path):
    path = tmp_path / "new" / "compare.png"
    status, _, err = cli("compare", run, other, "--out", path)
    assert status == 0
    assert err == f"drawn: {path}\n"
    assert iio.imread(path).shape[1] == 1725


def test_a_plot_that_cannot_be_written_is_named_first(cli, run):
    status, out, err = cli("compare", run, "--out", "/dev/null/plot.png")
    assert (status, out) == (2, "")
    assert "/dev/null/plot.png cannot be written: " in err


def test_runs_of_another_protocol_are_rejected(cli, run, tmp_path):
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
    status, _, err = cli("compare", spoken, other)
    assert status == 2
    assert "the unit of the budget is demonstrations and prompts" in err
    status, out, err = cli("compare", spoken, other, "--out", tmp_path / "compare.png", "--allow-different")
    assert status == 0, err
    assert "warning: the protocols differ: the unit of the budget is demonstrations and prompts" in err
    assert out.startswith("arithmetic, 64 demonstrations or prompts per seed, 12 held-out examples\n")
    assert (tmp_path / "compare.png").exists()
    few = tmp_path / "few"
    flags = ["--held-out", 6, "--budget", 64, "--evaluate-every", 32, "--run", few]
    assert cli("train", "sft", "arithmetic", *SPEAKING, *flags)[0] == 0
    status, _, err = cli("compare", spoken, few)
    assert status == 2
    assert "cannot be compared: --held-out is 12 and 6;" in err


def test_protocols_that_differ_are_compared_if_asked_for(cli, answer, run, tmp_path):
    flags = [*TINY, "--budget", "1024", "--evaluate-episodes", "2", "--run", tmp_path / "few"]
    assert cli("train", "ppo", "CartPole-v1", *flags)[0] == 0
    arguments = ["compare", run, tmp_path / "few", "--allow-different"]
    status, _, err = cli(*arguments)
    assert status == 0
    assert "warning: the protocols differ: --evaluate-episodes is 4 and 2" in err
    assert len(answer(*arguments)["runs"]) == 2


def test_the_profiles_are_shares_of_seeds(answer, run, other):
    for report in answer("compare", run, other)["runs"]:
        profile, scores = report["profile"], report["per_seed_scores"]
        assert profile["share"] == [sum(score > t for score in scores) / len(scores) for t in profile["thresholds"]]
        assert all(a <= b <= c for a, b, c in zip(profile["low"], profile["share"], profile["high"], strict=True))


def test_too_few_seeds_are_not_enough(cli, answer, run, other):
    status, out, _ = cli("compare", run, other, "--enough")
    assert status == 0
    assert "Undecided. The next look is at 5 seeds per run." in out
    found = answer("compare", run, other, "--enough", "--looks", "2", "9")["enough"]
    assert (found["decided"], found["better"], found["next_look"]) == (False, None, 9)
    assert [(look["seeds"], look["boundary"]) for look in found["looks"]] == [(2, None)]


def test_a_decision_is_reported(capsys):
    from operant.cli.comparing import _decision_answer, _print_decision
    from operant.runtime.group_sequential import enough_seeds

    decision = enough_seeds([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    _print_decision(["one", "two"], decision)
    assert (
        "Decided: two scores higher than one, with an error probability of at most 5 % over all looks."
        in capsys.readouterr().out
    )
    answer = _decision_answer(["one", "two"], decision)
    assert (answer["decided"], answer["better"], answer["looks"][0]["seeds"]) == (True, "two", 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--enough"], "--enough is for two runs, got 1"), (["--looks", "5"], "--looks sets when --enough tests")],
)
def test_requirements_of_enough_are_named(arguments, message, cli, run):
    status, _, err = cli("compare", run, *arguments)
    assert status == 2
    assert message in err


def test_a_metric_that_a_seed_does_not_have_yet_is_a_gap(cli, answer, run, tmp_path):
    late = shutil.copytree(run, tmp_path / "late")
    records = [
        {"consumed": consumed, "rollout/episode_return": [score, 20.0]}
        for consumed, score in ((512, 10.0), (600, "NaN"), (1024, 30.0))
    ]
    (late / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    status, out, _ = cli("compare", late, "--metric", "rollout/episode_return")
    assert status == 0
    assert out.splitlines()[-1].endswith("1024 environment steps")
    curve = answer("compare", late, "--metric", "rollout/episode_return")["runs"][0]["curve"]
    assert curve["iqm"] == [15.0, None, 25.0]


def test_a_run_whose_last_session_did_not_finish_is_a_warning(cli, run, tmp_path):
    killed = shutil.copytree(run, tmp_path / "killed")
    facts = json.loads((killed / "run.json").read_text(encoding="utf-8"))
    for name in ("ended", "outcome", "consumed", "reason"):
        del facts["sessions"][-1][name]
    (killed / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    assert cli("compare", killed)[2] == f"operant: warning: {killed} is still running or was killed\n"


def test_the_same_run_twice(cli, run):
    status, _, err = cli("compare", run, run)
    assert status == 2
    assert "different runs are needed" in err


def test_without_the_extra(cli, run, monkeypatch):
    monkeypatch.setattr(output, "missing", list)
    status, _, err = cli("compare", run, "--out", "compare.png")
    assert status == 2
    assert err == 'operant: error: a plot needs matplotlib: pip install "operant[plots]"\n'
