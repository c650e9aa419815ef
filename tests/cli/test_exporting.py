import json

import pytest

from operant import load
from operant.language.configs import ModelOptions
from operant.language.models import load as load_model


def test_what_is_written(answer, spoken, tmp_path):
    folder = tmp_path / "new" / "model"
    written = answer("export", spoken, folder)
    assert (written["folder"], written["seed"]) == (str(folder), 0)
    assert written["files"] == sorted(path.name for path in folder.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json", "operant.json"} <= set(written["files"])
    assert list(folder.parent.iterdir()) == [folder], "nothing else is left there"
    ours = load(spoken).experiment.learner.learners[0].model.state_dict()
    theirs = load_model(ModelOptions(model=str(folder)), seed=1).state_dict()
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    assert json.loads((folder / "operant.json").read_text())["run"] == "spoken"


def test_the_folder_can_be_trained_on(cli, spoken, tmp_path):
    assert cli("export", spoken, tmp_path / "model")[0] == 0
    flags = ["--model", tmp_path / "model", "--budget", 16, "--train-examples", 32, "--held-out", 4, "--threads", 1]
    status, _, err = cli("train", "sft", "arithmetic", *flags, "--progress", "silent", "--run", tmp_path / "run")
    assert status == 0, err


def test_a_folder_with_something_in_it_is_left_alone(cli, spoken, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    status, out, err = cli("export", spoken, tmp_path)
    assert (status, out) == (2, "")
    assert "is not an empty folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("flags", "message"), [(["--seed", 7], "has no seed 7; it has 0")])
def test_nothing_is_left_after_a_failure(cli, spoken, tmp_path, flags, message):
    status, _, err = cli("export", spoken, tmp_path / "model", *flags)
    assert status == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_policy_in_an_environment_cannot_be_written(cli, run, tmp_path):
    status, _, err = cli("export", run, tmp_path / "model")
    assert status == 2
    assert "a run of ppo, which trains no model that answers" in err


def test_an_empty_folder_will_do(cli, spoken, tmp_path):
    (tmp_path / "model").mkdir()
    assert cli("export", spoken, tmp_path / "model")[0] == 0


def test_the_best_weights_can_be_written(answer, cli, spoken, tmp_path):
    answer("export", spoken, tmp_path / "best", "--best")
    ours = load(spoken, best=True).experiment.learner.learners[0].model.state_dict()
    theirs = load_model(ModelOptions(model=str(tmp_path / "best")), seed=1).state_dict()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    assert json.loads((tmp_path / "best" / "operant.json").read_text())["best"] is True
