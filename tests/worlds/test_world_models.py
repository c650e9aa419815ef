"""World Models: stages in order, bit-for-bit resume in each, dreams by hand, trials, and a run by the command."""

from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.testing import assert_close

import operant
from operant import streams
from operant.envs import GymnasiumEnv, make
from operant.envs.worlds.pixels import PixelCatch
from operant.runtime.acting import draw_noise
from operant.runtime.evaluation import evaluate_policy
from operant.state import clone
from operant.streams import row_seeds
from operant.worlds.mixture_rnn import Imagined
from operant.worlds.world_models import WorldModels, WorldModelsConfig

CATCH = "operant/PixelCatch-v0"
SEEDS = (3, 5)
SMALL = WorldModelsConfig(
    num_envs=4,
    num_steps=10,
    collect_steps=80,
    latent_size=2,
    vae_hidden_sizes=(8,),
    vae_gradient_steps=60,
    vae_batch_size=8,
    rnn_hidden_size=4,
    mixture_components=2,
    rnn_gradient_steps=60,
    rnn_batch_size=4,
    sequence_length=5,
    generations=3,
    population_size=4,
    rollouts=3,
    max_dream_steps=12,
)
REAL = replace(SMALL, train_in="environment", max_dream_steps=9, rollouts=2)


def learner(config=SMALL, seeds=SEEDS, budget=160, task=CATCH):
    return WorldModels(config, make(task, config.num_envs, seeds), seeds=seeds, budget=budget)


def weights_of(found):
    return torch.cat([found.vision.flatten(), found.model.flatten(), found.controller.flatten()])


