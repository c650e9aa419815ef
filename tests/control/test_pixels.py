"""Learners with images, dictionaries and action masks: the same code with another network."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from control.learners import assert_resumes_exactly, build
from control.probes import Probe
from operant import configure
from operant.control import A2C, DQN, PPO, A2CConfig, DQNConfig, PPOConfig, Reinforce, ReinforceConfig
from operant.envs import make
from operant.nets import StackedCNN
from operant.runtime.evaluation import evaluate_policy

TASK = "operant/PixelCatch-v0"


def score(learner, episodes=60):
    env = make(TASK, 20, learner.seeds, purpose="evaluation")
    return min(evaluate_policy(learner, env, seeds=len(learner.seeds), episodes=episodes).scores)


def test_ppo_learns_to_catch_from_pixels():
    config = configure("ppo", TASK)
    ppo = build(PPO, config, TASK, (0,), budget=60 * 288)
    assert isinstance(ppo.agent.networks.shape.mlp, StackedCNN)
    assert score(ppo) < 0
    for _ in range(60):
        ppo.iterate()
    assert score(ppo) >= 0.8


def test_dqn_learns_to_catch_from_pixels():
    config = configure("dqn", TASK)
    dqn = build(DQN, config, TASK, (0,), budget=8000)
    while dqn.consumed < 8000:
        dqn.iterate()
    assert dqn.experience.sample(1, gamma=0.9).obs.dtype is torch.uint8
    assert score(dqn) >= 0.8


@pytest.mark.parametrize("shared", [False, True])
def test_images_are_stored_as_bytes_and_every_seed_learns_independently(shared):
    config = PPOConfig(
        num_envs=2, num_steps=9, num_minibatches=2, num_epochs=1, hidden_sizes=(8,), share_features=shared
    )
    block, alone = (build(PPO, config, TASK, seeds) for seeds in [(3, 5), (5,)])
    rollout = block.agent.collect(9)
    assert rollout.obs.shape == rollout.final_obs.shape == (9, 2, 2, 1, 10, 10)
    assert rollout.obs.dtype is torch.uint8
    assert rollout.terminated[-1].all()
    assert not torch.equal(rollout.final_obs[-1], rollout.last_obs), "the final frame is not that of the reset"
    block = build(PPO, config, TASK, (3, 5))
    for _ in range(2):
        block.iterate()
        alone.iterate()
    torch.testing.assert_close(block.agent.parameters[1], alone.agent.parameters[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (PPO, PPOConfig(num_steps=4, num_minibatches=2, num_epochs=1, encoder="impala", hidden_sizes=(8,))),
        (A2C, A2CConfig(num_envs=2, num_steps=4, encoder="impala", hidden_sizes=(8,))),
        (Reinforce, ReinforceConfig(advantage_kind="gae", encoder="impala", hidden_sizes=(8,))),
        (
            DQN,
            DQNConfig(
                train_freq=4, learning_starts=4, batch_size=4, buffer_size=50, encoder="impala", hidden_sizes=(8,)
            ),
        ),
        (
            DQN,
            DQNConfig(
                train_freq=4,
                learning_starts=4,
                batch_size=4,
                buffer_size=50,
                encoder="impala",
                hidden_sizes=(8,),
                dueling=True,
            ),
        ),
    ],
    ids=["ppo", "a2c", "reinforce", "dqn", "dueling-dqn"],
)
def test_the_convolutions_can_be_chosen(kind, config):
    made = build(kind, config, TASK, (3,))
    network = made.online.shape.mlp if kind is DQN else made.agent.networks.shape.mlp
    assert len(network.filters) == 15
    parameters = made.parameters if kind is DQN else made.agent.parameters
    before = parameters.clone()
    assert made.iterate()["health/skipped_updates"].tolist() == [0]
    assert not torch.equal(parameters, before)
    with pytest.raises(ValueError, match=r"encoder must be auto, nature, impala, small or .*, got 'resnet'"):
        replace(config, encoder="resnet")


def test_training_on_images_resumes_bit_for_bit_from_a_checkpoint(tmp_path):
    config = PPOConfig(num_envs=2, num_steps=5, num_minibatches=2, num_epochs=2, hidden_sizes=(8,), share_features=True)
    assert_resumes_exactly(lambda: build(PPO, config, TASK), tmp_path)


class Dictionary(Probe):
    """Probe with a dictionary, one part of which gives the better action."""

    observation_space = spaces.Dict(noise=spaces.Box(-1, 1, (2,)), name=spaces.Discrete(2))

    def _seen(self, obs):
        return {"noise": torch.zeros(self.rows, 2), "name": ((self.sign + 1) / 2).long()}

    def reward(self, actions):
        return self.sign * (2.0 * actions - 1.0)

    def reset(self, seeds=None):
        return self._seen(super().reset(seeds))

    def step(self, actions):
        step = super().step(actions)
        return step._replace(obs=self._seen(step.obs), final_obs=self._seen(step.final_obs))

    def load_state_dict(self, state):
        return self._seen(super().load_state_dict(state))


class Masked(Dictionary):
    """Probe with a mask: one of three actions is forbidden and would give the most reward; the sign decides which."""

    observation_space = spaces.Dict(seen=spaces.Box(-np.inf, np.inf, (1,)), action_mask=spaces.Box(0, 1, (3,), np.int8))
    action_space = spaces.Discrete(3)

    def _mask(self):
        mask = torch.ones(self.rows, 3, dtype=torch.int8)
        mask[:, 0], mask[:, 2] = self.sign > 0, self.sign < 0
        return mask

    def _seen(self, obs):
        return {"seen": torch.zeros(self.rows, 1), "action_mask": self._mask()}

    def reward(self, actions):
        assert self._mask().gather(1, actions.unsqueeze(1)).all(), "a forbidden action was chosen"
        return torch.tensor([1.0, 0.0, 1.0])[actions]


class Mixed(Dictionary):
    """Probe whose better action is given by an image in some episodes and by a number in the others."""

    observation_space = spaces.Dict(
        aim=spaces.Box(-1, 1, (1,)), screen=spaces.Box(0, 255, (1, 6, 6), np.uint8), noise=spaces.Box(-1, 1, (1,))
    )

    def _seen(self, obs):
        told = self.episode // 2 % 2
        screen = torch.zeros(self.rows, 1, 6, 6, dtype=torch.uint8)
        screen[:, 0, :, :3] = (255 * (1 - told) * (self.sign > 0)).to(torch.uint8).view(-1, 1, 1)
        screen[:, 0, :, 3:] = (255 * (1 - told) * (self.sign < 0)).to(torch.uint8).view(-1, 1, 1)
        return {"aim": (told * self.sign).unsqueeze(1), "screen": screen, "noise": torch.zeros(self.rows, 1)}


SMALL = {"num_envs": 8, "num_steps": 8, "num_epochs": 4, "num_minibatches": 2, "hidden_sizes": (16,), "gamma": 0.5}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("probe", [Dictionary, Masked, Mixed])
def test_dictionaries_and_masks_are_learned_from(probe, shared):
    config = PPOConfig(**SMALL, learning_rate=1e-2, ent_coef=0.01, max_grad_norm=None, share_features=shared)
    ppo = build(PPO, config, probe)
    for _ in range(40 if probe is Mixed else 25):
        metrics = ppo.iterate()
        assert all(torch.as_tensor(metrics[name]).isfinite().all() for name in metrics if name.startswith("losses/"))
    assert (metrics["rollout/episode_return"] > 0.9).all()
    assert ppo.agent.parameters.isfinite().all()


def masked_ppo(**config):
    return build(PPO, PPOConfig(**SMALL, **config), Masked)


def test_masked_actions_have_probability_zero_everywhere():
    ppo = masked_ppo()
    batch = ppo.estimate_advantages(ppo.agent.collect(8))
    forbidden = batch.obs[..., -3:] == 0
    assert forbidden.sum(-1).eq(1).all()
    assert batch.outputs[forbidden].eq(-torch.inf).all()
    assert batch.old_log_probs.isfinite().all()
    outputs = ppo.agent.networks.policy(batch.obs)
    assert outputs.softmax(-1)[forbidden].eq(0).all()
    two = torch.log(torch.tensor(2.0))
    assert (ppo.agent.head.entropy(outputs, ppo.agent.networks.free) <= two + 1e-6).all()
    noise = torch.zeros(2, 64, 3)
    noise[forbidden] = 1e9
    actions = ppo.agent.head.sample(outputs, ppo.agent.networks.free, noise)
    assert not forbidden.gather(-1, actions.unsqueeze(-1)).any()


def test_the_network_does_not_see_the_mask():
    ppo = masked_ppo()
    assert ppo.agent.networks.shape.mlp.shapes[0] == (1, 16)
    obs = torch.zeros(2, 5, 4)
    assert torch.equal(ppo.agent.networks.value(obs), ppo.agent.networks.value(obs + torch.tensor([0, 1.0, 1, 1])))


def test_an_empty_mask_allows_every_action():
    ppo = masked_ppo()
    outputs = ppo.agent.networks.policy(torch.zeros(2, 5, 4))
    assert outputs.isfinite().all()


@pytest.mark.parametrize("objective", ["clip", "penalty"])
def test_masked_updates_are_those_of_a_network_with_fewer_actions(objective):
    """Hide the last of three logits: the gradient is that of the two others, and exactly 0 at the hidden one."""

    class Two(Masked):
        def _mask(self):
            return torch.tensor([[1, 1, 0]], dtype=torch.int8).expand(self.rows, 3)

    ppo = build(PPO, PPOConfig(**SMALL, objective=objective, ent_coef=0.01), Two)
    batch = ppo.estimate_advantages(ppo.agent.collect(8))
    before = ppo.agent.networks.actor[-1][0].clone()
    ppo.update(batch, 1.0)
    after = ppo.agent.networks.actor[-1][0]
    assert torch.equal(after[..., 2], before[..., 2])
    assert not torch.equal(after[..., :2], before[..., :2])


def test_masks_and_dictionaries_go_through_gymnasium_too():
    class Cards(gymnasium.Env):
        observation_space = spaces.Dict(hand=spaces.MultiDiscrete([3, 3]), action_mask=spaces.MultiBinary(4))
        action_space = spaces.Discrete(4)

        def _seen(self):
            self.mask = self.np_random.integers(0, 2, 4).astype(np.int8)
            self.mask[self.np_random.integers(4)] = 1
            return {"hand": self.np_random.integers(0, 3, 2), "action_mask": self.mask}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.age = 0
            return self._seen(), {}

        def step(self, action):
            assert self.mask[action], "a forbidden action was chosen"
            self.age += 1
            return self._seen(), 1.0, self.age == 5, False, {}

    name = "OperantTestCards-v0"
    gymnasium.register(name, entry_point=Cards)
    try:
        ppo = build(PPO, PPOConfig(**SMALL), name)
        assert ppo.agent.collector.features.shape == (10,)
        for _ in range(2):
            ppo.iterate()
        env = make(name, 4, (3, 5), purpose="evaluation")
        assert evaluate_policy(ppo, env, seeds=2, episodes=8).scores == (5.0, 5.0)
    finally:
        gymnasium.registry.pop(name)


def test_images_are_not_normalized():
    config = PPOConfig(num_envs=2, num_steps=9, num_minibatches=2, normalize_obs=True)
    with pytest.raises(ValueError, match="normalize_obs is for vectors: the network scales images"):
        build(PPO, config, TASK)
