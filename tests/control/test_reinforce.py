import itertools
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from control.learners import (
    TASKS,
    Changed,
    assert_a_refused_state_changes_nothing,
    assert_equal_metrics,
    assert_resumes_exactly,
    assert_solved,
    build,
    next_step,
    poison,
)
from control.probes import Aimed, Chosen, Delayed, Endless, Lasting, Matched, Pendular, Probe, Several
from operant import catalog, ops
from operant.control.reinforce import PRESETS, PSI, Evidence, Reinforce, ReinforceConfig
from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.configuration import configuration
from operant.runtime.training import train

SMALL = {"num_envs": 4, "hidden_sizes": (8, 8), "learning_rate": 3e-3}
EVERY_PSI = pytest.mark.parametrize("psi", PSI)
WITH_CRITIC = [psi for psi in PSI if PSI[psi].critic != "none"]


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=100_000, backend="auto", wrap=None, **config):
    return build(
        Reinforce, ReinforceConfig(**{**SMALL, **config}), task, seeds, budget=budget, backend=backend, wrap=wrap
    )


# Ψ by its definition, on a model small enough to enumerate every episode


@pytest.fixture(scope="module")
def model():
    """Return all episodes of three steps in a world of two states, with their probabilities and exact values."""
    generator = torch.Generator().manual_seed(2)
    draw = {"generator": generator, "dtype": torch.float64}
    moves = torch.rand(2, 2, 2, **draw).softmax(-1)  # s, a, s'
    rewards = 1.0 + torch.rand(2, 2, 2, **draw)
    theta = torch.randn(2, 2, **draw).requires_grad_()
    steps, gamma = 3, 0.9
    policy = theta.softmax(-1)
    values = [torch.zeros(2, dtype=torch.float64)]
    action_values = []
    for _ in range(steps):
        action_values.insert(0, (moves * (rewards + gamma * values[0])).sum(-1))
        values.insert(0, (policy * action_values[0]).sum(-1))
    paths = torch.tensor(list(itertools.product(range(2), repeat=2 * steps))).T.view(steps, 2, -1)
    actions, successors = paths[:, 0], paths[:, 1]
    states = torch.cat((torch.zeros_like(successors[:1]), successors[:-1]))
    time = torch.arange(steps).unsqueeze(1)
    log_policy = theta.log_softmax(-1)[states, actions]
    probability = (log_policy + moves[states, actions, successors].log()).sum(0).exp()
    end = torch.zeros(states.shape, dtype=torch.bool)
    end[-1] = True
    stacked = torch.stack(values).detach()
    evidence = Evidence(
        rewards=rewards[states, actions, successors],
        values=stacked[time, states],
        next_values=stacked[time + 1, successors],
        action_values=torch.stack(action_values).detach()[time, states, actions],
        ends={"terminated": end, "truncated": torch.zeros_like(end), "gamma": gamma},
        lam=0.8,
    )
    (exact,) = torch.autograd.grad(values[0][0], theta, retain_graph=True)
    # ∇ log π(a|s) for each step of each episode: [T, episodes, parameters].
    scores = torch.nn.functional.one_hot(2 * states + actions, 4).double()
    scores -= torch.nn.functional.one_hot(states, 2).repeat_interleave(2, -1) * policy.detach().flatten()
    weights = gamma ** time.double()
    return SimpleNamespace(
        evidence=evidence, p=probability.detach(), exact=exact.flatten(), scores=scores, weights=weights, states=states
    )


def moments(model, psi):
    """Return the mean of the estimate of the policy gradient, and the trace of its covariance."""
    estimates = (model.scores * psi.unsqueeze(-1)).sum(0)
    mean = (model.p.unsqueeze(-1) * estimates).sum(0)
    return mean, (model.p * (estimates - mean).square().sum(-1)).sum()


def judged(model, psi):
    return PSI[psi].estimate(model.evidence) * (1.0 if psi == "total" else model.weights)


def test_the_model_is_one(model):
    assert model.p.sum() == pytest.approx(1.0)
    value = (model.p * (model.weights * model.evidence.rewards).sum(0)).sum()
    torch.testing.assert_close(value, model.evidence.values[0, 0])


