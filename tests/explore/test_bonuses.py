"""Bonuses reward novel states, by counts that are checked by hand, and resume bit for bit."""

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from explore.bonus_envs import KINDS, SEEDS, dive, sea
from operant import check_learner
from operant.control import PPO, PPOConfig
from operant.control.dqn import DQN, DQNConfig
from operant.envs import GymnasiumEnv, check_batch_env, make, start
from operant.envs.wrapper import learned
from operant.explore import Counts, Episodic, HashedCounts, InverseCuriosity, RandomDistillation
from operant.explore.bonuses import _Visits
from operant.runtime.rollouts import Collector


@pytest.mark.parametrize("kind", [Counts, *KINDS])
def test_bonuses_keep_the_contract_of_environments(kind):
    check_batch_env(lambda: kind(make("operant/DeepSea-v0", 2, SEEDS, env_kwargs={"size": 3})), seeds=SEEDS, steps=20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_bonuses_keep_the_contract_on_vectors(kind, backend):
    check_batch_env(lambda: kind(make("CartPole-v1", 2, SEEDS, backend=backend)), seeds=SEEDS, steps=40)


@pytest.mark.parametrize("kind", [*KINDS, Counts])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_bonuses_of_many_steps_together_are_those_of_step_by_step(kind, mode):
    """Use several rollouts of 10 steps, between which every 4th step trains; one mode has dummy transitions."""

    def made():
        task, options = ("operant/DeepSea-v0", {"size": 3}) if kind is Counts else ("CartPole-v1", {})
        vector = SyncVectorEnv([lambda: gymnasium.make(task, **options)] * 6, autoreset_mode=mode)
        env = kind(GymnasiumEnv(vector, range(6), task=task), gamma=0.9, **training(kind))
        start(env, SEEDS)
        env.reset()
        return env

    one, other = made(), made()
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        actions = torch.randint(2, (10, 6), generator=generator)
        expected = [one.step(action).extras["intrinsic"] for action in actions]
        other.defer()
        found = [other.step(action).extras["intrinsic"] for action in actions]
        assert torch.stack(found).isnan().all()
        other.settle()
        torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.recent, one.recent)
    assert torch.stack(expected).std() > 0
    torch.testing.assert_close(other.step(actions[0]).extras, one.step(actions[0]).extras, rtol=1e-4, atol=1e-5)


def training(kind):
    return {} if kind in (Counts, HashedCounts, Episodic) else {"every": 4}


def test_a_bonus_in_the_reward_does_not_wait():
    env = sea(Counts, mixed=0.5)
    env.defer()
    step = env.step(torch.ones(2, dtype=torch.int64))
    assert step.extras["intrinsic"].tolist() == [1.0, 1.0]
    assert (step.reward > 0.4).all()
    env.settle()


def test_rollouts_have_bonuses():
    env = sea(InverseCuriosity, rows=2)
    collector = Collector(env, seeds=2)
    rollout = collector.collect(7, lambda obs, t: ((), torch.ones(2, 2, dtype=torch.int64)))
    assert rollout.extras["intrinsic"].shape == (7, 2, 2)
    assert (rollout.extras["intrinsic"] > 0).all()


def test_a_base_class_of_counts_is_abstract():
    with pytest.raises(TypeError, match=r"abstract class _Visits .*place"):
        sea(_Visits)


def test_counts_by_hand():
    # Both rows of a seed come to (1, 1), (2, 2) and the floor: n = 2, then 4 on the second dive.
    env = sea(Counts, rows=2)
    first, second = 2**-0.5, 0.5
    assert torch.allclose(torch.tensor(dive(env, [1, 1, 1] * 2)).mean(1), torch.tensor([first] * 3 + [second] * 3))
    assert env.counts.sum(1).tolist() == [12, 12]
    assert env.counts.max().item() == 4


def test_counts_need_finitely_many_states():
    env = Counts(make("CartPole-v1", 2, SEEDS))
    with pytest.raises(ValueError, match=r"need Discrete observations, got Box.*use HashedCounts"):
        start(env, SEEDS)


