"""Compiled updates equal uncompiled ones up to rounding, and resume exactly."""

import pytest
import torch

import operant
from control.learners import assert_resumes_exactly
from control.off_policy import QUICK
from needs import needs_compiler
from operant import catalog, configure
from operant.control import assemble
from operant.control.factory import GRADIENT_STEPS_TO_REPAY
from operant.control.reinforce import Batch
from operant.nets import compiled, programs
from operant.runtime.settings import Settings

ALTERNATING = {**QUICK, "rounds_per_iteration": 1, "train_freq": 1, "num_envs": 4, "gradient_steps": 2}
LARGE = {**ALTERNATING, "batch_size": 256, "hidden_sizes": (128,)}
ON_POLICY = {"num_envs": 4, "num_steps": 8, "hidden_sizes": (16, 16)}
PPO = {**ON_POLICY, "num_epochs": 2, "num_minibatches": 2}
DQN = {
    "num_envs": 4,
    "train_freq": 2,
    "gradient_steps": 2,
    "batch_size": 16,
    "learning_starts": 32,
    "buffer_size": 500,
    "hidden_sizes": (16,),
}
TRPO = {**ON_POLICY, "critic_epochs": 2, "critic_minibatches": 2, "cg_max_steps": 3, "sub_sampling_factor": 2}
REINFORCE = {"num_envs": 2, "hidden_sizes": (16, 16), "critic_steps": 2}
LARGE_PPO = {**PPO, "num_steps": 128, "num_minibatches": 1, "hidden_sizes": (64,)}
CASES = [
    ("sac", "Pendulum-v1", ALTERNATING),
    ("td3", "Pendulum-v1", ALTERNATING),
    ("sac-discrete", "CartPole-v1", ALTERNATING),
    ("sac", "Pendulum-v1", LARGE),
    ("td3", "Pendulum-v1", LARGE),
    ("sac-discrete", "CartPole-v1", LARGE),
    ("ppo", "CartPole-v1", {**PPO, "lr_schedule": "linear", "clip_range_schedule": "linear", "target_kl": 0.5}),
    ("ppo-penalty", "Pendulum-v1", PPO),
    ("ppo-penalty", "CartPole-v1", LARGE_PPO),
    ("a2c", "CartPole-v1", ON_POLICY),
    ("prioritized-dqn", "CartPole-v1", {**DQN, "dueling": True, "double": True}),
    ("dqn", "operant/PixelCatch-v0", {**DQN, "num_envs": 2, "train_freq": 4}),
    ("trpo", "Pendulum-v1", TRPO),
    ("reinforce-baseline", "CartPole-v1", REINFORCE),
    (
        "recurrent-ppo",
        "CartPole-v1",
        {**PPO, "num_epochs": 1, "num_steps": 4, "hidden_sizes": (8,), "rnn_hidden_size": 8},
    ),
]
NAMES = [f"{a}-{t[-8:]}{'-large' * (v in (LARGE, LARGE_PPO))}" for a, t, v in CASES]


def learner(algorithm, task, values, choice="on", budget=10_000):
    settings = Settings(algorithm, task, seeds=(3, 5), budget=budget, compile=choice)
    config = configure(algorithm, task, preset="paper", **values)
    return assemble(catalog.find(algorithm), settings, config, device="cpu").learner


def parameters(made):
    if hasattr(made, "agent"):
        return [made.agent.parameters]
    return list(made.parameters.values()) if isinstance(made.parameters, dict) else [made.parameters]


@needs_compiler
@pytest.mark.parametrize(
    ("algorithm", "task", "values"),
    CASES,
    ids=NAMES,
)
def test_a_compiled_update_is_that_of_the_paper_too(algorithm, task, values):
    plain, fast = (learner(algorithm, task, values, choice) for choice in ("off", "on"))
    start = [part.clone() for part in parameters(plain)]
    for _ in range(5):
        plain.iterate()
        metrics = fast.iterate()
    assert all(program.compiled and program.calls for program in programs(fast))
    assert not any(program.compiled for program in programs(plain))
    for before, expected, part in zip(start, parameters(plain), parameters(fast), strict=True):
        assert not torch.equal(before, expected)
        torch.testing.assert_close(part, expected, rtol=1e-3, atol=1e-4)
    assert metrics["health/skipped_updates"].sum() == 0


