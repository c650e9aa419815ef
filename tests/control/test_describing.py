"""Descriptions of a policy's outputs agree with its actions, in all algorithms."""

import numpy as np
import pytest
import torch

from operant import catalog, configure
from operant.build import assemble, resolve
from operant.runtime.encoding import digest
from operant.runtime.learner import Describing
from operant.runtime.settings import Settings

CASES = [
    *(("ppo", "CartPole-v1", {}), ("ppo", "Pendulum-v1", {"normalize_obs": True}), ("a2c", "CartPole-v1", {})),
    *(("trpo", "CartPole-v1", {}), ("recurrent-ppo", "CartPole-v1", {}), ("reinforce", "CartPole-v1", {})),
    *((algorithm, "CartPole-v1", {"reward_channels": {"intrinsic": {}}}) for algorithm in ("ppo", "recurrent-ppo")),
    *(("actor-critic", "CartPole-v1", {}), ("dqn", "CartPole-v1", {}), ("bootstrapped-dqn", "CartPole-v1", {})),
    *(("sac", "Pendulum-v1", {}), ("sac-discrete", "CartPole-v1", {}), ("td3", "Pendulum-v1", {})),
    *(("q-learning", "FrozenLake-v1", {}), ("td-lambda", "FrozenLake-v1", {}), ("ucb1", "operant/TenArms-v0", {})),
]
SEEDS = (3, 5)


def experiment(algorithm, task, values):
    entry = catalog.find(algorithm)
    settings = Settings(entry.name, task, seeds=SEEDS, budget=4000, compile="off")
    config = configure(algorithm, task, **values)
    return assemble(entry, settings, config, resolve(entry, settings, config))


def observations(learner, task):
    generator = torch.Generator().manual_seed(1)
    if learner.device.type == "cpu" and task in ("FrozenLake-v1", "operant/TenArms-v0"):
        states = [0, 1, 2, 3, 4, 6, 8, 9, 10, 13, 14] if task == "FrozenLake-v1" else [0]  # non-terminal states
        return torch.tensor(states)[torch.randint(len(states), (2, 7), generator=generator)]
    size = 3 if task == "Pendulum-v1" else 4
    return torch.randn(2, 7, size, generator=generator) * 0.5


@pytest.mark.parametrize(("algorithm", "task", "values"), CASES, ids=lambda value: str(value) if value else "")
def test_descriptions_agree_with_actions(algorithm, task, values):
    made = experiment(algorithm, task, values)
    learner = made.learner
    assert isinstance(learner, Describing)
    obs, before = observations(learner, task), digest(learner.state_dict())
    told = learner.describe(obs, None)
    actions, _ = learner.act(obs, None, None)
    assert told.keys() <= {"probabilities", "mean", "std", "q", "value"}
    assert all(values.shape[:2] == (2, 7) for values in told.values())
    assert all(told[name].dim() == 2 for name in {"value"} & told.keys())
    if "probabilities" in told:
        torch.testing.assert_close(told["probabilities"].sum(-1), torch.ones(2, 7, dtype=told["probabilities"].dtype))
        likeliest = told["probabilities"].amax(-1)
        assert torch.equal(told["probabilities"].gather(-1, actions.unsqueeze(-1)).squeeze(-1), likeliest)
    elif "q" in told and algorithm != "bootstrapped-dqn":  # whose ensemble votes
        assert torch.equal(told["q"].argmax(-1), actions)
    if "mean" in told:
        env = made.env
        low, high = (torch.as_tensor(np.array(bound)) for bound in (env.action_space.low, env.action_space.high))
        torch.testing.assert_close(told["mean"].clamp(low, high), actions)
    if "std" in told:
        assert (told["std"] > 0).all()
    assert digest(learner.state_dict()) == before
    made.close()


def test_the_value_is_that_of_the_networks():
    learner = experiment("ppo", "CartPole-v1", {}).learner
    obs = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(2))
    told = learner.describe(obs, None)
    assert torch.equal(told["value"], learner.agent.networks.value(obs))
    logits = learner.agent.networks.policy(obs).double()
    by_hand = logits.exp() / logits.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(told["probabilities"].double(), by_hand, rtol=1e-5, atol=1e-6)
