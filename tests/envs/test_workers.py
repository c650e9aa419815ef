import multiprocessing
import os
import signal
import threading

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RescaleAction

from operant.envs import EnvError, GymnasiumEnv


class Still(gymnasium.Env):
    """Environment in which nothing happens."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Broken(Still):
    """Environment whose step raises an error."""

    def step(self, action):
        raise ZeroDivisionError("one by nought")


class Locked(Still):
    """Environment whose error cannot be pickled."""

    def step(self, action):
        raise ValueError(threading.Lock())


ACTIONS = torch.zeros(3, 1)


def workers(kind=Still, **kwargs):
    vector = AsyncVectorEnv([kind] * 3, autoreset_mode=AutoresetMode.DISABLED)
    env = GymnasiumEnv(vector, [1, 2, 3], task="Still", **kwargs)
    env.reset()
    return vector, env


def assert_closed(vector, env):
    env.close()
    env.close()
    assert not any(process.is_alive() for process in vector.processes)


def test_workers_that_answer_are_closed_in_peace():
    vector, env = workers(deadline=30.0)
    env.step(ACTIONS)
    assert_closed(vector, env)
    assert [process.exitcode for process in vector.processes] == [0, 0, 0]


def test_a_worker_that_dies_is_named_and_closing_still_works():
    vector, env = workers()
    os.kill(vector.processes[1].pid, signal.SIGKILL)
    vector.processes[1].join()
    with pytest.raises(RuntimeError, match=r"Still lost the worker processes of environments 1 \(exit code -9\)"):
        env.step(ACTIONS)
    assert_closed(vector, env)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_worker_that_hangs_is_named_when_the_deadline_is_over(call, wrapped):
    vector = AsyncVectorEnv([Still] * 3, autoreset_mode=AutoresetMode.DISABLED)
    outer = RescaleAction(vector, np.full(1, -1, np.float32), np.full(1, 1, np.float32)) if wrapped else vector
    env = GymnasiumEnv(outer, [1, 2, 3], task="Still", deadline=3.0)
    env.reset()
    for row in (0, 2):
        os.kill(vector.processes[row].pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=r"environments 0, 2 have not replied for 3 seconds.*operant resume"):
        env.step(ACTIONS) if call == "step" else env.reset()
    assert_closed(vector, env)


@pytest.mark.parametrize("pending", [False, True])
def test_workers_that_hang_are_not_waited_for_when_closing(pending):
    vector, env = workers(deadline=5.0)
    os.kill(vector.processes[1].pid, signal.SIGSTOP)
    if pending:
        vector.step_async(np.zeros((3, 1), np.float32))
    assert_closed(vector, env)
    assert [process.exitcode for process in vector.processes] == [0, -9, 0]


@pytest.mark.filterwarnings("ignore:.*ERROR")  # the form in which Gymnasium logs it
def test_a_mistake_in_the_environment_names_task_call_and_rows():
    vector, env = workers(Broken)
    with pytest.raises(
        EnvError, match=r"Still: step\(\).*ZeroDivisionError in environments 0, 1, 2: one by nought"
    ) as caught:
        env.step(ACTIONS)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert_closed(vector, env)


@pytest.mark.parametrize("error", [ValueError, ConnectionError, multiprocessing.TimeoutError])
def test_an_error_in_this_process_is_distinguished_from_wrong_use(error):
    class Failing(Still):
        def reset(self, *, seed=None, options=None):
            raise error("no light")

    env = GymnasiumEnv(SyncVectorEnv([Failing], autoreset_mode=AutoresetMode.DISABLED), [1], task="Failing")
    with pytest.raises(EnvError, match=rf"Failing: reset\(\).*{error.__name__}: no light") as caught:
        env.reset()
    assert type(caught.value.__cause__) is error
    assert f"({__file__}, line {Failing.reset.__code__.co_firstlineno + 1})" in str(caught.value)


class Exits(Still):
    """Environment that exits the program, as some simulators do."""

    def step(self, action):
        raise SystemExit(0)


class OldReset(Still):
    """Environment with the `reset` of Gymnasium before 0.26."""

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class OldStep(Still):
    """Environment with the `step` of Gymnasium before 0.26."""

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


class ListReward(Still):
    """Environment whose reward is an array."""

    def step(self, action):
        return np.zeros(2, np.float32), np.zeros(1), False, False, {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Exits, "step\\(\\) of the environment raised SystemExit: 0 .*test_workers.py, line"),
        (OldReset, r"no attribute 'items': reset\(\) must return \(observation, info\)\. Fix"),
        (OldStep, r"not enough values .*: step\(\) must return \(observation, reward, terminated, truncated, info\)"),
        (ListReward, r"sequence: the reward that step\(\) returns must be a number\. Fix"),
    ],
)
def test_another_interface_and_an_exit_are_explained(kind, message):
    env = GymnasiumEnv(SyncVectorEnv([kind], autoreset_mode=AutoresetMode.DISABLED), [1], task="Mine")

    def play():
        env.reset()
        env.step(torch.zeros(1, 1))

    with pytest.raises(EnvError, match=message):
        play()
    env.close()


def test_a_mistake_that_cannot_be_pickled_is_not_waited_for():
    vector, env = workers(Locked, deadline=0.5)
    with pytest.raises(RuntimeError, match="Still: the environment of a worker process raised an error that cannot be"):
        env.step(ACTIONS)
    assert_closed(vector, env)


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan")])
def test_a_deadline_is_positive(deadline):
    vector = AsyncVectorEnv([Still], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="deadline must be a positive number"):
        GymnasiumEnv(vector, [1], deadline=deadline)
    vector.close()
