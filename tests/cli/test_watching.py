import math
from dataclasses import replace

import imageio.v3 as iio
import numpy as np
import pytest
from imageio_ffmpeg import count_frames_and_secs

from operant import api, load
from operant.cli import output
from operant.cli.watching import _stage
from operant.runtime.comparison import evaluations
from operant.runtime.run import Run


def score(out):
    return float(out.splitlines()[-1].rpartition(" ")[2])


def test_a_video_of_the_first_seed(cli, run):
    status, out, err = cli("watch", run)
    path = run / "media" / "CartPole-v1-seed0.gif"
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"filmed: {path}"
    frames = iio.imread(path)
    # CartPole scores 1 per step and has 50 frames per second; the video has 25, beginning before the first step.
    assert frames.shape == (math.ceil((score(out) + 1) / 2), 424, 600, 3)
    assert iio.immeta(path)["duration"] == 40
    assert (frames[0] == 255).mean() > 0.9, "the background of CartPole is white"
    assert len({frame.tobytes() for frame in frames}) > len(frames) / 2, "the cart moves"


def test_a_video_of_an_update(cli, run):
    status, out, err = cli("watch", run, "--at", 300)
    path = run / "media" / "CartPole-v1-seed0-at384.gif"
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"filmed: {path}"
    assert "The state at 384:" in out
    assert path.exists()


ROOM = """
import gymnasium
import numpy as np


class Room(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, True, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)
"""


def test_a_video_of_an_own_environment_has_its_name_not_its_path(cli, tmp_path):
    folder = tmp_path / f"a folder with a long name {'x' * 200}"
    folder.mkdir()
    (folder / "mine.py").write_text(ROOM)
    run = tmp_path / "run"
    options = {"num_envs": 2, "num_steps": 2, "evaluate_episodes": 1, "progress": "silent"}
    api.train("a2c", f"{folder / 'mine.py'}:Room", budget=4, run=run, **options).close()
    status, out, _ = cli("watch", run)
    assert (status, out.splitlines()[0]) == (0, f"filmed: {run / 'media' / 'Room-seed0.gif'}")


def test_a_best_policy_is_shown_in_the_task_of_its_point_of_training(tmp_path, monkeypatch):
    options = {"seeds": 2, "budget": 60, "evaluate_episodes": 1, "evaluate_max_steps": 20, "progress": "silent"}
    trained = api.train("q-learning", "operant/BlockingMaze-v0", run=tmp_path / "run", **options)
    monkeypatch.setattr("operant.runtime.watching.Stage", lambda *_, env_kwargs, **__: env_kwargs)
    best = replace(trained, consumed=(10, 20))
    assert [_stage(best, index, False, 5) for index in range(2)] == [{"frozen_at": 10}, {"frozen_at": 20}]


def test_the_best_seed_in_another_format(cli, run, tmp_path):
    path = tmp_path / "new" / "film.mp4"
    status, out, _ = cli("watch", run, "--seed-index", "best", "--out", path)
    assert status == 0
    scores = evaluations(Run.open(run))[-1][1].scores
    assert out.splitlines()[-1].startswith(f"seed {int(np.argmax(scores))} scored")
    frames, seconds = count_frames_and_secs(path)
    assert frames == score(out) + 1
    assert seconds == pytest.approx(frames / 50, abs=0.02)


def test_several_episodes_are_those_of_the_evaluation(cli, run, tmp_path):
    expected = load(run).evaluate(1, backend="gymnasium").episode_scores
    for index in (0, 1):
        _, out, _ = cli("watch", run, "--seed-index", index, "--episodes", 2, "--out", tmp_path / "film.gif")
        scores = [float(number) for number in out.partition("scored ")[2].split(", ")]
        assert len(scores) == 2
        assert scores[0] == expected[index][0]


