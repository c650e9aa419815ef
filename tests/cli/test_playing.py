"""`operant play` and `operant evaluate --exact`: a board game against a policy, and the mistakes of the policy."""

import json

import pytest

import operant
from operant.envs.tensor.board_games import BoardGame
from operant.envs.tensor.solved_games import SolvedGame
from operant.runtime.metrics import read_records

SMALL = {"num_envs": 8, "num_steps": 8, "simulations": 8, "gradient_steps": 2, "batch_size": 16, "hidden_sizes": (16,)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("games") / "run"
    operant.train("alphazero", "operant/TicTacToe-v0", seeds=2, budget=64, run=path, progress="silent", **SMALL)
    return path


def typed(monkeypatch, *words):
    left = iter(words)

    def answer(_):
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)


def test_a_person_plays_to_the_end(cli, run, monkeypatch):
    """Type every cell in turn, including taken ones, until the game ends."""
    typed(monkeypatch, *map(str, list(range(1, 10)) * 3))
    status, out, _ = cli("play", run)
    assert status == 0
    assert out.startswith("You are x. The cells, row by row, are numbered from 1 to 9")
    assert out.rstrip().endswith(("A draw.", "The policy wins.", "You win."))
    assert "The policy plays" in out


def test_training_prints_the_next_commands(cli, tmp_path):
    words = ["--num-envs", 2, "--num-steps", 4, "--simulations", 4, "--buffer-size", 16, "--gradient-steps", 1]
    words += ["--budget", 8, "--seeds", 1, "--run", tmp_path / "run", "--progress", "silent"]
    status, out, _ = cli("train", "alphazero", "operant/TicTacToe-v0", *words)
    assert status == 0
    assert "run --exact" in out
    assert "operant play" in out


def test_it_may_move_first(cli, run, monkeypatch):
    typed(monkeypatch, "nonsense", "0", "q")
    status, out, _ = cli("play", run, "--second", "--seed", 1)
    assert status == 0
    assert out.index("The policy plays") < out.index("Legal moves")
    assert "got 'nonsense'" in out
    assert out.count("x") == out.count("x", 0, out.index("The policy plays")), "the user has not moved"


def test_the_input_may_end(cli, run, monkeypatch):
    typed(monkeypatch)
    assert cli("play", run)[0] == 0


def test_other_runs_and_seeds_are_rejected(cli, run, tmp_path):
    status, _, err = cli("play", run, "--seed", 7)
    assert status != 0
    assert "seed must be one of 0, 1, got 7" in err
    operant.train("q-learning", "FrozenLake-v1", seeds=1, budget=100, run=tmp_path / "lake", progress="silent")
    status, _, err = cli("play", tmp_path / "lake")
    assert status != 0
    assert "alphazero" in err


def test_mistakes_are_counted(cli, run):
    status, out, _ = cli("evaluate", run, "--exact", "--episodes", 4, "--json")
    assert status == 0
    found = json.loads(out)
    learner = operant.load(run).experiment.learner
    solved = SolvedGame(BoardGame.tic_tac_toe())
    assert found["positions"] == [4520, 4520]
    assert found["mistakes"] == [learner.certify(solved, seed).mistakes for seed in range(2)]
    assert found["faced_mistakes"] == [learner.certify(solved, seed).faced_mistakes for seed in range(2)]
    status, out, _ = cli("evaluate", run, "--exact", "--faced", "--episodes", 4, "--json")
    fewer = json.loads(out)
    assert fewer["faced_mistakes"] == found["faced_mistakes"]
    assert not {"positions", "mistakes"} & set(fewer)
    status, _, err = cli("evaluate", run, "--faced")
    assert status == 2
    assert "--faced is for the mistakes of --exact" in err
    status, out, _ = cli("evaluate", run, "--exact", "--episodes", 4)
    assert "Against the exact solution of the game" in out
    assert f"{found['mistakes'][1]}" in out


def test_searches_may_have_other_numbers_of_simulations(cli, run, monkeypatch):
    status, out, _ = cli("evaluate", run, "--exact", "--episodes", 4, "--simulations", 0, "--json")
    assert status == 0
    found = json.loads(out)
    learner = operant.load(run).experiment.learner
    solved = SolvedGame(BoardGame.tic_tac_toe())
    assert found["simulations"] == 0
    assert found["mistakes"] == [learner.certify(solved, seed, 0).mistakes for seed in range(2)]
    assert found["mistakes"] != [learner.certify(solved, seed).mistakes for seed in range(2)]
    assert read_records(run / "eval" / "final.jsonl")[-1]["simulations"] == 0
    typed(monkeypatch, *map(str, list(range(1, 10)) * 3))
    searched = []
    monkeypatch.setattr(type(learner), "search_with", lambda self, simulations: searched.append(simulations))
    assert cli("play", run, "--simulations", 64)[0] == 0
    assert searched == [64]


def test_wrong_simulations_are_rejected(cli, run, tmp_path):
    for command in ("evaluate", "play"):
        status, _, err = cli(command, run, "--simulations", -1)
        assert status == 2
        assert "simulations must be at least 0, got -1" in err
    operant.train("q-learning", "FrozenLake-v1", seeds=1, budget=100, run=tmp_path / "lake", progress="silent")
    status, _, err = cli("evaluate", tmp_path / "lake", "--simulations", 8)
    assert status == 2
    assert "--simulations is for alphazero and muzero, got a run of q-learning" in err