@needs_compiler
@pytest.mark.parametrize(
    ("algorithm", "task", "values"),
    [CASES[0], CASES[3], CASES[6], CASES[8]],
    ids=["sac", "sac-large", "ppo", "ppo-large"],
)
def test_a_compiled_run_resumes_exactly(algorithm, task, values, tmp_path):
    """The learner that resumes is compiled again, as in another process."""
    assert_resumes_exactly(lambda: learner(algorithm, task, values), tmp_path, between=compiled.BINARIES.clear)


@pytest.mark.parametrize(("values", "seeds"), [(LARGE, 2), (ALTERNATING, 0), ({**LARGE, "hidden_sizes": ()}, 0)])
def test_seeds_are_improved_one_by_one_where_their_layers_are_large(values, seeds):
    made = learner("td3", "Pendulum-v1", values, choice="off")
    rows = made.one_by_one()
    assert len(rows) == seeds
    for seed, row in enumerate(rows):
        obs = torch.linspace(-1, 1, 30).view(1, 10, 3)
        torch.testing.assert_close(row.policy(obs)[0], made.policy(obs.expand(2, -1, -1))[seed])
        assert all(part.data_ptr() == made.parameters[name][seed].data_ptr() for name, part in row.parameters.items())


@pytest.mark.parametrize(("values", "seeds"), [(LARGE_PPO, 2), ({**LARGE_PPO, "num_steps": 64}, 0), (PPO, 0)])
def test_seeds_of_ppo_are_improved_one_by_one_where_their_layers_are_large(values, seeds):
    made = learner("ppo", "CartPole-v1", values, choice="off")
    rows = made.one_by_one()
    assert len(rows) == seeds
    batch = made.estimate_advantages(made.agent.collect(made.config.num_steps))
    gradient, _ = made.gradient(batch, made.agent.networks.free, 1.0, False)
    for seed, row in enumerate(rows):
        alone = batch.map(lambda part, seed=seed: part[seed : seed + 1])
        free = row.agent.networks.free
        method = vars(type(row))["gradient"].method  # the function that the program of this row compiles
        torch.testing.assert_close(method(row, alone, free, 1.0, False)[0][0], gradient[seed])
        assert row.agent.parameters.data_ptr() == made.agent.parameters[seed].data_ptr()


def test_long_runs_are_compiled_if_there_is_a_compiler(monkeypatch):
    config = configure("dqn", "CartPole-v1", preset="paper", **DQN)
    short, long = (
        # the first call of `iterate` ends the warmup
        config.learning_starts + (steps // config.gradient_steps - 1) * config.train_freq * config.num_envs
        for steps in (GRADIENT_STEPS_TO_REPAY - config.gradient_steps, GRADIENT_STEPS_TO_REPAY)
    )
    monkeypatch.setattr("operant.control.factory.missing_tool", lambda _: None)
    for budget, expected in ((short, False), (long, True)):
        made = learner("dqn", "CartPole-v1", DQN, choice="auto", budget=budget)
        assert {program.compiled for program in programs(made)} == {expected}
    monkeypatch.setattr("operant.control.factory.missing_tool", lambda _: "a C++ compiler such as g++")
    assert not programs(learner("dqn", "CartPole-v1", DQN, choice="auto", budget=long))[0].compiled
    with pytest.raises(ValueError, match=r"compile needs a C\+\+ compiler such as g\+\+, which is not inst"):
        learner("dqn", "CartPole-v1", DQN)


@pytest.mark.parametrize(
    ("algorithm", "task", "values"),
    [("ppo", "CartPole-v1", PPO), ("dqn", "CartPole-v1", DQN), ("sac", "Pendulum-v1", ALTERNATING)],
)
def test_networks_that_branch_on_values_are_not_compiled(algorithm, task, values, monkeypatch, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, inputs, outputs):\n"
        "        super().__init__()\n"
        "        self.policy, self.value = nn.Linear(inputs, outputs), nn.Linear(inputs, 1)\n\n"
        "    def forward(self, obs):\n"
        "        obs = -obs if obs.sum() > 1e9 else obs\n"
        f"        return {'self.policy(obs), self.value(obs)' if algorithm == 'ppo' else 'self.policy(obs)'}\n"
    )
    monkeypatch.setattr("operant.control.factory.missing_tool", lambda _: None)
    long = {"choice": "auto", "budget": 10_000_000}
    assert all(program.compiled for program in programs(learner(algorithm, task, values, **long)))
    values = {**values, "actor_network" if algorithm == "sac" else "network": f"{tmp_path / 'net.py'}:Net"}
    assert not any(program.compiled for program in programs(learner(algorithm, task, values, **long)))
    with pytest.raises(
        ValueError, match=r"do not depend on the values of tensors, as those of Net do: use torch.where"
    ):
        learner(algorithm, task, values)


