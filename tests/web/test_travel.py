import base64
import shutil

import numpy as np
import pytest

from operant import api
from operant.build import reassemble
from operant.runtime.encoding import digest
from operant.runtime.run import Run, RunError
from operant.runtime.trained import Trained
from operant.runtime.watching import Stage
from operant.web import travel
from operant.web.images import SIGNATURE
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]

SMALL = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of networks and two runs of tables."""
    path = tmp_path_factory.mktemp("travel") / "runs"
    api.train(
        "ppo", "CartPole-v1", seeds=2, budget=2048, run=path / "ppo", progress="silent", keep_checkpoints=4, **SMALL
    )
    api.train("q-learning", "FrozenLake-v1", seeds=2, budget=4000, run=path / "lake", progress="silent")
    api.train(
        "td-lambda", "operant/RandomWalk5-v0", seeds=1, budget=3000, run=path / "walk", progress="silent", gamma=1.0
    )
    return path


def go(runs, run, at, way="to"):
    answer = travel.go(runs, run, at, way)
    while not answer["done"]:
        answer = travel.go(runs, run, at, way)
    return answer


def unpacked(text, kind="<f8"):
    return np.frombuffer(base64.b64decode(text), kind)


def truth(path, at):
    experiment = reassemble(Run.open(path), remote_code=False)
    while experiment.learner.consumed < at:
        experiment.learner.iterate()
    return experiment


def test_an_update_is_restored_with_its_hash(runs):
    answer = go(runs, "ppo", 700)
    assert (answer["consumed"], answer["origin"], answer["began"], answer["updates"]) == (768, "checkpoint", 512, 2)
    assert answer["sha256"] == digest(truth(runs / "ppo", 768).learner.state_dict())
    assert not answer["verified"]
    assert answer["next_recorded"] == 1024
    assert answer["commands"]["evaluate"] == f"operant evaluate {runs / 'ppo'} --at 768"
    answer = go(runs, "ppo", 768, "confirm")
    assert (answer["consumed"], answer["confirmed"]) == (768, 1024)
    answer = go(runs, "ppo", 768, "back")
    assert (answer["consumed"], answer["confirmed"]) == (640, None)
    answer = go(runs, "ppo", 1024)
    assert answer["verified"]


def test_a_call_ends_after_a_moment_and_the_next_one_continues(runs, monkeypatch):
    go(runs, "walk", 0)
    monkeypatch.setattr(travel, "MOMENT", 0.0)
    travel.opened(runs / "ppo").close()
    monkeypatch.setattr(travel, "_open", None)
    steps = []
    while not (answer := travel.go(runs, "ppo", 500))["done"]:
        steps.append(answer["consumed"])
    assert steps == [128, 256, 384, 512]
    assert answer["consumed"] == 512


def test_another_wish_takes_the_place_of_a_journey(runs, monkeypatch):
    go(runs, "ppo", 0)
    monkeypatch.setattr(travel, "MOMENT", 0.0)
    assert not travel.go(runs, "ppo", 400)["done"]
    assert go(runs, "ppo", 2048)["verified"]
    assert go(runs, "ppo", 400)["consumed"] == 512


def test_the_policy_of_the_update_plays(runs):
    from operant.cli.watching import _stage

    expected = api.load(runs / "ppo", at=768)
    with _stage(expected, 1, False, travel.MOST_STEPS) as stage:
        shown = []
        score = stage.play(1, shown.append).scores[0]
    expected.close()
    go(runs, "ppo", 768)
    scenes, start = [], 0
    while not scenes or not scenes[-1]["ended"]:
        answer = travel.scenes(runs, "ppo", 768, seed_index=1, start=start)
        assert answer["rate"] == 50
        scenes += answer["scenes"]
        start = len(scenes)
    assert len(scenes) == len(shown)
    assert scenes[-1]["score"] == score
    first = scenes[0]
    assert sum(first["told"]["probabilities"]) == pytest.approx(1.0)
    assert first["value"] == first["told"]["value"][0]
    assert first["action"] == [float(np.argmax(first["told"]["probabilities"]))]
    assert unpacked(first["frame"], "u1").tobytes().startswith(SIGNATURE)
    assert scenes[-1]["told"] == {}
    again = []
    while not again:
        again = travel.scenes(runs, "ppo", 768, seed_index=1, start=3)["scenes"]
    assert again[0] == scenes[3]


def test_repeated_steps_have_a_time_limit(runs, monkeypatch):
    go(runs, "ppo", 768)
    whole, is_end = [], False
    while not is_end:
        answer = travel.scenes(runs, "ppo", 768, start=len(whole))
        whole, is_end = whole + answer["scenes"], answer["ended"]
    assert whole[-1]["ended"]
    monkeypatch.setattr(travel, "MOMENT", 0.0)
    travel._open.stop()
    answers = [travel.scenes(runs, "ppo", 768, start=4) for _ in range(6)]
    assert [len(answer["scenes"]) for answer in answers] == [0, 0, 0, 0, 1, 0]
    assert answers[4]["scenes"] == whole[4:5]
    assert not any(answer["ended"] for answer in answers)
    monkeypatch.setattr(travel, "MOMENT", 20.0)
    after = travel.scenes(runs, "ppo", 768, start=len(whole))
    assert (after["scenes"], after["ended"]) == ([], True)


def test_an_environment_without_frames_is_closed(runs, monkeypatch):
    closed = []

    class Dark(Stage):
        def check(self):
            raise ValueError("render() returns no image")

        def close(self):
            super().close()
            closed.append(self)

    go(runs, "lake", 1000)
    monkeypatch.setattr(travel, "Stage", Dark)
    travel._open.stop()
    assert travel.scenes(runs, "lake", 1000)["scenes"][0]["frame"] is None
    assert len(closed) == 1
    travel._open.stop()
    assert len(closed) == 2


def test_a_run_that_cannot_be_recomputed_is_closed(runs, monkeypatch):
    closed = []

    class Kept(Trained):
        def close(self):
            super().close()
            closed.append(self)

    def fail(*_):
        raise RunError("no history")

    travel.opened(runs / "walk").close()
    monkeypatch.setattr(travel, "_open", None)
    monkeypatch.setattr(travel, "Trained", Kept)
    monkeypatch.setattr(travel, "TimeTravel", fail)
    with pytest.raises(RunError, match="no history"):
        travel.opened(runs / "lake")
    assert len(closed) == 1


def test_sampled_episodes_are_repeatable(runs):
    go(runs, "ppo", 256)
    first = travel.scenes(runs, "ppo", 256, sample=True)["scenes"]
    travel.scenes(runs, "ppo", 256)
    assert travel.scenes(runs, "ppo", 256, sample=True)["scenes"][:5] == first[:5]


def test_another_update_is_reported_as_away(runs):
    go(runs, "ppo", 256)
    assert travel.scenes(runs, "ppo", 512) == {"away": True}
    assert travel.table(runs, "ppo", 512) == {"away": True}
    assert travel.table(runs, "ppo", 256) == {"away": False, "table": False}


def test_another_run_with_the_same_name_is_opened(tmp_path):
    small = {"seeds": 1, "budget": 500, "run": tmp_path / "run", "progress": "silent"}
    for seed in (0, 7):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        api.train("q-learning", "FrozenLake-v1", seed=seed, **small)
        assert go(tmp_path, "run", 500)["verified"]


def test_the_table_of_an_update_stands_next_to_the_exact_solution(runs):
    go(runs, "lake", 2000)
    shown = travel.table(runs, "lake", 2000, seed_index=1)
    experiment = truth(runs / "lake", 2000)
    learner = experiment.learner
    assert np.array_equal(unpacked(shown["values"]), learner.values[1])
    finite = np.where(learner.feasible, learner.q[1], -np.inf).ravel()
    assert np.array_equal(unpacked(shown["q"]), finite)
    from operant import mdp

    exact = mdp.solve(experiment.mdp, gamma=learner.config.gamma, tolerance=1e-9).values
    assert np.array_equal(unpacked(shown["exact"]), exact)
    assert shown["error"] == np.abs(learner.values[1] - exact).max()
    own = mdp.policy_evaluation(experiment.mdp, learner.policy()[1], gamma=learner.config.gamma).values
    assert shown["loss"] == pytest.approx(exact[0] - own[0])
    assert shown["loss"] >= -1e-9
    assert shown["world"]["cells"][0] == ["S", "F", "F", "F"] or len(shown["world"]["cells"]) == 4
    scenes = travel.scenes(runs, "lake", 2000, seed_index=1)["scenes"]
    assert scenes[0]["obs"] == [0.0]
    assert scenes[0]["value"] == learner.values[1][0]


def test_predictions_are_compared_with_the_values_of_their_policy(runs):
    go(runs, "walk", 3000)
    shown = travel.table(runs, "walk", 3000)
    assert (shown["symbol"], shown["q"], shown["world"]) == ("V^π", None, None)
    inner = np.sort(unpacked(shown["exact"]))[-5:]
    np.testing.assert_allclose(inner, np.arange(1, 6) / 6, atol=1e-9)  # Sutton and Barto, example 6.2
    assert 0 < shown["error"] < 0.3


def test_a_task_without_frames_shows_its_observations(runs):
    go(runs, "walk", 1000)
    scene = travel.scenes(runs, "walk", 1000)["scenes"][0]
    assert len(scene["obs"]) == 1
    assert scene["frame"] is None


@pytest.mark.parametrize("at", [5000, -1])
def test_wrong_wishes_are_named(runs, at):
    with pytest.raises(ValueError, match="at must be an integer between 0 and 2048"):
        travel.go(runs, "ppo", at)


def test_a_run_that_cannot_be_opened_is_no_fault_until_one_goes_there(runs):
    make_run(runs / "bare", [[0.1]])
    assert "device" in travel.load(runs, "bare")["problem"]
    assert travel.load(runs, "ppo") == {"problem": ""}
    assert travel._open.path == runs / "ppo"


def test_wrong_places_are_named(runs):
    with pytest.raises(NotFoundError):
        travel.go(runs, "../ppo", 0)
    go(runs, "ppo", 0)
    with pytest.raises(ValueError, match="seeds"):
        travel.scenes(runs, "ppo", 0, seed_index=7)
    with pytest.raises(ValueError, match="start must be from 0"):
        travel.scenes(runs, "ppo", 0, start=-1)
    go(runs, "lake", 0)
    with pytest.raises(ValueError, match="seed_index must be from 0 to 1"):
        travel.table(runs, "lake", 0, seed_index=2)
