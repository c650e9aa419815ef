import imageio.v3 as iio
import pytest

from operant import load
from operant.cli import tour
from operant.mdp import MDP
from operant.runtime.metrics import read_records
from operant.runtime.signals import Interruption
from operant.tabular import expected_returns


def test_the_lake_is_solved_with_bounds(tmp_path, capsys):
    assert tour.look_ahead(tmp_path, Interruption()) == 0
    out = capsys.readouterr().out
    assert "value at the start (state 0): 0.54202593" in out
    assert "certified to ±" in out
    assert "←↑↑↑" in out
    assert list(tmp_path.iterdir()) == []


def test_policies_of_the_lake_are_evaluated_exactly(tmp_path, capsys):
    status = tour.explore(tmp_path, Interruption(), budget=200_000, seeds=3)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0"], ["1"], ["2"])]
    scores = [float(success) for _, success in rows]
    assert len(scores) == 3
    assert all(score <= 0.7442 for score in scores), "no policy scores above the optimum"
    solved = sum(score >= 0.7 for score in scores)
    assert status == (0 if solved == 3 else 1)
    assert f"{solved} of 3 seeds solve it: 0.7 or more." in out
    assert "A random policy has 0.0139; no policy exceeds 0.7442" in out
    lake = MDP.from_gymnasium("FrozenLake-v1")
    learned = load(tmp_path / "q-learning-FrozenLake-v1-1").experiment.learner.policy()
    assert scores == pytest.approx(expected_returns(lake, learned) @ lake.start, abs=5e-5)


def test_too_little_learning_is_reported(tmp_path, capsys):
    assert tour.explore(tmp_path, Interruption(), budget=50, seeds=1) == 1
    assert "0 of 1 seeds solve it" in capsys.readouterr().out


def test_the_last_stop_on_a_small_scale(tmp_path, capsys):
    status = tour.balance(tmp_path, Interruption(), budget=4096, seeds=2)
    out, path = capsys.readouterr().out, tmp_path / "ppo-CartPole-v1-1"
    (record,) = read_records(path / "eval" / "final.jsonl")
    solved = sum(score >= 475 for score in record["scores"])
    assert status == (0 if solved == 2 else 1)
    assert f"{solved} of 2 seeds solve it: a mean of 475 or more." in out
    assert record["episodes"] == 100
    assert "┤" in out
    assert f"operant compare {path}" in out
    assert iio.imread(path / "media" / "learning-curve.png").ndim == 3
    assert iio.imread(path / "media" / "CartPole-v1-seed0.gif").shape[1:] == (424, 600, 3)


def test_without_the_extras_the_error_tells_how_to_install_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tour, "missing", lambda modules: modules)
    tour.balance(tmp_path, Interruption(), budget=2048, seeds=1)
    out = capsys.readouterr().out
    assert 'pip install "operant[plots]"' in out
    assert 'pip install "operant[render]"' in out
    assert list((tmp_path / "ppo-CartPole-v1-1" / "media").iterdir()) == []


@pytest.mark.parametrize(
    ("stop", "run"), [(tour.balance, "ppo-CartPole-v1-1"), (tour.explore, "q-learning-FrozenLake-v1-1")]
)
def test_an_interrupted_tour_can_be_resumed(stop, run, tmp_path, capsys):
    interrupted = Interruption()
    interrupted.request()
    assert stop(tmp_path, interrupted, budget=2048, seeds=1) == 75
    assert f"`operant resume {tmp_path / run}`" in capsys.readouterr().out


@pytest.mark.parametrize(("statuses", "expected"), [([0, 0], 0), ([1, 0], 1), ([0, 1], 1)])
def test_the_tour_visits_every_stop(statuses, expected, cli, tmp_path, monkeypatch):
    visited = []

    def stop(status):
        def visit(folder, interrupted):
            visited.append(folder)
            return status

        return tour.Stop(f"stop {status}", "text", visit)

    monkeypatch.setattr(tour, "STOPS", [stop(status) for status in statuses])
    status, out, _ = cli("tour", "--keep", tmp_path)
    assert status == expected
    assert visited == [tmp_path] * 2
    assert f"2/2  stop {statuses[1]}" in out
    assert out.endswith(f"\n  operant serve --runs {tmp_path}\n")


def test_stops_say_what_happens():
    assert all(stop.title and stop.text for stop in tour.STOPS)


def test_a_model_learns_to_add_on_a_small_scale(tmp_path, capsys):
    small = {"budget": 64, "train_examples": 64, "held_out": 8}
    status = tour.calculate(
        tmp_path,
        Interruption(),
        seeds=(0, 1),
        imitation=small,
        rewards=small | {"prompts_per_batch": 8, "num_generations": 4},
    )
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0"], ["1"]) and "%" in line]
    gained = [float(after[:-1]) - float(before[:-1]) for _, before, after in rows]
    assert len(gained) == 2
    assert status == 1  # this few answers are not informative
    assert "prompt" in out
    assert load(tmp_path / "grpo-arithmetic-1").experiment.members[0].learner.config.init == str(
        tmp_path / "sft-arithmetic-1"
    )
    assert f"operant chat {tmp_path / 'grpo-arithmetic-1'}" in out


def test_without_the_language_extra_the_tour_tells_how_to_install_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tour, "missing", lambda modules: modules)
    assert tour.calculate(tmp_path, Interruption()) == 0
    assert 'pip install "operant[language]"' in capsys.readouterr().out
