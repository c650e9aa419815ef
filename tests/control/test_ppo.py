from dataclasses import replace

import gymnasium
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from control.learners import SMALL, TASKS, learner, same
from control.probes import PROBES, Aimed, Constant, Matched, Pendular, Probe
from operant import catalog, ops, streams
from operant.control import PPO, PPOConfig, assemble
from operant.nets import Pass
from operant.runtime.acting import draw_noise
from operant.runtime.settings import Settings
from operant.runtime.shards import Alone, within
from runtime.teams import team


@pytest.fixture
def surrogate_calls(monkeypatch):
    """Record the arguments of every call of the clipped surrogate."""
    calls, original = [], ops.clipped_surrogate

    def recording(log_probs, old_log_probs, advantages, **clip):
        calls.append({"advantages": advantages, **clip})
        return original(log_probs, old_log_probs, advantages, **clip)

    monkeypatch.setattr(ops, "clipped_surrogate", recording)
    return calls


# Learning


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_probes_are_solved(probe, shared):
    gamma = 0.5
    iterations, learning_rate = (150, 5e-3) if probe is Aimed else (75, 1e-2)
    ppo = learner(
        probe,
        budget=iterations * 64,
        num_envs=8,
        num_steps=8,
        num_epochs=4,
        num_minibatches=2,
        learning_rate=learning_rate,
        lr_schedule="linear",
        gamma=gamma,
        hidden_sizes=(16,),
        share_features=shared,
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
        if not actions.is_floating_point():
            networks = ppo.agent.networks
            assert (ppo.agent.head.log_prob(networks.policy(obs), networks.free, actions).exp() > 0.95).all()


# Advantage estimates


@pytest.mark.parametrize("minibatches", [1, 4])
def test_advantages_are_generalized_and_targets_are_returns(minibatches):
    gamma, lam = 0.9, 0.8
    ppo = learner(Pendular, gamma=gamma, gae_lambda=lam, num_minibatches=minibatches, normalize_advantage="minibatch")
    rollout = ppo.agent.collect(16)
    batch = ppo.estimate_advantages(rollout)
    assert rollout.truncated.any()
    assert not rollout.truncated.all()
    values = [ppo.agent.networks.value(obs) for obs in rollout.obs]
    advantage = 0.0
    for t in reversed(range(16)):
        delta = rollout.rewards[t] + gamma * ppo.agent.networks.value(rollout.final_obs[t]) - values[t]
        advantage = delta + gamma * lam * torch.where(rollout.truncated[t], 0.0, advantage)
        sample = slice(4 * t, 4 * t + 4)  # samples are ordered by time, then by row
        torch.testing.assert_close(batch.old_values[:, sample], values[t])
        torch.testing.assert_close(batch.targets[:, sample], advantage + values[t], rtol=1e-4, atol=1e-5)
    raw = batch.targets - batch.old_values
    expected = ops.standardize(raw) if minibatches == 1 else raw
    torch.testing.assert_close(batch.advantages, expected, rtol=1e-3, atol=1e-4)


# Loss and gradient


def slow_loss(ppo, parameters, batch):
    """Compute equation 9 of Schulman et al. 2017, negated, seed by seed and sample by sample."""
    config, bound = ppo.config, ppo.agent.networks.shape.bind(parameters)
    policies, values = bound.policy(batch.obs), bound.value(batch.obs)
    total = 0.0
    for s in range(len(ppo.seeds)):
        weights = torch.ones(len(values[s])) if batch.weights is None else batch.weights[s]
        for i, weight in enumerate(weights / weights.sum()):
            if ppo.agent.head.free:
                policy = Independent(Normal(policies[s, i], bound.free[s].exp()), 1)
            else:
                policy = Categorical(logits=policies[s, i])
            ratio = (policy.log_prob(batch.actions[s, i]) - batch.old_log_probs[s, i]).exp()
            low, high = 1 - config.clip_range, 1 + (config.clip_range_high or config.clip_range)
            advantage, old = batch.advantages[s, i], batch.old_values[s, i]
            objective = torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)
            error = (values[s, i] - batch.targets[s, i]) ** 2
            if config.clip_range_vf is not None:
                clipped = old + (values[s, i] - old).clamp(-config.clip_range_vf, config.clip_range_vf)
                error = torch.max(error, (clipped - batch.targets[s, i]) ** 2)
            objective = objective - config.vf_coef * error / 2 + config.ent_coef * policy.entropy()
            total = total - weight * objective
    return total


