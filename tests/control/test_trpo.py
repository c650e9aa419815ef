from dataclasses import replace

import gymnasium
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from control.learners import (
    TASKS,
    assert_a_bad_reward_is_dropped,
    assert_a_refused_state_changes_nothing,
    assert_learns_alone_as_in_company,
    assert_resumes_exactly,
    assert_solved,
    build,
    next_step,
    poison,
)
from control.probes import PROBES, Aimed, Constant, Delayed, Matched, Pendular, Probe
from operant import catalog, ops
from operant.control import configuration
from operant.control.trpo import PRESETS, TRPO, TRPOConfig
from operant.runtime.training import train

SMALL = {
    "num_envs": 4,
    "num_steps": 16,
    "hidden_sizes": (8, 8),
    "critic_epochs": 2,
    "critic_minibatches": 4,
    "sub_sampling_factor": 1,
    "vine_points": 2,
    "vine_steps": 5,
}
SAMPLING = pytest.mark.parametrize("sampling", ["single-path", "vine"])


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    config = TRPOConfig(**{**SMALL, **config})
    return build(TRPO, config, task, seeds, budget=budget, backend=backend, wrap=wrap)


def some(task, **config):
    """Return a learner whose policy depends on the state, and a batch that it has collected."""
    trpo = learner(task, **config)
    trpo.agent.parameters += 0.3 * torch.randn(trpo.agent.parameters.shape, generator=torch.Generator().manual_seed(1))
    batch, _ = trpo.collect()
    return trpo, batch.standardized()


def bound(trpo, actor):
    """Return the networks with other policies, with gradients by automatic differentiation."""
    return trpo.agent.networks.shape.bind(torch.stack((actor, trpo.critic), dim=1).flatten(1))


def distributions(trpo, networks, obs, seed):
    outputs = networks.policy(obs)[seed]
    if trpo.agent.head.free:
        return Independent(Normal(outputs, networks.free[seed].exp()), 1)
    return Categorical(logits=outputs)


def weighted(batch):
    weights = torch.randint(0, 2, batch.targets.shape, generator=torch.Generator().manual_seed(1)).float()
    return replace(batch, weights=weights)


# Learning


@pytest.mark.parametrize(
    ("probe", "variant"),
    [
        *((probe, {}) for probe in PROBES),
        *((probe, {"line_search": False}) for probe in PROBES),
        *((probe, {"sampling": "vine"}) for probe in (Delayed, Matched, Aimed, Pendular)),
    ],
)
def test_probes_are_solved(probe, variant):
    gamma = 0.5
    trpo = learner(
        probe,
        num_envs=8,
        num_steps=10,
        gamma=gamma,
        hidden_sizes=(16,),
        target_kl=0.05,
        cg_damping=1e-3,
        log_std_init=-1.0,
        critic_epochs=4,
        critic_minibatches=2,
        critic_learning_rate=1e-2,
        vine_steps=3,
        **variant,
    )
    for value_learning_rate, delta, iterations in ((1e-2, 0.05, 50), (2e-3, 1e-2, 30), (5e-4, 1e-3, 10)):
        trpo.config = replace(trpo.config, critic_learning_rate=value_learning_rate, target_kl=delta)
        for _ in range(iterations):
            trpo.iterate()
    assert_solved(trpo, trpo.agent.networks.value, probe.solution(gamma))


# Advantage estimates


