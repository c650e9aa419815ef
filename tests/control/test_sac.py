import math

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from control.learners import assert_resumes_exactly, assert_solved, build, same
from control.off_policy import (
    QUICK,
    VALUE_PROBES,
    a_batch,
)
from control.probes import Aimed, Endless
from operant import streams
from operant.control.sac import LOG_STD, SAC, SACConfig
from operant.runtime.acting import draw_noise


def learner(task="Pendulum-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    return build(SAC, SACConfig(**{**QUICK, **config}), task, seeds, budget=budget, backend=backend, wrap=wrap)


TEMPERATURE = ("policy/entropy", "policy/alpha")


def values(sac):
    """Return a function that gives the critics' values of greedy actions."""
    return lambda obs: sac.critics(torch.cat((obs, sac.policy(obs)[0].tanh()), -1)).mean(0).squeeze(-1)


# Learning


@pytest.mark.parametrize("probe", VALUE_PROBES, ids=lambda probe: probe.__name__)
def test_values_of_probes_are_learned(probe):
    sac = learner(probe, ent_coef=0.0, gamma=0.5, learning_rate=1e-2, num_envs=8)
    for _ in range(60):
        sac.iterate()
    assert_solved(sac, values(sac), probe.solution(0.5))


def test_an_action_that_depends_on_what_is_seen_is_learned():
    sac = learner(Aimed, ent_coef=0.005, gamma=0.5, learning_rate=5e-3)
    for _ in range(120):
        sac.iterate()
    assert_solved(sac, values(sac), Aimed.solution(0.5), atol=0.2)


def test_entropy_is_worth_the_temperature():
    gamma, alpha = 0.5, 0.4
    probe = type("One", (Endless,), {"action_space": gymnasium.spaces.Box(np.float32(-1), np.float32(1), (1,))})
    sac = learner(probe, ent_coef=alpha, gamma=gamma, learning_rate=5e-3)
    for _ in range(120):
        metrics = sac.iterate()
    entropy = metrics["policy/entropy"]
    assert (entropy > 0.6).all(), "close to the largest entropy of actions in [-1, 1], log 2"
    torch.testing.assert_close(metrics["value/q"], (1 + gamma * alpha * entropy) / (1 - gamma), atol=0.05, rtol=0)


@pytest.mark.parametrize("target", [-0.8, 0.3])
def test_the_temperature_makes_the_entropy_meet_its_target(target):
    sac = learner(Aimed, target_entropy=target, gamma=0.0, learning_rate=1e-2)
    entropies = [sac.iterate()["policy/entropy"] for _ in range(160)]
    torch.testing.assert_close(torch.stack(entropies[-40:]).mean(0), torch.full((2,), target), atol=0.25, rtol=0)


@pytest.mark.parametrize("beginning", [0.08, 0.008])
def test_a_low_target_is_met_at_the_temperature_where_gaussians_have_that_entropy(beginning):
    """Reward -4 (a - b)² in the learner's units makes the best policy a Gaussian of variance α / 8."""
    target = -1.5
    best = 8 * math.exp(2 * target) / (2 * math.pi * math.e)
    sac = learner(Aimed, target_entropy=target, gamma=0.0, learning_rate=1e-2)
    # From 1 it would take several times as long: the gradient by log α is α (H - H_target), small where α is.
    sac.parameters["log_alpha"].fill_(math.log(beginning))
    reports = [sac.iterate() for _ in range(160)][-40:]
    entropy, alpha = (torch.stack([report[name] for report in reports]).mean(0) for name in TEMPERATURE)
    torch.testing.assert_close(entropy, torch.full((2,), target), atol=0.15, rtol=0)
    torch.testing.assert_close(alpha, torch.full((2,), best), atol=0, rtol=0.35)


def test_the_default_target_is_minus_the_number_of_action_dimensions():
    assert learner().target_entropy == -1.0
    assert learner(VALUE_PROBES[0]).target_entropy == -2.0


# Loss and gradient


def squashed(mean, log_std):
    return Independent(TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)]), 1)


def head(outputs):
    mean, log_std = outputs[0].chunk(2, -1)
    return mean, log_std.clamp(*LOG_STD)


