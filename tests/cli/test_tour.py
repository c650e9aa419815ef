import imageio.v3 as iio
import pytest

from operant.cli import tour
from operant.runtime.metrics import read_records
from operant.runtime.signals import Interruption


def test_the_first_stop_on_a_small_scale(tmp_path, capsys):
    status = tour.balance(tmp_path, Interruption(), budget=4096, seeds=2)
    out, path = capsys.readouterr().out, tmp_path / "ppo-CartPole-v1-1"
    (record,) = read_records(path / "eval" / "final.jsonl")
    solved = sum(score >= 475 for score in record["scores"])
    assert status == (0 if solved == 2 else 1)
    assert f"{solved} of 2 seeds have solved it: a mean of 475 or more." in out
    assert record["episodes"] == 100
    assert "┤" in out
    assert f"operant compare {path}" in out
    assert iio.imread(path / "media" / "learning-curve.png").ndim == 3
    assert iio.imread(path / "media" / "CartPole-v1-seed0.gif").shape[1:] == (400, 600, 3)


def test_without_the_extras_it_says_how_to_get_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tour, "missing", lambda modules: modules)
    tour.balance(tmp_path, Interruption(), budget=2048, seeds=1)
    out = capsys.readouterr().out
    assert 'pip install "operant[plots]"' in out
    assert 'pip install "operant[render]"' in out
    assert list((tmp_path / "ppo-CartPole-v1-1" / "media").iterdir()) == []


def test_an_interrupted_tour_can_be_resumed(tmp_path, capsys):
    interrupted = Interruption()
    interrupted.request()
    assert tour.balance(tmp_path, interrupted, budget=2048, seeds=1) == 75
    assert f"`operant resume {tmp_path / 'ppo-CartPole-v1-1'}`" in capsys.readouterr().out


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


def test_stops_say_what_happens():
    assert all(stop.title and stop.text for stop in tour.STOPS)