def test_advantages_are_generalized_and_targets_are_returns():
    gamma, lam = 0.9, 0.8
    trpo = learner(Pendular, gamma=gamma, gae_lambda=lam)
    rollout = trpo.agent.collect(16)
    batch = trpo.estimate_advantages(rollout)
    assert rollout.truncated.any()
    assert not rollout.truncated.all()
    advantage = 0.0
    for t in reversed(range(16)):
        value = trpo.agent.networks.value(rollout.obs[t])
        delta = rollout.rewards[t] + gamma * trpo.agent.networks.value(rollout.final_obs[t]) - value
        advantage = delta + gamma * lam * torch.where(rollout.truncated[t], 0.0, advantage)
        sample = slice(4 * t, 4 * t + 4)  # samples are ordered by time, then by row
        torch.testing.assert_close(batch.targets[:, sample], advantage + value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(batch.advantages[:, sample], advantage, rtol=1e-4, atol=1e-5)


def test_only_the_mean_of_the_advantages_matters_to_the_policy():
    scaled, raw = learner(), learner(normalize_advantage="none")
    batch = scaled.estimate_advantages(scaled.agent.collect(16))
    centered = replace(batch, advantages=batch.advantages - batch.advantages.mean(1, keepdim=True))
    scaled.update(batch.standardized())
    raw.update(centered)
    torch.testing.assert_close(scaled.actor, raw.actor, rtol=1e-4, atol=1e-6)


# Loss and gradient


@TASKS
@pytest.mark.parametrize("weights", [False, True])
def test_surrogate_and_divergence_are_those_of_the_paper(task, weights):
    trpo, batch = some(task)
    batch = weighted(batch) if weights else batch
    actor = trpo.actor + 0.1 * torch.randn(trpo.actor.shape, generator=torch.Generator().manual_seed(2))
    found = trpo.measure(batch, actor)
    for seed in range(2):
        old = distributions(trpo, trpo.agent.networks, batch.obs, seed)
        new = distributions(trpo, bound(trpo, actor), batch.obs, seed)
        share = torch.ones(64) if batch.weights is None else batch.weights[seed]
        share = share / share.sum()
        ratio = (new.log_prob(batch.actions[seed]) - batch.old_log_probs[seed]).exp()
        expected = -(share * ratio * batch.advantages[seed]).sum(), (share * kl_divergence(old, new)).sum()
        torch.testing.assert_close(found[:, seed], torch.stack(expected), rtol=1e-4, atol=1e-6)


@TASKS
@pytest.mark.parametrize("weights", [False, True])
def test_gradient_and_fisher_products_are_the_derivatives(task, weights):
    trpo, batch = some(task)
    batch = weighted(batch) if weights else batch
    gradient, loss = trpo.policy_gradient(batch)
    leaf = trpo.actor.clone().requires_grad_()

    def outputs(actor):
        networks = bound(trpo, actor)
        return networks.policy(batch.obs), networks.free

    slow = trpo.surrogate(*outputs(leaf), batch)
    torch.testing.assert_close(loss, slow.detach())
    (expected,) = torch.autograd.grad(slow.sum(), leaf)
    torch.testing.assert_close(gradient, -expected, rtol=1e-4, atol=1e-6)

    def kl(actor):
        divergences = trpo.agent.head.kl(batch.outputs, trpo.agent.networks.free, *outputs(actor))
        return ops.weighted_mean(divergences, batch.weights)

    vector = torch.randn(trpo.actor.shape, generator=torch.Generator().manual_seed(2))
    expected = ops.fisher_vector_product(kl, trpo.actor, vector, damping=0.0)
    torch.testing.assert_close(trpo.fisher(batch)(vector), expected, rtol=1e-3, atol=1e-5)


def test_the_analytic_fisher_is_the_expectation_of_the_empirical_one():
    trpo, batch = some("CartPole-v1", seeds=(3,))
    leaf = trpo.actor.clone().requires_grad_()
    log_probs = bound(trpo, leaf).policy(batch.obs)[0].log_softmax(-1)
    vector = torch.randn(trpo.actor.shape, generator=torch.Generator().manual_seed(2))
    expected = torch.zeros_like(vector)
    for entry, probability in zip(log_probs.flatten(), log_probs.exp().detach().flatten(), strict=True):
        (score,) = torch.autograd.grad(entry, leaf, retain_graph=True)
        expected += probability * score * (score * vector).sum() / len(log_probs)
    torch.testing.assert_close(trpo.fisher(batch)(vector), expected, rtol=1e-3, atol=1e-5)


def test_the_fisher_matrix_can_be_that_of_some_of_the_samples():
    trpo, batch = some("CartPole-v1", sub_sampling_factor=4)
    few = batch.map(lambda tensor: tensor[:, trpo.sub_sample(tensor.shape[1])])
    vector = torch.randn(trpo.actor.shape, generator=torch.Generator().manual_seed(2))
    found = trpo.fisher(batch)(vector)
    trpo.config = replace(trpo.config, sub_sampling_factor=1)
    torch.testing.assert_close(found, trpo.fisher(few)(vector))


@pytest.mark.parametrize(("num_envs", "factor"), [(4, 2), (4, 4), (6, 4), (3, 2), (1, 5), (2, 4)])
def test_every_environment_contributes_to_the_fisher_matrix(num_envs, factor):
    trpo, _ = some("CartPole-v1", num_envs=num_envs, num_steps=64, critic_minibatches=1, sub_sampling_factor=factor)
    chosen = trpo.sub_sample(64 * num_envs).tolist()
    assert len(set(chosen)) == len(chosen) == -(-64 * num_envs // factor)
    assert {sample % num_envs for sample in chosen} == set(range(num_envs))


def test_a_vines_fisher_matrix_weighs_its_states_alike_whichever_samples_are_chosen():
    """All samples of a state have the same policy, and every second one is its action 0."""
    trpo, batch = some("CartPole-v1", num_envs=1, critic_minibatches=1, sampling="vine", sub_sampling_factor=2)
    assert batch.weights.std() > 0.1, "the test must have actions of unequal probabilities"
    vector = torch.randn(trpo.actor.shape, generator=torch.Generator().manual_seed(2))
    found = trpo.fisher(batch)(vector)
    trpo.config = replace(trpo.config, sub_sampling_factor=1)
    torch.testing.assert_close(found, trpo.fisher(batch)(vector))
    torch.testing.assert_close(found, trpo.fisher(replace(batch, weights=None))(vector))


# Steps and line search


@TASKS
@SAMPLING
def test_an_update_improves_the_surrogate_within_the_trust_region(task, sampling):
    trpo, batch = some(task, target_kl=0.02, cg_damping=1e-3, sampling=sampling)
    before = trpo.measure(batch, trpo.actor)
    entropy = trpo.agent.head.entropy(batch.outputs, trpo.agent.networks.free)
    torch.testing.assert_close(before[1], torch.zeros(2), atol=1e-6, rtol=0)
    actor, critic = trpo.actor.clone(), trpo.critic.clone()
    whole = ops.natural_step(trpo.fisher(batch), trpo.policy_gradient(batch)[0], delta=0.02, damping=1e-3)
    metrics = trpo.update(batch)
    new = trpo.actor.clone()
    trpo.actor.copy_(actor)
    loss, kl = trpo.measure(batch, new)
    assert (loss < before[0]).all()
    torch.testing.assert_close(metrics["losses/policy"], loss)
    torch.testing.assert_close(metrics["losses/improvement"], before[0] - loss)
    torch.testing.assert_close(metrics["losses/kl"], kl)
    torch.testing.assert_close(metrics["losses/entropy"], ops.weighted_mean(entropy, batch.weights))
    steps = [0.8**shrinks * whole for shrinks in range(11)]
    measured = [trpo.measure(batch, actor + step) for step in steps]
    allowed = torch.stack([(other[0] < before[0]) & (other[1] <= 0.02) for other in measured])
    longest = torch.stack(steps)[allowed.int().argmax(0), torch.arange(2)]  # argmax: the first of them
    torch.testing.assert_close(new, actor + longest, rtol=1e-4, atol=1e-6)
    assert ((kl > 0) & (kl <= 0.02)).all()
    assert torch.equal(trpo.critic, critic)


@TASKS
def test_a_small_natural_step_spends_the_whole_radius(task):
    trpo, batch = some(task, target_kl=1e-6, cg_damping=0.0, line_search=False)
    metrics = trpo.update(batch)
    torch.testing.assert_close(metrics["losses/kl"], torch.full((2,), 1e-6), rtol=0.05, atol=0)


@TASKS
def test_the_natural_policy_gradient_takes_the_whole_step(task):
    trpo, batch = some(task, line_search=False, target_kl=0.5)
    gradient, _ = trpo.policy_gradient(batch)
    step = ops.natural_step(trpo.fisher(batch), gradient, delta=0.5, damping=0.1)
    before = trpo.actor.clone()
    metrics = trpo.update(batch)
    torch.testing.assert_close(trpo.actor, before + step)
    assert metrics["losses/step_scale"].tolist() == [1.0, 1.0]


def test_the_line_search_shrinks_the_steps_of_single_seeds():
    trpo, batch = some("CartPole-v1", target_kl=0.05, cg_damping=0.0, seeds=(3, 5, 8, 9))
    batch.advantages[0] = 0.0  # no gain is possible
    before = trpo.actor.clone()
    metrics = trpo.update(batch)
    moved = (trpo.actor != before).any(1)
    assert moved.tolist() == [False, True, True, True]
    scale = metrics["losses/step_scale"]
    assert scale[0] == 0
    assert len(scale[1:].unique()) > 1, "the test must shrink steps by different factors"
    powers = torch.tensor([0.8**k for k in range(11)])
    assert torch.isclose(scale[1:, None], powers).any(1).all()
    assert metrics["losses/kl"][0] == metrics["losses/improvement"][0] == 0


def test_a_step_that_cannot_be_made_small_enough_is_given_up():
    scales = []
    for max_backtracks in (10, 0):
        trpo, batch = some(
            "CartPole-v1", target_kl=0.05, cg_damping=0.0, seeds=(3, 5, 8, 9), line_search_max_iter=max_backtracks
        )
        before = trpo.actor.clone()
        scales.append(trpo.update(batch)["losses/step_scale"])
    shrunk = scales[0] < 1
    assert shrunk.any()
    assert torch.equal(scales[1], (~shrunk).float())
    assert torch.equal((trpo.actor == before).all(1), shrunk)
    assert not trpo.skipped.any(), "a step that is too long is no error"


def test_the_critic_descends_its_loss_and_leaves_the_policy_alone():
    trpo, batch = some("Pendulum-v1", critic_minibatches=1, critic_epochs=1)
    actor, critic = trpo.actor.clone(), trpo.critic.clone().requires_grad_()
    networks = trpo.agent.networks.shape.bind(torch.stack((actor, critic), dim=1).flatten(1))
    loss = 0.5 * (networks.value(batch.obs) - batch.targets).square().mean(1)
    (gradient,) = torch.autograd.grad(loss.sum(), critic)
    steps = []
    trpo.optimizer.step = lambda gradient, learning_rate: steps.append((gradient, learning_rate))
    metrics = trpo.fit_critic(batch)
    torch.testing.assert_close(metrics["losses/value"], loss.detach())
    torch.testing.assert_close(steps[0][0], gradient, rtol=1e-4, atol=1e-4)
    assert steps[0][1] == 1e-3
    assert torch.equal(trpo.actor, actor)


def test_minibatches_of_the_critic_are_a_partition():
    trpo, batch = some("CartPole-v1")
    number = torch.arange(64.0).expand(2, 64)
    batch = replace(batch, weights=None, targets=number, advantages=number, obs=number.unsqueeze(-1))
    first, second = (torch.cat([part.targets for part in trpo.minibatches(batch)], 1) for _ in range(2))
    assert torch.equal(first.sort().values, number)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1]), "each seed has its own order"
    assert all(torch.equal(part.targets, part.obs.squeeze(-1)) for part in trpo.minibatches(batch))


