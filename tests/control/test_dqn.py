import math

import gymnasium
import pytest
import torch

from control.learners import build
from control.off_policy import Named
from control.probes import DISCRETE_PROBES, Aimed, Constant, Endless, Probe
from operant import configure, ops, streams
from operant.control.dqn import DQN, DQNConfig
from operant.control.presets import DQN_ATARI, DQN_CATCH
from operant.nets.action_values import ValuePass
from operant.runtime.acting import draw_noise
from operant.runtime.transitions import Transitions

SMALL = {
    "num_envs": 4,
    "train_freq": 4,
    "gradient_steps": 4,
    "batch_size": 16,
    "buffer_size": 200,
    "learning_starts": 32,
    "target_update_interval": 6,
    "learning_rate": 1e-3,
    "exploration_fraction": 0.5,
    "hidden_sizes": (8, 8),
}
VARIANTS = pytest.mark.parametrize(
    "variant",
    [
        {},
        {"double": True},
        {"dueling": True},
        {"n_step": 3},
        {"per_alpha": 0.6},
        {"double": True, "dueling": True, "n_step": 2, "per_alpha": 0.6},
    ],
    ids=lambda variant: "-".join(variant) or "plain",
)


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    """Return a small learner."""
    config = DQNConfig(**{**SMALL, **config})
    return build(DQN, config, task, seeds, budget=budget, backend=backend, wrap=wrap)


# Learning


@pytest.mark.parametrize(
    "variant", [{}, {"double": True, "dueling": True, "n_step": 2, "per_alpha": 0.6}], ids=["plain", "all"]
)
@pytest.mark.parametrize("probe", DISCRETE_PROBES, ids=lambda probe: probe.__name__)
def test_probes_are_solved(probe, variant):
    gamma, budget = 0.5, 1200
    config = {
        "train_freq": 8,
        "gradient_steps": 16,
        "batch_size": 32,
        "buffer_size": 2000,
        "learning_starts": 64,
        "target_update_interval": 8,
        "hidden_sizes": (16,),
    }
    dqn = learner(
        probe,
        budget=budget,
        learning_rate=1e-2,
        lr_schedule="linear",
        gamma=gamma,
        exploration_final_eps=0.3,
        **config,
        **variant,
    )
    while dqn.consumed < budget:
        dqn.iterate()
    solution = probe.solution(gamma)
    obs = solution.obs.expand(2, *solution.obs.shape)
    values = dqn.online(obs)
    torch.testing.assert_close(values.amax(-1), solution.values.expand(2, -1), atol=0.1, rtol=0)
    if solution.actions is not None:
        actions, _ = dqn.act(obs, None, None)
        assert torch.equal(actions, solution.actions.expand_as(actions))


# Targets, losses and updates


def transitions(seeds=2, samples=7, *, weighted=False, seed=0):
    """Return a random minibatch of observations of CartPole."""
    generator = torch.Generator().manual_seed(seed)
    return Transitions(
        obs=torch.randn(seeds, samples, 4, generator=generator),
        actions=torch.randint(2, (seeds, samples), generator=generator),
        rewards=3 * torch.randn(seeds, samples, generator=generator),
        next_obs=torch.randn(seeds, samples, 4, generator=generator),
        terminated=torch.rand(seeds, samples, generator=generator) < 0.3,
        discounts=0.9 ** torch.randint(1, 4, (seeds, samples), generator=generator),
        weights=torch.randint(0, 2, (seeds, samples), generator=generator).float() if weighted else None,
        index=torch.arange(samples).expand(seeds, -1),
    )


