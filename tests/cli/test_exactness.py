"""`operant evaluate --exact` in finite worlds: the suboptimality of greedy policies by seed, and unsupported runs."""

import numpy as np
import pytest

import operant
from operant import mdp, tabular
from operant.cli.exactness import Losses
from operant.cli.output import number
from operant.envs.tensor.board_games import BoardGame
from operant.envs.tensor.solved_games import SolvedGame

LAKE = "FrozenLake-v1"


def trained(path, algorithm, task, **options):
    options = {"seeds": 2, "progress": "silent", "evaluate_episodes": 2, **options}
    return operant.train(algorithm, task, run=path, **options)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "table"
    trained(path, "q-learning", LAKE, budget=3000, gamma=0.9)
    return path


def test_the_suboptimality_of_a_table_is_that_of_the_library(answer, cli, table):
    found = answer("evaluate", table, "--exact")
    policies, model = operant.load(table).policy, mdp.MDP.from_gymnasium(LAKE)
    losses = [mdp.value_lost(model, policy, gamma=0.9) for policy in policies]
    assert found["value_lost"] == [one.start for one in losses]
    assert found["largest_value_lost"] == [one.largest for one in losses]
    assert found["suboptimal_states"] == [one.suboptimal for one in losses]
    assert (found["gamma"], found["states"]) == (0.9, 11)
    assert found["optimal_value"] == pytest.approx(0.0688909049)
    status, out, _ = cli("evaluate", table, "--exact")
    assert status == 0
    assert "with discount factor 0.9: V* at the start is 0.068891, and 11 states can be entered." in out
    assert out.splitlines()[-3].split() == ["seed", "value", "lost", "largest", "in", "state", "suboptimal", "states"]


def test_reachable_positions_are_those_of_board_games(cli, table):
    status, _, err = cli("evaluate", table, "--exact", "--faced")
    assert status == 2
    assert "--faced is for board games, got a run on" in err


def test_an_environment_from_a_file_is_read_as_in_training(answer, cli, tmp_path):
    path = tmp_path / "envs.py"
    path.write_text("from operant.envs import GridWorld\n\n\ndef own():\n    return GridWorld('S . G')\n")
    trained(tmp_path / "own", "q-learning", f"{path}:own", budget=3000, gamma=0.9)
    found = answer("evaluate", tmp_path / "own", "--exact")
    assert max(found["value_lost"]) < 0.1


def test_another_discount(answer, table):
    assert answer("evaluate", table, "--exact", "--gamma", 0.99)["optimal_value"] == pytest.approx(0.5420259320)


def test_networks_are_asked_about_every_state(answer, tmp_path):
    run = trained(tmp_path / "net", "dqn", "operant/Goal4x4-v0", budget=200, learning_starts=50, preset=None)
    found = answer("evaluate", tmp_path / "net", "--exact", "--episodes", 2)
    model = mdp.MDP.from_gymnasium("operant/Goal4x4-v0")
    gamma = run.experiment.learner.config.gamma
    for place in range(2):
        actions = [run.predict(np.int64(state), seed_index=place)[0] for state in range(model.states)]
        lost = mdp.value_lost(model, actions, gamma=gamma)
        assert found["value_lost"][place] == pytest.approx(lost.start)
        assert found["largest_value_lost"][place] == pytest.approx(lost.largest)


def test_unsupported_runs_are_rejected(cli, run, spoken, table, tmp_path):
    for path in (run, spoken):
        status, _, err = cli("evaluate", path, "--exact")
        assert status == 2
        assert "--exact is for board games and finite MDPs" in err
    trained(tmp_path / "hidden", "q-learning", "operant/ShortCorridor-v0", budget=100)
    status, _, err = cli("evaluate", tmp_path / "hidden", "--exact")
    assert status == 2
    assert "where observations are not the states" in err
    trained(tmp_path / "memory", "recurrent-ppo", "operant/Maze2x3-v0", budget=64, num_envs=4, num_steps=16)
    status, _, err = cli("evaluate", tmp_path / "memory", "--exact")
    assert status == 2
    assert "are recurrent" in err
    wrappers = {"wrappers": ["operant.envs:NoisyTV(action=1)"]}
    trained(tmp_path / "screen", "ppo", "operant/Maze2x3-v0", budget=64, num_envs=4, num_steps=16, **wrappers)
    status, _, err = cli("evaluate", tmp_path / "screen", "--exact")
    assert status == 2
    assert "NoisyTV changes what they observe" in err
    status, _, err = cli("evaluate", table, "--gamma", 0.9)
    assert status == 2
    assert "requires --exact" in err


