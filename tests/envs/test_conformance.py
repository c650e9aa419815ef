"""The check of environments passes ours, and reports the faults of others."""

import pytest
import torch

from operant.envs import ContractError, Wrapper, check_batch_env, make

SEEDS = (3, 5)


@pytest.mark.parametrize(
    ("task", "backend"),
    [
        ("CartPole-v1", "tensor"),
        ("CartPole-v1", "gymnasium"),
        ("Pendulum-v1", "tensor"),
        ("MountainCarContinuous-v0", "tensor"),
        ("FrozenLake-v1", "gymnasium"),
        ("operant/PixelCatch-v0", "gymnasium"),
    ],
)
def test_our_environments_keep_the_contract(task, backend):
    check_batch_env(lambda: make(task, 2, SEEDS, backend=backend), seeds=SEEDS, steps=40)


def broken(**changes):
    """Return environments with faults in their steps."""

    class Broken(Wrapper):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(**{name: change(step) for name, change in changes.items()})

    return lambda: Broken(make("CartPole-v1", 2, SEEDS))


class Random(Wrapper):
    def step(self, actions):
        step = super().step(actions)
        return step._replace(reward=step.reward + torch.rand(4))


class Written(Wrapper):
    """Wrapper that returns the same tensor at every step."""

    def __init__(self, env):
        super().__init__(env)
        self.reward = torch.zeros(4)

    def step(self, actions):
        step = super().step(actions)
        self.reward += 1
        return step._replace(reward=self.reward)


class Forgetful(Wrapper):
    """Wrapper with a counter that is missing from its state."""

    def start(self, seeds):
        self.steps = 0

    def step(self, actions):
        step = super().step(actions)
        self.steps += 1
        return step._replace(reward=step.reward * self.steps)


class Shared(Forgetful):
    """Wrapper that returns its own tensor as the state."""

    def start(self, seeds):
        self.steps = torch.zeros(1)

    def state_dict(self):
        return super().state_dict() | {"steps": self.steps}


class Learning(Wrapper):
    """Wrapper that changes its learned state in evaluations, too."""

    STATE = LEARNED = ("count",)

    def start(self, seeds):
        self.count = torch.zeros(len(seeds))

    def step(self, actions):
        self.count += 1
        return super().step(actions)


class Flat(Learning):
    def start(self, seeds):
        self.count = torch.zeros(7)


class Sometimes(Wrapper):
    STATE = ("steps",)

    def start(self, seeds):
        self.steps = 0

    def step(self, actions):
        self.steps += 1
        return super().step(actions)._replace(extras={"bonus": torch.zeros(4)} if self.steps % 2 else None)


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (broken(terminated=lambda step: step.terminated.float()), r"Step.terminated must be torch.bool of shape \[4\]"),
        (broken(reward=lambda step: step.reward.unsqueeze(1)), r"Step.reward must be a float of shape \[4\]"),
        (broken(obs=lambda step: step.obs[:, :3]), r"Step.obs must have shape \[4, 4\], got \[4, 3\]"),
        (broken(obs=lambda step: step.obs + 1), "obs and final_obs differ although the episode continues"),
        (broken(valid=lambda step: ~step.valid), "always_valid is true"),
        (broken(extras=lambda step: {"goal": torch.zeros(3)}), r"extras\['goal'\] must have 4 rows"),
        (lambda: Sometimes(make("CartPole-v1", 2, SEEDS)), "extras are .* at one step and others before"),
        (lambda: Random(make("CartPole-v1", 2, SEEDS)), "not deterministic"),
        (lambda: Written(make("CartPole-v1", 2, SEEDS)), "modified after it was returned"),
        (lambda: Forgetful(make("CartPole-v1", 2, SEEDS)), "continues differently from a saved state"),
        (lambda: Shared(make("CartPole-v1", 2, SEEDS)), "later steps modified a saved state"),
        (lambda: Learning(make("CartPole-v1", 2, SEEDS)), "an evaluation changed the learned state"),
        (lambda: Flat(make("CartPole-v1", 2, SEEDS)), "needs a first axis of 2 seeds, but 'Flat.count' has shape"),
    ],
)
def test_violations_of_the_contract_are_named(make_env, message):
    with pytest.raises(ContractError, match=message):
        check_batch_env(make_env, seeds=SEEDS, steps=20)
