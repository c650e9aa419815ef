import os
import signal
import time
from functools import partial

import pytest
import torch

from control.learners import (
    TASKS,
    assert_a_refused_state_changes_nothing,
    assert_equal_metrics,
    assert_learns_alone_as_in_company,
    assert_resumes_exactly,
    assert_solved,
    build,
    next_step,
    poison,
    same,
)
from control.probes import PROBES, Aimed, Chosen, Delayed, Matched, Pendular
from host_here import HostHere, Uneven
from operant import catalog, hosts, ops
from operant.control import A2C, IMPALA, A2CConfig, IMPALAConfig
from operant.control.impala import DROPPED, LOST, PRESETS, Actor
from operant.envs import Wrapper, make
from operant.nets import Pass
from operant.runtime.configuration import configuration
from operant.streams import row_seeds

SMALL = {
    "num_actors": 2,
    "num_envs": 4,
    "num_steps": 8,
    "rollouts_per_batch": 2,
    "hidden_sizes": (8, 8),
    "optimizer": "adam",
    "learning_rate": 3e-3,
}


def rows_of(probe, rows, *seeds, first_row=0):
    """Return the environments of an actor; other processes import it by name."""
    return probe(row_seeds(seeds, rows, "environment", first_row))


def learner(task="CartPole-v1", seeds=(3, 5), *, host=None, budget=10_000, backend="auto", make_env=None, **config):
    config = IMPALAConfig(**{**SMALL, **config})
    if isinstance(task, type):
        make_env = partial(rows_of, task, config.num_envs)
    with hosts.within(host):
        return build(partial(IMPALA, make_env=make_env), config, task, seeds, budget=budget, backend=backend)


@pytest.fixture
def started():
    """Return the list of learners to close after the test."""
    made = []

    def start(*arguments, **options):
        made.append(learner(*arguments, **options))
        return made[-1]

    yield start
    for impala in made:
        impala.close()


# Learning


def probe_config(**variant):
    config = {"num_envs": 8, "num_steps": 4, "learning_rate": 2e-2, "ent_coef": 0.0, "gamma": 0.5}
    return {**config, "hidden_sizes": (16,), "max_grad_norm": None, "log_std_init": -1.0, "budget": 10**6, **variant}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_probes_are_solved(probe):
    impala = learner(probe, **probe_config(budget=64 * (iterations := 300 if probe is Aimed else 150)))
    for _ in range(iterations):
        impala.iterate()
    assert_solved(impala, impala.agent.networks.value, probe.solution(0.5), atol=0.15)