def shaken(**config):
    """Return a learner whose two networks have different random parameters."""
    dqn = learner(**config)
    generator = torch.Generator().manual_seed(2)
    for parameters in (dqn.parameters, dqn.target_parameters):
        noise = 0.7 * torch.randn(parameters.shape, generator=generator)
        parameters.add_(noise if dqn.online.mask is None else noise * dqn.online.mask)
    return dqn


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("delta", [0.5, math.inf])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_those_of_the_papers(dueling, double, delta, weighted):
    dqn = shaken(dueling=dueling, double=double, huber_delta=delta)
    batch = transitions(weighted=weighted)
    targets = dqn.compute_targets(batch, dqn.target(batch.next_obs))
    leaf = dqn.parameters.clone().requires_grad_()
    online, target = dqn.online.shape.bind(leaf), dqn.target
    total = 0.0
    for s in range(2):
        weights = torch.ones(7) if batch.weights is None else batch.weights[s]
        for i in range(7):
            successor = batch.next_obs[s : s + 1, i : i + 1]
            valued = target(successor.expand(2, -1, -1))[s, 0]
            chooser = online(successor.expand(2, -1, -1))[s, 0] if double else valued
            best = valued[int(chooser.argmax())]
            y = batch.rewards[s, i] + (0.0 if batch.terminated[s, i] else batch.discounts[s, i] * best.detach())
            assert targets[s, i].item() == pytest.approx(float(y), rel=1e-4, abs=1e-4)
            q = online(batch.obs[s : s + 1, i : i + 1].expand(2, -1, -1))[s, 0, batch.actions[s, i]]
            error = (q - y).abs()
            loss = error**2 / 2 if error <= delta else delta * (error - delta / 2)
            total = total + weights[i] * loss / weights.sum()
    networks = ValuePass(dqn.online, batch.obs)
    values = networks.values.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    losses = ops.weighted_mean(ops.huber_loss(values, targets, delta=delta), batch.weights)
    torch.testing.assert_close(losses.sum().detach(), total.detach(), rtol=1e-4, atol=1e-5)
    (expected,) = torch.autograd.grad(total, leaf)
    if dqn.online.mask is not None:
        expected = expected * dqn.online.mask
    got = []
    dqn.optimizer.step = lambda gradient, **_: got.append(gradient) or gradient.norm(dim=1)
    metrics = dqn.update(batch, dqn.target(batch.next_obs), None, 1e-3)
    torch.testing.assert_close(metrics["losses/value"], losses.detach())
    torch.testing.assert_close(got[0], expected, rtol=1e-3, atol=1e-4)


def test_importance_weights_scale_the_loss_of_each_sample():
    dqn, batch = shaken(), transitions()
    targets = dqn.compute_targets(batch, dqn.target(batch.next_obs))
    importance = torch.rand(2, 7, generator=torch.Generator().manual_seed(0))
    values = dqn.online(batch.obs).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    expected = (ops.huber_loss(values, targets) * importance).mean(1)
    metrics = dqn.update(batch, dqn.target(batch.next_obs), importance, 1e-3)
    torch.testing.assert_close(metrics["losses/value"], expected)


