import pytest
import torch

from control.learners import assert_solved, build, same
from control.off_policy import (
    QUICK,
    VALUE_PROBES,
    a_batch,
)
from control.probes import Aimed
from operant import catalog, streams
from operant.control.td3 import TD3, TD3Config
from operant.runtime.acting import draw_noise
from operant.runtime.configuration import configuration


def learner(task="Pendulum-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    return build(TD3, TD3Config(**{**QUICK, **config}), task, seeds, budget=budget, backend=backend, wrap=wrap)


def values(td3):
    """Return a function that gives the critics' values of greedy actions."""
    return lambda obs: td3.critics(torch.cat((obs, td3.policy(obs)), -1)).mean(0).squeeze(-1)


# Learning


@pytest.mark.parametrize("probe", VALUE_PROBES, ids=lambda probe: probe.__name__)
def test_values_of_probes_are_learned(probe):
    td3 = learner(probe, target_policy_noise=0.0, gamma=0.5, learning_rate=1e-2, num_envs=8)
    for _ in range(60):
        td3.iterate()
    assert_solved(td3, values(td3), probe.solution(0.5))


def test_an_action_that_depends_on_what_is_seen_is_learned():
    td3 = learner(Aimed, exploration_noise=0.5, target_policy_noise=0.05, gamma=0.5, learning_rate=5e-3)
    for _ in range(120):
        td3.iterate()
    assert_solved(td3, values(td3), Aimed.solution(0.5), atol=0.2)


# Loss and gradient


@pytest.mark.parametrize("critics", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_targets_and_gradients_are_those_of_the_paper(critics, weighted, penalty, monkeypatch):
    blur = {"target_policy_noise": 0.4, "target_noise_clip": 0.3}
    td3 = learner(gamma=0.9, hidden_sizes=(8, 8), n_critics=critics, action_penalty=penalty, **blur)
    td3.iterate()
    batch = a_batch(td3, 12)
    generator = torch.Generator().manual_seed(1)
    for parameters in td3.parameters.values():
        parameters.add_(torch.randn(parameters.shape, generator=generator), alpha=0.1)
    weights = torch.randint(0, 2, (2, 12), generator=generator).float() if weighted else torch.ones(2, 12)
    ended = torch.arange(12).expand(2, 12) % 5 == 0
    batch = type(batch)(**{**vars(batch), "weights": weights if weighted else None, "terminated": ended})
    noise = torch.randn(2, 12, 1, generator=generator)
    targets = td3.compute_targets(batch, noise)
    gradients = {**td3.critic_gradient(batch, targets)[0], **td3.actor_gradient(batch)[0]}

    leaves = {name: td3.parameters[name].clone().requires_grad_() for name in ("actor", "critics")}
    actor, q = td3.actor.shape.bind(leaves["actor"]), td3.critics.shape.bind(leaves["critics"])
    losses = dict.fromkeys(leaves, 0.0)
    for s in range(2):
        share = weights[s] / weights[s].sum()
        for i in range(12):
            obs, successor = batch.obs[:, i : i + 1], batch.next_obs[:, i : i + 1]
            blurred = td3.target_actor(successor)[0, s, 0].tanh() + (0.4 * noise[s, i]).clamp(-0.3, 0.3)
            joint = torch.cat((successor[s, 0], blurred.clamp(-1, 1))).expand(2, 1, -1)
            following = 0.0 if ended[s, i] else 0.9 * td3.target_critics(joint)[:, s].min()
            target = batch.rewards[s, i] + following
            torch.testing.assert_close(targets[s, i], target.detach(), rtol=1e-4, atol=1e-4)
            taken = torch.cat((obs, batch.actions[:, i : i + 1]), -1)
            for value in q(taken)[:, s, 0, 0]:
                losses["critics"] = losses["critics"] + share[i] * (value - target.detach()) ** 2 / 2
            action = actor(obs)[0, s, 0].tanh()
            joint = torch.cat((obs[s, 0], action)).expand(2, 1, -1)
            worth = td3.critics(joint)[0, s, 0, 0] - penalty * (action**2).mean()
            losses["actor"] = losses["actor"] - share[i] * worth
    for name, loss in losses.items():
        (expected,) = torch.autograd.grad(loss, leaves[name])
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=1e-4)


def test_the_policy_and_the_targets_move_at_every_third_update_with_a_delay_of_three():
    td3 = learner(policy_delay=3)
    td3.iterate()  # four updates
    moved = []
    for _ in range(6):
        before = {name: parameters.clone() for name, parameters in td3.parameters.items()}
        td3.update(a_batch(td3))
        moved.append({name for name, old in before.items() if not torch.equal(old, td3.parameters[name])})
    everything = {"actor", "critics", "target_actor", "target_critics"}
    assert moved == [{"critics"}, everything, {"critics"}, {"critics"}, everything, {"critics"}]


def test_ddpg_is_one_critic_without_delay_and_without_blur():
    config = configuration(catalog.find("ddpg"), "no such task")
    assert (config.n_critics, config.policy_delay, config.target_policy_noise) == (1, 1, 0.0)
    assert configuration(catalog.find("ddpg"), "Pendulum-v1").n_critics == 1
    assert configuration(catalog.find("td3"), "Pendulum-v1").n_critics == 2


def test_ddpg_solves_the_probe_of_actions():
    ddpg = learner(
        Aimed,
        n_critics=1,
        policy_delay=1,
        target_policy_noise=0.0,
        exploration_noise=0.5,
        gamma=0.5,
        learning_rate=5e-3,
    )
    for _ in range(100):
        ddpg.iterate()
    assert_solved(ddpg, values(ddpg), Aimed.solution(0.5), atol=0.2)


def test_targets_follow_by_tau():
    td3 = learner(tau=0.25, policy_delay=1)
    td3.iterate()
    before = {name: td3.parameters[f"target_{name}"].clone() for name in ("actor", "critics")}
    td3.update(a_batch(td3))
    for name, old in before.items():
        expected = 0.75 * old + 0.25 * td3.parameters[name]
        torch.testing.assert_close(td3.parameters[f"target_{name}"], expected)


# Collection and actions


def test_it_begins_with_random_actions_and_counts_steps():
    td3 = learner(learning_starts=63, num_envs=4, rounds_per_iteration=5, train_freq=2, gradient_steps=3)
    td3.iterate()
    assert td3.consumed == 64 + 5 * 2 * 4 == td3.experience.replay.size
    assert td3.optimizers["critics"].steps.tolist() == [15, 15]
    first = td3.experience.replay.fields["actions"][:16]
    assert first.abs().max() <= 1
    assert first.std().sub(3**-0.5).abs() < 0.1, "the actions are uniform"
    td3.iterate()
    assert td3.consumed == 64 + 2 * 40


def test_acting_is_greedy_without_noise_and_sampled_with_it():
    td3 = learner(Aimed)
    td3.iterate()
    before = td3.state_dict()
    obs = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0))
    greedy, hidden_state = td3.act(obs, None, None)
    assert hidden_state is None
    torch.testing.assert_close(greedy, 1 + 2 * td3.policy(obs))
    noise = draw_noise(td3, 50, streams.of_seeds(td3.seeds, "test"))
    sampled, _ = td3.act(obs, None, noise)
    torch.testing.assert_close(sampled, 1 + 2 * (td3.policy(obs) + 0.1 * noise).clamp(-1, 1))
    assert all(Aimed.action_space.contains(action) for action in sampled.flatten(0, 1).numpy())
    assert same(td3.state_dict(), before)


# Resume and invalid numbers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_critics", 0),
        ("policy_delay", 0),
        ("exploration_noise", -0.1),
        ("target_policy_noise", -0.1),
        ("target_policy_noise", float("nan")),
        ("target_noise_clip", -0.1),
        ("action_penalty", -0.1),
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        TD3Config(**{name: value})
