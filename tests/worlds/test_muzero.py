"""MuZero: values of a known world, reanalysis of the replay buffer, exact resume, and play."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from torch.testing import assert_close

import operant
from operant import mdp
from operant.envs import BoardGameEnv, Wrapper, make
from operant.envs.tensor.board_games import BoardGame
from operant.envs.tensor.solved_games import SolvedGame
from operant.ops import percentile_range
from operant.state import clone
from operant.worlds.muzero import LEAST_SPREAD, MuZero, MuZeroConfig

SEEDS = (3, 5)
SMALL = MuZeroConfig(
    num_envs=4,
    num_steps=6,
    simulations=4,
    unroll_steps=3,
    td_steps=2,
    buffer_size=100,
    batch_size=5,
    gradient_steps=2,
    latent_size=6,
    hidden_sizes=(8,),
    support_size=5,
)


def learner(config=SMALL, seeds=SEEDS, task="CartPole-v1", **kwargs):
    env = make(task, config.num_envs, seeds, env_kwargs=kwargs)
    return MuZero(config, env, seeds=seeds, budget=1000)


def test_clipped_targets_are_counted_and_the_field_is_named(caplog):
    found = learner(replace(SMALL, gradient_steps=1))
    while found.replay.filled < SMALL.window:
        found.collect()
        found.consumed += found.rollout_steps
    assert found.shape.bound == pytest.approx(34.6, abs=0.1)  # 5² + 2 * 5, less with ε
    assert not found.train()["health/clipped_targets"].any()
    assert not caplog.records
    found.replay.fields["rewards"][:, 1] = 40.0
    for _ in range(2):
        counted = found.train()["health/clipped_targets"]
        assert counted[0] == 0
        assert counted[1] > 0
    (record,) = caplog.records
    assert "raise support_size" in record.getMessage()


def test_values_are_those_of_a_known_world():
    """In a maze of six cells: the values along the way, and the actions of an optimal policy."""
    model = mdp.MDP.from_gymnasium("operant/Maze2x3-v0")
    exact = mdp.solve(model, gamma=0.9)
    config = replace(
        SMALL,
        num_steps=4,
        gamma=0.9,
        td_steps=5,
        simulations=8,
        buffer_size=2000,
        batch_size=32,
        gradient_steps=8,
        latent_size=16,
        hidden_sizes=(32,),
        learning_rate=1e-2,
        lr_schedule="constant",
    )
    found = learner(config, seeds=(3,), task="operant/Maze2x3-v0")
    for _ in range(40):
        found.iterate()
    with torch.no_grad():
        searched = found.search(torch.eye(6).unsqueeze(0), None)
    on_the_way = torch.tensor([0, 1])
    assert_close(searched.prior_value[on_the_way], torch.tensor([9.0, 10.0]), atol=1.5, rtol=0)
    assert exact.values[:2].tolist() == [9.0, 10.0]
    assert searched.actions[on_the_way].tolist() == [1, 1]


@pytest.mark.parametrize("task", ["CartPole-v1", "operant/TicTacToe-v0"])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_resume_is_bit_for_bit(task, alpha):
    config = replace(SMALL, per_alpha=alpha)
    whole, half = learner(config, task=task), learner(config, task=task)
    for _ in range(2):
        half.iterate()
        whole.iterate()
    again = learner(config, task=task)
    again.load_state_dict(clone(half.state_dict()))
    for _ in range(2):
        whole.iterate()
        again.iterate()
    assert whole.consumed == again.consumed == 4 * 24
    assert torch.equal(whole.parameters, again.parameters)
    assert torch.equal(whole.replay.fields["extras.policy"], again.replay.fields["extras.policy"])


@pytest.mark.parametrize("task", ["CartPole-v1", "operant/TicTacToe-v0"])
def test_a_seed_learns_the_same_next_to_another(task):
    both, alone = learner(task=task), learner(seeds=(5,), task=task)
    for _ in range(2):
        both.iterate()
        alone.iterate()
    assert_close(both.parameters[1:], alone.parameters, atol=1e-5, rtol=1e-4)


def test_reanalyzed_targets_replace_the_old_ones():
    found = learner(replace(SMALL, reanalyze_ratio=3.0))
    found.collect()
    before = {name: field.clone() for name, field in found.replay.fields.items()}
    found.parameters.add_(torch.randn(found.parameters.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    found.reanalyze()
    changed = {name for name, field in found.replay.fields.items() if not torch.equal(field, before[name])}
    assert changed == {"extras.policy"}
    assert_close(found.replay.fields["extras.policy"][:6].sum(-1), torch.ones(6, 2, 4))
    none = learner(replace(SMALL, reanalyze_ratio=0.0))
    none.collect()
    drawn = none.streams[0].get_state()
    none.reanalyze()
    assert torch.equal(none.streams[0].get_state(), drawn)


class Choosing(gymnasium.Env):
    """Two of three actions are allowed; the reward of step 3 is NaN."""

    observation_space = gymnasium.spaces.Dict(
        observation=gymnasium.spaces.Box(0, 1, (2,)), action_mask=gymnasium.spaces.MultiBinary(3)
    )
    action_space = gymnasium.spaces.Discrete(3)
    steps = 0

    def seen(self):
        return {"observation": np.full(2, self.steps % 2, np.float32), "action_mask": np.array([1, 1, 0], np.int8)}

    def reset(self, **kwargs):
        super().reset(**kwargs)
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        return self.seen(), np.nan if self.steps == 3 else 1.0, False, self.steps % 7 == 0, {}


def test_a_dropped_transition_spoils_nothing():
    gymnasium.register("Choosing-v0", Choosing)
    found = learner(replace(SMALL, reanalyze_ratio=4.0, search="puct"), task="Choosing-v0")
    metrics = [found.iterate() for _ in range(4)]
    assert [each["health/dropped_transitions"].tolist() for each in metrics] == [[4, 4], [0, 0], [0, 0], [0, 0]]
    assert all(each.get("health/skipped_updates", torch.zeros(1)).sum() == 0 for each in metrics)
    assert found.parameters.isfinite().all()
    assert found.spread.isfinite().all()
    assert found.replay.fields["extras.policy"].isfinite().all()


def test_a_board_game_with_wrappers_is_no_self_play(caplog):
    found = MuZero(SMALL, Wrapper(make("operant/TicTacToe-v0", 4, (0,))), seeds=(0,), budget=1000)
    assert found.game is None
    assert "operant/TicTacToe-v0 has wrappers, which self-play does not apply" in caplog.text
    gymnasium.register("Short-v0", lambda: TimeLimit(BoardGameEnv("tic-tac-toe"), 3))
    found = MuZero(SMALL, make("Short-v0", 4, (0,)), seeds=(0,), budget=1000)
    assert found.game is None
    assert "leave out TimeLimit for self-play" in caplog.text


class Broken(Choosing):
    """All rewards are NaN."""

    def step(self, action):
        return self.seen(), np.nan, False, False, {}


def test_seeds_without_a_valid_step_learn_nothing_from_prioritized_replay():
    gymnasium.register("Broken-v0", Broken)
    found = learner(replace(SMALL, per_alpha=0.6), task="Broken-v0")
    before = found.parameters.clone()
    metrics = [found.iterate() for _ in range(8)]
    assert found.replay.added > found.replay.length
    assert torch.equal(found.parameters, before)
    assert not metrics[-1]["health/skipped_updates"].any()


def test_values_are_scaled_by_the_range_of_returns():
    """The same difference of values moves the policy less if returns vary more; boards keep their range."""
    found = learner(seeds=(3,))
    for _ in range(4):
        found.iterate()
    assert 1.0 < float(found.spread) < 30.0, "returns of falls within about ten steps"
    found.parameters.add_(torch.randn(found.parameters.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    obs = found.replay.fields["obs"][:6, :, 0].movedim(1, 0)
    prior = found.model.predict(found.model.represent(obs))[0].softmax(-1).flatten(0, 1)
    far = [(found.search(obs, None).policy - prior).abs().max()]
    found.spread.mul_(1000.0)
    searched = found.search(obs, None)
    far.append((searched.policy - prior).abs().max())
    assert far[1] < 0.1 * far[0]
    raw = found.model.number(found.model.predict(found.model.represent(obs))[1])
    assert_close(searched.tree.raw_values[:, 0] * found.spread.squeeze(), raw.flatten())
    game = learner(task="operant/TicTacToe-v0")
    for _ in range(3):
        game.iterate()
    assert game.spread.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(("num_steps", "untrained"), [(6, 0), (2, 2)])
def test_the_range_of_returns_is_a_mean_at_first(num_steps, untrained):
    """With 2 steps, training starts in the third iteration, when the buffer holds a window of 6."""
    ranges = []

    class Recorded(MuZero):
        def _rescale(self, returns):
            ranges.append(percentile_range(returns).clamp(min=LEAST_SPREAD))
            super()._rescale(returns)

    config = replace(SMALL, num_steps=num_steps)
    found = Recorded(config, make("CartPole-v1", config.num_envs, (3,)), seeds=(3,), budget=1000)
    for _ in range(untrained + 3):
        found.iterate()
    assert len(ranges) == 3
    assert_close(found.spread, torch.stack(ranges).mean(0, keepdim=True))


def test_windows_are_drawn_by_the_error_of_their_value():
    found = learner(replace(SMALL, per_alpha=1.0), seeds=(3,))
    for _ in range(3):
        found.collect()
    ready = found.priorities.levels[0] > 0
    assert int(ready.sum()) == (18 - (SMALL.window - 1)) * 4, "only steps that a whole window follows"
    batch, index = found.sample()
    errors = torch.zeros(index.shape)
    errors[0, 0] = 1e6
    found.priorities.update(index, errors)
    _, again = found.sample()
    assert (again == index[0, 0]).all()
    assert batch.obs.shape == (1, 5, 4)


def test_it_certifies_what_it_plays():
    found = learner(seeds=SEEDS, task="operant/TicTacToe-v0")
    solved = SolvedGame(BoardGame.tic_tac_toe())
    counted = found.certify(solved, 1, simulations=1)
    assert counted.positions == 4520
    assert 0 < counted.mistakes < 4520
    with pytest.raises(ValueError, match="only in board games"):
        learner().certificates()


def test_actions_are_allowed_and_repeatable():
    found = learner(task="operant/TicTacToe-v0")
    env = make("operant/TicTacToe-v0", 4, SEEDS)
    obs = env.reset()
    for _ in range(5):
        stacked = {name: part.view(2, 4, *part.shape[1:]) for name, part in obs.items()}
        actions, hidden_state = found.act(stacked, None, None)
        assert hidden_state is None
        assert (obs["action_mask"].gather(1, actions.flatten().unsqueeze(1)) == 1).all()
        assert torch.equal(found.act(stacked, None, None)[0], actions)
        obs = env.step(actions.flatten()).obs


def test_a_buffer_that_holds_no_window_is_rejected():
    with pytest.raises(ValueError, match=r"buffer_size must hold num_envs \* \(unroll_steps \+ td_steps \+ 1\) = 24"):
        replace(SMALL, buffer_size=23)


def test_a_budget_without_a_window_is_rejected():
    config = replace(SMALL, num_envs=1, num_steps=4)
    with pytest.raises(ValueError, match=r"budget must be at least 5 .* got 4: .* has 6 .* unroll_steps, td_steps"):
        MuZero(config, make("CartPole-v1", 1, SEEDS), seeds=SEEDS, budget=4)


def test_gradient_steps_are_those_that_are_taken():
    """Windows of 6 steps exist after two iterations of 4 steps."""
    found = MuZero(replace(SMALL, num_steps=4), make("CartPole-v1", 4, SEEDS), seeds=SEEDS, budget=60)
    while found.consumed < 60:
        found.iterate()
    assert found.optimizer.counts[0].tolist() == [found.gradient_steps] * 2 == [6] * 2


def test_continuous_actions_are_rejected():
    with pytest.raises(ValueError, match="muzero"):
        operant.train("muzero", "Pendulum-v1", budget=1000, progress="silent")


def test_a_run_is_trained_resumed_and_evaluated(tmp_path):
    trained = operant.train(
        "muzero",
        "CartPole-v1",
        seeds=[0, 1],
        budget=400,
        num_steps=8,
        simulations=4,
        gradient_steps=2,
        batch_size=8,
        hidden_sizes=(8,),
        run=tmp_path / "run",
        evaluate_episodes=2,
        progress="silent",
    )
    assert trained.outcome.evaluation.episodes == 2
    assert trained.evaluate(2).mean >= 8