# Independence of seeds


def transplant(block, alone, k):
    """Copy the state of seed k among several to a learner of one seed, except the environments."""
    for name in ("first", "second", "steps", "skipped"):
        getattr(alone.optimizer, name).copy_(getattr(block.optimizer, name)[k : k + 1])
    alone.agent.parameters.copy_(block.agent.parameters[k : k + 1])
    alone.batch_streams[0].set_state(block.batch_streams[k].get_state())


@TASKS
@SAMPLING
def test_one_update_is_the_same_alone_and_among_other_seeds(task, sampling):
    block, alone = learner(task, (3, 5, 8), sampling=sampling), learner(task, (5,), sampling=sampling)
    for _ in range(2):
        block.iterate()
    batch = block.collect()[0].standardized()
    transplant(block, alone, 1)
    before = alone.agent.parameters.clone()
    for trpo, part in ((block, batch), (alone, batch.map(lambda tensor: tensor[1:2]))):
        trpo.update(part)
        trpo.fit_critic(part)
    assert not (alone.agent.parameters == before).all()
    # Conjugate gradients amplify the rounding of products, which depends on the number of seeds and on the processor.
    torch.testing.assert_close(block.agent.parameters[1:2], alone.agent.parameters, rtol=1e-5, atol=2e-5)


