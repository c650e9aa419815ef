"""Both players of a game on tensors: turns, rewards of the player who moved, openings, and states."""

import torch

from operant.envs import check_batch_env, make
from operant.envs.tensor.board_games import Positions
from operant.envs.worlds.games import rules_of
from operant.envs.worlds.self_play import SelfPlay, observed
from operant.state import clone

SEEDS = (3, 5)


def games(share=0.0, seeds=SEEDS, rows=4, task="operant/TicTacToe-v0"):
    env = make(task, rows, seeds)
    return SelfPlay(rules_of(env), env, seeds=seeds, rows=rows, random_openings=share)


def chosen(obs, chance):
    """Return random legal actions."""
    return (torch.rand(obs["action_mask"].shape, generator=chance) * obs["action_mask"]).argmax(1)


def test_the_contract_holds():
    check_batch_env(lambda: games(0.5))


def test_completing_a_row_gives_the_reward_and_the_opponent_observes_next():
    """x takes 0, 1, 2; o takes 3, 4: the fifth move wins, and the next observation is that of the opponent."""
    found = games(rows=1, seeds=(3,))
    for i, action in enumerate((0, 3, 1, 4, 2)):
        before = Positions(found.own, found.opponent)
        step = found.step(torch.tensor([action]))
        assert step.reward.tolist() == [1.0 if i == 4 else 0.0]
        assert step.terminated.tolist() == [i == 4]
        assert not step.truncated.any()
        assert step.final_obs["observation"][0, 1].sum() == found.game.observe(before)[0, 0].sum() + 1
    assert step.obs["observation"].sum() == 0, "a new game"
    assert step.final_obs["observation"][0, 1].flatten().tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_games_that_are_drawn_bring_nothing_and_full_boards_allow_all():
    found = games(rows=1, seeds=(3,))
    for action in (0, 1, 2, 4, 3, 5, 7, 6, 8):
        step = found.step(torch.tensor([action]))
    assert step.terminated.all()
    assert step.reward.tolist() == [0.0]
    assert (step.final_obs["action_mask"] == 1).all()


def test_an_action_that_is_not_allowed_loses():
    found = games(rows=1, seeds=(3,))
    found.step(torch.tensor([4]))
    step = found.step(torch.tensor([4]))
    assert step.reward.tolist() == [-1.0]
    assert step.terminated.tolist() == [True]


def test_a_share_of_games_begins_with_random_moves():
    found = games(0.7, rows=300, seeds=(3,))
    stones = found.game.observe(Positions(found.own, found.opponent)).sum((1, 2, 3))
    assert 0.25 < float((stones == 0).float().mean()) < 0.5
    assert stones.max() >= 6
    over, _ = found.game.outcomes(Positions(found.own, found.opponent))
    assert not over.any()


def test_a_state_resumes_bit_for_bit_and_seeds_are_independent():
    both, alone, chance = games(0.5), games(0.5, seeds=(5,)), torch.Generator().manual_seed(0)
    obs = observed(both.game, Positions(both.own, both.opponent))
    for _ in range(12):
        actions = chosen(obs, chance)
        obs = both.step(actions).obs
        other = alone.step(actions[4:]).obs
        assert torch.equal(obs["observation"][4:], other["observation"])
    state, ahead = clone(both.state_dict()), games(0.5)
    assert torch.equal(ahead.load_state_dict(state)["observation"], obs["observation"])
    for _ in range(12):
        actions = chosen(obs, chance)
        obs, again = both.step(actions).obs, ahead.step(actions).obs
        assert torch.equal(obs["observation"], again["observation"])
