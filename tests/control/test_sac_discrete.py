from math import log

import gymnasium
import pytest
import torch
from torch.distributions import Categorical

from control.learners import assert_resumes_exactly, assert_solved, build, next_step, same
from control.off_policy import (
    QUICK,
    a_batch,
)
from control.probes import DISCRETE_PROBES, Endless
from operant import streams
from operant.control.sac_discrete import DiscreteSAC, DiscreteSACConfig
from operant.runtime.acting import draw_noise


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    config = DiscreteSACConfig(**{**QUICK, **config})
    return build(DiscreteSAC, config, task, seeds, budget=budget, backend=backend, wrap=wrap)


# Learning


@pytest.mark.parametrize("probe", DISCRETE_PROBES, ids=lambda probe: probe.__name__)
def test_probes_are_solved(probe):
    # If all observations are 0, only the last bias learns, by at most the learning rate per step.
    learning_rate = 3e-2 if probe is Endless else 1e-2
    sac = learner(probe, ent_coef=0.0, gamma=0.5, learning_rate=learning_rate, num_envs=8)
    for _ in range(60):
        sac.iterate()
    assert_solved(sac, lambda obs: sac.critics(obs).mean(0).amax(-1), probe.solution(0.5))


def test_entropy_is_worth_the_temperature():
    gamma, alpha = 0.5, 0.4
    sac = learner(Endless, ent_coef=alpha, gamma=gamma, learning_rate=2e-2)
    for _ in range(80):
        metrics = sac.iterate()
    torch.testing.assert_close(metrics["policy/entropy"], torch.full((2,), log(2)), atol=0.01, rtol=0)
    expected = (1 + gamma * alpha * log(2)) / (1 - gamma)
    torch.testing.assert_close(metrics["value/q"], torch.full((2,), expected), atol=0.05, rtol=0)


def test_the_temperature_makes_the_entropy_meet_its_target():
    probe = next(probe for probe in DISCRETE_PROBES if probe.__name__ == "Chosen")
    sac = learner(probe, target_entropy_scale=0.5, gamma=0.0, learning_rate=1e-2)
    entropies = [sac.iterate()["policy/entropy"] for _ in range(150)]
    torch.testing.assert_close(torch.stack(entropies[-40:]).mean(0), torch.full((2,), 0.5 * log(2)), atol=0.1, rtol=0)


# Loss and gradient


@pytest.mark.parametrize("weighted", [False, True])
def test_targets_and_gradients_are_those_of_the_paper(weighted):
    sac = learner(gamma=0.9, hidden_sizes=(8, 8))
    sac.iterate()
    batch = a_batch(sac, 12)
    generator = torch.Generator().manual_seed(1)
    for parameters in sac.parameters.values():
        parameters.add_(torch.randn(parameters.shape, generator=generator), alpha=0.1)
    weights = torch.randint(0, 2, (2, 12), generator=generator).float() if weighted else torch.ones(2, 12)
    ended = torch.arange(12).expand(2, 12) % 5 == 0
    batch = type(batch)(**{**vars(batch), "weights": weights if weighted else None, "terminated": ended})
    targets = sac.compute_targets(batch)
    gradients = {**sac.critic_gradient(batch, targets)[0], **sac.actor_gradient(batch)[0]}

    leaves = {name: sac.parameters[name].clone().requires_grad_() for name in ("actor", "critics", "log_alpha")}
    actor, critics = sac.actor.shape.bind(leaves["actor"]), sac.critics.shape.bind(leaves["critics"])
    losses = dict.fromkeys(leaves, 0.0)
    for s in range(2):
        alpha = leaves["log_alpha"][s, 0].exp()
        share = weights[s] / weights[s].sum()
        for i in range(12):
            obs, successor = batch.obs[:, i : i + 1], batch.next_obs[:, i : i + 1]
            following = Categorical(logits=actor(successor)[0, s, 0]).probs.detach()
            smallest = sac.targets(successor)[:, s, 0].amin(0)
            soft = sum(following[a] * (smallest[a] - alpha.detach() * following[a].log()) for a in range(2))
            target = batch.rewards[s, i] + (0.0 if ended[s, i] else 0.9 * soft)
            torch.testing.assert_close(targets[s, i], target, rtol=1e-4, atol=1e-4)
            for q in critics(obs)[:, s, 0, batch.actions[s, i]]:
                losses["critics"] = losses["critics"] + share[i] * (q - target) ** 2 / 2
            policy = Categorical(logits=actor(obs)[0, s, 0])
            smallest = sac.critics(obs)[:, s, 0].amin(0)
            cost = sum(policy.probs[a] * (alpha.detach() * policy.logits[a] - smallest[a]) for a in range(2))
            losses["actor"] = losses["actor"] + share[i] * cost
            price = alpha * (policy.entropy().detach() - sac.target_entropy)
            losses["log_alpha"] = losses["log_alpha"] + share[i] * price
    for name, loss in losses.items():
        (expected,) = torch.autograd.grad(loss, leaves[name])
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=1e-4)


def test_targets_follow_the_critics_by_tau():
    sac = learner(tau=0.25)
    sac.iterate()
    before = sac.parameters["targets"].clone()
    sac.update(a_batch(sac))
    torch.testing.assert_close(sac.parameters["targets"], 0.75 * before + 0.25 * sac.parameters["critics"])


def test_the_target_is_a_share_of_the_entropy_of_uniform_actions():
    assert learner("Acrobot-v1", target_entropy_scale=0.5).target_entropy == pytest.approx(0.5 * log(3))


# Collection and actions


def test_it_begins_with_random_actions_and_counts_steps():
    sac = learner(learning_starts=63, num_envs=4, rounds_per_iteration=5, train_freq=2, gradient_steps=3)
    sac.iterate()
    assert sac.consumed == 64 + 5 * 2 * 4 == sac.experience.replay.size
    assert sac.optimizers["critics"].steps.tolist() == [15, 15]
    first = sac.experience.replay.fields["actions"][:16]
    assert set(first.flatten().tolist()) == {0, 1}
    assert first.float().mean().sub(0.5).abs() < 0.15


def test_acting_is_greedy_without_noise_and_sampled_with_it():
    class Shifted(Endless):
        action_space = gymnasium.spaces.Discrete(3, start=5)

    sac = learner(Shifted)
    sac.iterate()
    before = sac.state_dict()
    obs = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0))
    greedy, hidden_state = sac.act(obs, None, None)
    assert hidden_state is None
    assert torch.equal(greedy, 5 + sac.policy(obs).argmax(-1))
    noise = draw_noise(sac, 50, streams.of_seeds(sac.seeds, "test"))
    sampled, _ = sac.act(obs, None, noise)
    assert torch.equal(sampled, 5 + (sac.policy(obs) + noise).argmax(-1))
    assert same(sac.state_dict(), before)


# Resume and invalid numbers


def test_no_temperature_is_trained_and_resumed_too(tmp_path):
    assert_resumes_exactly(lambda: learner(ent_coef=0.0), tmp_path, iterations=1)


def test_invalid_transitions_take_no_part():
    calm, wild = (learner(wrap=next_step(junk)) for junk in (0.0, 1e6))
    for _ in range(3):
        calm.iterate()
        wild.iterate()
    for name, parameters in calm.parameters.items():
        assert torch.equal(parameters, wild.parameters[name])
    assert not calm.experience.replay.fields["valid"][:20].all(), "the test must have some"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ent_coef", -0.1),
        ("target_entropy_scale", 1.1),
        ("target_entropy_scale", -0.1),
        ("target_entropy_scale", float("nan")),
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        DiscreteSACConfig(**{name: value})