@TASKS
@SAMPLING
def test_a_seed_learns_the_same_in_any_company(task, sampling):
    config = {"normalize_obs": True, "normalize_reward": True, "sampling": sampling}
    assert_learns_alone_as_in_company(lambda seeds: learner(task, seeds, **config), iterations=3, atol=1e-4)


# Resume and invalid numbers


@TASKS
@pytest.mark.parametrize(
    "config", [{"backend": "tensor"}, {"backend": "gymnasium"}, {"backend": "tensor", "sampling": "vine"}], ids=str
)
@pytest.mark.parametrize("normalize", [False, True])
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, config, normalize, tmp_path):
    def fresh():
        return learner(task, normalize_obs=normalize, normalize_reward=normalize, **config)

    assert_resumes_exactly(fresh, tmp_path)


def test_a_rejected_state_leaves_the_learner_unchanged():
    assert_a_refused_state_changes_nothing(lambda: learner(normalize_reward=True))


def test_a_reward_that_is_not_a_number_is_dropped_and_harms_no_other_seed():
    config = {"critic_minibatches": 1, "critic_epochs": 2}  # one step of the policy, and two of the critic
    clean, hit = learner(**config), learner(wrap=poison(row=5, when=20), **config)
    assert_a_bad_reward_is_dropped(clean, hit)


