import importlib.util
import json
import math
import shutil
import sys
from contextlib import closing
from unittest.mock import MagicMock

import numpy as np
import pytest

import operant
from operant.runtime.comparison import different_settings
from operant.runtime.generations import keep_samples
from operant.runtime.metrics import read_records
from operant.runtime.run import Run
from operant.runtime.run_folders import rename
from operant.runtime.settings import Settings
from operant.runtime.trackers import TRACKERS, identity, mean, named, of_evaluation, of_metrics, trackers_of
from operant.runtime.training import resume_from, train
from runtime.test_training import Config, evaluate
from runtime.tiny import Regression

GIF = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00!\xf9\x04\x00\x00\x00\x00\x00"
GIF += b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"


def tracked(tmp_path, tracker, name="run"):
    """Train a regression for two seeds with a tracker, an answer in every evaluation and a video; return its run."""
    settings = Settings("regression", "line", seeds=(3, 4), budget=200, track=(tracker,))
    run = Run.create(tmp_path / name, settings, Config())
    (run.media_path / "film.gif").write_bytes(GIF)

    def score(learner):
        sample = {"seed": 3, "prompt": "1 | 1", "completion": "2\n", "reward": 1.0, "truncated": False}
        keep_samples(run, learner.consumed, [sample])
        return evaluate(learner)

    outcome = train(Regression(), run, budget=200, evaluate=score, callbacks=trackers_of([tracker]), progress="silent")
    assert outcome.callback_errors == ()
    return run


def test_a_point_for_each_seed_and_their_mean():
    curves = of_metrics({"consumed": 5, "losses/value": np.array([1.0, 3.0]), "time/seconds": 2.0})
    assert curves == {"losses/value": [1.0, 3.0], "time/seconds": [2.0]}
    assert named(curves, (3, 4)) == {
        "losses/value": 2.0,
        "losses/value/seed_3": 1.0,
        "losses/value/seed_4": 3.0,
        "time/seconds": 2.0,
    }
    assert named({"x": [1.0]}, (3,)) == {"x": 1.0}
    assert mean([math.nan, 2.0, 4.0]) == 3.0
    assert math.isnan(mean([math.nan]))


def test_the_curves_of_an_evaluation():
    record = {"scores": (1.0, 2.0), "iqm": 1.5, "lengths": (), "success_rate": (0.0, 1.0), "cut": ()}
    curves = of_evaluation({**record, "infos": {"x": (5.0, 6.0)}, "metrics": {"eval/rewards/a": (7.0, 8.0)}})
    assert curves == {
        "eval/score": [1.0, 2.0],
        "eval/iqm": [1.5],
        "eval/success_rate": [0.0, 1.0],
        "eval/x": [5.0, 6.0],
        "eval/rewards/a": [7.0, 8.0],
    }


def test_numbers_of_environments_do_not_replace_those_of_evaluations():
    record = {"scores": (1.0, 2.0), "iqm": 1.5, "lengths": (9.0, 9.0), "success_rate": (), "cut": ()}
    curves = of_evaluation({**record, "infos": {"score": (50.0, 60.0), "length": (3.0, 4.0)}})
    assert curves["eval/score"] == [1.0, 2.0]
    assert curves["eval/length"] == [9.0, 9.0]
    assert curves["eval/info/score"] == [50.0, 60.0]