@pytest.mark.parametrize("weighted", [False, True])
def test_targets_and_gradients_are_those_of_the_paper(weighted):
    sac = learner("Pendulum-v1", gamma=0.9, hidden_sizes=(8, 8))
    sac.iterate()
    batch = a_batch(sac, 12)
    generator = torch.Generator().manual_seed(1)
    for parameters in sac.parameters.values():
        parameters.add_(torch.randn(parameters.shape, generator=generator), alpha=0.1)
    weights = torch.randint(0, 2, (2, 12), generator=generator).float() if weighted else torch.ones(2, 12)
    ended = torch.arange(12).expand(2, 12) % 5 == 0
    batch = type(batch)(**{**vars(batch), "weights": weights if weighted else None, "terminated": ended})
    noise, next_noise = torch.randn(2, 2, 12, 1, generator=generator)
    targets = sac.compute_targets(batch, next_noise)
    gradients = {**sac.critic_gradient(batch, targets)[0], **sac.actor_gradient(batch, noise)[0]}

    leaves = {name: sac.parameters[name].clone().requires_grad_() for name in ("actor", "critics", "log_alpha")}
    actor, critics = sac.actor.shape.bind(leaves["actor"]), sac.critics.shape.bind(leaves["critics"])
    losses = dict.fromkeys(leaves, 0.0)
    for s in range(2):
        alpha = leaves["log_alpha"][s].exp()
        share = weights[s] / weights[s].sum()
        for i in range(12):
            obs, successor = batch.obs[:, i : i + 1], batch.next_obs[:, i : i + 1]
            policy = squashed(*(part[s, 0] for part in head(actor(successor))))
            mean, log_std = (part[s, 0].detach() for part in head(actor(successor)))
            action = (mean + log_std.exp() * next_noise[s, i]).tanh()
            joint = torch.cat((successor[s], action.unsqueeze(0)), -1).expand(2, 1, -1)
            soft = sac.targets(joint)[:, s].min() - alpha * policy.log_prob(action)
            target = batch.rewards[s, i] + (0.0 if ended[s, i] else 0.9 * soft)
            torch.testing.assert_close(targets[s, i], target.detach().squeeze(), rtol=1e-3, atol=1e-3)
            taken = torch.cat((obs, batch.actions[:, i : i + 1]), -1)
            for q in critics(taken)[:, s, 0, 0]:
                losses["critics"] = losses["critics"] + share[i] * (q - target.detach().squeeze()) ** 2 / 2
            mean, log_std = (part[s, 0] for part in head(actor(obs)))
            action = (mean + log_std.exp() * noise[s, i]).tanh()
            log_prob = squashed(mean, log_std).log_prob(action)
            joint = torch.cat((obs[s], action.unsqueeze(0)), -1).expand(2, 1, -1)
            q = sac.critics(joint)[:, s].min()
            losses["actor"] = losses["actor"] + share[i] * (alpha.detach() * log_prob - q).squeeze()
            price = -alpha * (log_prob.detach() + sac.target_entropy)
            losses["log_alpha"] = losses["log_alpha"] + share[i] * price.squeeze()
    for name, loss in losses.items():
        (expected,) = torch.autograd.grad(loss, leaves[name])
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=1e-4)


def test_targets_follow_the_critics_by_tau():
    sac = learner(tau=0.25)
    sac.iterate()
    before = sac.parameters["targets"].clone()
    sac.update(a_batch(sac))
    expected = 0.75 * before + 0.25 * sac.parameters["critics"]
    torch.testing.assert_close(sac.parameters["targets"], expected)


def test_a_fixed_temperature_stays():
    sac = learner(ent_coef=0.3)
    assert torch.stack([sac.iterate()["policy/alpha"] for _ in range(3)]).sub(0.3).abs().max() < 1e-6


# Collection and actions


def test_it_begins_with_random_actions_and_counts_steps():
    sac = learner(learning_starts=63, num_envs=4, rounds_per_iteration=5, train_freq=2, gradient_steps=3)
    sac.iterate()
    assert sac.consumed == 64 + 5 * 2 * 4 == sac.experience.replay.size
    assert sac.optimizers["critics"].steps.tolist() == [15, 15]
    first = sac.experience.replay.fields["actions"][:16]
    assert first.abs().max() <= 1
    assert first.std().sub(3**-0.5).abs() < 0.1, "the actions are uniform"
    sac.iterate()
    assert sac.consumed == 64 + 2 * 40


def test_acting_is_greedy_without_noise_and_sampled_with_it():
    sac = learner(Aimed)
    sac.iterate()
    before = sac.state_dict()
    obs = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0))
    greedy, hidden_state = sac.act(obs, None, None)
    assert hidden_state is None
    mean, log_std = sac.policy(obs)
    torch.testing.assert_close(greedy, 1 + 2 * mean.tanh())
    noise = draw_noise(sac, 50, streams.of_seeds(sac.seeds, "test"))
    sampled, _ = sac.act(obs, None, noise)
    torch.testing.assert_close(sampled, 1 + 2 * (mean + log_std.exp() * noise).tanh())
    assert all(Aimed.action_space.contains(action) for action in sampled.flatten(0, 1).numpy())
    assert same(sac.state_dict(), before)


# Resume and invalid numbers


def test_no_temperature_is_trained_and_resumed_too(tmp_path):
    assert_resumes_exactly(lambda: learner(ent_coef=0.0), tmp_path, iterations=1)


@pytest.mark.parametrize(("name", "value"), [("ent_coef", -0.1), ("target_entropy", float("nan"))])
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        SACConfig(**{name: value})
