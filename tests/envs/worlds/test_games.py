"""Board games as environments of Gymnasium, against an opponent who moves at random."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from operant.envs import check_batch_env, make
from operant.envs.tensor.board_games import BoardGame, Positions
from operant.envs.worlds.games import CELL, EMPTY, OTHER, OWN, BoardGameEnv, rules_of


@pytest.mark.parametrize(
    ("task", "options"),
    [("TicTacToe", {}), ("ConnectFour", {"columns": 5, "rows": 4}), ("MNK", {"columns": 4, "rows": 3, "connect": 3})],
)
def test_the_contracts_hold(task, options):
    check_env(gymnasium.make(f"operant/{task}-v0", **options).unwrapped, skip_render_check=True)
    check_batch_env(lambda: make(f"operant/{task}-v0", 2, (3, 5), env_kwargs=options))


@pytest.mark.parametrize("task", ["operant/TicTacToe-v0", "operant/ConnectFour-v0", "operant/MNK-v0"])
def test_games_are_those_of_the_rules(task):
    """Follow random games on a board: rewards are given at the end only, and follow from the winner."""
    env, chance = gymnasium.make(task), np.random.default_rng(0)
    game, results, begun = env.unwrapped.game, [], set()
    for episode in range(60):
        obs, _ = env.reset(seed=episode)
        begun.add(float(obs["observation"].sum()))
        over = False
        while not over:
            stones = obs["observation"].sum()
            mover = game.positions(torch.from_numpy(obs["observation"]).unsqueeze(0))
            assert np.array_equal(obs["action_mask"], (game.moves(mover)[0] != 0).numpy())
            obs, reward, over, truncated, _ = env.step(chance.choice(np.flatnonzero(obs["action_mask"])))
            assert not truncated
            added = obs["observation"].sum() - stones
            mine, theirs = (
                Positions(*game.positions(torch.from_numpy(obs["observation"]).unsqueeze(0)))[i] for i in (0, 1)
            )
            won, lost = (bool(game.connected(part)) for part in (mine, theirs))
            assert reward == won - lost
            assert added == 2 or over
            assert over or reward == 0
        results.append(reward)
    assert begun == {0.0, 1.0}
    assert {-1.0, 1.0} <= set(results)


def test_an_action_that_is_not_allowed_loses():
    env = gymnasium.make("operant/TicTacToe-v0")
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        if taken := np.flatnonzero(obs["action_mask"] == 0).tolist():
            _, reward, terminated, _, _ = env.step(taken[0])
            assert (reward, terminated) == (-1.0, True)
            return
    raise AssertionError("the opponent has never begun")


def test_boards_are_drawn():
    env = BoardGameEnv("connect-four", columns=4, rows=2, render_mode="ansi")
    env.reset(seed=0)
    env.positions = env.game.start(1)
    env.positions = env.game.play(env.positions, torch.tensor([1]))
    assert env.render() == ". . . .\n. o . ."
    game = BoardGame.tic_tac_toe()
    after = game.play(game.play(game.start(1), torch.tensor([0])), torch.tensor([5]))
    assert game.drawing(after) == "x . .\n. . o\n. . ."
    assert BoardGameEnv("tic-tac-toe").render() is None


def test_images_show_the_stones():
    env = BoardGameEnv("connect-four", columns=4, rows=2, render_mode="rgb_array")
    env.reset(seed=0)
    env.positions = env.game.play(env.game.start(1), torch.tensor([1]))
    image = env.render()
    assert image.shape == (2 * CELL, 4 * CELL, 3)
    middles = image[CELL // 2 :: CELL, CELL // 2 :: CELL]
    assert tuple(middles[1, 1]) == OTHER
    assert (middles == EMPTY).all(-1).sum() == 7


def test_unknown_games_are_rejected():
    with pytest.raises(ValueError, match="tic-tac-toe has 3 x 3 cells: remove columns=4"):
        BoardGameEnv("tic-tac-toe", columns=4)
    with pytest.raises(
        ValueError, match=r"game must be 'tic-tac-toe', 'connect-four', 'mnk' or the rules, .* got 'go'"
    ):
        BoardGameEnv("go")
    with pytest.raises(ValueError, match=r"or the rules, an instance of BoardGame such as .*, got <class"):
        BoardGameEnv(BoardGame)
    with pytest.raises(ValueError, match=r"connect=3, gravity=False\) has its own size: remove rows=4 and connect=4"):
        BoardGameEnv(BoardGame.tic_tac_toe(), rows=4, connect=4)
    for wrong in (1, 6):
        with pytest.raises(ValueError, match=f"connect must be from 2 to 5, .* of 4 columns and 5 rows, got {wrong}"):
            BoardGameEnv("mnk", rows=5, connect=wrong)
    with pytest.raises(ValueError, match=r"connect must be from 2 to 3, .* got 4, the default"):  # nobody could win
        BoardGameEnv("mnk", columns=3, rows=3)
    with pytest.raises(ValueError, match=r"is 90, at most 62 bits fit: choose a smaller board$"):  # without a place
        make("operant/ConnectFour-v0", 1, [0], env_kwargs={"columns": 9, "rows": 9})


def test_sizes_are_those_given():
    rules = {("mnk", 5, 4, 3): BoardGame(5, 4, 3, gravity=False), ("connect-four", 4, 5, 3): BoardGame(4, 5, 3, True)}
    rules |= {("connect-four",): BoardGame.connect_four(), ("mnk",): BoardGame(4, 4, 4, gravity=False)}
    assert {given: BoardGameEnv(*given).game for given in rules} == rules
    assert BoardGameEnv("connect-four", rows=3).game == BoardGame.connect_four(rows=3), "which was allowed before"


class Endless(BoardGame):
    """A full board is no end."""

    def outcomes(self, positions):
        lost = self.connected(positions.opponent)
        return lost, -lost.to(torch.int8)


def test_wrong_rules_are_errors_when_the_environment_is_created():
    with pytest.raises(ValueError, match="Endless: a game must end where no action is legal"):
        BoardGameEnv(Endless.tic_tac_toe())


def test_the_last_image_of_a_won_game_has_the_colors_of_the_others():
    boards = torch.zeros(1, 2, 3, 3)
    boards[0, 0, 0, :2] = boards[0, 1, 1, :2] = 1
    images = {}
    for mode in ("ansi", "rgb_array"):
        env = BoardGameEnv("tic-tac-toe", render_mode=mode)
        env.reset(seed=0)
        env.positions = env.game.positions(boards)
        obs, reward, terminated, *_ = env.step(np.int64(2))
        assert (reward, terminated, obs["observation"][0].sum()) == (1, True, 3)
        images[mode] = env.render()
        env.reset(seed=0)
        assert "x" not in env.game.drawing(env._seen)
    assert images["ansi"] == "x x x\no o .\n. . ."
    assert (images["rgb_array"][CELL // 2, CELL // 2] == OWN).all()


OWN_GAME = """
from operant.envs import BoardGame, BoardGameEnv

def small(rows):
    return BoardGameEnv(BoardGame.connect_four(4, rows))
"""


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("task", ["operant/ConnectFour-v0", "own"])
def test_the_rules_of_an_environment_are_known_in_every_process(task, vectorization, tmp_path):
    (tmp_path / "own.py").write_text(OWN_GAME)
    options = {"columns": 4, "rows": 3} if task != "own" else {"rows": 3}
    task = f"{tmp_path / 'own.py'}:small" if task == "own" else task
    env = make(task, 1, (0,), env_kwargs=options, vectorization=vectorization)
    try:
        assert rules_of(env) == BoardGame.connect_four(4, 3)
    finally:
        env.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_other_environments_have_no_rules(vectorization):
    env = make("FrozenLake-v1", 1, (0,), vectorization=vectorization)
    try:
        assert rules_of(env) is None
    finally:
        env.close()
