"""AlphaZero: rules in the search, returns with turns, replay buffer, bit-for-bit resume, exact counts of mistakes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import operant
from operant.envs import make
from operant.envs.tensor.board_games import BoardGame, Positions
from operant.envs.tensor.solved_games import SolvedGame
from operant.state import clone
from operant.worlds.alphazero import AlphaZero, AlphaZeroConfig

SEEDS = (3, 5)
SMALL = AlphaZeroConfig(
    num_envs=6, num_steps=5, simulations=6, gradient_steps=2, batch_size=16, buffer_size=64, hidden_sizes=(32,)
)


def learner(task="operant/TicTacToe-v0", config=SMALL, seeds=SEEDS, **kwargs):
    env = make(task, config.num_envs, seeds, env_kwargs=kwargs)
    return AlphaZero(config, env, seeds=seeds, budget=1000)


@pytest.fixture(scope="module")
def solved():
    return SolvedGame(BoardGame.tic_tac_toe())


def blind(found, simulations):
    """Let a learner search with a network of zeros."""
    found.agent.parameters.zero_()
    found.planner = replace(found.planner, simulations=simulations)
    return found


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_a_search_without_advice_finds_the_best_moves_near_the_end(solved, kind):
    """The search knows only the rules. In positions with six or more stones no move of 150 simulations is a mistake."""
    found = blind(learner(config=replace(SMALL, search=kind), seeds=(3,)), 150)
    for stones in range(6, 9):
        positions = solved.undecided(stones)
        actions = found.search(positions, None).actions
        values = solved.action_values(positions, stones)
        assert torch.equal(values.gather(1, actions.unsqueeze(1))[:, 0], values.amax(1))


def test_the_model_plays_by_the_rules():
    found = learner()
    game = found.game
    positions = game.start(12)
    states, chance = (*positions, torch.zeros(12, dtype=torch.bool)), torch.Generator().manual_seed(0)
    ended = torch.zeros(12, dtype=torch.bool)
    for _ in range(9):
        legal = game.moves(Positions(*states[:2])) != 0
        actions = (torch.rand(12, 9, generator=chance) * legal).argmax(1)
        expansion = found._model(states, actions)
        after = game.play(Positions(*(part[~ended] for part in states[:2])), actions[~ended])
        over, value = game.outcomes(after)
        assert torch.equal(expansion.states[0][~ended], after.own)
        assert torch.equal(expansion.reward[~ended], -value.float())
        assert torch.equal(expansion.discount[~ended], torch.where(over, 0.0, -1.0))
        assert (expansion.reward[ended] == 0).all()
        assert (expansion.discount[ended] == 0).all()
        assert (expansion.value[expansion.states[2]] == 0).all()
        states, ended = expansion.states, expansion.states[2]
    assert ended.all()


def test_returns_change_their_sign_with_the_turn():
    """By hand: one game is won by its third move; the other continues, worth 0.5 to the player who moves next."""
    found = learner(config=replace(SMALL, td_lambda=1.0))
    values = torch.tensor([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.4, 0.5]])
    rewards = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    ends = torch.tensor([[False, False], [False, False], [True, False]])
    expected = torch.tensor([[1.0, -0.5], [-1.0, 0.5], [1.0, -0.5]])
    assert_close(found.estimate_returns(values, rewards, ends), expected)
    found.config = replace(SMALL, td_lambda=0.0)
    one_step = torch.tensor([[-0.2, -0.2], [-0.3, -0.3], [1.0, -0.5]])
    assert_close(found.estimate_returns(values, rewards, ends), one_step)
    found.config = replace(SMALL, td_lambda=0.5)
    second = -0.5 * 0.3 - 0.5 * 1.0
    assert found.estimate_returns(values, rewards, ends)[0, 0].item() == pytest.approx(-0.5 * 0.2 - 0.5 * second)


def test_openings_are_unfinished_positions():
    found = learner(config=replace(SMALL, num_envs=200, buffer_size=1000, random_openings=0.7))
    positions = found._openings()
    over, _ = found.game.outcomes(positions)
    assert not over.any()
    boards = found.game.observe(positions).sum((2, 3))
    assert ((boards[:, 0] == boards[:, 1]) | (boards[:, 0] + 1 == boards[:, 1])).all(), "players take turns"
    assert (boards.sum(1) == 0).float().mean().item() == pytest.approx(0.3 + 0.7 / 9, abs=0.1)
    assert boards.sum(1).max() >= 6


def test_the_memory_holds_what_was_played_last():
    found = learner()
    for _ in range(3):
        found.collect()
    assert found.stored == 90
    kept = found.boards.clone()
    found.collect()  # 120 positions: the newest 64 are stored, in turns
    assert found.stored == 120
    places = torch.arange(90, 120) % 64
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[places] = False
    assert torch.equal(found.boards[:, untouched], kept[:, untouched])
    over, _ = found.game.outcomes(Positions(*found.boards.flatten(0, 1).unbind(1)))
    assert not over.any()
    assert_close(found.policies.sum(2), torch.ones(2, 64))


def test_the_gradient_is_that_of_autograd():
    """One step on known targets: cross-entropy of the policy and half the squared error of tanh of the value."""
    found = learner(seeds=(3,))
    found.collect()
    index = torch.arange(16).unsqueeze(0)
    parameters = found.agent.parameters.clone().requires_grad_()
    bound = found.agent.networks.shape.bind(parameters)
    obs = found._seen(Positions(*found.boards[0, :16].unbind(1))).unsqueeze(0)
    logs = bound.policy(obs).log_softmax(-1)
    policies = found.policies[:, :16]
    loss = -(policies * logs.masked_fill(policies == 0, 0.0)).sum(-1).mean()
    loss = loss + 0.5 * (bound.value(obs).tanh() - found.returns[:, :16]).square().mean()
    (expected,) = torch.autograd.grad(loss, parameters)
    steps = []
    found.optimizer.step = lambda gradient, **_: steps.append(gradient) or torch.zeros(1)
    found.update(index, torch.zeros_like(index), 1e-3)
    assert_close(steps[0], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("task", ["operant/TicTacToe-v0", "operant/ConnectFour-v0"])
def test_a_turned_sample_is_that_of_the_turned_position(task):
    """The gradient of samples reflected in training equals that of a buffer of reflected positions and policies."""
    found = learner(task=task, seeds=(3,))
    found.collect()
    index, turn = torch.arange(16).unsqueeze(0), torch.ones(1, 16, dtype=torch.int64)
    steps = []
    found.optimizer.step = lambda gradient, **_: steps.append(gradient) or torch.zeros(1)
    found.update(index, turn, 1e-3)
    game = found.game
    cells, actions, _ = game.symmetries
    boards = game.observe(Positions(*found.boards[0, :16].unbind(1))).flatten(2)[..., cells[1]]
    found.boards[0, :16] = torch.stack(game.positions(boards.view(-1, 2, game.rows, game.columns)), 1)
    found.policies[0, :16] = found.policies[0, :16, actions[1]]
    found.update(index, torch.zeros_like(turn), 1e-3)
    assert torch.equal(steps[0], steps[1])
    assert found._turns((2, 500)).unique().tolist() == list(range(len(cells)))
    found.config = replace(SMALL, symmetries=False)
    assert found._turns((2, 500)).unique().tolist() == [0]


def test_resume_is_bit_for_bit():
    whole, half = learner(), learner()
    for _ in range(2):
        half.iterate()
        whole.iterate()
    state = clone(half.state_dict())
    again = learner()
    again.load_state_dict(state)
    for _ in range(2):
        whole.iterate()
        again.iterate()
    for name, tensor in whole.learned.items():
        assert torch.equal(tensor, again.learned[name])
    assert torch.equal(whole.boards, again.boards)


def test_a_seed_learns_the_same_next_to_another():
    both, alone = learner(), learner(seeds=(5,))
    for _ in range(2):
        both.iterate()
        alone.iterate()
    assert_close(both.agent.parameters[1:], alone.agent.parameters, atol=1e-5, rtol=1e-4)


def test_it_certifies_what_it_plays(solved):
    """A search of many simulations with a network of zeros rarely errs, and a player of random moves often."""
    found = blind(learner(seeds=(3,)), 8)
    few, more = found.certify(solved, 0), found.certify(solved, 0, simulations=200)
    assert few.positions == more.positions == 4520
    assert more.mistakes < few.mistakes / 2
    alone = found.certify(solved, 0, simulations=0)
    assert alone.mistakes > few.mistakes


def test_actions_for_observations_are_legal_and_those_of_the_search():
    found = learner()
    env = make("operant/TicTacToe-v0", 4, SEEDS)
    obs = env.reset()
    for _ in range(5):
        stacked = {name: part.view(2, 4, *part.shape[1:]) for name, part in obs.items()}
        actions, hidden_state = found.act(stacked, None, None)
        assert hidden_state is None
        positions = found.game.positions(obs["observation"])
        assert torch.equal(actions.flatten(), found.search(positions, None).actions)
        assert (obs["action_mask"].gather(1, actions.flatten().unsqueeze(1)) == 1).all()
        obs = env.step(actions.flatten()).obs


def test_other_tasks_are_rejected():
    with pytest.raises(
        ValueError,
        match=r"choose one of operant/TicTacToe-v0, operant/ConnectFour-v0, operant/MNK-v0, or a file .*; these",
    ):
        operant.train("alphazero", "CartPole-v1", budget=10, progress="silent")
    with pytest.raises(ValueError, match="must hold a batch"):
        AlphaZeroConfig(num_envs=64, num_steps=16, buffer_size=100)


def test_a_run_learns_and_is_evaluated(tmp_path):
    """A short training raises the score against random moves."""
    trained = operant.train(
        "alphazero",
        "operant/ConnectFour-v0",
        env_kwargs={"columns": 4, "rows": 4},
        seeds=[0],
        budget=400,
        num_envs=10,
        simulations=8,
        hidden_sizes=(32,),
        run=tmp_path / "run",
        evaluate_episodes=20,
        progress="silent",
    )
    assert trained.outcome.evaluation.episodes == 20
    assert np.isfinite(trained.evaluate(10).mean)
