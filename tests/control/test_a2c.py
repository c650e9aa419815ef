from dataclasses import replace

import gymnasium
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from control.learners import (
    TASKS,
    assert_a_bad_reward_is_dropped,
    assert_a_refused_state_changes_nothing,
    assert_equal_metrics,
    assert_learns_alone_as_in_company,
    assert_resumes_exactly,
    assert_solved,
    build,
    next_step,
    poison,
)
from control.probes import PROBES, Aimed, Constant, Delayed, Matched, Pendular, Probe
from operant import catalog, ops
from operant.control.a2c import A2C, PRESETS, A2CConfig
from operant.nets import Pass
from operant.runtime.configuration import configuration
from operant.runtime.training import train

SMALL = {"num_envs": 4, "num_steps": 8, "hidden_sizes": (8, 8), "learning_rate": 3e-3}


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    return build(A2C, A2CConfig(**{**SMALL, **config}), task, seeds, budget=budget, backend=backend, wrap=wrap)


# Learning


def solve(probe, **variant):
    gamma, iterations = 0.5, 300 if probe is Aimed else 150
    config = {
        "num_envs": 16,
        "num_steps": 4,
        "optimizer": "adam",
        "learning_rate": 2e-2,
        "ent_coef": 0.0,
        "gamma": gamma,
        "hidden_sizes": (16,),
        "max_grad_norm": None,
        "log_std_init": -1.0,
    }
    config = A2CConfig(**{**config, **variant})
    a2c = build(A2C, config, probe, budget=iterations * config.num_envs * config.num_steps)
    for _ in range(iterations):
        a2c.iterate()
    assert_solved(a2c, a2c.agent.networks.value, probe.solution(gamma), atol=0.15)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_probes_are_solved(probe):
    solve(probe)


