import multiprocessing
import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from operant.envs import worker_process
from operant.envs.worker_process import observation_buffers, part, serve

SPACES = [
    spaces.Box(-1, 1, (3,), np.float64),
    spaces.Box(0, 255, (4, 5), np.uint8),
    spaces.Discrete(7),
    spaces.MultiDiscrete([2, 3]),
    spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Dict({"c": spaces.MultiBinary(3)})}),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, ()))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_in_one_buffer_equal_separate_arrays(space):
    size, _ = observation_buffers(space, 4, None)
    memory = memoryview(bytearray(size))
    _, arrays = observation_buffers(space, 4, memory)
    _, other = observation_buffers(space, 4, memory)
    space.seed(3)
    members = [space.sample() for _ in range(4)]
    concatenate(space, members[:1], part(arrays, 0, 1))
    concatenate(space, members[1:], part(arrays, 1, 3))
    expected = concatenate(space, members, create_empty_array(space, 4))
    assert repr(other) == repr(expected)


class Quiet(gymnasium.Env):
    observation_space = action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}


def worker():
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(theirs, [ours]), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def test_a_worker_ends_when_its_parent_has_ended():
    ours, process = worker()
    ours.close()
    process.join(5)
    assert process.exitcode == 0


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_left_to_the_parent(sign):
    ours, process = worker()
    ours.send((1, "unknown", 0, ()))
    serial, answer = ours.recv()
    assert (serial, type(answer.error)) == (1, AttributeError)
    os.kill(process.pid, sign)
    ours.send((2, "unknown", 0, ()))
    assert ours.recv()[0] == 2
    ours.send((0, "stop", 0, None))
    process.join(5)
    assert process.exitcode == 0


def test_a_worker_asked_to_end_does_so_when_it_is_idle(monkeypatch):
    monkeypatch.setattr(worker_process, "PATIENCE", 0.1)
    ours, process = worker()
    ours.send((1, "unknown", 0, ()))
    ours.recv()
    os.kill(process.pid, signal.SIGTERM)
    process.join(5)
    assert process.exitcode == 0
    ours.close()