def test_hashed_counts_with_many_bits_are_exact_counts():
    torch.manual_seed(0)
    exact, hashed = sea(Counts, rows=4), sea(HashedCounts, rows=4, bits=20)
    for _ in range(60):
        actions = torch.randint(2, (8,))
        one, other = exact.step(actions), hashed.step(actions)
        assert torch.equal(one.extras["intrinsic"], other.extras["intrinsic"])


class Walk(gymnasium.Env):
    """Environment with five positions, 0 or 1 to the left or right; it starts in the middle and ends at the right."""

    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 2
        return self.place, {}

    def step(self, action):
        self.place = max(0, self.place + 2 * int(action) - 1)
        return self.place, 0.0, self.place == 4, False, {}


@pytest.fixture
def walk():
    gymnasium.register("explore/Walk-v0", Walk, max_episode_steps=4)
    yield "explore/Walk-v0"
    del gymnasium.registry["explore/Walk-v0"]


def test_first_visits_restart_after_termination_and_truncation(walk):
    env = Episodic(make(walk, 1, (0,)))
    start(env, (0,))
    env.reset()
    truncated, terminated = [(0, 1.0), (1, 0.0), (0, 0.0), (0, 1.0)], [(0, 1.0), (1, 0.0), (1, 1.0), (1, 1.0)]
    for action, bonus in (*truncated, *terminated, *truncated):
        step = env.step(torch.tensor([action]))
        assert step.extras["intrinsic"].tolist() == [bonus]
    assert step.truncated.all()


def test_the_memory_of_an_episode_has_the_configured_length(walk):
    env = Episodic(make(walk, 1, (0,)), capacity=1)
    start(env, (0,))
    env.reset()
    bonuses = [env.step(torch.tensor([action])).extras["intrinsic"].item() for action in (0, 1, 0)]
    assert bonuses == [1.0, 1.0, 1.0]  # each step makes it forget the position before


@pytest.mark.parametrize("kind", [Counts, *KINDS])
def test_two_bonuses_of_a_class_keep_their_learned_state_apart(kind):
    env = kind(sea(kind, gamma=0.9), "second", gamma=0.9)
    start(env, SEEDS)
    names = [name.removeprefix(f"{kind.__name__}.") for name in learned(env)]
    first = [name for name in names if not name.startswith("second.")]
    assert "moments.count" in first
    assert names == [*first, *(f"second.{name}" for name in first)]


@pytest.mark.parametrize("rows", [1, 8])
def test_a_bonus_is_not_huge_because_the_first_returns_are_equal(rows):
    for kind in (Counts, *KINDS):
        bonuses = torch.tensor(dive(sea(kind, rows=rows, gamma=0.99), [1, 0, 1, 1]))
        assert bonuses.max() <= 10
        assert bonuses.min() >= 0


SMALL = {"num_envs": 2, "hidden_sizes": (4,)}
CHANNEL = {"intrinsic": {"gamma": 0.9, "weight": 0.5, "episodic": False}}


@pytest.mark.parametrize("kind", [Counts, *KINDS])
def test_ppo_with_a_bonus_keeps_the_contract_of_learners(kind):
    config = PPOConfig(**SMALL, num_steps=8, num_epochs=1, num_minibatches=2, reward_channels=CHANNEL)

    def learner(seeds):
        return PPO(config, kind(make("operant/DeepSea-v0", 2, seeds, env_kwargs={"size": 3})), seeds=seeds, budget=1000)

    check_learner(learner)


def test_dqn_with_a_mixed_bonus_keeps_the_contract_of_learners():
    config = DQNConfig(**SMALL, buffer_size=100, learning_starts=8, batch_size=4)

    def learner(seeds):
        env = RandomDistillation(make("operant/DeepSea-v0", 2, seeds, env_kwargs={"size": 3}), mixed=0.5, every=2)
        return DQN(config, env, seeds=seeds, budget=1000)

    check_learner(learner)
