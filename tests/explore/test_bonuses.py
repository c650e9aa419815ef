"""Bonuses reward novel states, by counts that are checked by hand, and resume bit for bit."""

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from operant import check_learner
from operant.control import PPO, PPOConfig
from operant.control.dqn import DQN, DQNConfig
from operant.envs import GymnasiumEnv, check_batch_env, make, start
from operant.envs.wrapper import learned
from operant.explore import Bonus, Counts, Episodic, ForwardError, HashedCounts, InverseCuriosity, RandomDistillation
from operant.explore.bonuses import _Visits
from operant.runtime.rollouts import Collector

SEEDS = (3, 5)
KINDS = [HashedCounts, Episodic, RandomDistillation, ForwardError, InverseCuriosity]


def sea(kind, rows=1, seeds=SEEDS, **options):
    env = kind(make("operant/DeepSea-v0", rows, seeds, env_kwargs={"size": 3}), **options)
    start(env, seeds)
    env.reset()
    return env


def dive(env, actions):
    """Return the bonus of each of some `actions`, the same in all rows, as a list of steps."""
    rewards = []
    for action in actions:
        step = env.step(torch.full((env.rows,), action))
        rewards.append(step.extras["intrinsic"].tolist())
    return rewards


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


def test_a_bonus_without_novelty_is_an_error():
    class Nothing(Bonus):
        pass

    class Together(Bonus):
        def novelties(self, steps):
            return torch.ones(len(steps), *self.shape)

    with pytest.raises(TypeError, match="Nothing must define novelty"):
        sea(Nothing)
    env = sea(Together)
    assert env.step(torch.ones(2, dtype=torch.int64)).extras["intrinsic"].tolist() == [1, 1]
    with pytest.raises(TypeError, match="Together defines novelties of several steps"):
        env.novelty(torch.ones(2, 1, 9), torch.ones(2, dtype=torch.int64), torch.ones(2, 1, dtype=torch.bool))


def paying(novelty):
    """Return the first bonuses `[B]` of a class with this method."""
    kind = type("Own", (Bonus,), {"novelty": lambda self, seen, actions, valid: novelty(seen)})
    return sea(kind, rows=2).step(torch.ones(4, dtype=torch.int64)).extras["intrinsic"]


@pytest.mark.parametrize(
    ("novelty", "found"),
    [
        (lambda seen: 1.0, "got 1.0"),
        (lambda seen: seen[..., 1].double(), r"got torch.float64 \[2, 2\]"),
        (lambda seen: seen[..., 1].flatten(), r"got torch.float32 \[4\]"),
    ],
)
def test_novelties_of_another_type_or_shape_are_errors(novelty, found):
    message = r"Own.novelty must return a tensor \[S, N\], torch.float32 \[2, 2\], " + found
    with pytest.raises(ValueError, match=message):
        paying(novelty)


def test_bonuses_that_are_nan_are_named(caplog):
    with pytest.raises(ValueError, match=r"Own.novelty returned NaN or Inf for every observation"):
        paying(lambda seen: seen[..., 1] * torch.nan)
    bonus = paying(lambda seen: torch.tensor([[1.0, torch.nan], [2.0, torch.inf]]))
    assert bonus.tolist() == [1.0, 0.0, 2.0, 0.0]
    assert "the bonus Own is NaN or Inf for some observations" in caplog.text


def test_a_bonus_that_nothing_reads_causes_a_warning(caplog):
    """A channel reads it, or it is in the reward; other channels and algorithms without any do not read it."""
    for env, config in (
        (sea(Counts), PPOConfig(reward_channels={"intrinsic": {}})),
        (sea(Counts, mixed=0.5), DQNConfig()),
    ):
        env.check_config(config)
    assert not caplog.text
    for config in (PPOConfig(reward_channels={"reward": {}}), PPOConfig(), DQNConfig()):
        caplog.clear()
        sea(Counts).check_config(config)
        assert "the bonus Counts has no effect: it is not added to the reward (mixed=0)" in caplog.text


def test_a_bonus_with_hindsight_causes_a_warning(caplog):
    sea(Counts, mixed=0.5).check_config(DQNConfig(hindsight="future"))
    assert caplog.messages == [
        "relabeled transitions of hindsight lack the reward of the wrapper Counts, so their returns mix two tasks: "
        "leave one of the two out"
    ]


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


def test_bonuses_are_divided_by_the_deviation_of_their_returns():
    plain, scaled = sea(Counts, rows=2), sea(Counts, rows=2, gamma=0.5)
    raw, got = torch.tensor(dive(plain, [1, 0, 1, 1])), torch.tensor(dive(scaled, [1, 0, 1, 1]))
    returns, total = [], torch.zeros(4)
    for bonus in raw:
        total = 0.5 * total + bonus
        returns.append(total.view(2, 2))
    for step in range(1, 4):
        spread = torch.cat(returns[: step + 1], 1).double().var(1, correction=0).add(1e-8).sqrt()
        assert torch.allclose(got[step].view(2, 2).double(), raw[step].view(2, 2) / spread.unsqueeze(1))


@pytest.mark.parametrize("rows", [1, 8])
def test_a_bonus_is_not_huge_because_the_first_returns_are_equal(rows):
    for kind in (Counts, *KINDS):
        bonuses = torch.tensor(dive(sea(kind, rows=rows, gamma=0.99), [1, 0, 1, 1]))
        assert bonuses.max() <= 10
        assert bonuses.min() >= 0


def test_a_mixed_bonus_is_added_to_the_reward_and_not_to_the_score():
    env = sea(Counts, mixed=0.25)
    step = env.step(torch.ones(2, dtype=torch.int64))
    assert torch.allclose(step.reward, step.score.float() + 0.25)


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