def test_a_policy_that_never_ends_has_no_loss_and_the_other_seeds_have_theirs(cli, answer, tmp_path):
    path = tmp_path / "maze"
    run = trained(path, "q-learning", "operant/DynaMaze-v0", budget=30_000, seeds=3, gamma=0.95)
    q = run.experiment.learner.q
    q[1] = [1.0, 0.0, 0.0, 0.0]  # up, and then against the wall
    losses = Losses(run, 1.0)
    fields = losses.fields()
    assert fields["never_ends"] == [False, True, False]
    assert fields["value_lost"][1] is None
    assert fields["suboptimal_states"][0] >= 0
    rows = losses.text().splitlines()
    assert rows[-2].split() == ["1", "never", "ends", "-", "-", "-"]
    assert rows[-1].split()[1] == number(fields["value_lost"][2])
    assert "The policies of 1 of 3 seeds never end an episode" in rows[0]
    path = tmp_path / "net"
    trained(path, "dqn", "operant/DynaMaze-v0", budget=20, learning_starts=10, seeds=1, evaluate_max_steps=50)
    status, out, _ = cli("evaluate", path, "--exact", "--gamma", 1)
    assert (status, "never ends" in out) == (0, True)
    assert answer("evaluate", path, "--exact", "--gamma", 1)["value_lost"] == [None]


def test_values_of_a_prediction_run_are_compared_with_those_of_its_policy(cli, answer, tmp_path):
    run = trained(tmp_path / "td", "td-lambda", LAKE, budget=2000, gamma=0.9)
    learner = run.experiment.learner
    found = tabular.value_errors(mdp.MDP.from_gymnasium(LAKE), learner.values, learner.followed, gamma=0.9)
    scored = answer("evaluate", tmp_path / "td", "--exact")
    assert (scored["value_rmse"], scored["states"]) == (found.rmse.tolist(), 11)
    status, out, _ = cli("evaluate", tmp_path / "td", "--exact")
    assert status == 0
    assert "Values against the exact ones of the evaluated policy, V^π with discount factor 0.9" in out
    assert "Greedy policies" not in out
    status, _, errors = cli("evaluate", tmp_path / "td", "--exact", "--gamma", 0.8)
    assert (status, "the discount factor 0.9, got --gamma 0.8" in errors) == (2, True)


def test_board_games_need_learners_that_search_and_small_boards(cli, tmp_path):
    small = {"hidden_sizes": (4,), "num_envs": 2, "num_steps": 4}
    game = {"task": "operant/TicTacToe-v0", "seeds": 1, "evaluate_episodes": 1}
    trained(tmp_path / "ppo", "ppo", budget=8, num_minibatches=1, **game, **small)
    status, _, err = cli("evaluate", tmp_path / "ppo", "--exact", "--episodes", 1)
    assert (status, "mistakes in a board game are counted for alphazero and muzero only" in err) == (2, True)
    searching = {"gradient_steps": 1, "simulations": 1, "unroll_steps": 1, "td_steps": 1}
    trained(tmp_path / "muzero", "muzero", budget=16, bonus="rnd", **game, **small, **searching)
    status, _, err = cli("evaluate", tmp_path / "muzero", "--exact", "--episodes", 1)
    assert (status, "alphazero and muzero only, trained by self-play, without --bonus" in err) == (2, True)
    with pytest.raises(ValueError, match=r"columns \* \(rows \+ 1\) must be at most 31, got 49"):
        SolvedGame(BoardGame.connect_four())
    status, _, err = cli("evaluate", tmp_path / "ppo", "--require", "nan")
    assert (status, "require must be a number" in err) == (2, True)