VARIANTS = [
    {"td_lambda": 0.5, "share_features": True},
    {"optimizer": "rmsprop", "learning_rate": 0.1, "adam_eps": 1e-5, "num_actors": 3},
    {"rho_bar": 2.0, "c_bar": 0.5, "rollouts_per_batch": 1, "num_envs": 16},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("probe", [Matched, Pendular], ids=lambda probe: probe.__name__)
def test_every_variant_solves_probes(probe, variant):
    impala = learner(probe, **probe_config(**variant, budget=64 * 150))
    for _ in range(150):
        impala.iterate()
    assert_solved(impala, impala.agent.networks.value, probe.solution(0.5), atol=0.15)


@pytest.mark.parametrize("probe", [Chosen, Matched, Delayed], ids=lambda probe: probe.__name__)
def test_probes_are_solved_by_actors_that_do_not_wait(probe, started):
    config = {"num_actors": 4, "workers": 4, "rollouts_per_batch": 1, "max_staleness": 6, "num_envs": 16}
    impala = started(probe, host=HostHere(), **probe_config(**config, budget=200 * 64))
    reports = [impala.iterate() for _ in range(200)]
    assert_solved(impala, impala.agent.networks.value, probe.solution(0.5), atol=0.2)
    assert max(report["staleness/most"] for report in reports) >= 1, "the data must be off-policy"


# Targets and advantages


def slow_vtrace(impala, rollout, parameters):
    """Compute targets and advantages by their definitions, one number at a time, `[T, S, N]`."""
    config, (steps, seeds, rows) = impala.config, rollout.rewards.shape
    bound, head = impala.agent.networks.shape.bind(parameters), impala.agent.head
    values = torch.stack([bound.value(obs) for obs in rollout.obs])
    successors = torch.stack([bound.value(obs) for obs in rollout.final_obs])
    actions, old = rollout.kept
    now = torch.stack(
        [head.log_prob(bound.policy(obs), bound.free, a) for obs, a in zip(rollout.obs, actions, strict=True)]
    )
    rho, lam = (now - old).exp(), config.td_lambda
    targets, advantages = torch.zeros(steps, seeds, rows), torch.zeros(steps, seeds, rows)
    for s in range(seeds):
        for n in range(rows):
            for t in reversed(range(steps)):
                stops = bool(rollout.terminated[t, s, n] or rollout.truncated[t, s, n]) or t == steps - 1
                after = 0.0 if rollout.terminated[t, s, n] else successors[t, s, n]
                further = 0.0 if stops else targets[t + 1, s, n] - values[t + 1, s, n]
                surprise = rollout.rewards[t, s, n] + config.gamma * after - values[t, s, n]
                weight, trace = rho[t, s, n].clamp(max=config.rho_bar), lam * rho[t, s, n].clamp(max=config.c_bar)
                targets[t, s, n] = values[t, s, n] + weight * surprise + config.gamma * trace * further
                advantages[t, s, n] = weight * (surprise + config.gamma * lam * further)
    return targets, advantages, rho


@pytest.mark.parametrize("config", [{}, {"td_lambda": 0.7, "rho_bar": 1.5, "c_bar": 0.8, "gamma": 0.9}], ids=str)
@pytest.mark.parametrize("task", [Pendular, "CartPole-v1", "Pendulum-v1"])
def test_targets_and_advantages_are_those_of_vtrace(task, config):
    impala = learner(task, num_steps=12, **config)
    rollout, _ = impala.collect()
    generator = torch.Generator().manual_seed(1)
    impala.agent.parameters += 0.3 * torch.randn(impala.agent.parameters.shape, generator=generator)
    batch, ratios = impala.estimate_advantages(rollout)
    targets, advantages, rho = slow_vtrace(impala, rollout, impala.agent.parameters)
    assert (rho - 1).abs().max() > 0.1
    for s in range(2):
        torch.testing.assert_close(batch.targets[s], targets[:, s].reshape(-1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(batch.advantages[s], advantages[:, s].reshape(-1), rtol=1e-4, atol=1e-4)
        assert float(ratios["staleness/importance_ratio"][s]) == pytest.approx(float(rho[:, s].mean()), rel=1e-4)
        share = float((rho[:, s] > impala.config.rho_bar).float().mean())
        assert float(ratios["staleness/truncated_ratios"][s]) == pytest.approx(share)


@TASKS
@pytest.mark.parametrize("share", [False, True])
def test_the_first_update_is_that_of_a2c_summed_over_samples(task, share):
    """On-policy V-trace is generalized advantage estimation; the actor loss is the same, with other random numbers."""
    impala = learner(task, ent_coef=0.02, td_lambda=0.9, share_features=share)
    config = A2CConfig(num_envs=8, num_steps=8, hidden_sizes=(8, 8), ent_coef=0.02, estimator="gae", gae_lambda=0.9)
    a2c = build(A2C, A2CConfig(**{**vars(config), "share_features": share}), task)
    assert torch.equal(impala.agent.parameters, a2c.agent.parameters)
    rollout, metrics = impala.collect()
    batch, ratios = impala.estimate_advantages(rollout)
    assert ratios["staleness/importance_ratio"].tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    assert (metrics["staleness/mean"], metrics["staleness/most"], metrics[DROPPED], metrics[LOST]) == (0, 0, 0, 0)
    outputs = torch.zeros(*rollout.rewards.shape, impala.agent.head.outputs)
    rollout.__dict__["kept"] = (rollout.kept[0], outputs)
    expected = a2c.estimate_advantages(rollout)
    torch.testing.assert_close(batch.advantages, expected.advantages, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch.targets, expected.targets, rtol=1e-4, atol=1e-4)
    gradient, parts = impala.gradient(batch)
    mean, same_parts = a2c.gradient(expected)
    torch.testing.assert_close(gradient, 64 * mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(parts, same_parts, rtol=1e-3, atol=1e-4)


def test_there_is_one_policy_gradient(monkeypatch):
    monkeypatch.setattr(ops, "policy_gradient", lambda log_probs, psi: 0.0 * log_probs)
    impala = learner(ent_coef=0.0)
    actor, critic = (p.clone() for p in impala.agent.parameters.view(2, 2, -1).unbind(1))
    impala.iterate()
    after = impala.agent.parameters.view(2, 2, -1)
    assert torch.equal(after[:, 0], actor), "the policy must have no other loss to learn from"
    assert not torch.equal(after[:, 1], critic)


def test_weights_of_samples_count_in_loss_and_gradient():
    impala = learner()
    batch, _ = impala.estimate_advantages(impala.collect()[0])
    order = torch.arange(batch.targets.shape[1]) < 16
    first, kept = batch.map(lambda tensor: tensor[:, :16]), batch.map(lambda tensor: tensor)
    object.__setattr__(kept, "weights", order.float().expand(2, -1))
    expected, got = impala.gradient(first), impala.gradient(kept)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    loss, parts = impala.loss(Pass(impala.agent.networks, first.obs), first)
    policy, value, entropy = parts
    whole = 16 * (policy + 0.5 * value - 0.01 * entropy).sum()
    torch.testing.assert_close(loss.detach(), whole, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_learning_rate_falls_linearly_over_the_budget(schedule):
    impala = learner(lr_schedule=schedule, budget=4 * 64)
    rates = [impala.iterate()["schedule/learning_rate"] for _ in range(4)]
    falling = [1.0, 0.75, 0.5, 0.25] if schedule == "linear" else [1.0] * 4
    assert rates == pytest.approx([3e-3 * share for share in falling])


# Actors


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_an_actor_depends_on_seed_and_number_alone(backend):
    config = IMPALAConfig(**SMALL)
    template = learner(backend=backend)
    parameters = template.agent.parameters
    both, alone, other = (
        Actor(number, config, template.make_env, seeds=seeds, algorithm="impala")
        for number, seeds in ((1, [3, 5]), (1, [5]), (0, [5]))
    )
    found, expected, another = both.collect(parameters), alone.collect(parameters[1:]), other.collect(parameters[1:])
    assert torch.equal(found["obs"][:, 1:], expected["obs"])
    assert torch.equal(found["kept"][0][:, 1:], expected["kept"][0])
    assert not torch.equal(expected["kept"][0], another["kept"][0])
    env = make("CartPole-v1", 4, [5], first_row=4, backend=backend)
    torch.testing.assert_close(expected["obs"][0, 0], env.reset())


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_the_host_of_actors_changes_no_bit_without_staleness(backend, started):
    variant = {"num_actors": 3, "backend": backend, "max_grad_norm": None}
    learners = [started(**variant, workers=workers, host=HostHere()) for workers in (0, 1, 2, 3)]
    for _ in range(4):
        reports = [impala.iterate() for impala in learners]
        for report in reports[1:]:
            assert_equal_metrics(reports[0], report)
    assert all(same(impala.state_dict(), learners[0].state_dict()) for impala in learners[1:])
    assert learners[0].consumed == 4 * 64


def test_processes_change_no_bit_though_one_is_killed(started):
    here, there = started(num_actors=3), started(num_actors=3, workers=2)
    lost = 0.0
    for iteration in range(4):
        expected, got = here.iterate(), dict(there.iterate())
        lost += got.pop(LOST)
        assert_equal_metrics({name: value for name, value in expected.items() if name != LOST}, got)
        if iteration == 1:
            os.kill(there.workers._workers[0].process.pid, signal.SIGKILL)
    assert same(here.state_dict(), there.state_dict())
    assert lost == 1.0
    processes = [worker.process for worker in there.workers._workers]
    there.close()
    there.close()
    assert not any(process.is_alive() for process in processes)


def test_actors_in_processes_that_do_not_wait_are_replaced_and_learn(started):
    config = probe_config(num_actors=2, workers=2, rollouts_per_batch=1, max_staleness=4, num_envs=16)
    impala = started(Matched, **{**config, "budget": 300 * 64})
    for _ in range(20):
        impala.iterate()
    os.kill(impala.workers._workers[1].process.pid, signal.SIGKILL)
    lost, until = 0.0, time.monotonic() + 100
    while not lost and time.monotonic() < until:
        lost += impala.iterate()[LOST]
    assert lost == 1.0
    while impala.consumed < impala.budget:
        impala.iterate()
    assert_solved(impala, impala.agent.networks.value, Matched.solution(0.5), atol=0.2)


def test_stale_rollouts_are_dropped_and_counted(started):
    config = {"num_actors": 3, "workers": 3, "rollouts_per_batch": 1, "max_staleness": 3}
    host = Uneven()
    impala = started(host=host, **config)
    reports, taken = [], 0
    while not sum(report[DROPPED] for report in reports):
        if len(reports) == 6:
            host.release.set()
        before = impala.consumed
        reports.append(impala.iterate())
        taken += 1 + int(reports[-1][DROPPED])
        assert impala.consumed - before == 32 * (1 + int(reports[-1][DROPPED])), "dropped steps count, too"
        assert 0 <= reports[-1]["staleness/mean"] <= reports[-1]["staleness/most"] <= 3
    assert reports[-1][DROPPED] >= 1
    assert impala.updates == len(reports)
    assert impala.consumed == 32 * taken


# Independence of seeds


@TASKS
def test_a_seed_learns_the_same_in_any_company(task):
    assert_learns_alone_as_in_company(lambda seeds: learner(task, seeds), iterations=8)


@TASKS
def test_one_update_is_the_same_alone_and_among_other_seeds(task):
    block, alone = learner(task, (3, 5, 8)), learner(task, (5,))
    for _ in range(2):
        block.iterate()
    batch, _ = block.estimate_advantages(block.collect()[0])
    for name, tensor in alone.optimizer.state_dict().items():
        tensor.copy_(block.optimizer.state_dict()[name][1:2])
    alone.agent.parameters.copy_(block.agent.parameters[1:2])
    block.update(batch, 0.9)
    alone.update(batch.map(lambda tensor: tensor[1:2]), 0.9)
    torch.testing.assert_close(block.agent.parameters[1:2], alone.agent.parameters, rtol=1e-5, atol=1e-7)


# Resume and invalid numbers


@TASKS
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_training_resumes_bit_for_bit_from_a_checkpoint(task, backend, tmp_path):
    assert_resumes_exactly(lambda: learner(task, backend=backend, num_actors=3), tmp_path)


def test_a_checkpoint_continues_with_any_number_of_workers(started):
    whole, first = started(), started(workers=1, host=HostHere())
    for _ in range(2):
        whole.iterate()
        first.iterate()
    second = started(workers=2, host=HostHere())
    second.iterate()
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        assert_equal_metrics(whole.iterate(), second.iterate())
    assert same(whole.state_dict(), second.state_dict())


def test_a_rejected_state_leaves_the_learner_unchanged():
    assert_a_refused_state_changes_nothing(learner)


def test_a_run_that_does_not_wait_continues_from_the_same_parameters(started):
    config = {"workers": 2, "max_staleness": 2}
    first, second = (started(host=HostHere(), **config) for _ in range(2))
    for _ in range(3):
        first.iterate()
    saved = first.state_dict()
    first.iterate()  # must not change the saved state
    second.iterate()
    second.load_state_dict(saved)
    assert (second.consumed, second.updates) == (saved["consumed"], 3)
    assert torch.equal(second.agent.parameters, saved["parameters"])
    assert second.iterate()["staleness/most"] == 0, "rollouts in progress are collected again"


def test_a_reward_that_is_not_a_number_harms_its_own_seed_alone_and_for_one_update():
    def poisoned(*seeds, first_row=0):
        env = make("CartPole-v1", 4, seeds, first_row=first_row)
        return poison(row=5, when=10)(env) if first_row else env

    clean, hit = learner(), learner(make_env=poisoned)
    skipped = []
    for iteration in range(4):
        before = hit.agent.parameters[1].clone()
        clean.iterate()
        skipped.append(hit.iterate()["health/skipped_updates"].tolist())
        assert torch.equal(hit.agent.parameters[1], before) is (iteration == 1)
    assert skipped == [[0, 0], [0, 1], [0, 0], [0, 0]]
    assert torch.equal(hit.agent.parameters[0], clean.agent.parameters[0])


def test_invalid_transitions_take_no_part():
    def run(junk):
        def made(*_, **__):
            env = next_step(junk)(None)
            env.state_dict = dict  # it has no state
            return env

        impala = learner(make_env=made)
        return [impala.iterate() for _ in range(6)], impala

    (expected, calm), (got, wild) = run(0.0), run(1e6)
    assert torch.equal(calm.agent.parameters, wild.agent.parameters)
    for one, other in zip(expected, got, strict=True):
        assert_equal_metrics(one, other)
    assert sum(int(metrics["rollout/episodes"].sum()) for metrics in expected) > 8


# Errors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollouts_per_batch": 5}, "rollouts_per_batch must be at most num_actors, 4, got 5"),
        ({"workers": 5}, "workers must be at most num_actors, 4, got 5: the others would have no actor"),
        ({"max_staleness": 2}, "max_staleness=2 needs actors in other processes: use workers=4"),
        (
            {"max_staleness": 1, "workers": 4, "rollouts_per_batch": 2},
            "max_staleness must be 0 or at least num_actors / rollouts_per_batch = 2, .*, got 1: most rollouts",
        ),
        ({"num_steps": 0}, "num_steps must be .*, got 0"),
        ({"rho_bar": 0.0}, r"rho_bar must be .*, got 0\.0"),
        ({"td_lambda": 1.5}, r"td_lambda must be .*, got 1\.5"),
    ],
)
def test_invalid_values_are_rejected_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        IMPALAConfig(**values)


def test_wrappers_are_rejected():
    with pytest.raises(
        ValueError, match="Wrapper wraps the environments of CartPole-v1, but other processes create them"
    ):
        build(IMPALA, IMPALAConfig(**SMALL), wrap=Wrapper)


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(budget=0)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    config = configuration(catalog.find("impala"), name)
    assert {key: getattr(config, key) for key in PRESETS[name]} == PRESETS[name]


def test_a_state_of_other_actors_is_rejected():
    with pytest.raises(ValueError, match=r"workers\.actors.* has 3 parts but 2 are needed"):
        learner().load_state_dict(learner(num_actors=3).state_dict())
