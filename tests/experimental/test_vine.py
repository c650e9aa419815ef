import pytest
import torch

import graphs
from control.learners import TASKS, same
from control.probes import Chosen, Lasting, Pendular
from operant import streams
from operant.control.agent import Agent, Scaling
from operant.envs import make
from operant.envs.tensor import TENSOR_ENVS
from operant.experimental.vine import Vine, collect_vine, draw_noise, follow, require_branching
from operant.nets import Graph, Spec

SEEDS = (3, 5)


def agent_in(task, *, rows=4, env=None, scaling=Scaling(observations=False, rewards=False, gamma=0.9)):  # noqa: B008
    if isinstance(task, type):
        env = task(streams.row_seeds(SEEDS, rows, "environment"))
    spec = Spec(hidden=(8,), activation="tanh", shared=False)
    agent = Agent(
        env or make(task, rows, SEEDS, backend="tensor"),
        seeds=SEEDS,
        rows=rows,
        algorithm="trpo",
        spec=spec,
        log_std=0.0,
        scaling=scaling,
    )
    agent.parameters += 0.3 * torch.randn(agent.parameters.shape, generator=torch.Generator().manual_seed(1))
    return agent


def vine(**changes):
    settings = {"points": 2, "spacing": 3, "actions": 4, "steps": 6, "common": True, "gamma": 0.9, "lam": 1.0}
    return Vine(**{**settings, **changes})


def stacked(tensor, count, rows=4):
    """Turn `[S, P * K * N, ...]` into `[P, K, S, N, ...]`."""
    return tensor.view(2, -1, count, rows, *tensor.shape[2:]).movedim(0, 2)


@TASKS
def test_the_value_of_every_action_follows_from_its_branches(task):
    """Compare with branches played one at a time, each in a separate environment."""
    agent, shadow = agent_in(task), agent_in(task)
    plan = vine(common=False, lam=0.7, points=1)
    batch, _ = collect_vine(agent, plan)
    shadow.collect(plan.spacing)
    count = plan.branches(agent.collector.env)
    obs, actions, values, targets = (
        stacked(tensor, count)[0] for tensor in (batch.obs, batch.actions, batch.advantages, batch.targets)
    )
    assert torch.equal(obs, shadow.collector.obs.expand_as(obs))
    head, networks, env = shadow.head, shadow.networks, shadow.collector.env
    if head.free:
        noise = torch.stack([head.noise((count, 4), stream) for stream in shadow.streams], 1)
        expected = torch.stack([head.sample(networks.policy(shadow.collector.obs), networks.free, n) for n in noise])
        assert torch.equal(actions, expected)
    else:
        assert torch.equal(actions, torch.arange(2).view(2, 1, 1).expand_as(actions))
    luck = [torch.stack([head.noise((plan.steps - 1, 4), s) for s in shadow.streams], 1) for _ in range(count)]
    saved = env.state_dict()
    for k in range(count):
        env.load_state_dict(saved)
        action, rewards, ends, nexts = actions[k], [], [], []
        for t in range(plan.steps):
            step = env.step(head.to_env(action).flatten(0, 1))
            rewards.append(step.reward.view(2, 4))
            ends.append((step.terminated | step.truncated).view(2, 4))
            nexts.append(networks.value(step.final_obs.view(2, 4, -1)) * ~step.terminated.view(2, 4))
            if t + 1 < plan.steps:
                action = head.sample(networks.policy(step.obs.view(2, 4, -1)), networks.free, luck[k][t])
        value = nexts[-1]
        for t in reversed(range(plan.steps)):
            value = torch.where(ends[t] | (t == plan.steps - 1), nexts[t], 0.3 * nexts[t] + 0.7 * value)
            value = rewards[t] + 0.9 * value
        torch.testing.assert_close(values[k] + targets[k], value, rtol=1e-4, atol=1e-4)


@TASKS
def test_values_and_weights_of_a_state(task):
    agent = agent_in(task)
    plan = vine()
    batch, _ = collect_vine(agent, plan)
    count = plan.branches(agent.collector.env)
    assert count == (2 if task == "CartPole-v1" else 4)
    advantages, weights, log_probs = (
        stacked(tensor, count) for tensor in (batch.advantages, batch.weights, batch.old_log_probs)
    )
    expected = log_probs.exp() if task == "CartPole-v1" else torch.full_like(weights, 1 / 4)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(weights.sum(1), torch.ones(2, 2, 4))
    torch.testing.assert_close((weights * advantages).sum(1), torch.zeros(2, 2, 4), atol=1e-4, rtol=0)
    assert advantages.abs().max() > 1e-3
    torch.testing.assert_close(agent.networks.value(batch.obs), batch.old_values)
    torch.testing.assert_close(agent.networks.policy(batch.obs), batch.outputs)


def test_the_exact_values_of_a_probe():
    agent = agent_in(Chosen)
    batch, _ = collect_vine(agent, vine(steps=1))
    torch.testing.assert_close(batch.advantages + batch.targets, 2.0 * batch.actions - 1.0)
    agent = agent_in(Lasting)
    batch, _ = collect_vine(agent, vine(steps=3, spacing=1))  # branches at steps 1 and 2 of 3, which terminate
    left = 3.0 - batch.obs.squeeze(-1)
    torch.testing.assert_close(batch.targets, torch.where(left == 2, 1.9, 1.0))
    torch.testing.assert_close(batch.advantages, torch.zeros_like(batch.advantages))