@pytest.mark.parametrize("given", ["wandb", ["mlflow"], 3, [None]])
def test_unknown_trackers_are_rejected_before_anything_is_written(given, tmp_path):
    with pytest.raises(ValueError, match="track must be a list of names among tensorboard, wandb, trackio, got"):
        operant.train("ppo", "CartPole-v1", track=given, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named_with_the_command_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(TRACKERS["wandb"], "package", "wandb_that_is_not_here")
    with pytest.raises(ModuleNotFoundError, match="needs wandb_that_is_not_here: pip install wandb_that_is_not_here"):
        operant.train("ppo", "CartPole-v1", track=["wandb"], run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_the_same_run_in_every_session_and_trackers_are_no_difference(tmp_path):
    one, other = (Run.create(tmp_path / name, Settings("ppo", "x", track=()), Config()) for name in "ab")
    assert identity(one) == identity(Run.open(tmp_path / "a")) != identity(other)
    one.add_session(["again"], 0)
    assert identity(one) == identity(Run.open(tmp_path / "a"))
    was = identity(one)
    renamed = rename(one, "renamed")
    assert identity(Run.open(renamed)) == was
    assert was[1] == "a"
    assert identity(Run.create(tmp_path / "a", Settings("ppo", "x"), Config()))[0] != was[0]
    one = Run.open(renamed)
    third = Run.create(tmp_path / "c", Settings("ppo", "x", track=("wandb",)), Config())
    assert different_settings([one, third]) == {}


def test_runs_of_earlier_versions_keep_their_identity(tmp_path):
    run = Run.create(tmp_path / "run", Settings("ppo", "x"), Config())
    facts = {name: value for name, value in run.facts().items() if name not in ("id", "name")}
    facts["sessions"][0] |= {"started": "2026-03-01T00:00:00+00:00", "host": "one", "process": 7}
    (run.path / "run.json").write_text(json.dumps(facts))
    assert identity(run) == ("c23f35d4f048da35", "run")


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_renamed_run_continues_in_its_tracker(tmp_path, monkeypatch, tracker):
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    module = MagicMock()
    monkeypatch.setitem(sys.modules, tracker, module)
    run = Run.create(tmp_path / "run", Settings("ppo", "x"), Config())
    for _ in range(2):
        TRACKERS[tracker]().on_start(run)
        run = Run.open(rename(run, "renamed") if run.path.name == "run" else run.path)
    first, second = [call.kwargs["id" if tracker == "wandb" else "name"] for call in module.init.call_args_list]
    assert first == second == identity(run)[tracker == "trackio"]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked(tmp_path, "tensorboard")
    found = {path.name: EventAccumulator(str(path)).Reload() for path in (run.path / "tensorboard").iterdir()}
    assert set(found) == {"mean", "seed_3", "seed_4"}
    records = read_records(run.metrics_path)
    for place, name in enumerate(["seed_3", "seed_4"]):
        points = found[name].Scalars("losses/value")
        assert [point.step for point in points] == [record["consumed"] for record in records]
        values = [record["losses/value"][place] for record in records]
        assert [point.value for point in points] == pytest.approx(values)
    scores = found["mean"].Scalars("eval/score")
    written = read_records(run.evaluations_path)
    assert [point.value for point in scores] == pytest.approx([record["mean"] for record in written])
    texts = found["mean"].Tensors("completions/text_summary")
    assert b"| 3 | 1 \\| 1 | 2 \xe2\x86\xb5  | 1.0 | False |" in texts[-1].tensor_proto.string_val[0]
    assert b"| budget | 200 |" in found["mean"].Tensors("configuration/text_summary")[0].tensor_proto.string_val[0]
    assert found["mean"].Images("media/film")[0].encoded_image_string == GIF


@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_what_was_written_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tracked(tmp_path, "wandb")
    (path,) = run.path.glob("wandb/offline-run-*/*.wandb")
    assert identity(run)[0] in path.name
    written = path.read_bytes()
    keys = ("consumed", "losses/value", "losses/value/seed_3", "eval/score/seed_4", "completions", "media/film")
    assert [key for key in keys if key.encode() not in written] == []
    (table,) = list(run.path.glob("wandb/offline-run-*/files/media/table/completions_*.json"))[-1:]
    assert json.loads(table.read_text())["data"] == [[3, "1 | 1", "2\n", 1.0, False]]


@pytest.mark.filterwarnings("ignore")
def test_trackio_reads_what_was_written(tmp_path, monkeypatch, capsys):
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when trackio is imported
    from trackio.sqlite_storage import SQLiteStorage

    run = tracked(tmp_path, "trackio")
    assert capsys.readouterr().out == ""
    rows = SQLiteStorage.get_logs("operant", "run")
    losses = {row["step"]: row["losses/value/seed_3"] for row in rows if "losses/value/seed_3" in row}
    assert losses == {r["consumed"]: pytest.approx(r["losses/value"][0]) for r in read_records(run.metrics_path)}
    assert any("completions" in row for row in rows)


def test_a_tracker_of_the_settings_is_used_again_by_resume(tmp_path):
    pytest.importorskip("tensorboard")
    small = {"num_envs": 2, "num_steps": 25, "num_minibatches": 2, "num_epochs": 1, "hidden_sizes": (8,), "seeds": 1}
    quick = {"budget": 100, "evaluate_episodes": 2, "progress": "silent", **small}
    with closing(operant.train("ppo", "CartPole-v1", track=["tensorboard"], run=tmp_path / "run", **quick)):
        folder = tmp_path / "run" / "tensorboard" / "mean"
    assert len(list(folder.iterdir())) == 1
    operant.resume(tmp_path / "run", budget=200, progress="silent").close()
    assert len(list(folder.iterdir())) == 2
    operant.resume(tmp_path / "run", budget=300, track=(), progress="silent").close()
    assert len(list(folder.iterdir())) == 2


def test_a_session_without_points_leaves_those_of_earlier_ones(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked(tmp_path, "tensorboard")
    before = EventAccumulator(str(run.path / "tensorboard" / "mean")).Reload().Scalars("eval/score")
    learner = Regression()
    resume_from(run, learner)
    run.add_session([], learner.consumed)
    train(learner, run, budget=200, evaluate=evaluate, callbacks=trackers_of(["tensorboard"]), progress="silent")
    found = EventAccumulator(str(run.path / "tensorboard" / "mean")).Reload()
    assert len(found.Images("media/film")) == 2
    assert found.Scalars("eval/score") == before


def test_a_tracker_finishes_a_run_without_a_folder_of_media(tmp_path):
    pytest.importorskip("tensorboard")
    run = tracked(tmp_path, "tensorboard")
    shutil.rmtree(run.media_path)
    learner = Regression()
    resume_from(run, learner)
    outcome = train(learner, run, budget=300, callbacks=trackers_of(["tensorboard"]), progress="silent")
    assert outcome.callback_errors == ()