@pytest.mark.parametrize("line_search", [True, False])
def test_one_bad_reward_does_not_end_a_training(line_search):
    trpo = learner(wrap=poison(row=0, when=5), line_search=line_search)
    assert train(trpo, budget=20 * 64, seeds=2, progress="silent").consumed == 20 * 64


@SAMPLING
def test_returns_that_are_all_equal_do_not_end_a_training(sampling):
    trpo = learner(Constant, sampling=sampling)
    assert train(trpo, budget=20 * 64, seeds=2, progress="silent").consumed >= 20 * 64


def test_invalid_transitions_take_no_part():
    def run(junk):
        trpo = learner(wrap=next_step(junk))
        return [trpo.iterate() for _ in range(4)], trpo

    expected, calm = run(0.0)
    got, wild = run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    for one, other in zip(expected, got, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(torch.as_tensor(other[name]), torch.as_tensor(value), equal_nan=True)
    assert sum(int(metrics["rollout/episodes"].sum()) for metrics in expected) > 8


def test_actions_that_a_mask_forbids_are_never_taken():
    class Masked(Probe):
        observation_space = gymnasium.spaces.Dict(
            action_mask=gymnasium.spaces.MultiBinary(3), sign=gymnasium.spaces.Box(-1, 1, (1,))
        )
        action_space = gymnasium.spaces.Discrete(3)

        def observe(self):
            mask = torch.ones(self.rows, 3, dtype=torch.int8)
            mask[:, 2] = 0
            return Tree(action_mask=mask, sign=self.sign.unsqueeze(1))

        def reward(self, actions):
            assert (actions < 2).all()
            return actions.float()

    class Tree(dict):
        def unsqueeze(self, _):
            return self

    trpo = learner(Masked, target_kl=0.05)
    for _ in range(20):
        metrics = trpo.iterate()
    assert trpo.agent.parameters.isfinite().all()
    assert (metrics["losses/kl"] <= 0.05).all()
    assert metrics["rollout/episode_return"].min() > 0.8
    with pytest.raises(ValueError, match="vine sampling tries every action, but Masked masks some"):
        learner(Masked, sampling="vine")


# Errors


def test_action_spaces_without_a_head_are_rejected():
    with pytest.raises(
        ValueError,
        match=r"trpo needs actions of Discrete or MultiDiscrete or a Box of float, but those of Odd are Multi",
    ):
        learner(type("Odd", (Probe,), {"action_space": gymnasium.spaces.MultiBinary(2)}))


def test_images_are_rejected():
    class Images(Probe):
        observation_space = gymnasium.spaces.Box(0, 255, (3, 48, 48), dtype="uint8")

        def observe(self):
            return torch.zeros(self.rows, 48, 48, dtype=torch.uint8).unsqueeze(1).expand(-1, 3, -1, -1).unsqueeze(1)

    with pytest.raises(ValueError, match="trpo needs vectors, but the observations of Images are images"):
        learner(Images)


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(budget=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, 0)
            for name in ("num_envs", "num_steps", "target_kl", "cg_max_steps", "sub_sampling_factor", "vine_points")
        ],
        *[
            (name, 0)
            for name in (
                "critic_epochs",
                "critic_minibatches",
                "critic_learning_rate",
                "vine_steps",
                "line_search_shrinking_factor",
            )
        ],
        *[(name, float("nan")) for name in ("target_kl", "cg_damping", "gamma", "gae_lambda", "critic_learning_rate")],
        *[(name, -0.1) for name in ("target_kl", "cg_damping", "gamma", "gae_lambda", "line_search_max_iter")],
        *[(name, 1.1) for name in ("gamma", "gae_lambda", "line_search_shrinking_factor")],
        ("vine_actions", 1),
        ("sampling", "tree"),
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        TRPOConfig(**{name: value})