def test_the_variants_are_calls_to_the_same_ops(monkeypatch):
    calls = []
    for name in ("q_target", "double_q", "dueling", "huber_loss", "importance_weights"):
        original = getattr(ops, name)

        def recording(*args, name=name, original=original, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(ops, name, recording)

    def used(**variant):
        calls.clear()
        dqn = learner(learning_starts=16, **variant)
        dqn.iterate()
        return set(calls)

    plain = {"q_target", "huber_loss"}
    assert used() == plain
    assert used(double=True) == plain | {"double_q"}
    assert used(dueling=True) == plain | {"dueling"}
    assert used(per_alpha=0.5) == plain | {"importance_weights"}


def test_the_target_network_is_copied_at_its_interval():
    dqn = learner(learning_starts=16, gradient_steps=4, target_update_interval=6)
    before = dqn.target_parameters.clone()
    dqn.iterate()
    assert torch.equal(dqn.target_parameters, before), "at the first step both are the same"
    after = []
    original = dqn.update

    def improve(*args):
        after.append(dqn.parameters.clone())  # before gradient steps 5, 6, 7 and 8
        return original(*args)

    dqn.update = improve
    dqn.iterate()
    assert dqn.updates == 8
    assert torch.equal(dqn.target_parameters, after[2])


def test_a_copy_after_every_step_is_no_target_network():
    dqn = learner(learning_starts=16, target_update_interval=1)
    seen = []
    original = dqn.compute_targets

    def judge(batch, next_q):
        seen.append(torch.equal(dqn.target_parameters, dqn.parameters))
        return original(batch, next_q)

    dqn.compute_targets = judge
    dqn.iterate()
    assert seen == [True] * 4


def test_a_small_tau_follows_smoothly():
    dqn = learner(learning_starts=16, target_update_interval=1, tau=0.25, gradient_steps=2)
    start = dqn.parameters.clone()
    dqn.updates = 1
    dqn.iterate()
    assert (dqn.target_parameters - start).abs().max() > 0
    after_one = (dqn.target_parameters - start) / 0.25 + start
    assert (after_one - dqn.parameters).abs().max() < 5e-3


def test_only_exploring_rows_deviate_from_greedy_actions():
    dqn = learner()
    obs = dqn.experience.collector.obs
    rows = obs.shape[1]
    greedy = dqn.online(obs).argmax(-1)
    exploring = torch.zeros(3, 2, rows, dtype=torch.bool)  # no row, one row, all rows
    exploring[1, 1, 0], exploring[2] = True, True
    act = dqn._greedy_except(exploring, (1 - greedy).expand(3, 2, rows))
    for t in range(3):
        assert torch.equal(act(obs, t, slice(None)) != greedy, exploring[t])


def test_stretches_of_gradient_steps_do_not_change_what_they_do(monkeypatch):
    results = []
    for drawn_at_once, evaluated_at_once in ((1, 1), (3, 2), (16, 8)):
        monkeypatch.setattr("operant.control.dqn.DRAWN", drawn_at_once)
        monkeypatch.setattr("operant.control.dqn.EVALUATED", evaluated_at_once)
        dqn = learner(learning_starts=16, gradient_steps=8, target_update_interval=5)
        drawn = iter(torch.randint(16, (8, 2, 16), generator=torch.Generator().manual_seed(0)))
        replay = dqn.experience.replay
        replay.draw = lambda samples, _, drawn=drawn: torch.cat([next(drawn) for _ in range(samples // 16)], dim=1)
        dqn.iterate()
        results.append(dqn.parameters)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[2], results[0], rtol=1e-5, atol=1e-6)


def test_priorities_are_the_errors_of_what_was_drawn():
    dqn = learner(learning_starts=16, per_alpha=1.0, gradient_steps=1)
    dqn.iterate()
    batch, weights = dqn.sample(16, 1.0)
    targets = dqn.compute_targets(batch, dqn.target(batch.next_obs))
    values = dqn.online(batch.obs).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    dqn.update(batch, dqn.target(batch.next_obs), weights, 1e-3)
    held = dqn.priorities.levels[0].gather(1, batch.index)
    torch.testing.assert_close(held, (targets - values).double().abs() + 1e-6)
    assert weights.amax(1).tolist() == [1.0, 1.0]


def test_beta_rises_to_one_over_the_budget(monkeypatch):
    seen, original = [], ops.importance_weights
    monkeypatch.setattr(ops, "importance_weights", lambda p, *, beta: seen.append(beta) or original(p, beta=beta))
    dqn = learner(learning_starts=16, per_alpha=0.6, per_beta=0.4, gradient_steps=1, budget=64)
    for _ in range(4):
        dqn.iterate()
    assert seen == pytest.approx([0.55, 0.7, 0.85, 1.0], abs=1e-5)


# Actions


def test_epsilon_falls_over_its_fraction_of_the_budget():
    dqn = learner(
        budget=160, exploration_fraction=0.5, exploration_initial_eps=0.9, exploration_final_eps=0.1, learning_starts=32
    )
    got = [dqn.iterate()["schedule/epsilon"] for _ in range(8)]
    assert got == pytest.approx([1.0, 1.0, 0.58, 0.42, 0.26, 0.1, 0.1, 0.1])


def test_training_begins_after_the_warmup():
    dqn = learner(learning_starts=48)
    assert ["losses/value" in dqn.iterate() for _ in range(4)] == [False, False, True, True]
    assert dqn.updates == 8


def test_the_learning_rate_falls_to_zero():
    dqn = learner(learning_starts=0, budget=64, lr_schedule="linear")
    rates = [dqn.iterate()["schedule/learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([7.5e-4, 5e-4, 2.5e-4, 0.0], abs=1e-8)


def test_acting_is_greedy_without_noise_and_explores_with_it():
    dqn = shaken(exploration_initial_eps=0.5, exploration_final_eps=0.5, learning_starts=0)
    obs = torch.randn(2, 4000, 4, generator=torch.Generator().manual_seed(0))
    greedy, hidden_state = dqn.act(obs, None, None)
    assert hidden_state is None
    assert torch.equal(greedy, dqn.online(obs).argmax(-1))
    noisy, _ = dqn.act(obs, None, draw_noise(dqn, 4000, streams.of_seeds(dqn.seeds, "test")))
    assert (noisy != greedy).double().mean().item() == pytest.approx(0.25, abs=0.03)


def test_actions_may_begin_at_another_number():
    class Shifted(Probe):
        action_space = gymnasium.spaces.Discrete(2, start=5)

        def reward(self, actions):
            assert set(actions.tolist()) <= {5, 6}
            return 2.0 * (actions - 5) - 1.0

    dqn = learner(Shifted, learning_starts=16)
    for _ in range(3):
        dqn.iterate()
    assert set(dqn.act(torch.zeros(2, 4, 1), None, None)[0].unique().tolist()) <= {5, 6}


def test_scaled_observations_reach_the_network():
    dqn = learner("MountainCar-v0", scale_obs=True)
    low, high = (torch.as_tensor(bound) for bound in (-1.2, 0.6))
    shift, scale = dqn.online.shape.affine
    assert (shift[0] + low * scale[0]).item() == pytest.approx(-1.0)
    assert (shift[0] + high * scale[0]).item() == pytest.approx(1.0)
    assert learner("MountainCar-v0").online.shape.affine is None


@pytest.mark.parametrize(("task", "preset"), [("ALE/Pong-v5", DQN_ATARI), ("operant/PixelCatch-v0", DQN_CATCH)])
def test_image_tasks_have_separate_presets(task, preset):
    config = configure("dqn", task)
    assert {name: getattr(config, name) for name in preset} == preset
    assert config.gradient_steps / (config.train_freq * config.num_envs) in (1 / 4, 1 / 2)
    assert configure("double-dqn", task).double


# Errors


def test_action_masks_are_rejected_and_bounds_needed_for_scaling():
    spaces = gymnasium.spaces.Dict(seen=Probe.observation_space, action_mask=gymnasium.spaces.MultiBinary(2))
    with pytest.raises(ValueError, match="dqn does not support action masks, but the observations of Odd have one"):
        learner(type("Odd", (Probe,), {"observation_space": spaces}))
    with pytest.raises(ValueError, match="scale_obs needs observations of a Box, got Dict"):
        learner(Named, scale_obs=True)
    dqn = learner(Named, learning_starts=0)
    assert dqn.iterate()["losses/value"].isfinite().all()


def test_continuous_actions_are_rejected():
    with pytest.raises(ValueError, match="dqn needs actions of Discrete, but those of Aimed are Box"):
        learner(Aimed)


def test_another_number_of_rows_is_rejected():
    with pytest.raises(ValueError, match="2 seeds with 4 environments each need 8, but there are 6"):
        DQN(DQNConfig(**SMALL), Constant(range(6)), seeds=(0, 1), budget=100)


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(Endless, budget=0)
    with pytest.raises(
        ValueError, match=r"learning_starts must be less than the budget of 32 environment steps, got 32: .*raise"
    ):
        learner(Endless, budget=32)


COUNTS = ("num_envs", "train_freq", "gradient_steps", "batch_size", "buffer_size", "target_update_interval", "n_step")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 0) for name in COUNTS],
        *[(name, 0.0) for name in ("tau", "learning_rate", "huber_delta", "max_grad_norm", "adam_eps")],
        *[
            (name, float("nan"))
            for name in ("tau", "gamma", "per_alpha", "per_beta", "exploration_final_eps", "huber_delta")
        ],
        *[
            (name, -0.1)
            for name in (
                "gamma",
                "per_alpha",
                "per_beta",
                "exploration_initial_eps",
                "exploration_final_eps",
                "exploration_fraction",
            )
        ],
        *[
            (name, 1.1)
            for name in ("gamma", "tau", "per_alpha", "per_beta", "exploration_initial_eps", "exploration_final_eps")
        ],
        ("learning_starts", -1),
        ("lr_schedule", "both"),
    ],
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        DQNConfig(**{name: value})


def test_streams_need_a_hidden_layer():
    with pytest.raises(ValueError, match="hidden_sizes must have at least one layer with dueling"):
        DQNConfig(dueling=True, hidden_sizes=())


def test_a_buffer_below_one_step_is_rejected():
    with pytest.raises(ValueError, match="buffer_size must hold one step of all 4 environments"):
        learner(buffer_size=3)
