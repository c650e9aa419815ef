"""PPO with a KL penalty: its loss, the adaptation of β to the target, and one β per seed."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from control.learners import TASKS, assert_reports_alike, learner, same
from control.probes import PROBES, Aimed, Chosen, Matched
from operant import catalog
from operant.control import PPOConfig, configuration
from operant.control.ppo import BETA_RANGE
from operant.nets import Pass
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint

PENALIZED = pytest.mark.parametrize("objective", ["penalty", "clip-and-penalty"])
TARGET = 0.01

# Loss and gradient


def policy_of(head, outputs, free):
    return Independent(Normal(outputs, free.exp()), 1) if head.free else Categorical(logits=outputs)


def slow_loss(ppo, parameters, batch, old_free):
    """Compute equations 8 and 9 of Schulman et al. 2017, negated, seed by seed and sample by sample."""
    config, head, bound = ppo.config, ppo.agent.head, ppo.agent.networks.shape.bind(parameters)
    outputs, values = bound.policy(batch.obs), bound.value(batch.obs)
    total = 0.0
    for s in range(len(ppo.seeds)):
        weights = torch.ones(len(values[s])) if batch.weights is None else batch.weights[s]
        for i, weight in enumerate(weights / weights.sum()):
            new = policy_of(head, outputs[s, i], bound.free[s])
            old = policy_of(head, batch.outputs[s, i], old_free[s])
            action, advantage = batch.actions[s, i], batch.advantages[s, i]
            ratio = (new.log_prob(action) - old.log_prob(action)).exp()
            objective = ratio * advantage
            if config.objective == "clip-and-penalty":
                objective = torch.min(objective, ratio.clamp(0.8, 1.2) * advantage)
            objective = objective - ppo.beta[s] * kl_divergence(old, new)
            error = (values[s, i] - batch.targets[s, i]) ** 2
            total = total - weight * (objective - config.vf_coef * error / 2)
    return total


@TASKS
@PENALIZED
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_those_of_the_paper(task, objective, weighted):
    ppo = learner(task, objective=objective, num_steps=8)
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    old_free = ppo.agent.networks.free.clone()
    generator = torch.Generator().manual_seed(1)
    if weighted:
        batch = replace(batch, weights=torch.randint(0, 2, batch.targets.shape, generator=generator).float())
    ppo.agent.parameters += 0.4 * torch.randn(ppo.agent.parameters.shape, generator=generator)
    ppo.beta[:] = torch.tensor([0.5, 3.0])
    networks = Pass(ppo.agent.networks, batch.obs)
    loss, _ = ppo.loss(networks, batch, old_free, 1.0)
    gradient = networks.gradient(loss)

    leaf = ppo.agent.parameters.clone().requires_grad_()
    slow = slow_loss(ppo, leaf, batch, old_free)
    torch.testing.assert_close(loss.detach(), slow.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, leaf)[0], rtol=1e-3, atol=1e-4)


@TASKS
@PENALIZED
def test_at_the_old_policy_the_penalty_has_no_gradient(task, objective):
    gradients = []
    for kind in ("clip", objective):
        ppo = learner(task, objective=kind, kl_coef=100.0)
        batch = ppo.estimate_advantages(ppo.agent.collect(16))
        networks = Pass(ppo.agent.networks, batch.obs)
        loss, _ = ppo.loss(networks, batch, ppo.agent.networks.free.clone(), 1.0)
        gradients.append(networks.gradient(loss))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@TASKS
def test_a_high_price_holds_the_policy_and_not_the_value(task):
    moved = []
    for beta in (1e-3, 1e4):
        ppo = learner(task, objective="penalty", kl_coef=beta, kl_coef_target=None, learning_rate=3e-3, num_epochs=20)
        batch = ppo.estimate_advantages(ppo.agent.collect(16))
        before = ppo.agent.networks.value(batch.obs)
        metrics = ppo.update(batch, 1.0)
        moved.append(metrics["losses/kl"])
        assert (ppo.agent.networks.value(batch.obs) - before).abs().amax(1).min() > 0.01
    assert (moved[1] < moved[0] / 5).all()


def test_the_clipped_objective_computes_no_divergence(monkeypatch):
    ppo = learner()
    monkeypatch.setattr(type(ppo.agent.head), "kl", lambda *_: pytest.fail("kl was called"))
    metrics = ppo.iterate()
    assert "schedule/beta" not in metrics
    assert torch.equal(ppo.beta, torch.ones(2))


# Adaptation of β


@TASKS
def test_the_divergence_is_that_from_the_policy_of_the_rollout(task):
    ppo = learner(task, objective="penalty", learning_rate=1e-2)
    ppo.iterate()
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    weights = torch.rand(batch.targets.shape, generator=torch.Generator().manual_seed(0))
    head, networks, old_free = ppo.agent.head, ppo.agent.networks, ppo.agent.networks.free.clone()
    metrics = ppo.update(replace(batch, weights=weights), 1.0)
    for s in range(2):
        old = policy_of(head, batch.outputs[s], old_free[s])
        new = policy_of(head, networks.policy(batch.obs)[s], networks.free[s])
        expected = (weights[s] * kl_divergence(old, new)).sum() / weights[s].sum()
        torch.testing.assert_close(metrics["losses/kl"][s], expected, rtol=1e-3, atol=1e-6)
    assert (metrics["losses/kl"] > 1e-4).all()


def penalized_update(**config):
    """Update three seeds with one rollout each; the first has nothing to learn, the last much more than the second."""
    config = {"objective": "penalty", "normalize_advantage": "none", "max_grad_norm": None, "num_epochs": 5} | config
    ppo = learner(Matched, (1, 3, 5), learning_rate=3e-3, **config)
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    batch = replace(batch, advantages=batch.advantages * torch.tensor([[0.0], [0.03], [10.0]]))
    return ppo, ppo.update(batch, 1.0)


@PENALIZED
def test_beta_is_halved_kept_and_doubled_in_single_seeds_for_the_next_update(objective):
    _, reference = penalized_update(objective=objective, kl_coef=0.5, kl_coef_target=None)
    divergence = reference["losses/kl"]
    assert divergence[0] < 1e-4 < divergence[1] < divergence[2] / 2
    ppo, metrics = penalized_update(objective=objective, kl_coef=0.5, kl_coef_target=divergence[1].item())
    assert torch.equal(metrics["losses/kl"], divergence), "the update uses the β from before"
    assert metrics["schedule/beta"].tolist() == [0.5, 0.5, 0.5]
    assert ppo.beta.tolist() == [0.25, 0.5, 1.0]


def test_beta_stays_without_a_target():
    ppo, metrics = penalized_update(kl_coef=0.5, kl_coef_target=None, kl_coef_rounds=3)
    assert ppo.beta.tolist() == metrics["schedule/beta"].tolist() == [0.5, 0.5, 0.5]
    assert ppo.optimizer.steps.tolist() == [20.0, 20.0, 20.0], "without a target no epochs are repeated"


def test_beta_keeps_out_of_the_reach_of_zero_and_infinity():
    for beta, target, bound in ((4e-6, 1e9, BETA_RANGE[0]), (3e5, 1e-12, BETA_RANGE[1])):
        ppo = learner(objective="penalty", kl_coef=beta, kl_coef_target=target)
        for _ in range(4):
            ppo.iterate()
        torch.testing.assert_close(ppo.beta, torch.full((2,), bound))


@TASKS
def test_over_a_training_the_divergence_comes_to_its_target(task):
    config = {"num_envs": 16, "num_epochs": 5, "learning_rate": 1e-2}
    ppo = learner(task, objective="penalty", kl_coef_target=TARGET, **config)
    middle = torch.stack([ppo.iterate()["losses/kl"] for _ in range(24)])[8:].median(0).values
    assert (middle > TARGET / 2).all()
    assert (middle < TARGET * 2).all()


# Dual descent


@TASKS
@PENALIZED
def test_dual_descent_ends_at_its_target_or_at_its_bound(task, objective):
    rounds, per_round = 12, 2 * 4
    ppo = learner(task, objective=objective, kl_coef_target=TARGET, kl_coef_rounds=rounds, learning_rate=3e-3)
    satisfied, taken = [], []
    for _ in range(8):
        before = ppo.optimizer.steps.clone()
        divergence = ppo.iterate()["losses/kl"]
        steps = ppo.optimizer.steps - before
        inside = (divergence >= TARGET / 1.5) & (divergence <= TARGET * 1.5)
        assert (inside | (steps == rounds * per_round)).all()
        assert (steps % per_round == 0).all()
        satisfied += inside.tolist()
        taken += steps.tolist()
    assert sum(satisfied) >= 0.7 * len(satisfied)
    assert len(set(taken)) > 1


def test_dual_descent_gives_up_at_its_bound_and_stops_single_seeds():
    _, reference = penalized_update(kl_coef=0.5, kl_coef_target=None)
    ppo, metrics = penalized_update(kl_coef=0.5, kl_coef_target=reference["losses/kl"][1].item(), kl_coef_rounds=3)
    assert ppo.optimizer.steps[:2].tolist() == [3 * 20.0, 20.0]
    assert ppo.optimizer.steps[2] > 20
    assert ppo.beta[:2].tolist() == [0.5 / 2**3, 0.5]
    assert torch.equal(metrics["losses/kl"][1], reference["losses/kl"][1])


# Independence of seeds, and resume

DUAL = pytest.mark.parametrize("rounds", [1, 4])


@TASKS
@PENALIZED
@DUAL
def test_a_seed_learns_the_same_in_any_company(task, objective, rounds):
    config = {"objective": objective, "learning_rate": 3e-3, "kl_coef_rounds": rounds}
    block, alone = learner(task, (3, 5, 8), **config), learner(task, (5,), **config)
    for _ in range(4):
        assert_reports_alike(block.iterate(), alone.iterate(), place=1)
    torch.testing.assert_close(block.agent.parameters[1], alone.agent.parameters[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(block.beta[1], alone.beta[0])
    assert block.optimizer.steps[1] == alone.optimizer.steps[0]


@TASKS
@DUAL
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, rounds, tmp_path):
    config = {"objective": "penalty", "learning_rate": 3e-3, "kl_coef_rounds": rounds}
    whole, first, second = (learner(task, **config) for _ in range(3))
    for _ in range(3):
        whole.iterate()
        first.iterate()
    assert not torch.equal(first.beta, torch.ones(2))
    second.load_state_dict(load_checkpoint(Checkpoints(tmp_path / "kept").save(first.state_dict(), first.consumed)))
    for _ in range(3):
        whole.iterate()
        second.iterate()
    assert same(whole.state_dict(), second.state_dict())


# Learning


@PENALIZED
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_probes_are_solved(probe, objective):
    gamma = 0.5
    iterations, learning_rate = (150, 5e-3) if probe is Aimed else (75, 1e-2)
    ppo = learner(
        probe,
        budget=iterations * 64,
        objective=objective,
        kl_coef_target=0.03,
        num_envs=8,
        num_steps=8,
        num_epochs=4,
        num_minibatches=2,
        learning_rate=learning_rate,
        lr_schedule="linear",
        gamma=gamma,
        hidden_sizes=(16,),
        max_grad_norm=None,
        log_std_init=-1.0,
    )
    for _ in range(iterations):
        ppo.iterate()
    solution = probe.solution(gamma)
    obs = solution.obs.expand(2, *solution.obs.shape)
    torch.testing.assert_close(ppo.agent.networks.value(obs), solution.values.expand(2, -1), atol=0.1, rtol=0)
    if solution.actions is not None:
        actions, _ = ppo.act(obs, None, None)
        torch.testing.assert_close(actions, solution.actions.expand_as(actions), atol=0.1, rtol=0)


def test_a_divergence_that_is_not_a_number_leaves_beta_alone_and_the_neighbor_too():
    config = {"objective": "penalty", "learning_rate": 1e-2}
    clean, hit = (learner(Chosen, **config) for _ in range(2))
    hit.agent.parameters[1] = torch.nan
    clean.iterate()
    hit.iterate()
    assert hit.beta[1] == 1
    assert torch.equal(hit.beta[0], clean.beta[0])
    assert torch.equal(hit.agent.parameters[0], clean.agent.parameters[0])


# Errors and the catalog


@pytest.mark.parametrize(
    ("name", "value"),
    [("objective", "kl"), ("kl_coef", 0.0), ("kl_coef", float("nan")), ("kl_coef_target", 0.0), ("kl_coef_rounds", 0)],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        PPOConfig(**{name: value})


def test_the_catalog_has_the_variant():
    entry = catalog.find("ppo-penalty")
    assert configuration(entry, "no such task") == PPOConfig(objective="penalty")
    assert configuration(entry, "no such task", objective="clip-and-penalty").objective == "clip-and-penalty"
    assert configuration(entry, "CartPole-v1").objective == "penalty"