def test_a_cut_branch_ends_in_the_value_of_its_last_state():
    agent = agent_in(Pendular)
    batch, _ = collect_vine(agent, vine(steps=1))
    next_obs = 1.0 - batch.obs
    expected = 1.0 - batch.obs.squeeze(-1) + 0.9 * agent.networks.value(next_obs)
    torch.testing.assert_close(batch.advantages + batch.targets, expected)


@TASKS
@pytest.mark.parametrize("normalize", [False, True])
def test_branches_leave_the_walk_as_it_was(task, normalize):
    scaling = Scaling(observations=normalize, rewards=normalize, gamma=0.9)
    branching, walking = (agent_in(task, scaling=scaling) for _ in range(2))
    plan = vine(points=3)
    _, episodes = collect_vine(branching, plan)
    rollouts = []
    for _ in range(3):
        rollouts.append(walking.collect(plan.spacing))
        # The branches draw from the streams of the walk.
        for stream in walking.streams:
            if walking.head.free:
                walking.head.noise((4, 4), stream)
            walking.head.noise((plan.steps - 1, 4), stream)
    assert torch.equal(branching.collector.obs, walking.collector.obs)
    assert same(branching.collector.state_dict(), walking.collector.state_dict())
    assert torch.equal(episodes["rollout/episodes"], sum(r.metrics["rollout/episodes"] for r in rollouts))


@TASKS
def test_no_recorded_rollout_reads_what_the_branches_have_replaced(task, torch_library, monkeypatch):
    graphs.emulate(monkeypatch)
    seeds = streams.row_seeds(SEEDS, 4, "environment")
    played, recorded = (agent_in(task, env=torch_library(TENSOR_ENVS[task], seeds)) for _ in range(2))
    recorded.graph = Graph(recorded._play, recorded.device)
    for _ in range(2):
        one, other = (collect_vine(each, vine(points=3)) for each in (played, recorded))
        assert same(vars(one[0]), vars(other[0]))
    assert same(played.state_dict(), recorded.state_dict())


def test_metrics_are_those_of_the_walk():
    agent, walking = agent_in(Lasting), agent_in(Lasting)
    _, episodes = collect_vine(agent, vine(points=4, spacing=2))
    whole = walking.collect(8).metrics
    for name, value in whole.items():
        torch.testing.assert_close(episodes[name], value)


def test_cost_counts_every_step():
    class Counting:
        def __init__(self, env):
            self.env, self.steps = env, 0

        def __getattr__(self, name):
            return getattr(self.env, name)

        def step(self, actions):
            self.steps += 1
            return self.env.step(actions)

    for task in ("CartPole-v1", "Pendulum-v1"):
        env = Counting(make(task, 4, SEEDS, backend="tensor"))
        agent = agent_in(task, env=env)
        collect_vine(agent, vine())
        assert env.steps == vine().cost(env) == 2 * (3 + (2 if task == "CartPole-v1" else 4) * 6)


def variances(repeats=50, rows=25):
    """Return the variance of the advantage of one of two actions: on a path, in a vine, in one with common numbers.

    Each has as many samples of Q as advantages. A path has a baseline that does not vary: a perfect critic.
    """
    agent = agent_in("Pendulum-v1", rows=rows)
    agent.collect(20)
    plan = vine(steps=15)
    saved = agent.collector.env.state_dict()
    left, right = (torch.full((2, rows, 1), push) for push in (-0.5, 0.5))
    samples = []
    for _ in range(repeats):
        luck, other_luck = (draw_noise(agent, plan.steps - 1) for _ in range(2))
        one = follow(agent, plan, saved, left, luck)
        alone, beside = (follow(agent, plan, saved, right, numbers) for numbers in (other_luck, luck))
        samples.append(torch.stack((one, (one - alone) / 2, (one - beside) / 2)))
    return torch.stack(samples).var(0).mean((1, 2))


@torch.no_grad()
def test_advantages_of_a_vine_vary_less_than_those_of_a_path_and_least_with_common_random_numbers():
    path, separate, common = variances()
    torch.testing.assert_close(separate, path / 2, rtol=0.15, atol=0)
    assert common < separate / 5


def test_common_random_numbers_are_shared_by_the_branches_of_a_state():
    """In Pendulum one action has no effect if it is the same: the branches of equal actions are equal."""
    agent = agent_in("Pendulum-v1")
    agent.head.sample = lambda outputs, free, noise: 0.3 * torch.ones_like(outputs)
    batch, _ = collect_vine(agent, vine())
    torch.testing.assert_close(batch.advantages, torch.zeros_like(batch.advantages), atol=1e-5, rtol=0)


# Errors


def test_environments_of_gymnasium_are_rejected():
    env = make("CartPole-v1", 4, SEEDS, backend="gymnasium")
    with pytest.raises(ValueError, match="CartPole-v1 of Gymnasium can only replay its episode from the start"):
        require_branching(env, masked=0)
    env.close()
    require_branching(make("CartPole-v1", 4, SEEDS, backend="tensor"), masked=0)


def test_masked_actions_are_rejected():
    with pytest.raises(ValueError, match="CartPole-v1 masks some: use sampling='single-path'"):
        require_branching(make("CartPole-v1", 4, SEEDS, backend="tensor"), masked=2)