@EVERY_PSI
def test_every_psi_has_the_policy_gradient_as_its_mean(model, psi):
    mean, _ = moments(model, judged(model, psi))
    torch.testing.assert_close(mean, model.exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("psi", [psi for psi in PSI if psi != "total"])
def test_without_the_factor_of_the_discount_the_mean_is_another(model, psi):
    mean, _ = moments(model, PSI[psi].estimate(model.evidence))
    assert not torch.allclose(mean, model.exact, rtol=1e-3)


def test_a_baseline_adds_nothing_to_the_mean_gradient(model):
    baseline = torch.tensor([3.0, -5.0], dtype=torch.float64)[model.states]
    mean, variance = moments(model, baseline)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-12)
    assert variance > 1


def test_variance_falls_from_the_total_to_the_rest_to_the_rest_less_a_baseline(model):
    total, to_go, baseline = (moments(model, judged(model, psi))[1] for psi in ("total", "to-go", "baseline"))
    assert total > 1.2 * to_go > 1.2 * 1.2 * baseline
    residual, exact = (moments(model, judged(model, psi))[1] for psi in ("td", "advantage"))
    assert baseline > residual > exact


# Advantage estimates


def slow_psi(psi, values, chosen, gamma, lam):
    """Return Ψ of every step of one episode whose rewards are all 1, by its definition, and the returns."""
    steps = range(len(values))
    returns = [sum(gamma**k for k in range(len(values) - t)) for t in steps]
    successors = [*values[1:], 0.0]
    deltas = [1.0 + gamma * successors[t] - values[t] for t in steps]
    every = {
        "total": [returns[0] for _ in steps],
        "to-go": returns,
        "baseline": [returns[t] - values[t] for t in steps],
        "q": chosen,
        "advantage": [chosen[t] - values[t] for t in steps],
        "td": deltas,
        "gae": [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in steps],
    }
    return every[psi], returns


@EVERY_PSI
def test_psi_and_targets_are_made_of_whole_episodes(psi):
    it = learner(advantage_kind=psi, gamma=0.9, gae_lambda=0.8, critic_learning_rate=0.1, critic_steps=3)
    for _ in range(2):
        it.iterate()
    rollout = it.collect(torch.ones(2, dtype=torch.bool))
    batch, bound = it.estimate_advantages(rollout), it.agent.networks
    obs = rollout.obs.movedim(1, 0).reshape(2, -1, 4)
    critics = bound.shape.mlp(bound.critic, obs).view(2, -1, 4, 2)
    policy = bound.policy(obs).view(2, -1, 4, 2).softmax(-1)
    for s, row in itertools.product(range(2), range(4)):
        length = int(rollout.valid[:, s, row].sum())
        assert rollout.terminated[length - 1, s, row]
        q = critics[s, :length, row]
        values = (policy[s, :length, row] * q).sum(-1) if PSI[psi].critic == "Q" else q[:, 0]
        chosen = q.gather(-1, rollout.kept[0][:length, s, row].unsqueeze(-1)).squeeze(-1)
        expected, returns = slow_psi(psi, values.tolist(), chosen.tolist(), 0.9, 0.8)
        samples = slice(row, 4 * length, 4)
        assert batch.psi[s, samples].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert batch.targets[s, samples].tolist() == pytest.approx(returns, rel=1e-4)
        assert batch.weights[s, samples].eq(1).all()
        assert batch.weights[s, 4 * length + row :: 4].sum() == 0


@pytest.mark.parametrize("target", ["monte-carlo", "bootstrap"])
def test_a_truncated_episode_bootstraps_from_its_final_observation(target):
    it = learner(Pendular, advantage_kind="baseline", gamma=0.5, target=target)
    rollout = it.collect(torch.ones(2, dtype=torch.bool))
    batch, value = it.estimate_advantages(rollout), it.agent.networks.value
    for s, row in itertools.product(range(2), range(4)):
        (length,) = rollout.truncated[:, s, row].nonzero().flatten() + 1
        for t in range(length):
            ahead = length - t if target == "monte-carlo" else 1
            successor = value(rollout.final_obs[t + ahead - 1])[s, row]
            rewards = sum(0.5**k * rollout.rewards[t + k, s, row] for k in range(ahead))
            torch.testing.assert_close(batch.targets[s, 4 * t + row], rewards + 0.5**ahead * successor)


def test_the_discount_of_steps_is_applied_if_configured_and_never_twice():
    plain, discounted = (
        learner(advantage_kind="to-go", gamma=0.9),
        learner(advantage_kind="to-go", gamma=0.9, discount_steps=True),
    )
    rollout = plain.collect(torch.ones(2, dtype=torch.bool))
    steps = torch.arange(len(rollout.rewards)).repeat_interleave(4)
    torch.testing.assert_close(
        discounted.estimate_advantages(rollout).psi, plain.estimate_advantages(rollout).psi * 0.9**steps
    )
    plain, discounted = (
        learner(advantage_kind="total", gamma=0.9),
        learner(advantage_kind="total", gamma=0.9, discount_steps=True),
    )
    assert torch.equal(discounted.estimate_advantages(rollout).psi, plain.estimate_advantages(rollout).psi)