def test_an_episode_that_does_not_end_is_truncated_with_a_message(cli, run, tmp_path):
    path = tmp_path / "film.mp4"
    status, out, _ = cli("watch", run, "--max-steps", 3, "--out", path)
    assert status == 0
    assert "the episode was truncated after 3 steps; raise --max-steps for longer ones" in out
    assert score(out) == 3.0
    assert count_frames_and_secs(path)[0] == 4
    assert "2 of 2 episodes were truncated" in cli("watch", run, "--max-steps", 3, "--episodes", 2, "--out", path)[1]
    assert "cut" not in cli("watch", run, "--out", path)[1]
    assert "max_steps must be at least 1, got 0" in cli("watch", run, "--max-steps", 0)[2]


def test_sampling_is_another_episode(cli, run, tmp_path):
    flags = ["--episodes", 3, "--out", tmp_path / "film.gif"]
    greedy, sampled = cli("watch", run, *flags)[1], cli("watch", run, *flags, "--sample")[1]
    assert greedy != sampled
    assert cli("watch", run, *flags, "--sample")[1] == sampled


def test_a_window(cli, run, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    before = set((run / "media").iterdir())
    status, out, err = cli("watch", run, "--live")
    assert (status, err) == (0, "")
    assert score(out) > 0
    assert set((run / "media").iterdir()) == before


def test_a_table_whose_observations_are_tuples(cli, tmp_path):
    path = tmp_path / "run"
    flags = ["--seeds", 2, "--budget", 2000, "--run", path, "--progress", "silent"]
    assert cli("train", "q-learning", "Blackjack-v1", *flags)[0] == 0
    expected = load(path).evaluate(1, backend="gymnasium").episode_scores
    for index in (0, 1):
        film = tmp_path / f"{index}.gif"
        status, out, err = cli("watch", path, "--seed-index", index, "--out", film, "--episodes", 3)
        assert (status, err) == (0, "")
        scores = [float(number) for number in out.partition("scored ")[2].split(", ")]
        assert len(scores) == 3
        assert scores[0] == expected[index][0], "the first episode is that of the evaluation"
        assert set(scores) <= {-1.0, 0.0, 1.0}
        assert iio.imread(film).ndim == 4


@pytest.mark.parametrize(
    "flags", [["--out", "film.avi"], ["--episodes", 0], ["--live", "--out", "film.gif"], ["--seed-index", "worst"]]
)
def test_wrong_use(flags, cli, run):
    assert cli("watch", run, *flags)[0] == 2


@pytest.mark.parametrize("flags", [(), ("--at", 10**9)], ids=["latest", "of no update"])
def test_a_video_that_cannot_be_written_is_not_filmed(cli, run, flags):
    """It is checked first: to recompute the state of --at may take long."""
    status, out, err = cli("watch", run, "--out", "/dev/null/video.gif", *flags)
    assert (status, out) == (2, "")
    assert err.startswith("operant: error: /dev/null/video.gif cannot be written: ")


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_video_that_does_not_fit_on_the_disk_is_an_error_and_keeps_the_one_before(
    cli, run, tmp_path, small_files, suffix
):
    path = tmp_path / f"film{suffix}"
    path.write_bytes(b"before")
    with small_files(4096):
        status, out, err = cli("watch", run, "--out", path)
    assert (status, out) == (1, "")
    assert f"{path}: ffmpeg could not write all frames" in err
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"before", [path])


def test_a_seed_that_is_not_there(cli, run):
    status, _, err = cli("watch", run, "--seed-index", 2)
    assert status == 2
    assert "seed_index must be between 0 and 1 for 2 seeds, got 2" in err


def test_no_window_can_be_opened(cli, run, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "no such driver")
    status, _, err = cli("watch", run, "--live")
    assert status == 2
    assert "leave out --live for a video" in err


def test_a_language_model_is_not_watched_but_talked_to(cli, spoken):
    status, out, err = cli("watch", spoken)
    assert (status, out) == (2, "")
    assert f"try `operant chat {spoken}`" in err


def test_without_the_extra(cli, run, monkeypatch):
    monkeypatch.setattr(output, "missing", list)
    status, _, err = cli("watch", run)
    assert status == 2
    assert err == 'operant: error: watching needs pygame, imageio_ffmpeg: pip install "operant[render]"\n'
