"""Several rewards: each has its own return, and the policy improves on their weighted sum."""

import itertools

import pytest
import torch

from control.learners import Changed, assert_resumes_exactly, build, learner
from control.probes import Probe
from operant import ops
from operant.control import PPO, A2CConfig, PPOConfig, RecurrentPPO, RecurrentPPOConfig
from operant.control.a2c import A2C
from operant.control.reward_channels import RewardChannel, RewardChannels
from operant.experimental.a3c import A3CConfig
from operant.nets import programs
from operant.runtime.rollouts import Rollout

T, S, N = 9, 2, 3
GAMMA, LAM = 0.9, 0.8
BONUS = {"gamma": 0.7, "gae_lambda": 0.5, "weight": 0.3}


def with_bonus(bonus):
    """Return a wrapper that gives ``bonus(step)`` as an extra tensor."""
    return lambda env: Changed(env, lambda step, _: step._replace(extras={"intrinsic": bonus(step)}))


def random_rollout(seed, valid=None):
    """Return a rollout with a different number as each observation, and with random rewards and ends."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(2 * T + 1, S, N, 1, generator=generator)
    rewards, bonus = torch.randn(2, T, S, N, generator=generator)
    terminated, truncated = torch.rand(2, T, S, N, generator=generator) < 0.2
    return Rollout(
        obs=numbers[:T],
        last_obs=numbers[T],
        kept=(),
        rewards=rewards,
        terminated=terminated,
        truncated=truncated & ~terminated,
        final_obs=torch.where((terminated | truncated).unsqueeze(-1), numbers[T + 1 :], numbers[1 : T + 1]),
        valid=valid,
        metrics={},
        extras={"intrinsic": bonus},
    )


def two_values(obs):
    """Return two values of each observation."""
    return torch.cat((3 * obs, 1 - obs.square()), dim=-1)


def slow_advantage(rollout, rewards, value, channel, place):
    """Sum `(γλ)^l δ_{t+l}` by hand, to the end of the episode, or beyond all ends if a channel is not episodic."""
    (t, s, n), total, weight = place, 0.0, 1.0
    for k in range(t, T):
        ends = bool(rollout.terminated[k, s, n] | rollout.truncated[k, s, n])
        after = rollout.obs[k + 1, s, n] if k + 1 < T else rollout.last_obs[s, n]
        if channel.episodic:
            after = rollout.final_obs[k, s, n]
        known = 0.0 if channel.episodic and rollout.terminated[k, s, n] else float(value(after))
        total += weight * (float(rewards[k, s, n]) + channel.gamma * known - float(value(rollout.obs[k, s, n])))
        weight *= channel.gamma * channel.gae_lambda
        if ends and channel.episodic:
            break
    return total


@pytest.mark.parametrize("episodic", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_of_every_channel_are_those_of_a_loop(seed, episodic):
    channels = RewardChannels({"intrinsic": {**BONUS, "episodic": episodic}}, gamma=GAMMA, gae_lambda=LAM)
    rollout = random_rollout(seed)
    seen = channels.read(rollout, two_values)
    advantages = ops.gae(seen.rewards, seen.values, seen.next_values, lam=seen.gae_lambda, **seen.ends)
    own, bonus = RewardChannel(GAMMA, LAM), RewardChannel(**BONUS, episodic=episodic)
    for t, s, n in itertools.product(range(T), range(S), range(N)):
        first = slow_advantage(rollout, rollout.rewards, lambda obs: two_values(obs)[..., 0], own, (t, s, n))
        second = slow_advantage(
            rollout, rollout.extras["intrinsic"], lambda obs: two_values(obs)[..., 1], bonus, (t, s, n)
        )
        assert advantages[t, s, n].tolist() == pytest.approx([first, second], abs=1e-5)
        mixed = channels.mix(advantages)
        assert float(mixed[t, s, n]) == pytest.approx(first + 0.3 * second, abs=1e-5)


@pytest.mark.parametrize("episodic", [True, False])
def test_the_environments_own_reward_may_be_alone_and_not_episodic(episodic):
    channels = RewardChannels({"reward": {"episodic": episodic, "weight": 2.0}}, gamma=GAMMA, gae_lambda=LAM)
    rollout = random_rollout(4)
    seen = channels.read(rollout, lambda obs: 3 * obs.squeeze(-1))
    advantages = ops.gae(seen.rewards, seen.values, seen.next_values, lam=seen.gae_lambda, **seen.ends)
    own = RewardChannel(GAMMA, LAM, episodic=episodic)
    for t, s, n in itertools.product(range(T), range(S), range(N)):
        expected = slow_advantage(rollout, rollout.rewards, lambda obs: 3 * obs, own, (t, s, n))
        assert float(advantages[t, s, n]) == pytest.approx(expected, abs=1e-5)
    assert torch.equal(channels.mix(advantages), 2 * advantages)


def test_a_bonus_of_steps_that_are_not_valid_counts_nothing():
    valid = torch.ones(T, S, N, dtype=torch.bool)
    valid[3, 1, 2] = False
    rollout = random_rollout(0, valid)
    rollout.extras["intrinsic"][3, 1, 2] = torch.nan
    seen = RewardChannels({"intrinsic": BONUS}, gamma=GAMMA, gae_lambda=LAM).read(rollout, two_values)
    assert seen.rewards[3, 1, 2, 1] == 0
    assert seen.rewards.isfinite().all()


@pytest.mark.parametrize("names", [("reward",), ("reward", "intrinsic")])
def test_returns_that_outlast_episodes_bootstrap_before_a_step_that_is_not_valid(names):
    valid = torch.ones(T, S, N, dtype=torch.bool)
    valid[3, 1, 2] = False
    channels = RewardChannels({name: {"episodic": False} for name in names}, gamma=GAMMA, gae_lambda=LAM)
    found = []
    for shift in (0.0, 100.0):
        rollout = random_rollout(0, valid)
        rollout.obs[4:, 1, 2] += shift
        seen = channels.read(rollout, lambda obs: two_values(obs)[..., : len(names)].squeeze(-1))
        found.append(ops.gae(seen.rewards, seen.values, seen.next_values, lam=seen.gae_lambda, **seen.ends))
    assert torch.equal(found[0][:3, 1, 2], found[1][:3, 1, 2])
    assert not torch.equal(found[0][3, 1, 2], found[1][3, 1, 2])


class BrokenBonus(Probe):
    """A bonus of NaN at the third step."""

    steps = 0

    def step(self, actions):
        self.steps += 1
        bonus = torch.full((self.rows,), torch.nan if self.steps == 3 else 0.5)
        return super().step(actions)._replace(extras={"intrinsic": bonus})


@pytest.mark.parametrize(("kind", "config"), [(PPO, PPOConfig), (A2C, A2CConfig)])
def test_a_bonus_of_nan_drops_its_transition_alone(kind, config):
    options = {"num_envs": 4, "num_steps": 8, "hidden_sizes": (4,), "reward_channels": {"intrinsic": BONUS}}
    options |= {"num_minibatches": 1} if kind is PPO else {}
    learner = kind(config(**options), BrokenBonus(range(4)), seeds=(0,), budget=1000)
    metrics = learner.iterate()
    assert metrics["health/dropped_transitions"].tolist() == [4]
    assert metrics["health/skipped_updates"].sum() == 0
    assert learner.iterate()["health/updates"].sum() > 0


class TwoStates(Probe):
    """Task of one-step episodes, which alternate between states 1 and -1, with reward 1 and a bonus of 1 in state 1."""

    def observe(self):
        return self.sign

    def step(self, actions):
        bonus = (self.sign > 0).float()
        return super().step(actions)._replace(extras={"intrinsic": bonus})


@pytest.mark.parametrize(("kind", "config"), [(PPO, PPOConfig), (A2C, A2CConfig)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("episodic", [True, False])
def test_the_critic_learns_the_return_of_every_channel(kind, config, shared, episodic):
    """If the bonus is not episodic, its return continues in the other state: V = r + γ P V, solved exactly."""
    gamma = 0.5
    channel = {"gamma": gamma, "gae_lambda": 0.9, "episodic": episodic}
    options = {"num_steps": 8, "num_envs": 8, "hidden_sizes": (16,), "max_grad_norm": None, "learning_rate": 1e-2}
    if kind is PPO:
        options |= {"num_epochs": 4, "num_minibatches": 2, "lr_schedule": "linear"}
    else:
        options |= {"optimizer": "adam"}
    iterations = 40 if kind is PPO else 150
    it = build(
        kind,
        config(**options, share_features=shared, reward_channels={"intrinsic": channel}),
        TwoStates,
        budget=iterations * 64,
    )
    for _ in range(iterations):
        metrics = it.iterate()
    assert {"value/explained_variance", "value/intrinsic/explained_variance"} <= metrics.keys()
    bonus = torch.tensor([1.0, 0.0])
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    expected = torch.linalg.solve(torch.eye(2) - gamma * swap, bonus) if not episodic else bonus
    values = it.agent.networks.value(torch.tensor([[[1.0], [-1.0]]]).expand(2, 2, 1))
    torch.testing.assert_close(values[..., 0], torch.ones(2, 2), atol=0.1, rtol=0)
    torch.testing.assert_close(values[..., 1], expected.expand(2, 2), atol=0.1, rtol=0)


@pytest.mark.parametrize(("weight", "best"), [(0.3, 0), (3.0, 1)])
def test_the_weights_say_which_reward_the_policy_follows(weight, best):
    class Torn(Probe):
        """Task whose action 0 gives a reward and action 1 a bonus."""

        def reward(self, actions):
            return (actions == 0).float()

        def step(self, actions):
            return super().step(actions)._replace(extras={"intrinsic": (actions == 1).float()})

    ppo = learner(Torn, reward_channels={"intrinsic": {"weight": weight}}, learning_rate=1e-2, num_epochs=4)
    for _ in range(25):
        ppo.iterate()
    actions, _ = ppo.act(torch.zeros(2, 5, 1), None, None)
    assert torch.equal(actions, torch.full((2, 5), best))


def test_the_weight_of_the_environments_own_reward_may_be_nothing():
    class Torn(Probe):
        def reward(self, actions):
            return 10.0 * (actions == 0)

        def step(self, actions):
            return super().step(actions)._replace(extras={"intrinsic": (actions == 1).float()})

    ppo = learner(Torn, reward_channels={"reward": {"weight": 0.0}, "intrinsic": {}}, learning_rate=1e-2, num_epochs=4)
    for _ in range(25):
        ppo.iterate()
    actions, _ = ppo.act(torch.zeros(2, 5, 1), None, None)
    assert torch.equal(actions, torch.ones(2, 5, dtype=torch.int64))


CHANNEL = {"intrinsic": {**BONUS, "episodic": False}}
KINDS = [(PPO, PPOConfig), (A2C, A2CConfig), (RecurrentPPO, RecurrentPPOConfig)]


def small(kind, config, seeds=(3, 5)):
    options = {"num_envs": 4, "num_steps": 8, "hidden_sizes": (8,), "reward_channels": CHANNEL}
    options |= {"num_epochs": 2, "num_minibatches": 2} if kind is not A2C else {}
    return build(kind, config(**options), seeds=seeds, wrap=with_bonus(lambda step: step.obs[:, 0].abs()))


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_resuming_is_exact(kind, config, tmp_path):
    assert_resumes_exactly(lambda: small(kind, config), tmp_path)


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_a_seed_learns_the_same_alone_and_among_others(kind, config):
    block, alone = small(kind, config), small(kind, config, seeds=(5,))
    block.iterate()
    alone.iterate()
    torch.testing.assert_close(block.agent.parameters[1:], alone.agent.parameters, rtol=1e-4, atol=1e-6)


def test_a_compiled_update_is_one_that_is_not():
    plain, compiled = small(PPO, PPOConfig), small(PPO, PPOConfig)
    for program in programs(compiled):
        program.compiled = True
    for it in (plain, compiled):
        it.iterate()
    torch.testing.assert_close(compiled.agent.parameters, plain.agent.parameters, rtol=1e-4, atol=1e-6)


def test_value_targets_of_a_rollout_are_those_of_each_channel():
    ppo = small(PPO, PPOConfig)
    rollout = ppo.agent.collect(8)
    batch = ppo.estimate_advantages(rollout)
    assert batch.targets.shape == batch.old_values.shape == (2, 32, 2)
    assert batch.advantages.shape == (2, 32)
    raw = (batch.targets - batch.old_values) @ torch.tensor([1.0, 0.3])
    torch.testing.assert_close(batch.advantages, raw, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ({"intrinsic": {"lambda": 0.9}}, "reward_channels.intrinsic must be a table of gamma, gae_lambda, weight"),
        (["intrinsic"], r"reward_channels must be a table of channels by name, got \['intrinsic'\]"),
        ({"intrinsic": 0.9}, "reward_channels.intrinsic must be a table .* got 0.9"),
        ({"intrinsic": {"gamma": 1.5}}, r"reward_channels.intrinsic: gamma must be in \[0, 1\], got 1.5"),
        ({"reward": {"weight": "high"}}, "reward_channels.reward: weight must be"),
        ({"intrinsic": {"gamma": 1.0, "episodic": False}}, "gamma must be below 1 if episodic is false"),
    ],
)
def test_invalid_channels_are_rejected(channels, message):
    for config in (PPOConfig, A2CConfig):
        with pytest.raises(ValueError, match=message):
            config(reward_channels=channels)


def test_a_channel_needs_an_extra_tensor_of_one_number_a_row():
    ppo = learner(wrap=with_bonus(lambda step: step.reward), reward_channels={"curiosity": {}})
    with pytest.raises(
        ValueError, match=r"'curiosity' is not among the extra tensors .* \['intrinsic'\]: add a wrapper"
    ):
        ppo.iterate()
    ppo = learner(reward_channels={"curiosity": {}})
    with pytest.raises(ValueError, match="which are none"):
        ppo.iterate()
    ppo = learner(wrap=with_bonus(lambda step: step.obs), reward_channels={"intrinsic": {}})
    with pytest.raises(ValueError, match=r"one number per step, but its extras have shape \[4\]"):
        ppo.iterate()


def test_unsupported_reward_channels_are_rejected():
    with pytest.raises(ValueError, match=r"critic_ensemble_size must be 1 .* \(intrinsic\), got 2"):
        A2CConfig(critic_ensemble_size=2, reward_channels={"intrinsic": {}})
    with pytest.raises(ValueError, match="reward_channels must be empty, got intrinsic"):
        A3CConfig(reward_channels={"intrinsic": {}})