def test_the_stages_come_in_turn_and_the_budget_counts_steps():
    """Two rounds of 80 steps, nine iterations each: 2 of collecting, 2 of V, 2 of M and 3 generations of C."""
    found, stages, counts = learner(), [], []
    while found.consumed < 160:
        stages.append(found.stage)
        metrics = found.iterate()
        counts.append(found.consumed)
        assert all(torch.as_tensor(value).shape == (2,) for value in metrics.values()), metrics
    assert stages == 2 * (["collect"] * 2 + ["vision"] * 2 + ["model"] * 2 + ["controller"] * 3)
    assert counts == [80 * k // 9 for k in range(1, 10)] + [80 + 80 * k // 9 for k in range(1, 10)]
    assert found.replay.size == 160
    taken = found.vision_optimizer.counts[0] + found.model_optimizer.counts[0]
    assert taken.tolist() == [found.gradient_steps] * 2 == [240] * 2


@pytest.mark.parametrize(
    ("budget", "collected"),
    [(70, [80]), (85, [120]), (100, [120]), (119, [120]), (121, [80, 80]), (165, [80, 120]), (205, [80, 80, 80])],
)
def test_a_run_ends_with_a_round_whatever_its_budget(budget, collected):
    """Rollouts have 40 steps and rounds two of them; the last round collects the rest."""
    found = learner(seeds=(3,), budget=budget)
    rounds, generations = [0], []
    while found.consumed < budget:
        before = found.consumed
        generations.append(found.stage == "controller")
        found.iterate()
        assert found.consumed > before
        if found.begun > sum(rounds):
            rounds.append(found.begun - sum(rounds))
    assert rounds[1:] == collected
    assert sum(generations) == 3 * len(collected), "every round trains C for all of its generations"
    assert found.gradient_steps == 120 * len(collected)


@pytest.mark.parametrize("iterations", [2, 4, 8, 9])
def test_a_round_ends_as_it_began_with_a_larger_budget(iterations):
    """It began as the last of a run, with three rollouts instead of two; the next one has two again."""
    first, second = learner(seeds=(3,), budget=119), learner(seeds=(3,), budget=400)
    for _ in range(iterations):
        first.iterate()
    second.load_state_dict(first.state_dict())
    stages, counts = [], [first.consumed]
    while not second.rounds:
        stages.append(second.stage)
        second.iterate()
        counts.append(second.consumed)
    rollouts = 2 if iterations == 2 else 3
    assert iterations + len(stages) == rollouts + 7
    assert stages.count("controller") == min(3, 10 - iterations)
    assert counts == sorted(counts)
    assert second.begun == 40 * rollouts
    assert second.plan["collect"] == 2


@pytest.mark.parametrize("config", [SMALL, REAL], ids=["dream", "environment"])
@pytest.mark.parametrize("at", [1, 3, 5, 7, 8, 10, 13])
def test_resume_is_bit_for_bit(config, at):
    whole = learner(config, budget=500)
    for _ in range(at):
        whole.iterate()
    again = learner(config, budget=500)
    again.load_state_dict(clone(whole.state_dict()))
    assert again.stage == whole.stage
    for _ in range(4):
        whole.iterate()
        again.iterate()
    assert whole.consumed == again.consumed
    assert torch.equal(weights_of(whole), weights_of(again))
    assert torch.equal(whole.hidden, again.hidden)


@pytest.mark.parametrize("config", [SMALL, REAL], ids=["dream", "environment"])
def test_a_seed_learns_the_same_next_to_another(config):
    both, alone = learner(config), learner(config, seeds=(5,))
    for _ in range(11):
        both.iterate()
        alone.iterate()
    assert both.consumed == alone.consumed
    for name in ("vision", "model"):
        assert_close(getattr(both, name)[1:], getattr(alone, name), atol=1e-4, rtol=1e-3)


def test_the_dream_stops_where_it_ends_and_starts_where_episodes_do():
    found = learner()
    for _ in range(6):
        found.iterate()
    begun = found._first(50)
    assert set((begun // 4 % 9).flatten().tolist()) == {0}
    lengths: list[float] = []

    class Hand:
        """Model with reward 1 per step, in which the dream ends after the third step."""

        shape = found.rnn

        def follow(self, latent, actions, hidden):
            lengths.append(float(actions[..., 2].mean()))
            return latent, hidden + 1

        def imagine(self, outputs, noise, temperature):
            assert temperature == 1.0
            return Imagined(outputs, torch.ones_like(outputs[..., 0]), noise.end * 0 + len(lengths) >= 3)

    found.bound_model = Hand()
    candidates = torch.zeros(2, 4, 7, 3)
    candidates[:, :, -1, 2] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    returns, metrics = found.dream(candidates)
    assert_close(returns, torch.full((2, 4), 3.0))
    assert_close(metrics["dream/episode_length"], torch.tensor([3.0, 3.0]))
    assert lengths == [0.5] * 3, "half of the candidates select the last action, the others the first"


def test_dreams_begin_only_in_first_steps_of_a_full_buffer(caplog):
    """A ring of 12 steps, of which the oldest is in slot 4, after the newest."""
    found = learner(replace(SMALL, buffer_size=48))
    for _ in range(2):
        found.iterate()
    replay = found.replay
    assert (replay.length, replay.added) == (12, 20)
    replay.fields["ended"].fill_(False)
    newest, inner = (replay.added - 1) % 12, 1
    replay.fields["ended"][newest] = replay.fields["ended"][inner] = True
    assert set(found._first(50).flatten().div(4, rounding_mode="floor").tolist()) == {inner + 1}
    assert not caplog.records
    replay.fields["ended"].fill_(False)
    for _ in range(2):
        assert set(found._first(300).flatten().tolist()) == set(range(48))
    assert [record.getMessage()[:67] for record in caplog.records] == [
        "the replay buffer of 48 steps holds no first step of an episode: dr"
    ]
    replay.fields["valid"][:, 0] = False
    assert set(found._first(300)[0].tolist()) == set(range(48)), "a seed with only NaN rewards continues"


def test_candidates_that_are_the_same_dream_the_same():
    found = learner()
    for _ in range(6):
        found.iterate()
    one = torch.randn(2, 1, 7, 3, generator=torch.Generator().manual_seed(0))
    returns, _ = found.dream(one.repeat(1, 4, 1, 1))
    assert_close(returns, returns[:, :1].expand(2, 4))


def test_in_the_environment_each_candidate_has_its_rows():
    """A candidate that goes left catches almost no ball, unlike one that reaches the ball in time."""
    found = learner(REAL)
    for _ in range(6):
        found.iterate()
    before = found.consumed
    found.iterate()
    assert found.consumed == before + 4 * 18, "each of 4 candidates acts for two episodes of 9 steps"
    assert found.evolution.generations == 1
    candidates = torch.zeros(2, 4, 7, 3)
    candidates[:, :, -1, 0] = 1.0
    returns, _ = found.trial(candidates)
    assert returns.shape == (2, 4)
    assert ((returns == -1) | (returns == 0) | (returns == 1)).all()


def test_a_trial_keeps_no_more_than_a_rollout(monkeypatch):
    """Its 18 steps per environment are rollouts of 10 and 8; the two episodes of 9 steps are counted all the same."""
    found = learner(REAL)
    for _ in range(6):
        found.iterate()
    assert found.starts.logical_not().any(), "collected rollouts end within episodes"
    found.collector.obs = found.collector.encode(found.collector.env.reset())
    found.begin_anew()
    collected, collect = [], found.collector.collect

    def spy(steps, act):
        collected.append(collect(steps, act))
        return collected[-1]

    monkeypatch.setattr(found.collector, "collect", spy)
    returns, metrics = found.trial(torch.zeros(2, 4, 7, 3))
    rewards = torch.cat([rollout.rewards for rollout in collected])
    assert [len(rollout.rewards) for rollout in collected] == [10, 8]
    assert_close(returns, rewards.sum(0) / 2)
    assert metrics["rollout/episodes"].tolist() == [8, 8]


def test_memory_starts_anew_after_a_dummy_step():
    """With NEXT_STEP, the step after the end of an episode is a dummy; the one after it is the first of the next."""

    def short():
        return gymnasium.wrappers.TimeLimit(PixelCatch(width=3), 4)

    seeds = (3,)
    vector = SyncVectorEnv([short] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)
    found = WorldModels(SMALL, GymnasiumEnv(vector, row_seeds(seeds, 4, "environment")), seeds=seeds, budget=160)
    given, starts = [], []
    found.bound_model = SimpleNamespace(
        follow=lambda latent, code, hidden: given.append(hidden[0, :, 0].tolist()) or (latent, hidden + 1)
    )
    found.rounds = 1
    for _ in range(2):
        found.collect()
        starts.append(found.starts.all().item())
    assert [row[0] for row in given] == [0, 1, 2, 3, 0] * 4, "four steps, of which the last ends, and a dummy"
    assert all(len(set(row)) == 1 for row in given)
    assert starts == [True, True]
    steps = [found._played(1, lambda obs, t: ((), torch.zeros(1, 4, dtype=torch.int64))) for _ in range(5)]
    assert [step.valid.all().item() for step in steps] == [True] * 4 + [False]
    assert found.starts.all()


def test_it_acts_with_a_memory():
    found = learner()
    for _ in range(9):
        found.iterate()
    obs = found.collector.obs
    first, hidden_state = found.act(obs, None, None)
    assert first.shape == (2, 4)
    assert hidden_state.shape == (2, 4, 4)
    again, _ = found.act(obs, torch.zeros_like(hidden_state), None)
    assert torch.equal(first, again)
    noise = draw_noise(found, 4, streams.of_seeds(found.seeds, "test"))
    assert noise.shape == (2, 4, 2)
    assert not torch.equal(found.act(obs, None, noise)[1], hidden_state)
    env = make(CATCH, 3, SEEDS, purpose="evaluation")
    assert all(-1 <= score <= 1 for score in evaluate_policy(found, env, seeds=2, episodes=3).scores)


class Steered(gymnasium.ActionWrapper):
    """The same game with a lever: below -1/3 left, above 1/3 right."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self):
        super().__init__(PixelCatch(width=3))

    def action(self, action):
        return int(np.sign(action[0]) * (abs(action[0]) > 1 / 3)) + 1


def test_actions_may_be_numbers():
    gymnasium.register("operant-tests/Steered-v0", entry_point=Steered, order_enforce=False)
    try:
        found = learner(task="operant-tests/Steered-v0")
        for _ in range(10):
            found.iterate()
        actions, _ = found.act(found.collector.obs, None, None)
        assert actions.shape == (2, 4, 1)
        assert (actions.abs() <= 1).all()
    finally:
        del gymnasium.registry["operant-tests/Steered-v0"]


def test_a_run_of_the_command_is_resumed_and_scored(tmp_path):
    options = {"seeds": SEEDS, "budget": 80, "run": tmp_path / "run", "progress": "silent", "evaluate_episodes": 2}
    options |= {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    run = operant.train("world-models", CATCH, env_kwargs={"width": 3}, **options)
    assert run.outcome is not None
    assert run.outcome.consumed == 80
    again = operant.load(tmp_path / "run")
    assert again.evaluate(4).scores == run.evaluate(4).scores
    action, hidden_state = again.predict(np.zeros((1, 10, 10), np.uint8))
    assert action in (0, 1, 2)
    assert hidden_state.shape == (4,)


@pytest.mark.parametrize(
    ("config", "budget", "message"),
    [
        (REAL, 151, "budget must be at least 152 .* got 151: 80 are collected .* a generation takes 72"),
        (replace(REAL, collect_steps=70), 151, "budget must be at least 152 .* got 151: 80 are collected"),
        (SMALL, 0, "budget must be at least 40 environment steps"),
        (SMALL, 39, "budget must be at least 40 environment steps"),
        (replace(SMALL, num_steps=2), 23, "budget must be at least 24 environment steps"),
    ],
)
def test_an_invalid_budget_is_rejected(config, budget, message):
    with pytest.raises(ValueError, match=message):
        learner(config, budget=budget)


def test_the_smallest_budget_is_used_and_not_exceeded():
    found = learner(replace(SMALL, num_steps=2), budget=24)
    while not found.rounds:
        found.iterate()
    assert found.consumed == 24


def test_only_images_are_looked_at():
    with pytest.raises(ValueError, match="world-models needs images, but the observations of CartPole-v1"):
        learner(task="CartPole-v1")
