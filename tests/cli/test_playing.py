"""`operant play` and `operant evaluate --exact`: a board game against a policy, and the mistakes of the policy."""

import json
import re
from pathlib import Path

import pytest

import operant
from operant.cli import playing
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


class Misere(BoardGame):
    """A row loses."""

    def outcomes(self, positions):
        ended, values = super().outcomes(positions)
        return ended, -values


class Numbered(BoardGame):
    """Its actions are no cells."""

    actions = 10


WRONG = """
from operant.envs import BoardGame, BoardGameEnv

class Wrong(BoardGame):
    def outcomes(self, positions):
        ended, values = super().outcomes(positions)
        return ended, values.float()

def wrong():
    return BoardGameEnv(Wrong.tic_tac_toe())
"""


class Fixed:
    """A policy that plays the first free cell."""

    def reply(self, positions):
        return (Misere.tic_tac_toe().moves(positions)[0] != 0).int().argmax()


@pytest.mark.parametrize(
    ("game", "moves", "last"),
    [
        (Misere.tic_tac_toe(), ("9", "7", "8"), "The policy wins."),  # against 1, 2, 3, after which it has lost
        (BoardGame.tic_tac_toe(), ("5", "3", "7"), "You win."),
        (BoardGame.tic_tac_toe(), ("4", "5", "9"), "The policy wins."),
        (Misere.tic_tac_toe(), ("4", "5", "9"), "You win."),
    ],
)
def test_the_winner_is_named(game, moves, last, monkeypatch, capsys):
    typed(monkeypatch, *moves)
    assert playing._game(game, Fixed(), second=False) == 0
    assert capsys.readouterr().out.rstrip().endswith(last)


def test_actions_that_are_no_cells_are_called_actions(monkeypatch, capsys):
    typed(monkeypatch, "q")
    playing._game(Numbered.tic_tac_toe(), Fixed(), second=False)
    assert "The actions are numbered from 1 to 10" in capsys.readouterr().out


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


@pytest.mark.parametrize("algorithm", ["alphazero", "muzero"])
def test_a_game_of_ones_own_is_learned_and_evaluated_by_its_rules(algorithm, cli, tmp_path):
    """Misere tic-tac-toe has as many positions as tic-tac-toe, but other values; a changed file is an error."""
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    script = re.search(r"^```python\n(# my_game\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    file, run = tmp_path / "my_game.py", tmp_path / "run"
    file.write_text(script, encoding="utf-8")
    options = SMALL | {"num_envs": 4, "seeds": 1, "budget": 96, "evaluate_episodes": 2, "progress": "silent"}
    learner = operant.train(algorithm, f"{file}:misere", run=run, **options).experiment.learner
    status, out, err = cli("evaluate", run, "--exact", "--episodes", 2, "--json")
    assert status == 0, err
    usual, own = SolvedGame(BoardGame.tic_tac_toe()), SolvedGame(learner.game)
    assert json.loads(out)["positions"] == [4520]
    mistakes = json.loads(out)["mistakes"]
    assert mistakes == [learner.certify(own, 0).mistakes]
    assert mistakes != [learner.certify(usual, 0).mistakes]
    assert own.action_values(own.game.start(1), 0).tolist() == [[-1, -1, -1, -1, 0, -1, -1, -1, -1]]
    file.write_text(f"{script}# changed\n", encoding="utf-8")
    status, _, err = cli("resume", run, "--budget", 128)
    assert (status, f"task {file} has changed" in err) == (2, True)


def test_wrong_rules_are_errors_before_a_run_is_created(cli, tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(WRONG, encoding="utf-8")
    status, _, err = cli("train", "alphazero", f"{file}:wrong", "--run", tmp_path / "run", "--seeds", 1)
    assert status == 2
    assert "the values of Wrong.outcomes must be torch.int8, got torch.float32: convert it with .to(torch.int8)" in err
    assert not (tmp_path / "run").exists()


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
