import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import pytest
import torch

from control.learners import assert_solved, build, same
from control.probes import Constant, Matched
from needs import needs_compiler
from operant import catalog
from operant.control.a2c import A2C, A2CConfig
from operant.envs import WorkerError, make
from operant.experimental.a3c import A3C, PRESETS, STEPS, UPDATES, A3CConfig, Shared, Worker
from operant.nets import OPTIMIZERS
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.configuration import configuration
from operant.streams import row_seeds

SMALL = {"workers": 2, "num_envs": 4, "num_steps": 8, "steps_per_iteration": 256, "hidden_sizes": (8,), "ent_coef": 0.0}


def matched(seed):
    """Return a worker's environments; the process of the worker imports it by name."""
    return Matched(row_seeds([seed], 8, "environment"))


class Broken(Matched):
    """Environment that fails in its first step."""

    def step(self, actions):
        raise ArithmeticError("the world ends here")


def broken(seed):
    return Broken(row_seeds([seed], 8, "environment"))


def learner(task=Matched, seeds=(3,), *, budget=100_000, make_env=None, **config):
    config = A3CConfig(**{**SMALL, **config})
    return build(partial(A3C, make_env=make_env), config, task, seeds, budget=budget)


@pytest.fixture
def started():
    """Return a function that makes learners, which are closed after the test."""
    made = []

    def start(**config):
        made.append(learner(num_envs=8, make_env=matched, **config))
        return made[-1]

    yield start
    for a3c in made:
        a3c.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


# A single worker is an actor-critic


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_a_worker_without_others_is_an_actor_critic(optimizer):
    config = A3CConfig(**{**SMALL, "workers": 1, "optimizer": optimizer, "learning_rate": 3e-3})
    fields = {name: getattr(config, name) for name in A2CConfig.__dataclass_fields__}
    a2c = build(A2C, A2CConfig(**fields), "CartPole-v1", (7,), budget=640)
    parameters = a2c.agent.parameters.clone()
    moments = OPTIMIZERS[optimizer](parameters, epsilon=config.adam_eps).state_dict()
    del moments["skipped"]
    shared = Shared(parameters, moments, torch.zeros(1, 2, dtype=torch.int64))
    make_env = lambda seed: make("CartPole-v1", 4, [seed])  # noqa: E731
    worker = Worker(0, config, make_env, seed=7, budget=640, shared=shared)
    assert not worker.local.gradient.compiled
    reports = worker.run(320, lambda: False)
    expected = [a2c.iterate() for _ in range(10)]
    torch.testing.assert_close(shared.parameters, a2c.agent.parameters, rtol=1e-5, atol=1e-7)
    assert shared.counts.tolist() == [[10, 320]]
    assert reports[0] == pytest.approx([float(metrics["losses/policy"]) for metrics in expected], rel=1e-4, abs=1e-5)
    assert reports[-2:] == [[0.0] * 10, [0.0] * 10], "no other worker writes, and no step is skipped"


def test_staleness_counts_the_updates_of_others_between_reading_and_writing():
    config = A3CConfig(**{**SMALL, "workers": 2})
    a2c = build(A2C, config, "CartPole-v1", (7,))
    counts = torch.zeros(2, 2, dtype=torch.int64)
    moments = {"second": torch.ones_like(a2c.agent.parameters), "steps": torch.zeros(1)}
    shared = Shared(a2c.agent.parameters, moments, counts)
    worker = Worker(0, config, lambda seed: make("CartPole-v1", 4, [seed]), seed=7, budget=640, shared=shared)
    original = worker.local.estimate_advantages

    def slow(rollout):
        counts[1, UPDATES] += 3  # the work of the other worker meanwhile
        return original(rollout)

    worker.local.estimate_advantages = slow
    assert worker.run(2 * 32, lambda: False)[-2] == [3.0, 3.0]


@needs_compiler
def test_a_compiled_worker_does_what_the_others_do(started):
    """Use workers of two learners of one seed, which run here one at a time."""
    learners = [started(workers=1, learning_rate=3e-3) for _ in range(2)]
    learners[1].gradient.compiled = True
    before = learners[0].agent.parameters.clone()
    for a3c in learners:
        (make_worker,) = a3c._makers()
        worker = make_worker()
        worker.run(5 * 64, lambda: False)
        worker.close()
        assert worker.local.gradient.calls == (5 if a3c.gradient.compiled else 0)
    plain, compiled = (a3c.agent.parameters for a3c in learners)
    assert not torch.equal(plain, before)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)


def test_a_worker_takes_its_share_of_the_gradient_steps():
    assert learner(workers=4, budget=3200).gradient_steps == 3200 // (4 * 8) // 4


# Several workers


def test_workers_learn_together_survive_an_interruption_and_a_dead_one_is_named(started):
    a3c = started(learning_rate=2e-2, optimizer="adam", gamma=0.5, hidden_sizes=(16,), steps_per_iteration=4096)
    for _ in range(5):
        before, counts = a3c.consumed, a3c.shared.counts.clone()
        metrics = a3c.iterate()
        assert a3c.consumed >= before + 4096
        taken = a3c.shared.counts - counts
        assert torch.equal(taken[:, STEPS], 64 * taken[:, UPDATES])
        assert taken[:, STEPS].sum() == metrics["rollout/episodes"], "episodes of the probe have one step"
        assert 0 <= metrics["staleness/mean"] <= metrics["staleness/most"]
        assert all(value.shape == (1,) for value in metrics.values())
    assert_solved(a3c, a3c.agent.networks.value, Matched.solution(0.5), atol=0.2)
    victim, other = (process.pid for process in a3c.crew.processes)
    os.kill(victim, signal.SIGINT)  # as Ctrl-C in a terminal sends it to the whole group
    a3c.iterate()
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"a3c: worker 0 \(process {victim}\) died with exit code -9"):
        a3c.iterate()
    assert not alive(other), "the others do not outlive it"


