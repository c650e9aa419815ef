"""Helpers of the tests of this package: small learners, faulty environments, and checks of seeds and resume."""

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from operant.control import PPO, PPOConfig
from operant.envs import GymnasiumEnv, make
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.checkpoints import load as load_checkpoint
from operant.runtime.encoding import flatten
from operant.streams import row_seeds

TASKS = pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
SMALL = {
    "num_envs": 4,
    "num_steps": 16,
    "num_epochs": 2,
    "num_minibatches": 4,
    "hidden_sizes": (8, 8),
    "learning_rate": 1e-3,
}


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    """Return a small learner of a probe or a task of Gymnasium; `wrap` changes the environment."""
    config = PPOConfig(**{**SMALL, **config})
    if isinstance(task, type):
        env = task(row_seeds(seeds, config.num_envs, "environment"))
    else:
        env = make(task, config.num_envs, seeds, backend=backend)
    return PPO(config, env if wrap is None else wrap(env), seeds=seeds, budget=budget)


def same(left, right):
    """Return whether two states are equal, bit for bit."""
    (structure, tensors), (other_structure, others) = flatten(left), flatten(right)
    return structure == other_structure and all(torch.equal(tensors[name], others[name]) for name in tensors | others)


class Changed:
    """Environment whose steps are changed by a function of the step and the number of earlier steps."""

    def __init__(self, env, change):
        self.env, self.change, self.time = env, change, 0

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, actions):
        self.time += 1
        return self.change(self.env.step(actions), self.time - 1)


def build(kind, config, task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None):
    """Return a learner of any class, of a probe or a task of Gymnasium; `wrap` changes the environment."""
    if isinstance(task, type):
        env = task(row_seeds(seeds, config.num_envs, "environment"))
    else:
        env = make(task, config.num_envs, seeds, backend=backend)
    return kind(config, env if wrap is None else wrap(env), seeds=seeds, budget=budget)


def poison(row, when):
    """Return a wrapper that makes the reward and the score of one environment NaN at one step."""

    def change(step, time):
        bad = step.reward.clone()
        bad[row] = torch.nan
        return step._replace(reward=bad, score=bad) if time == when else step

    return lambda env: Changed(env, change)


def next_step(junk, *, rows=4, seeds=(3, 5)):
    """Return a wrapper for CartPole with NEXT_STEP autoreset, whose invalid transitions have arbitrary numbers."""

    def change(step, _):
        over = (step.terminated | step.truncated).unsqueeze(1)  # the next transition is invalid
        invalid = ~step.valid
        return step._replace(
            obs=torch.where(over, junk * torch.ones_like(step.obs), step.obs),
            reward=step.reward.masked_fill(invalid, junk),
            score=step.score.masked_fill(invalid, junk * junk),
            final_obs=torch.where(invalid.unsqueeze(1), junk * torch.ones_like(step.obs), step.final_obs),
        )

    def short():
        return gymnasium.make("CartPole-v1", max_episode_steps=9)

    def wrap(_):
        vector = SyncVectorEnv([short] * rows * len(seeds), autoreset_mode=AutoresetMode.NEXT_STEP)
        return Changed(GymnasiumEnv(vector, row_seeds(seeds, rows, "environment")), change)

    return wrap


def assert_equal_metrics(expected, got):
    """Check that the metrics of two iterations are equal, bit for bit."""
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        torch.testing.assert_close(torch.as_tensor(got[name]), torch.as_tensor(value), rtol=0, atol=0, equal_nan=True)


def assert_reports_alike(block, alone, *, place):
    """Check that the metrics of one seed among several are those of an iteration with this seed alone."""
    assert block.keys() == alone.keys()
    for name, value in block.items():
        each = value[place] if isinstance(value, torch.Tensor) and value.dim() else value
        expected = torch.as_tensor(alone[name]).squeeze(0)
        torch.testing.assert_close(
            torch.as_tensor(each),
            expected,
            rtol=1e-3,
            atol=1e-5,
            equal_nan=True,
            msg=lambda m, name=name: f"{name}: {m}",
        )


