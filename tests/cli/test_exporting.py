import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from operant import load
from operant.language.configs import ModelOptions
from operant.language.models import load as load_model


def test_the_exported_files(answer, spoken, tmp_path):
    folder = tmp_path / "new" / "model"
    written = answer("export", spoken, folder)
    assert (written["folder"], written["seed"]) == (str(folder), 0)
    assert written["files"] == sorted(path.name for path in folder.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json", "operant.json"} <= set(written["files"])
    assert list(folder.parent.iterdir()) == [folder], "the folder contains no other file"
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
    assert "is not empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("flags", "message"), [(["--seed", 7], "has no seed 7; it has 0")])
def test_nothing_is_left_after_a_failure(cli, spoken, tmp_path, flags, message):
    status, _, err = cli("export", spoken, tmp_path / "new" / "model", *flags)
    assert status == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


WITHOUT_OPERANT = """
import sys

sys.modules.update(operant=None, torch=None, gymnasium=None, safetensors=None)
import numpy as np

sys.path.insert(0, sys.argv[1])
from policy import Policy

observations = np.load(sys.argv[1] + "/../observations.npy")
np.save(sys.argv[1] + "/../actions.npy", Policy().predict(observations))
"""


def test_an_export_that_does_not_fit_on_the_disk_is_an_error_with_its_folder(cli, run, spoken, tmp_path, small_files):
    for path in (run, spoken):
        with small_files(4096):
            status, _, err = cli("export", path, tmp_path / "model")
        assert (status, f"operant: error: {tmp_path / 'model'}: " in err, "File too large" in err) == (1, True, True)
        assert list(tmp_path.iterdir()) == []


def test_a_policy_acts_alike_where_operant_cannot_be_imported(answer, cli, run, tmp_path):
    written = answer("export", run, tmp_path / "policy", "--seed", 1)
    assert written["files"] == ["policy.json", "policy.py", "policy.safetensors"]
    observations = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    np.save(tmp_path / "observations.npy", observations)
    subprocess.run([sys.executable, "-c", WITHOUT_OPERANT, str(tmp_path / "policy")], check=True)
    with closing(load(run)) as trained:
        expected = trained.predict(observations, seed_index=1)[0]
    found = np.load(tmp_path / "actions.npy")
    assert found.dtype == expected.dtype
    assert (found == expected).all()
    assert 0 < found.mean() < 1
    for flags, message in ((["--seed", 9], "--seed is 9, but the seeds of"), (["--merge"], "--merge is for adapters")):
        status, _, err = cli("export", run, tmp_path / "other", *flags)
        assert (status, message in err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_an_empty_folder_will_do(cli, spoken, tmp_path):
    (tmp_path / "model").mkdir()
    assert cli("export", spoken, tmp_path / "model")[0] == 0


def test_the_working_folder_stays_in_place(cli, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = cli("export", run, ".")
    assert status == 0, err
    assert Path.cwd() == tmp_path  # a replaced folder would be no working folder anymore
    assert {path.name for path in tmp_path.iterdir()} >= {"policy.json", "policy.py", "policy.safetensors"}


def test_the_best_weights_can_be_written(answer, cli, spoken, tmp_path):
    answer("export", spoken, tmp_path / "best", "--best")
    ours = load(spoken, best=True).experiment.learner.learners[0].model.state_dict()
    theirs = load_model(ModelOptions(model=str(tmp_path / "best")), seed=1).state_dict()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    assert json.loads((tmp_path / "best" / "operant.json").read_text())["best"] is True