def test_a_hanging_worker_is_named_after_the_deadline(started):
    a3c = started()
    a3c.iterate()
    a3c.crew.config = replace(a3c.config, deadline=5.0)
    pid = a3c.crew.processes[1].pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=rf"worker 1 \(process {pid}\) has made no update for 5 seconds"):
        a3c.iterate()
    assert not alive(pid)


def test_an_error_of_a_worker_is_reported_in_full():
    a3c = learner(num_envs=8, make_env=broken)
    with pytest.raises(WorkerError, match=r"worker \d failed: ArithmeticError: the world ends here\n") as caught:
        a3c.iterate()
    assert "Traceback" in caught.value.__notes__[0]
    a3c.close()


def test_a_task_that_only_the_parent_has_registered_is_made_by_the_workers():
    """`module:Name-v0` is such a task: nothing else imports its module."""
    entry_point = "gymnasium.envs.classic_control:CartPoleEnv"
    gymnasium.register("parent/Pole-v0", entry_point=entry_point, max_episode_steps=5)
    a3c = learner("parent/Pole-v0", workers=1)
    try:
        assert a3c.iterate()["rollout/episode_length"] == 5
    finally:
        a3c.close()
        del gymnasium.registry["parent/Pole-v0"]


def test_infos_of_episodes_are_reported():
    a3c = learner("FrozenLake-v1", workers=2)
    try:
        metrics = a3c.iterate()
        assert metrics["rollout/episodes"] > 1
        assert metrics["rollout/info/prob"].tolist() == pytest.approx([1 / 3])
        assert metrics["health/updates"] >= 256 / (4 * 8)
    finally:
        a3c.close()


def test_a_resumed_run_continues_from_the_same_parameters(started, tmp_path):
    first = started(optimizer="adam")
    first.iterate()
    saved = first.state_dict()
    folder = Checkpoints(tmp_path / "checkpoints").save(saved, first.consumed)
    consumed = first.consumed
    first.iterate()  # must not change the saved state
    second = started(optimizer="adam")
    second.load_state_dict(load_checkpoint(folder))
    assert second.consumed == consumed
    assert torch.equal(second.agent.parameters, saved["parameters"])
    assert torch.equal(second.shared.moments["second"], saved["moments"]["second"])
    second.iterate()
    assert second.consumed >= consumed + 256
    assert not torch.equal(second.agent.parameters, saved["parameters"])
    assert all(process.is_alive() for process in second.crew.processes)
    processes = second.crew.processes
    second.close()
    second.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("part", ["parameters", "moments", "counts"])
def test_a_rejected_state_leaves_the_learner_unchanged(started, part):
    first, other = started(optimizer="adam"), started(optimizer="adam")
    for each in (first, other):
        each.iterate()
    before, state = first.state_dict(), other.state_dict()
    del state[part]
    with pytest.raises(KeyError, match=part):
        first.load_state_dict(state)
    assert same(first.state_dict(), before)
    first.iterate()
    assert first.consumed > int(before["counts"][STEPS])


def test_workers_end_with_their_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal
        from operant.experimental.a3c import A3C, A3CConfig
        from operant.envs import WorkerError, make

        if __name__ == "__main__":
            config = A3CConfig(workers=2, num_envs=2, steps_per_iteration=64)
            a3c = A3C(config, make("CartPole-v1", 2, [0]), seeds=[0], budget=1000)
            a3c.iterate()
            print(*[process.pid for process in a3c.crew.processes], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    workers = [int(pid) for pid in result.stdout.split()]
    assert len(workers) == 2
    until = time.monotonic() + 60
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)


# Errors


def test_several_seeds_are_rejected():
    with pytest.raises(ValueError, match=r"a3c trains one seed at a time, got \[3, 5\]: start one run per seed"):
        learner(seeds=(3, 5))


def test_another_device_is_rejected():
    probe = type("Elsewhere", (Constant,), {"device": torch.device("meta")})
    with pytest.raises(ValueError, match="runs on the CPU, got device meta"):
        learner(probe)


@pytest.mark.parametrize("name", ["normalize_obs", "normalize_reward"])
def test_statistics_of_each_worker_alone_are_rejected(name):
    with pytest.raises(ValueError, match=f"{name} must be false: the workers share no statistics"):
        A3CConfig(**{name: True})


@pytest.mark.parametrize(
    ("name", "value"), [("workers", 0), ("steps_per_iteration", 0), ("deadline", 0.0), ("num_steps", 0), ("gamma", 2.0)]
)
def test_invalid_values_are_rejected_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}$"):
        A3CConfig(**{name: value})


def test_a_budget_of_zero_is_rejected():
    with pytest.raises(ValueError, match="budget must be at least 1 environment step, got 0"):
        learner(budget=0)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    config = configuration(catalog.find("a3c"), name)
    assert {key: getattr(config, key) for key in PRESETS[name]} == PRESETS[name]