VARIANTS = [
    {"estimator": "gae", "share_features": True},
    {"critic_ensemble_size": 3, "target": "monte-carlo"},
    {"num_steps": 1, "num_envs": 64, "target": "bootstrap"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("probe", [Delayed, Matched, Pendular], ids=lambda probe: probe.__name__)
def test_every_variant_solves_probes(probe, variant):
    solve(probe, **variant)


def test_the_optimizer_of_the_paper_solves_a_probe():
    solve(Matched, optimizer="rmsprop", learning_rate=0.1)


# Advantage estimates


def slow_returns(a2c, rollout, n, lam):
    """Compute n-step and λ-returns of every step by their definitions, `[T, S, N]`, one number at a time."""
    gamma, (steps, seeds, rows) = a2c.config.gamma, rollout.rewards.shape
    value = a2c.agent.networks.value
    successors = torch.stack([value(obs) for obs in rollout.final_obs])
    n_step, mixed = torch.zeros(steps, seeds, rows), torch.zeros(steps, seeds, rows)
    for s in range(seeds):
        for row in range(rows):
            for t in range(steps):
                rewards, returns = 0.0, []
                for k in range(t, steps):
                    rewards = rewards + gamma ** (k - t) * rollout.rewards[k, s, row]
                    over = rollout.terminated[k, s, row]
                    after = 0.0 if over else gamma ** (k - t + 1) * successors[k, s, row]
                    returns.append(rewards + after)
                    if over or rollout.truncated[k, s, row]:
                        break
                n_step[t, s, row] = returns[min(n, len(returns)) - 1]
                weights = [(1 - lam) * lam**k for k in range(len(returns) - 1)] + [lam ** (len(returns) - 1)]
                mixed[t, s, row] = sum(w * g for w, g in zip(weights, returns, strict=True))
    return n_step, mixed


@pytest.mark.parametrize("target", ["advantage", "monte-carlo", "bootstrap"])
@pytest.mark.parametrize(("estimator", "n"), [("n-step", None), ("n-step", 3), ("gae", None)])
@pytest.mark.parametrize("task", [Pendular, "CartPole-v1"])
def test_advantages_and_targets_are_what_the_fields_say(task, estimator, n, target):
    a2c = learner(task, gamma=0.9, gae_lambda=0.7, n_step=n, estimator=estimator, target=target, num_steps=12)
    rollout = a2c.agent.collect(12)
    batch = a2c.estimate_advantages(rollout)
    assert (rollout.truncated if task is Pendular else rollout.terminated).any()
    n_step, mixed = slow_returns(a2c, rollout, n or 12, 0.7)
    values = torch.stack([a2c.agent.networks.value(obs) for obs in rollout.obs])
    expected = (mixed if estimator == "gae" else n_step) - values
    targets = {
        "advantage": expected + values,
        "monte-carlo": slow_returns(a2c, rollout, 12, 0.7)[0],
        "bootstrap": slow_returns(a2c, rollout, 1, 0.7)[0],
    }[target]
    for s in range(2):
        torch.testing.assert_close(batch.advantages[s], expected[:, s].reshape(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(batch.targets[s], targets[:, s].reshape(-1), rtol=1e-4, atol=1e-5)


def test_advantages_are_standardized_if_configured():
    a2c = learner(normalize_advantage="batch")
    rollout = a2c.agent.collect(8)
    batch = a2c.estimate_advantages(rollout)
    torch.testing.assert_close(batch.advantages.mean(1), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.advantages.std(1, correction=0), torch.ones(2), atol=1e-4, rtol=0)
    raw = learner()
    assert not torch.allclose(raw.estimate_advantages(raw.agent.collect(8)).advantages.std(1), torch.ones(2), atol=1e-2)


# Loss and gradient


def slow_loss(a2c, parameters, batch):
    """Compute the loss of algorithm S3, seed by seed and sample by sample."""
    config, shape = a2c.config, a2c.agent.networks.shape
    bound = shape.bind(parameters)
    policies = bound.policy(batch.obs)
    critics = [shape.mlp(layers, batch.obs)[..., shape.value_column] for layers in bound.critics]
    total = 0.0
    for s in range(len(a2c.seeds)):
        weights = torch.ones(batch.targets.shape[1]) if batch.weights is None else batch.weights[s]
        for i, weight in enumerate(weights / weights.sum()):
            if a2c.agent.head.free:
                policy = Independent(Normal(policies[s, i], bound.free[s].exp()), 1)
            else:
                policy = Categorical(logits=policies[s, i])
            loss = -policy.log_prob(batch.actions[s, i]) * batch.advantages[s, i]
            for critic in critics:
                loss = loss + config.vf_coef * (critic[s, i] - batch.targets[s, i]) ** 2 / 2
            total = total + weight * (loss - config.ent_coef * policy.entropy())
    return total


@TASKS
@pytest.mark.parametrize(
    "variant", [{"share_features": True}, {"share_features": False}, {"critic_ensemble_size": 2}], ids=str
)
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_those_of_the_paper(task, variant, weighted):
    a2c = learner(task, ent_coef=0.02, **variant)
    batch = a2c.estimate_advantages(a2c.agent.collect(8))
    generator = torch.Generator().manual_seed(1)
    if weighted:
        batch = replace(batch, weights=torch.randint(0, 2, batch.targets.shape, generator=generator).float())
    a2c.agent.parameters += 0.3 * torch.randn(a2c.agent.parameters.shape, generator=generator)
    networks = Pass(a2c.agent.networks, batch.obs)
    loss, parts = a2c.loss(networks, batch)
    gradient, again = a2c.gradient(batch)
    leaf = a2c.agent.parameters.clone().requires_grad_()
    slow = slow_loss(a2c, leaf, batch)
    torch.testing.assert_close(loss.detach(), slow.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, leaf)[0], rtol=1e-3, atol=1e-4)
    policy, value, entropy = parts.sum(1)
    torch.testing.assert_close(policy + 0.5 * value - 0.02 * entropy, loss.detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(parts, again)


def test_the_value_of_an_ensemble_is_the_mean_of_critics_that_differ():
    a2c = learner(critic_ensemble_size=3)
    a2c.iterate()
    obs = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    bound = a2c.agent.networks
    each = torch.stack([bound.shape.mlp(layers, obs)[..., 0] for layers in bound.critics])
    torch.testing.assert_close(bound.value(obs), each.mean(0))
    assert each.std(0).min() > 1e-3


@pytest.mark.parametrize("task", ["Pendulum-v1", *PRESETS])
def test_the_one_step_actor_critic_is_the_semi_gradient_of_the_textbook_with_every_preset(task):
    entry = catalog.find("actor-critic")
    config = configuration(entry, task, num_envs=2, ent_coef=0.0, vf_coef=1.0)
    a2c = build(A2C, config, "CartPole-v1")
    rollout = a2c.agent.collect(config.num_steps)
    batch = a2c.estimate_advantages(rollout)
    gradient, _ = a2c.gradient(batch)
    leaf = a2c.agent.parameters.clone().requires_grad_()
    bound = a2c.agent.networks.shape.bind(leaf)
    value, obs = bound.value(batch.obs), batch.obs
    successor = a2c.agent.networks.value(rollout.final_obs[0])
    delta = (rollout.rewards[0] + config.gamma * successor * ~rollout.terminated[0] - value).detach()
    log_prob = bound.policy(obs).log_softmax(-1).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    ascent = (delta * log_prob + delta * value).mean(1).sum()
    torch.testing.assert_close(gradient, -torch.autograd.grad(ascent, leaf)[0], rtol=1e-4, atol=1e-6)


def test_there_is_one_policy_gradient(monkeypatch):
    monkeypatch.setattr(ops, "policy_gradient", lambda log_probs, psi: 0.0 * log_probs)
    a2c = learner(ent_coef=0.0)
    actor, critic = (p.clone() for p in a2c.agent.parameters.view(2, 2, -1).unbind(1))
    a2c.iterate()
    after = a2c.agent.parameters.view(2, 2, -1)
    assert torch.equal(after[:, 0], actor), "the policy must have no other loss to learn from"
    assert not torch.equal(after[:, 1], critic)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_learning_rate_falls_linearly_over_the_budget(schedule):
    a2c = learner(lr_schedule=schedule, budget=4 * 32)
    rates = [a2c.iterate()["schedule/learning_rate"] for _ in range(5)]
    falling = [1.0, 0.75, 0.5, 0.25] if schedule == "linear" else [1.0] * 4
    assert rates[:4] == pytest.approx([3e-3 * share for share in falling])
    assert rates[4] > 0


# Independence of seeds


@TASKS
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("critics", [1, 2])
def test_one_update_is_the_same_alone_and_among_other_seeds(task, optimizer, critics):
    config = {"optimizer": optimizer, "critic_ensemble_size": critics, "normalize_advantage": "batch"}
    block, alone = learner(task, (3, 5, 8), **config), learner(task, (5,), **config)
    for _ in range(2):
        block.iterate()
    batch = block.estimate_advantages(block.agent.collect(8))
    for name, tensor in alone.optimizer.state_dict().items():
        tensor.copy_(block.optimizer.state_dict()[name][1:2])
    alone.agent.parameters.copy_(block.agent.parameters[1:2])
    before = alone.agent.parameters.clone()
    block.update(batch, 0.9)
    alone.update(batch.map(lambda tensor: tensor[1:2]), 0.9)
    assert not torch.equal(alone.agent.parameters, before)
    torch.testing.assert_close(block.agent.parameters[1:2], alone.agent.parameters, rtol=1e-5, atol=1e-7)


@TASKS
def test_a_seed_learns_the_same_in_any_company(task):
    config = {"normalize_obs": True, "normalize_reward": True}
    assert_learns_alone_as_in_company(lambda seeds: learner(task, seeds, **config), iterations=8)


# Resume and invalid numbers


@TASKS
@pytest.mark.parametrize(
    ("backend", "config"),
    [
        ("tensor", {"optimizer": "rmsprop"}),
        (
            "gymnasium",
            {"optimizer": "adam", "normalize_obs": True, "normalize_reward": True, "critic_ensemble_size": 2},
        ),
    ],
)
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, backend, config, tmp_path):
    assert_resumes_exactly(lambda: learner(task, backend=backend, **config), tmp_path)


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_a_rejected_state_leaves_the_learner_unchanged(backend):
    assert_a_refused_state_changes_nothing(lambda: learner(backend=backend, normalize_obs=True))


def test_a_state_of_another_configuration_is_rejected():
    with pytest.raises(ValueError, match=r"'agent\.parameters' has shape .* saved by a different configuration"):
        learner(critic_ensemble_size=2).load_state_dict(learner().state_dict())


def test_a_reward_that_is_not_a_number_is_dropped_and_harms_no_other_seed():
    clean, hit = learner(), learner(wrap=poison(row=5, when=10))
    assert_a_bad_reward_is_dropped(clean, hit)


def test_one_bad_reward_does_not_end_a_training():
    a2c = learner(wrap=poison(row=0, when=5))
    assert train(a2c, budget=20 * 32, seeds=2, progress="silent").consumed == 20 * 32


def test_returns_that_are_all_equal_do_not_end_a_training():
    assert train(learner(Constant), budget=20 * 32, seeds=2, progress="silent").consumed == 20 * 32


@pytest.mark.parametrize("critics", [1, 2])
def test_invalid_transitions_take_no_part(critics):
    def run(junk):
        a2c = learner(wrap=next_step(junk), critic_ensemble_size=critics, normalize_advantage="batch")
        return [a2c.iterate() for _ in range(6)], a2c

    (expected, calm), (got, wild) = run(0.0), run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    for one, other in zip(expected, got, strict=True):
        assert_equal_metrics(one, other)
    assert sum(int(metrics["rollout/episodes"].sum()) for metrics in expected) > 8


# Errors


def test_action_spaces_without_a_head_are_rejected():
    probe = type("Odd", (Probe,), {"action_space": gymnasium.spaces.MultiBinary(2)})
    with pytest.raises(
        ValueError,
        match=r"a2c needs actions of Discrete or MultiDiscrete or a Box of float, but those of Odd are Multi",
    ):
        learner(probe)


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(budget=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, 0)
            for name in ("num_envs", "num_steps", "learning_rate", "adam_eps", "n_step", "critic_ensemble_size")
        ],
        *[(name, float("nan")) for name in ("learning_rate", "gamma", "gae_lambda", "ent_coef")],
        *[(name, -0.1) for name in ("gamma", "gae_lambda", "vf_coef", "ent_coef", "max_grad_norm")],
        *[(name, 1.1) for name in ("gamma", "gae_lambda")],
        *[(name, "sometimes") for name in ("lr_schedule", "optimizer", "estimator", "target")],
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        A2CConfig(**{name: value})


def test_a_single_sample_cannot_be_standardized():
    assert A2CConfig(num_envs=1, num_steps=1).num_steps == 1
    with pytest.raises(ValueError, match="normalize_advantage makes the advantage"):
        A2CConfig(num_envs=1, num_steps=1, normalize_advantage="batch")


def test_several_critics_cannot_share_the_layers_of_one_actor():
    with pytest.raises(ValueError, match="critic_ensemble_size must be 1 with share_features, got 2"):
        A2CConfig(critic_ensemble_size=2, share_features=True)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    config = configuration(catalog.find("a2c"), "no such task", name)
    assert {key: getattr(config, key) for key in PRESETS[name]} == PRESETS[name]