@TASKS
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_those_of_the_paper(task, shared, weighted):
    ppo = learner(task, share_features=shared, clip_range_high=0.3, clip_range_vf=0.5, ent_coef=0.02, num_steps=8)
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    generator = torch.Generator().manual_seed(1)
    if weighted:
        batch = replace(batch, weights=torch.randint(0, 2, batch.targets.shape, generator=generator).float())
    ppo.agent.parameters += 0.6 * torch.randn(ppo.agent.parameters.shape, generator=generator)
    networks = Pass(ppo.agent.networks, batch.obs)
    loss, diagnose = ppo.loss(networks, batch, ppo.agent.networks.free.clone(), 1.0)
    assert diagnose()[4].min() > 0, "the test must clip some ratios"
    gradient = networks.gradient(loss)

    leaf = ppo.agent.parameters.clone().requires_grad_()
    slow = slow_loss(ppo, leaf, batch)
    torch.testing.assert_close(loss.detach(), slow.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, leaf)[0], rtol=1e-3, atol=1e-4)


@TASKS
def test_at_the_old_policy_the_gradient_is_that_of_reinforce(task):
    ppo = learner(task, vf_coef=0.0, normalize_advantage="none")
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    networks = Pass(ppo.agent.networks, batch.obs)
    gradient = networks.gradient(ppo.loss(networks, batch, ppo.agent.networks.free.clone(), 1.0)[0])

    leaf = ppo.agent.parameters.clone().requires_grad_()
    bound = ppo.agent.networks.shape.bind(leaf)
    log_probs = ppo.agent.head.log_prob(bound.policy(batch.obs), bound.free, batch.actions)
    (expected,) = torch.autograd.grad(-(log_probs * batch.advantages).mean(1).sum(), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_there_is_one_clipped_surrogate(monkeypatch):
    calls = []

    def indifferent(log_probs, old_log_probs, advantages, **_):
        calls.append(1)
        return 0.0 * log_probs

    monkeypatch.setattr(ops, "clipped_surrogate", indifferent)
    ppo = learner()
    actor, critic = (p.clone() for p in ppo.agent.parameters.view(2, 2, -1).unbind(1))
    ppo.iterate()
    assert len(calls) == 2 * 4
    after = ppo.agent.parameters.view(2, 2, -1)
    assert torch.equal(after[:, 0], actor), "the policy must have no other loss to learn from"
    assert not torch.equal(after[:, 1], critic)


@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize("scope", ["minibatch", "batch", "none"])
def test_advantages_are_standardized_over_the_scope(scope, minibatches, surrogate_calls):
    ppo = learner(normalize_advantage=scope, num_minibatches=minibatches, num_epochs=1)
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    ppo.update(batch, 1.0)
    parts = [call["advantages"] for call in surrogate_calls]
    assert len(parts) == minibatches
    whole = torch.cat(parts, dim=1)
    raw = batch.targets - batch.old_values
    if scope == "none":
        torch.testing.assert_close(whole.sort().values, raw.sort().values, rtol=1e-4, atol=1e-4)
    for samples in parts if scope == "minibatch" else [whole] * (scope == "batch"):
        torch.testing.assert_close(samples.mean(1), torch.zeros(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(samples.std(1, correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_minibatches_are_a_partition_that_keeps_samples_together():
    ppo = learner()
    batch = ppo.estimate_advantages(ppo.agent.collect(16))
    number = torch.arange(64.0).expand(2, 64)
    names = ("actions", "old_log_probs", "advantages", "targets", "old_values")
    batch = replace(batch, weights=None, **dict.fromkeys(names, number), obs=number.unsqueeze(-1))
    ppo.config = replace(ppo.config, normalize_advantage="none")
    first, second = (torch.cat([part.targets for part in ppo.minibatches(batch)], 1) for _ in range(2))
    assert torch.equal(first.sort().values, number)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1]), "each seed has its own order"
    for part in ppo.minibatches(batch):
        assert part.obs.shape == (2, 16, 1)
        assert all(torch.equal(getattr(part, name), part.targets) for name in names)
        assert torch.equal(part.obs.squeeze(-1), part.targets)


@pytest.mark.parametrize("clip", ["constant", "linear"])
@pytest.mark.parametrize("lr", ["constant", "linear"])
def test_schedules_fall_linearly_over_the_budget(lr, clip, surrogate_calls):
    ppo = learner(
        lr_schedule=lr,
        clip_range_schedule=clip,
        budget=4 * 64,
        clip_range=0.2,
        clip_range_high=0.4,
        num_epochs=1,
        num_minibatches=1,
    )
    rates = [ppo.iterate()["schedule/learning_rate"] for _ in range(4)]
    falling = [1.0, 0.75, 0.5, 0.25]
    assert rates == pytest.approx([1e-3 * (share if lr == "linear" else 1) for share in falling])
    for name, start in (("clip_low", 0.2), ("clip_high", 0.4)):
        ranges = [call[name] for call in surrogate_calls]
        assert ranges == pytest.approx([start * (share if clip == "linear" else 1) for share in falling])


def test_training_beyond_the_budget_is_harmless():
    ppo = learner(lr_schedule="linear", clip_range_schedule="linear", budget=64)
    for _ in range(3):
        metrics = ppo.iterate()
    assert metrics["schedule/learning_rate"] > 0
    assert ppo.agent.parameters.isfinite().all()


# Actions


@TASKS
def test_acting_is_greedy_without_noise_and_sampled_with_it(task):
    ppo = learner(task, normalize_obs=True)
    ppo.iterate()
    before = ppo.state_dict()
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(2, 50, ppo.agent.collector.obs.shape[-1], generator=generator)
    outputs = ppo.agent.networks.policy(ppo.agent.normalizer.normalize(obs))
    greedy, hidden_state = ppo.act(obs, None, None)
    assert hidden_state is None
    assert torch.equal(greedy, ppo.agent.head.to_env(ppo.agent.head.mode(outputs, ppo.agent.networks.free)))
    noise = draw_noise(ppo, 50, streams.of_seeds(ppo.seeds, "test"))
    sampled, _ = ppo.act(obs, None, noise)
    assert torch.equal(sampled, ppo.agent.head.to_env(ppo.agent.head.sample(outputs, ppo.agent.networks.free, noise)))
    assert not torch.equal(sampled, greedy)
    space = ppo.agent.collector.env.action_space
    assert all(space.contains(action) for action in sampled.flatten(0, 1).numpy())
    assert same(ppo.state_dict(), before)


def test_observations_of_integers_are_learned_from():
    class Bytes(Matched):
        observation_space = gymnasium.spaces.Box(0, 255, (1,), dtype="uint8")

        def observe(self):
            return (1 + self.sign).to(torch.uint8)

    ppo = learner(Bytes)
    assert ppo.iterate()["losses/policy"].isfinite().all()
    assert ppo.act(torch.zeros(2, 4, 1, dtype=torch.uint8), None, None)[0].shape == (2, 4)


# Errors


def test_another_number_of_rows_is_rejected():
    with pytest.raises(ValueError, match="2 seeds with 4 environments each need 8, but there are 6"):
        PPO(PPOConfig(**SMALL), Constant(range(6)), seeds=(0, 1), budget=100)


def test_action_spaces_without_a_head_are_rejected():
    probe = type("Odd", (Probe,), {"action_space": gymnasium.spaces.MultiBinary(2)})
    with pytest.raises(
        ValueError,
        match=r"ppo needs actions of Discrete or MultiDiscrete or a Box of float, but those of Odd are Multi",
    ):
        learner(probe)


def test_boxes_of_several_dimensions_or_integers_are_rejected():
    for space in (gymnasium.spaces.Box(-1, 1, (2, 2)), gymnasium.spaces.Box(0, 9, (2,), dtype="int64")):
        with pytest.raises(ValueError, match=r"ppo needs actions of .*Odd are Box.*TransformAction$"):
            learner(type("Odd", (Aimed,), {"action_space": space}))


def test_members_of_a_discrete_space_are_seen_as_one_hot_vectors():
    ppo = learner("FrozenLake-v1")
    seen = ppo.agent.collect(16).obs
    assert seen.shape == (16, 2, 4, 16)
    assert (seen.sum(-1) == 1).all()
    before = ppo.agent.parameters.clone()
    ppo.iterate()
    assert not torch.equal(ppo.agent.parameters, before)


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(budget=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, 0)
            for name in ("num_envs", "num_steps", "num_epochs", "num_minibatches", "learning_rate", "clip_range")
        ],
        *[(name, 0.0) for name in ("clip_range_high", "clip_range_vf", "target_kl", "adam_eps")],
        *[(name, float("nan")) for name in ("learning_rate", "gamma", "gae_lambda", "clip_range", "target_kl")],
        *[(name, -0.1) for name in ("gamma", "gae_lambda", "vf_coef", "ent_coef", "clip_range_vf")],
        *[(name, 1.1) for name in ("gamma", "gae_lambda", "clip_range")],
        *[(name, "sometimes") for name in ("lr_schedule", "normalize_advantage", "encoder")],
        ("learning_rate", float("inf")),
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        PPOConfig(**{name: value})


def test_minibatches_must_divide_the_rollout():
    with pytest.raises(ValueError, match=r"num_minibatches \(5\) must divide the rollout: 4 environments x 16 .* = 64"):
        PPOConfig(**SMALL | {"num_minibatches": 5})


@pytest.mark.parametrize(("scope", "environments"), [("minibatch", 2), ("batch", 1)])
def test_a_single_sample_cannot_be_standardized(scope, environments):
    """Its advantage would always be 0, and nothing would be learned."""
    config = {"num_envs": environments, "num_steps": 1, "num_minibatches": environments}
    assert PPOConfig(**config, normalize_advantage="none").num_steps == 1
    with pytest.raises(ValueError, match=f"normalize_advantage='{scope}' makes the advantage"):
        PPOConfig(**config, normalize_advantage=scope)


@pytest.mark.parametrize(("name", "value"), [("activation", "gelu"), ("hidden_sizes", (0,)), ("max_grad_norm", 0.0)])
def test_errors_of_networks_and_optimizer_are_raised_before_the_first_step(name, value):
    with pytest.raises(ValueError, match="must"):
        learner(**{name: value})


# Shards


def divided(count, rank=None, **config):
    """Return the experiment of shard `rank` of `count` in a run of several processes."""
    small = {"num_envs": 8, "num_steps": 8, "num_epochs": 2, "num_minibatches": 2, "hidden_sizes": (8,)}
    settings = Settings("ppo", "CartPole-v1", seeds=(3, 5), budget=1000, shards=count)
    with within(rank or Alone()):
        return assemble(catalog.find("ppo"), settings, PPOConfig(**small | config), device="cpu").learner


def test_shards_learn_what_the_whole_batch_does():
    whole, parts = divided(1), divided(4)
    first, same_first = whole.iterate(), parts.iterate()
    assert first.keys() == same_first.keys()
    for name, value in first.items():
        torch.testing.assert_close(same_first[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(parts.agent.parameters, whole.agent.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", [{}, {"target_kl": 1e-3, "ent_coef": 0.01}, {"objective": "penalty"}])
def test_the_number_of_processes_changes_no_bit_of_what_is_learned(config):
    def learned(rank):
        ppo = divided(4, rank, **config)
        for _ in range(3):
            ppo.iterate()
        return ppo.state_dict()

    alone = learned(None)
    assert all(same(alone, state) for size in (2, 4) for state in team(size, learned))


def test_a_run_resumes_exactly_on_another_number_of_processes():
    def begun(rank):
        ppo = divided(4, rank)
        ppo.iterate()
        return ppo.state_dict()

    saved = team(4, begun)[0]

    def resumed(rank):
        ppo = divided(4, rank)
        ppo.load_state_dict(saved)
        ppo.iterate()
        return ppo.state_dict()

    uninterrupted = divided(4)
    for _ in range(2):
        uninterrupted.iterate()
    assert same(resumed(None), uninterrupted.state_dict())
    assert all(same(state, uninterrupted.state_dict()) for state in team(2, resumed))


@pytest.mark.parametrize(
    ("count", "config", "message"),
    [
        (3, {}, "num_envs must be divisible by the number of shards, got 8 and 3"),
        (
            8,
            {"num_steps": 1, "num_minibatches": 2},
            r"num_steps / num_minibatches must be divisible by .* shards, got 4 and 8",
        ),
        (2, {"normalize_obs": True}, "normalize_obs on CartPole-v1 needs all environments of each seed"),
    ],
)
def test_options_without_support_for_shards_raise_errors(count, config, message):
    with pytest.raises(ValueError, match=message):
        divided(count, **config)