def assert_learns_alone_as_in_company(fresh, *, iterations, atol=1e-5):
    """Check that what a seed learns does not depend on the others; return the learners of three, one and two seeds.

    Args:
        fresh: returns a learner of these seeds.
        iterations: number of iterations of each learner.
        atol: absolute tolerance of the parameters.
    """
    block, alone, pair = (fresh(seeds) for seeds in [(3, 5, 8), (5,), (5, 3)])
    for _ in range(iterations):
        for learner in (block, alone, pair):
            learner.iterate()
    one, single, two = (getattr(each, "agent", each).parameters for each in (block, alone, pair))
    torch.testing.assert_close(one[1], single[0], rtol=1e-3, atol=atol)
    torch.testing.assert_close(one[[1, 0]], two, rtol=1e-3, atol=atol)
    return block, alone, pair


def assert_a_bad_reward_is_dropped(clean, hit):
    """Check that a NaN in the second batch of the second seed of `hit` is left out, and changes nothing else."""
    skipped, dropped = [], []
    for _ in range(4):
        before = hit.agent.parameters[1].clone()
        clean.iterate()
        metrics = hit.iterate()
        skipped.append(metrics["health/skipped_updates"].tolist())
        dropped.append(metrics["health/dropped_transitions"].tolist() if "health/dropped_transitions" in metrics else 0)
        assert not torch.equal(hit.agent.parameters[1], before)
    assert skipped == [[0, 0]] * 4
    assert dropped == [0, [0, 1], 0, 0]
    assert torch.equal(hit.agent.parameters[0], clean.agent.parameters[0])
    assert not torch.equal(hit.agent.parameters[1], clean.agent.parameters[1])
    assert hit.agent.parameters.isfinite().all()


def assert_resumes_exactly(fresh, tmp_path, iterations=3, between=lambda: None):
    """Check that a learner of `fresh()` resumes bit for bit from a checkpoint of another, after a call of `between`."""
    whole, first, second = fresh(), fresh(), fresh()
    for _ in range(iterations):
        whole.iterate()
        first.iterate()
    saved = first.state_dict()
    folder = Checkpoints(tmp_path / "checkpoints").save(saved, first.consumed)
    consumed = first.consumed
    first.iterate()  # must not change the saved state
    between()
    second.load_state_dict(load_checkpoint(folder))
    assert second.consumed == consumed > 0
    assert same(second.state_dict(), saved)
    for _ in range(iterations):
        assert_equal_metrics(whole.iterate(), second.iterate())
    assert same(whole.state_dict(), second.state_dict())


def assert_a_refused_state_changes_nothing(fresh):
    """Check that a state without any of its parts raises an error, and leaves a learner of `fresh()` unchanged."""
    hit, twin, other = fresh(), fresh(), fresh()
    for _ in range(2):
        other.iterate()
    for each in (hit, twin):
        each.iterate()
    state, before = other.state_dict(), twin.state_dict()
    assert not same(state, before)
    for part in state:
        with pytest.raises(KeyError, match=part):
            hit.load_state_dict({name: value for name, value in state.items() if name != part})
        assert same(hit.state_dict(), before), part
    assert_equal_metrics(twin.iterate(), hit.iterate())
    assert same(hit.state_dict(), twin.state_dict())


def assert_solved(learner, value, solution, *, atol=0.1):
    """Check the solution of a probe: values `value(obs)` (None: there are none), and greedy actions."""
    seeds = len(learner.seeds)
    obs = solution.obs.expand(seeds, *solution.obs.shape)
    if value is not None:
        torch.testing.assert_close(value(obs), solution.values.expand(seeds, -1), atol=atol, rtol=0)
    if solution.actions is not None:
        actions, _ = learner.act(obs, None, None)
        torch.testing.assert_close(actions, solution.actions.expand_as(actions), atol=atol, rtol=0)