def test_a_normalized_batch_of_a_single_sample_is_rejected():
    single = {"num_envs": 1, "num_steps": 1, "critic_minibatches": 1}
    with pytest.raises(ValueError, match="normalize_advantage='batch' makes the advantage of a single sample 0"):
        TRPOConfig(**single)
    TRPOConfig(**single, normalize_advantage="none")
    TRPOConfig(**single, sampling="vine", vine_points=1)


def test_indivisible_numbers_are_rejected():
    with pytest.raises(
        ValueError, match=r"critic_minibatches \(5\) must divide the rollout: 4 environments x 16 .* 64"
    ):
        TRPOConfig(**SMALL | {"critic_minibatches": 5})
    with pytest.raises(ValueError, match=r"vine_points \(3\) must divide num_steps \(16\)"):
        TRPOConfig(**SMALL | {"vine_points": 3, "sampling": "vine"})
    with pytest.raises(
        ValueError, match=r"critic_minibatches \(3\) must divide the 16 samples of a vine: 4 .* 2 actions"
    ):
        learner(sampling="vine", critic_minibatches=3)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    assert configuration(catalog.find("trpo"), "no such task", name).line_search
    assert not configuration(catalog.find("npg"), "no such task", name).line_search


def test_a_policy_whose_every_step_is_rejected_causes_a_warning(caplog):
    trpo = learner(cg_damping=0.0, cg_max_steps=50, num_steps=64)
    train(trpo, budget=12 * trpo.rollout_steps, progress="silent")
    texts = [record.getMessage() for record in caplog.records]
    assert sum("rejected, so its policy does not change (health/rejected_steps)" in text for text in texts) == 2
