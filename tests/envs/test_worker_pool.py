import multiprocessing
import os
import re
import signal
import threading
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs import EnvError, GymnasiumEnv, WorkerError, make
from operant.envs.worker_pool import WorkerPool

ACTIONS = torch.zeros(3, 1)
LAST = "-1$"
"""The name of the last of two workers."""


class Counting(gymnasium.Env):
    """Environment that observes its step in the episode and its process id."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.array([0.0, os.getpid()]), {}

    def step(self, action):
        self.age += 1
        return np.array([self.age, os.getpid()]), 1.0, self.age == 4, False, {"is_success": True, "name": "x"}


class Broken(Counting):
    """Environment whose step raises an error."""

    def step(self, action):
        raise ZeroDivisionError("one by nought")


class Locked(Counting):
    """Environment whose error cannot be pickled."""

    def step(self, action):
        raise ValueError(threading.Lock())


class Begun(Counting):
    """Environment that calls a function when it is made in a matching process."""

    def __init__(self, happening, where=""):
        if re.search(where, multiprocessing.current_process().name):
            happening(self)


class TwoWordsError(Exception):
    """Error that cannot be constructed again from its message."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def sleep(_):
    time.sleep(600)


def die(_):
    os._exit(7)


def die_slowly(env):
    """Close every pipe, and exit after the reader has noticed it."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    time.sleep(0.5)
    os._exit(7)


def divide(_):
    raise ZeroDivisionError("one by nought")


def complain(_):
    raise TwoWordsError("no", "power")


def whisper(_):
    class LocalError(Exception):
        """Error that cannot be found by its name."""

    raise LocalError("no light")


def widen(env):
    env.action_space = spaces.Box(-3, 3, (1,), np.float32)


@pytest.fixture
def pool():
    """Return a function that makes a pool of two workers; the pool is closed after the test."""
    pools = []

    def make_pool(workers=2, **options):
        pools.append(WorkerPool(workers, **options))
        return pools[-1]

    before = set(multiprocessing.active_children())
    yield make_pool
    for made in pools:
        made.close()
        made.close()
    assert set(multiprocessing.active_children()) == before


def wrapped(pool, kind=Counting, rows=3):
    vector = pool.make(kind, rows, task="Still")
    env = GymnasiumEnv(vector, range(rows), task="Still")
    env.reset()
    return env


def test_workers_hold_several_environments_and_serve_several_groups(pool):
    made = pool()
    first, second = wrapped(made), wrapped(made, rows=4)
    assert len(made.processes) == 2
    for env, rows in ((first, 3), (second, 4)):
        step = env.step(torch.zeros(rows, 1))
        assert step.obs[:, 0].tolist() == [1.0] * rows
        assert sorted(set(step.obs[:, 1].tolist())) == sorted(float(process.pid) for process in made.processes)
    second.close()
    first.step(ACTIONS)
    third = wrapped(made)
    assert third.step(ACTIONS).obs[0, 0] == 1.0
    assert len(made.processes) == 2


def test_no_more_workers_are_started_than_cores_or_environments(pool):
    cores = len(os.sched_getaffinity(0))
    made = pool(0)
    wrapped(made, rows=1)
    assert len(made.processes) == 1
    wrapped(made, rows=50)
    assert len(made.processes) == min(50, cores)
    more = pool(3)
    wrapped(more, rows=5)
    assert len(more.processes) == 3


@pytest.mark.parametrize(("values", "message"), [({"workers": -1}, "-1"), ({"lost_workers": "wait"}, "'wait'")])
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        WorkerPool(**values)


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan")])
def test_a_deadline_is_positive(deadline):
    with pytest.raises(ValueError, match="deadline must be a positive number"):
        WorkerPool(deadline=deadline)


def test_a_separate_pool_ends_with_the_environments():
    before = set(multiprocessing.active_children())
    env = make("Acrobot-v1", 2, [3], backend="gymnasium", vectorization="async")
    assert set(multiprocessing.active_children()) != before
    env.close()
    env.close()
    assert set(multiprocessing.active_children()) == before


def test_workers_that_answer_are_closed_in_peace(pool):
    made = pool()
    wrapped(made).step(ACTIONS)
    processes = made.processes
    made.close()
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_worker_that_dies_is_named_and_ends_all(pool):
    made = pool()
    env = wrapped(made)
    os.kill(made.processes[1].pid, signal.SIGKILL)
    made.processes[1].join()
    for _ in range(2):
        message = r"Still lost the worker processes of environments 2 \(exit code -9\).*`operant resume` continues"
        with pytest.raises(WorkerError, match=message):
            env.step(ACTIONS)


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_worker_that_hangs_is_named_when_the_deadline_is_over(call, pool):
    made = pool(deadline=3.0)
    env = wrapped(made)
    os.kill(made.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"environments 0, 1 have not replied for 3 seconds.*operant resume"):
        env.step(ACTIONS) if call == "step" else env.reset()
    made.close()
    assert not any(process.is_alive() for process in made.processes)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_is_replaced_where_that_is_asked_for(sign, pool, caplog):
    made = pool(lost_workers="restart", deadline=5.0)
    env, other = wrapped(made), wrapped(made)
    assert not env.always_valid
    for _ in range(2):
        assert env.step(ACTIONS).valid.all()
    other.step(ACTIONS)
    old = made.processes[1]
    os.kill(old.pid, sign)
    step = env.step(ACTIONS)
    assert made.restarts == 1
    assert "environments 2" in caplog.text
    assert "start new episodes (replacement 1 in this run)" in caplog.text
    assert not old.is_alive()
    assert step.valid.tolist() == [True, True, False]
    assert step.truncated.tolist() == [False, False, True]
    assert step.obs[:, 0].tolist() == [3.0, 3.0, 0.0]
    assert step.final_obs[:, 0].tolist() == [3.0, 3.0, 2.0], "the last observation before the loss"
    step = env.step(ACTIONS)
    assert step.valid.all()
    assert step.obs[:, 0].tolist() == [0.0, 0.0, 1.0]
    assert step.terminated.tolist() == [True, True, False]
    lost = other.step(ACTIONS)
    assert lost.valid.tolist() == [True, True, False]
    assert other.step(ACTIONS).obs[:, 0].tolist() == [3.0, 3.0, 1.0]


def test_a_worker_lost_in_a_reset_is_replaced(pool):
    made = pool(lost_workers="restart")
    env = wrapped(made, rows=4)
    for _ in range(3):
        env.step(torch.zeros(4, 1))
    os.kill(made.processes[0].pid, signal.SIGKILL)
    assert env.reset()[:, 0].tolist() == [0.0] * 4
    step = env.step(torch.zeros(4, 1))
    assert step.valid.all()
    assert step.obs[:, 0].tolist() == [1.0] * 4


def test_a_replaced_worker_is_saved_and_restored_like_others(pool):
    made = pool(lost_workers="restart")
    env = wrapped(made)
    for t in range(7):
        if t == 2:
            os.kill(made.processes[1].pid, signal.SIGKILL)
        env.step(ACTIONS)
    other = wrapped(pool(lost_workers="restart"))
    state = env.state_dict()
    state["obs"][:, 1] = other.load_state_dict(state | {"obs": None})[:, 1]  # the processes are new
    assert torch.equal(other.load_state_dict(state), state["obs"])


class Drifting(Counting):
    """Environment that draws from its seed at every step; or, if it is not deterministic, from its process."""

    honest = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = self.np_random.integers(2, 9)
        return self.np_random.normal(size=2), {}

    def step(self, action):
        self.age += 1
        obs = self.np_random.normal(size=2) + action
        ends = self.age == self.length if self.honest else os.getpid() != self.first
        return obs if self.honest else obs * os.getpid(), float(obs[0]), ends, False, {"is_success": True}


class Dishonest(Drifting):
    """Environment that ends its episode immediately in another process."""

    honest = False
    first = os.getpid()

    def reset(self, *, seed=None, options=None):
        Dishonest.first = int(os.environ.setdefault("OPERANT_TEST_FIRST", str(os.getpid())))
        return super().reset(seed=seed)


def course(env, steps=40, happening=lambda t: None):
    generator, found = np.random.default_rng(5), []
    for t in range(steps):
        happening(t)
        step = env.step(torch.tensor(generator.normal(size=(5, 1)), dtype=torch.float32))
        found += [step.obs, step.final_obs, step.reward, step.terminated, step.truncated, step.valid]
    return found


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_replaced_worker_that_replays_its_episodes_leaves_no_trace(sign, pool, caplog):
    expected = course(wrapped(pool(lost_workers="replay"), Drifting, rows=5))
    made = pool(lost_workers="replay", deadline=5.0)
    env, other = wrapped(made, Drifting, rows=5), wrapped(made, Drifting, rows=5)
    assert env.always_valid
    wrong = {3: 0, 11: 1, 12: 0, 25: 1} if sign == signal.SIGKILL else {7: 1}
    found = course(env, happening=lambda t: t in wrong and os.kill(made.processes[wrong[t]].pid, sign))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert made.restarts == len(wrong)
    assert "replayed their episodes (replacement 1 in" in caplog.text
    assert all(torch.equal(*pair) for pair in zip(course(other), expected, strict=True)), "different environments there"


def test_a_replaced_worker_may_be_lost_in_a_reset_as_well(pool):
    made = pool(lost_workers="replay")
    env = wrapped(made, Drifting, rows=5)
    course(env, steps=7)
    os.kill(made.processes[1].pid, signal.SIGKILL)
    first = env.reset()
    assert torch.equal(first, wrapped(pool(), Drifting, rows=5).reset())
    assert made.restarts == 1


@pytest.mark.parametrize("lost_workers", ["replay", "restart"])
def test_a_worker_that_was_lost_is_replaced_where_more_environments_are_made(lost_workers, pool):
    """The loss is found when more environments are made, as at the first evaluation of a run."""
    made = pool(lost_workers=lost_workers)
    env = wrapped(made, Drifting, rows=5)
    course(env, steps=7)
    os.kill(made.processes[1].pid, signal.SIGKILL)
    other = wrapped(made, Drifting, rows=5)
    assert made.restarts == 1
    expected = wrapped(pool(), Drifting, rows=5)
    assert all(torch.equal(*pair) for pair in zip(course(other), course(expected), strict=True))
    course(env, steps=2)


def test_a_replaced_worker_whose_environments_end_it_again_ends_training(pool):
    made = pool(lost_workers="replay")
    with pytest.raises(WorkerError, match="replaced 3 times and lost each time"):
        made.make(partial(Begun, die), 3, task="Begun")


def test_a_replayed_worker_that_is_lost_again_and_again_ends_training(pool):
    env = wrapped(pool(lost_workers="replay"), Fatal)
    with pytest.raises(WorkerError, match="replaced 3 times and lost each time"):
        env.step(ACTIONS)


def test_environments_that_take_another_course_are_no_replay(pool, monkeypatch):
    monkeypatch.delenv("OPERANT_TEST_FIRST", raising=False)
    made = pool(1, lost_workers="replay")
    env = wrapped(made, Dishonest, rows=5)
    for _ in range(2):
        env.step(torch.zeros(5, 1))
    os.kill(made.processes[0].pid, signal.SIGKILL)
    monkeypatch.setenv("OPERANT_TEST_FIRST", "1")  # the new process did not start the episode
    with pytest.raises(WorkerError, match=r"Still: environments 0, 1, 2, 3, 4 .*not deterministic"):
        env.step(torch.zeros(5, 1))


class Fatal(Counting):
    """Environment that kills its process at every step."""

    def step(self, action):
        os._exit(3)


def test_a_worker_that_is_lost_again_and_again_ends_training(pool):
    env = wrapped(pool(lost_workers="restart"), Fatal)
    for _ in range(3):
        assert not env.step(ACTIONS).valid.any()
    with pytest.raises(WorkerError, match="replaced 3 times and lost each time"):
        env.step(ACTIONS)


def assert_fails(pool, error, message, happening, *, where="", deadline=30.0):
    """Check that making the environments fails."""
    with pytest.raises(error, match=message) as caught:
        pool(deadline=deadline).make(partial(Begun, happening, where), 3, task="Begun")
    return caught.value


@pytest.mark.parametrize(("where", "rows"), [("", "0, 1, 2"), (LAST, "2")])
def test_an_environment_whose_making_hangs_is_named_when_the_deadline_is_over(where, rows, pool):
    message = rf"Begun: the worker processes of environments {rows} have not created them within 5 seconds"
    assert_fails(pool, WorkerError, message, sleep, where=where, deadline=5.0)


@pytest.mark.parametrize(("where", "rows"), [("", "0, 1"), (LAST, "2")])
@pytest.mark.parametrize("happening", [die, die_slowly])
def test_an_environment_whose_making_kills_its_process_is_named(where, rows, happening, pool):
    message = rf"Begun lost the worker processes of environments {rows} \(exit code 7\)"
    assert_fails(pool, WorkerError, message, happening, where=where)


@pytest.mark.parametrize("where", ["", LAST])
def test_a_mistake_in_making_an_environment_is_shown_as_it_is(where, pool):
    error = assert_fails(pool, ZeroDivisionError, "^one by nought", divide, where=where)
    assert "in divide" in "".join(error.__notes__)


@pytest.mark.parametrize(("happening", "text"), [(complain, "TwoWordsError: no power"), (whisper, "LocalError: no li")])
def test_an_error_that_cannot_be_sent_is_reported_by_its_text(happening, text, pool):
    assert_fails(pool, RuntimeError, text, happening, where=LAST)


def test_rows_with_other_spaces_are_rejected(pool):
    assert_fails(
        pool, RuntimeError, r"same spaces, but row 2 has .*Box\(-3.0, 3.0.*and others .*Box\(-2.0", widen, where=LAST
    )


def test_a_mistake_in_the_environment_names_task_call_and_rows(pool):
    env = wrapped(pool(), Broken)
    line = Broken.step.__code__.co_firstlineno + 1
    said = rf"Still: step\(\).*ZeroDivisionError in environments 0, 2: one by nought \({__file__}, line {line}\)\. Fix"
    with pytest.raises(EnvError, match=said) as caught:
        env.step(ACTIONS)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_that_cannot_be_pickled_is_reported_by_its_text(pool):
    with pytest.raises(EnvError, match="ValueError: <unlocked"):
        wrapped(pool(), Locked).step(ACTIONS)


def test_a_question_that_was_given_up_does_not_confuse_the_next(pool):
    made = pool()
    env = wrapped(made)
    made._workers[0].pipe.send((-1, "step", 99, (None, None)))
    assert env.step(ACTIONS).obs[:, 0].tolist() == [1.0] * 3


def test_making_by_name_has_the_deadline():
    gymnasium.register("OperantTestBegun-v0", Begun, kwargs={"happening": sleep})
    try:
        with pytest.raises(
            WorkerError, match=r"OperantTestBegun-v0: the worker processes of environments 0, 1 have not"
        ):
            make("OperantTestBegun-v0", 2, [0], vectorization="async", deadline=0.5)
    finally:
        gymnasium.registry.pop("OperantTestBegun-v0")