def test_whitening_is_over_the_batch_and_never_within_an_episode():
    it = learner(normalize_advantage="batch")
    batch = it.estimate_advantages(it.collect(torch.ones(2, dtype=torch.bool)))
    for s in range(2):
        live = batch.psi[s][batch.weights[s] == 1]
        torch.testing.assert_close(live.mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
        torch.testing.assert_close(live.std(correction=0), torch.tensor(1.0), atol=1e-4, rtol=0)
    assert it.policy_gradient(batch)[0].norm() > 1e-3, "equal numbers within an episode are not centered"


# Loss and gradient


@TASKS
@pytest.mark.parametrize("psi", ["to-go", "baseline"])
def test_the_gradient_sums_over_steps_and_averages_over_episodes(task, psi):
    if task == "Pendulum-v1":
        task, config = Aimed, {"ent_coef": 0.02}
    else:
        config = {"ent_coef": 0.02}
    it = learner(task, advantage_kind=psi, **config)
    batch = it.estimate_advantages(it.collect(torch.ones(2, dtype=torch.bool)))
    gradient, loss, _ = it.policy_gradient(batch)
    leaf = it.agent.parameters.clone().requires_grad_()
    bound = it.agent.networks.shape.bind(leaf)
    outputs, total = bound.policy(batch.obs), 0.0
    for s in range(2):
        for i in batch.weights[s].nonzero().flatten().tolist():
            if it.agent.head.free:
                policy = Independent(Normal(outputs[s, i], bound.free[s].exp()), 1)
            else:
                policy = Categorical(logits=outputs[s, i])
            total = total - policy.log_prob(batch.actions[s, i]) * batch.psi[s, i] - 0.02 * policy.entropy()
    total = total / 4
    torch.testing.assert_close(loss.sum(), total.detach(), rtol=1e-4, atol=1e-4)
    expected = torch.autograd.grad(total, leaf)[0].view(2, 2, -1)[:, 0]
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("psi", ["baseline", "q"])
def test_the_critic_descends_half_the_mean_squared_error(psi):
    it = learner(advantage_kind=psi)
    batch = it.estimate_advantages(it.collect(torch.ones(2, dtype=torch.bool)))
    gradient, error = it.critic_gradient(batch)
    leaf = it.agent.parameters.clone().requires_grad_()
    bound = it.agent.networks.shape.bind(leaf)
    outputs = bound.shape.mlp(bound.critic, batch.obs)
    total = 0.0
    for s in range(2):
        live = batch.weights[s].nonzero().flatten().tolist()
        column = [int(batch.actions[s, i]) if psi == "q" else 0 for i in live]
        errors = [(outputs[s, i, c] - batch.targets[s, i]) ** 2 / 2 for i, c in zip(live, column, strict=True)]
        total = total + sum(errors) / len(errors)
    torch.testing.assert_close(error.sum(), total.detach(), rtol=1e-4, atol=1e-4)
    expected = torch.autograd.grad(total, leaf)[0].view(2, 2, -1)[:, 1]
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def test_the_baseline_is_evaluated_before_its_update(monkeypatch):
    it, order = learner(advantage_kind="baseline", critic_steps=3), []
    for name in ("policy_gradient", "critic_gradient"):
        program = getattr(it, name)
        original = program.function
        monkeypatch.setattr(
            program, "function", lambda batch, name=name, original=original: (order.append(name), original(batch))[1]
        )
    it.iterate()
    assert order == ["policy_gradient"] + ["critic_gradient"] * 3


def test_there_is_one_policy_gradient(monkeypatch):
    monkeypatch.setattr(ops, "policy_gradient", lambda log_probs, psi: 0.0 * log_probs)
    it = learner(advantage_kind="baseline")
    actor, critic = (p.clone() for p in it.agent.parameters.view(2, 2, -1).unbind(1))
    it.iterate()
    after = it.agent.parameters.view(2, 2, -1)
    assert torch.equal(after[:, 0], actor), "the policy must have no other loss to learn from"
    assert not torch.equal(after[:, 1], critic)


# Learning


def solve(probe, iterations=150, **config):
    gamma = 0.5
    settings = {"num_envs": 32, "hidden_sizes": (16,), "gamma": gamma, "learning_rate": 2e-2, "log_std_init": -1.0}
    settings |= {"critic_learning_rate": 2e-2, "critic_steps": 4}
    it = build(Reinforce, ReinforceConfig(**{**settings, **config}), probe, budget=1_000_000)
    for _ in range(iterations):
        it.iterate()
    value = None if it.critic_kind == "none" else it.value
    assert_solved(it, value, probe.solution(gamma), atol=0.15)


@EVERY_PSI
def test_actions_are_learned_with_every_psi(psi):
    solve(Matched, advantage_kind=psi)


def test_actions_are_learned_where_nothing_is_seen():
    solve(Chosen, advantage_kind="total")


def test_continuous_actions_are_learned():
    solve(Aimed, 300, advantage_kind="baseline")


def test_several_simultaneous_choices_are_learned():
    solve(Several, 300, advantage_kind="baseline")


@pytest.mark.parametrize("target", ["monte-carlo", "bootstrap"])
@pytest.mark.parametrize("probe", [Delayed, Lasting, Endless, Pendular], ids=lambda probe: probe.__name__)
def test_values_are_learned(probe, target):
    solve(probe, advantage_kind="gae", target=target)


# Independence of seeds


@pytest.mark.parametrize("psi", ["total", "baseline", "q"])
def test_one_update_is_the_same_alone_and_among_other_seeds(psi):
    block, alone = learner(seeds=(3, 5, 8), advantage_kind=psi), learner(seeds=(5,), advantage_kind=psi)
    for _ in range(2):
        block.iterate()
    everyone = torch.ones(3, dtype=torch.bool)
    batch = block.estimate_advantages(block.collect(everyone))
    for name in ("optimizer", "critic_optimizer"):
        for key, tensor in getattr(alone, name).state_dict().items():
            tensor.copy_(getattr(block, name).state_dict()[key][1:2])
    alone.agent.parameters.copy_(block.agent.parameters[1:2])
    before = alone.agent.parameters.clone()
    block.update(batch, everyone)
    alone.update(type(batch)(*(tensor[1:2] for tensor in vars(batch).values())), everyone[:1])
    assert not torch.equal(alone.agent.parameters, before)
    torch.testing.assert_close(block.agent.parameters[1:2], alone.agent.parameters, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_a_seed_learns_the_same_in_any_company_though_it_waits(backend):
    config = {"advantage_kind": "baseline", "budget": 1000, "backend": backend}
    block, alone = learner(seeds=(3, 5, 8), **config), learner(seeds=(5,), **config)
    for _ in range(8):
        block.iterate()
    assert block.batches.max() < 8, "the test must make every seed wait"
    for _ in range(int(block.batches[1])):
        alone.iterate()
    assert int(block.used[1]) == int(alone.used[0])
    torch.testing.assert_close(block.agent.parameters[1], alone.agent.parameters[0], rtol=1e-3, atol=1e-5)


def test_no_seed_runs_ahead_or_exceeds_its_budget():
    it = learner(budget=1000)
    longest = 0
    while it.consumed < 1000:
        used = it.used.clone()
        metrics = it.iterate()
        longest = max(longest, int((it.used - used).max()))
        moved = it.used > used
        assert moved.any()
        assert torch.equal(moved, ~metrics["rollout/episode_return"].isnan())
        assert int(it.used.max() - it.used.min()) <= 10 + longest
    assert it.used.max() < 1000 + longest
    it.iterate()
    assert it.consumed > 1000, "training beyond the budget is harmless"
    it.used[:] = torch.tensor([1000, 995])
    assert it.turn().tolist() == [False, True], "close to each other, but one has used its budget"


# Resume and invalid numbers


@pytest.mark.parametrize(
    ("task", "backend"), [("CartPole-v1", "tensor"), ("CartPole-v1", "gymnasium"), (Aimed, "auto")]
)
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, backend, tmp_path):
    assert_resumes_exactly(lambda: learner(task, advantage_kind="baseline", backend=backend, budget=2000), tmp_path)


def test_a_rejected_state_leaves_the_learner_unchanged():
    assert_a_refused_state_changes_nothing(lambda: learner(advantage_kind="baseline"))


def test_a_state_of_another_configuration_is_rejected():
    with pytest.raises(ValueError, match=r"'parameters' has shape .* saved by a different configuration"):
        learner(hidden_sizes=(4,)).load_state_dict(learner().state_dict())


@pytest.mark.parametrize("psi", ["to-go", "baseline"])
def test_a_reward_that_is_not_a_number_harms_its_own_seed_alone_and_for_one_update(psi):
    clean, hit = learner(advantage_kind=psi), learner(advantage_kind=psi, wrap=poison(row=5, when=3))
    skipped, due = [], []
    for iteration in range(3):
        before = hit.agent.parameters[1].clone()
        clean.iterate()
        metrics = hit.iterate()
        skipped.append(metrics["health/skipped_updates"].tolist())
        due.append(metrics["health/updates"].tolist())
        assert torch.equal(hit.agent.parameters[1], before) is (iteration == 0)
    assert due[0] == [1, 1] if psi == "to-go" else [2, 2]
    assert skipped == [[0, 0 if psi == "to-go" and i else (i == 0) * (1 if psi == "to-go" else 2)] for i in range(3)]
    assert torch.equal(hit.agent.parameters[0], clean.agent.parameters[0])
    assert hit.agent.parameters.isfinite().all()


def test_a_seed_that_skips_all_its_updates_ends_a_training_though_it_waits_between_them():
    def spoil(step, time):
        """Make the rewards of the first seed NaN, and end the episodes of the second after three steps."""
        reward, terminated = step.reward.clone(), step.terminated.clone()
        reward[:4] = torch.nan
        terminated[4:] = time % 3 == 2
        return step._replace(reward=reward, score=reward, terminated=terminated)

    it = learner(budget=20_000, wrap=lambda env: Changed(env, spoil))
    with pytest.raises(NonFiniteError, match=r"health/skipped_updates of seed 0 .*10 iterations in a row"):
        train(it, budget=20_000, seeds=2, progress="silent")


def test_one_bad_reward_does_not_end_a_training_though_its_seed_waits():
    it = learner(budget=2000, wrap=poison(row=0, when=3))
    assert train(it, budget=2000, seeds=2, progress="silent").consumed >= 2000


def test_invalid_transitions_take_no_part():
    def run(junk):
        it = learner(wrap=next_step(junk), advantage_kind="baseline")
        return [it.iterate() for _ in range(4)], it

    (expected, calm), (got, wild) = run(0.0), run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    for one, other in zip(expected, got, strict=True):
        assert_equal_metrics(one, other)
        assert one["rollout/episode_length"].max() <= 9


# Errors


def test_action_spaces_without_a_head_are_rejected():
    probe = type("Odd", (Probe,), {"action_space": gymnasium.spaces.MultiBinary(2)})
    with pytest.raises(
        ValueError,
        match=r"reinforce needs actions of Discrete or MultiDiscrete or a Box of float, but those of Odd are Multi",
    ):
        learner(probe)


@pytest.mark.parametrize("psi", ["q", "advantage"])
def test_a_value_for_each_action_needs_finitely_many(psi):
    message = f"advantage_kind='{psi}' needs Discrete actions.*'baseline'"
    with pytest.raises(ValueError, match=message):
        learner(Aimed, advantage_kind=psi)


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(budget=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, 0)
            for name in ("num_envs", "learning_rate", "critic_learning_rate", "critic_steps", "max_episode_steps")
        ],
        *[(name, float("nan")) for name in ("learning_rate", "gamma", "gae_lambda")],
        *[(name, -0.1) for name in ("gamma", "gae_lambda", "ent_coef", "max_grad_norm")],
        *[(name, 1.1) for name in ("gamma", "gae_lambda")],
        *[(name, "sometimes") for name in ("advantage_kind", "target")],
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        ReinforceConfig(**{name: value})


def test_normalization_within_a_single_episode_is_rejected():
    with pytest.raises(ValueError, match=r"normalize_advantage='batch' .* num_envs is 1, .* use more environments, or"):
        ReinforceConfig(normalize_advantage="batch")


@pytest.mark.parametrize(
    ("name", "psi"),
    [("reinforce", "total"), ("reinforce-to-go", "to-go"), ("reinforce-baseline", "baseline"), ("vpg", "gae")],
)
def test_the_entries_of_the_catalog_are_choices_of_psi(name, psi):
    config = configuration(catalog.find(name), "CartPole-v1")
    assert config.advantage_kind == psi
    chosen = dict(catalog.find(name).values)
    assert all(getattr(config, key) == value for key, value in PRESETS["CartPole-v1"].items() if key not in chosen)
