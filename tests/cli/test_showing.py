import json

import numpy as np
import pytest

from operant import load
from operant.cli import main, showing
from operant.cli.showing import text_of
from operant.tabular.view import view_of


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "lake"
    flags = ["--seeds", "2", "--seed", "5", "--budget", "3000", "--progress", "silent", "--run", str(path)]
    assert main(["train", "q-learning", "FrozenLake-v1", *flags]) == 0
    return path


def test_a_run_and_its_table(cli, lake):
    status, out, err = cli("show", lake)
    assert (status, err) == (0, "")
    steps = "3,000 of 3,000 environment steps per seed"
    for part in ("q-learning", "FrozenLake-v1", "2, from 5", steps, "config.toml"):
        assert part in out
    trained = load(lake)
    view = view_of(trained.experiment, 0)
    assert out.endswith(f"The table of seed 5:\n\n{text_of(view)}\n")
    lines = text_of(view).splitlines()
    assert [lines[1][1], lines[1][3], lines[3][0], lines[3][3]] == ["H", "H", "H", "G"]
    for state in np.flatnonzero(~view.ends):
        row, column = divmod(int(state), 4)
        best = np.flatnonzero(trained.q[0, state] == trained.q[0, state].max())
        assert lines[row][column] == ("←↓→↑"[best[0]] if best.size == 1 else "+")
        assert lines[row].split()[1:][column] == f"{trained.values[0, state]:.4g}"


def test_json_has_the_arrays(answer, cli, lake):
    trained = load(lake)
    record = answer("show", lake, "--seed", 6)
    assert (record["seed"], record["shape"], record["consumed"]) == (6, [4, 4], 3000)
    np.testing.assert_array_equal(record["q"], trained.q[1])
    np.testing.assert_array_equal(record["policy"], trained.policy[1])
    assert np.sum(record["visits"]) == 3000
    assert record["ends"] == [5, 7, 11, 12, 15]
    assert json.loads(json.dumps(record)) == record
    status, _, err = cli("show", lake, "--seed", 7)
    assert status == 2
    assert "--seed is 7, but the seeds of " in err


def test_training_saves_a_plot(lake, cli, tmp_path):
    kept = lake / "media" / "table-seed5.png"
    assert kept.read_bytes().startswith(b"\x89PNG")
    path = tmp_path / "new" / "table.png"
    status, _, err = cli("show", lake, "--seed", "6", "--out", path)
    assert (status, err) == (0, f"drawn: {path}\n")
    assert path.stat().st_size > 10_000
    assert cli("show", lake, "--out", "table.txt")[0] == 2
    assert cli("show", lake, "--out", path / "table.png")[:2] == (2, "")


def test_without_matplotlib_no_plot_is_saved(lake, cli, monkeypatch):
    monkeypatch.setattr(showing, "missing", list)
    assert showing.keep_plot(load(lake)) is None


def test_a_table_without_a_map_is_listed(cli, tmp_path):
    path = tmp_path / "walk"
    flags = ["--seeds", "2", "--budget", "500", "--progress", "silent", "--run", path]
    assert cli("train", "td-lambda", "operant/RandomWalk5-v0", *flags)[0] == 0
    _, out, _ = cli("show", path)
    rows = [line.split() for line in out.splitlines()[-6:]]
    assert rows[0] == ["state", "action", "value", "visits"]
    trained = load(path)
    assert [row[2] for row in rows[1:]] == [f"{value:.4g}" for value in trained.values[0][1:6]]


def test_other_runs_are_summed_up(cli, answer, run):
    status, out, _ = cli("show", run)
    assert status == 0
    assert "1,024 of 1,024 environment steps per seed" in out
    assert "checkpoints" in out
    assert answer("show", run)["evaluation"]["consumed"] == 1024
    status, _, err = cli("show", run, "--seed", 0)
    assert status == 2
    assert "ppo has no table" in err


def test_a_merged_run_names_its_sources_and_the_files_it_has(cli, tmp_path):
    ppo = [tmp_path / f"ppo{seed}" for seed in (0, 1)]
    for seed, path in enumerate(ppo):
        small = ["--budget", 64, "--num-envs", 2, "--num-steps", 8, "--num-minibatches", 2, "--evaluate-episodes", 2]
        flags = ["--seeds", 1, "--seed", seed, *small, "--progress", "silent", "--run", path]
        assert cli("train", "ppo", "CartPole-v1", *flags)[0] == 0
    assert cli("runs", "merge", tmp_path / "merged", *ppo)[0] == 0
    status, out, _ = cli("show", tmp_path / "merged")
    assert status == 0
    assert f"merged from      {ppo[0]}, {ppo[1]}" in out
    assert "trained" not in out
    assert "checkpoints" not in out
    assert "last evaluation" in out


SHIFTED = """
import gymnasium
from gymnasium import spaces


class Shifted(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(3, start=5), spaces.Discrete(2, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 5, {}

    def step(self, action):
        return 6 + (action > -1), float(action), True, False, {}
"""


def test_states_and_actions_are_numbered_as_in_the_task(cli, tmp_path):
    (tmp_path / "shifted.py").write_text(SHIFTED)
    flags = ["--budget", 200, "--seeds", 1, "--progress", "silent", "--run", tmp_path / "run"]
    status, _, err = cli("train", "q-learning", f"{tmp_path / 'shifted.py'}:Shifted", *flags)
    assert status == 0, err
    rows = [line.split() for line in cli("show", tmp_path / "run")[1].splitlines()[-2:]]
    assert rows[0][:5] == ["state", "action", "value", "Q", "-1"]
    assert rows[1][:2] == ["5", "0"]
    assert cli("export", tmp_path / "run", tmp_path / "out")[0] == 0
    table = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert table[0] == "state,action,q_-1,q_0"
    assert table[1].startswith("5,0,")