@needs_compiler
def test_whether_a_run_is_compiled_is_written_down_and_kept(tmp_path, monkeypatch, caplog):
    values = {**ON_POLICY, "compile": "on", "budget": 64, "run": tmp_path / "run", "progress": "silent"}
    trained = operant.train("a2c", "CartPole-v1", preset="paper", **values)
    assert trained.run.resolved()["compile"] is True
    assert operant.load(tmp_path / "run").experiment.compiled
    monkeypatch.setenv("PATH", "")
    assert not operant.load(tmp_path / "run").experiment.compiled
    assert "needs a C++ compiler such as g++; it continues without" in caplog.text
    values = {**ON_POLICY, "budget": 64, "run": tmp_path / "plain", "progress": "silent"}
    assert operant.train("a2c", "CartPole-v1", preset="paper", **values).run.resolved()["compile"] is False


@needs_compiler
def test_workers_compile_what_they_compute(tmp_path):
    values = {**ON_POLICY, "workers": 2, "slice_steps": 64, "compile": "on", "budget": 128, "progress": "silent"}
    trained = operant.train("a3c", "CartPole-v1", preset="paper", run=tmp_path / "run", **values)
    assert trained.run.resolved()["compile"] is True
    assert trained.outcome.consumed >= 128


def test_other_chapters_have_nothing_to_compile(tmp_path):
    with pytest.raises(ValueError, match="q-learning has no compile, which"):
        operant.train("q-learning", "FrozenLake-v1", compile="on", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "algorithm",
    [a for a in catalog.CONTROL if a.model != "known" and a.family != "evolution"],
    ids=lambda algorithm: algorithm.name,
)
def test_every_algorithm_has_a_program(algorithm):
    task = "CartPole-v1" if "discrete" in algorithm.actions else "Pendulum-v1"
    config = configure(algorithm.name, task)
    assert programs(assemble(algorithm, Settings(algorithm.name, task, compile="off"), config, device="cpu").learner)


def test_the_steps_of_an_episode_are_padded_to_a_power_of_two():
    steps = torch.arange(5.0).repeat(2, 1)
    batch = Batch(steps.unsqueeze(-1), steps.long(), steps, steps, steps, weights=torch.ones(2, 5))
    padded = batch.padded()
    assert padded.weights.tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]] * 2
    assert padded.obs.shape == (2, 8, 1)
    assert padded.actions.tolist() == [[0, 1, 2, 3, 4, 4, 4, 4]] * 2
    assert torch.equal(padded.padded().psi, padded.psi)


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [
        ("sac", {**ALTERNATING, "train_freq": 2, "gradient_steps": 3}),
        ("td3", {**ALTERNATING, "learning_starts": 0}),
        ("ppo", PPO),
        ("a2c", ON_POLICY),
        ("dqn", DQN),
        ("dqn", {**DQN, "learning_starts": 0}),
        ("dqn", {**DQN, "learning_starts": 61}),
        ("trpo", TRPO),
        ("trpo", {**TRPO, "sampling": "vine", "vine_steps": 3}),
    ],
)
@pytest.mark.parametrize("budget", [960, 1000])
def test_gradient_steps_are_counted_before_they_are_taken(algorithm, values, budget):
    task = "Pendulum-v1" if algorithm in ("sac", "td3") else "CartPole-v1"
    made = learner(algorithm, task, values, choice="off", budget=budget)
    while made.consumed < budget:
        made.iterate()
    optimizer = made.optimizers["critics"] if algorithm in ("sac", "td3") else made.optimizer
    assert (optimizer.steps == made.gradient_steps).all()


def test_gradient_steps_of_whole_episodes_are_counted_at_least():
    made = learner(
        "reinforce-baseline", "CartPole-v1", {**REINFORCE, "max_episode_steps": 200}, choice="off", budget=1000
    )
    assert made.gradient_steps == 1000 // 400 * 3
