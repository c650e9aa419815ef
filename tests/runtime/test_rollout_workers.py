"""Actors collect the same rollouts on any host, also if some are lost, and versions identify outdated ones."""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch

from host_here import HostHere, Uneven
from operant import hosts
from operant.envs import WorkerError
from operant.runtime import rollout_workers
from operant.runtime.rollout_workers import RolloutWorkers
from operant.state import StateError


class Walk:
    """Random walk whose drift is the parameters."""

    def __init__(self, number, *, pause=0.0, broken=False):
        self.place, self.pause, self.broken = torch.zeros(2), pause, broken
        self.stream = torch.Generator().manual_seed(number)

    def collect(self, parameters):
        time.sleep(self.pause)
        if self.broken:
            raise ArithmeticError("the world ends here")
        self.place += parameters + torch.randn(2, generator=self.stream)
        return {"place": self.place, "flags": self.place > 0, "process": os.getpid(), "metrics": {"steps": 1.5}}

    def state_dict(self):
        return {"place": self.place, "stream": self.stream.get_state()}

    def load_state_dict(self, state):
        self.place.copy_(state["place"])
        self.stream.set_state(state["stream"])

    def close(self):
        pass


@pytest.fixture
def made():
    """Return a function that makes workers, which are closed after the test."""
    all_of_them = []

    def make(count=3, *, workers=0, host=None, deadline=60.0, **options):
        makers = [partial(Walk, number, **options) for number in range(count)]
        with hosts.within(host):
            all_of_them.append(RolloutWorkers(makers, workers=workers, deadline=deadline))
        return all_of_them[-1]

    yield make
    for workers in all_of_them:
        workers.close()


def play(workers, rounds=3, *, first=0, disturb=lambda _: None):
    """Return the positions of all actors in several rounds, in order."""
    found = []
    for version in range(first, first + rounds):
        workers.publish(version, torch.full((2,), float(version)))
        workers.start(workers.idle)
        disturb(version)
        for number in range(3):
            collected = workers.take(number)
            assert (collected.actor, collected.version) == (number, version)
            assert torch.equal(collected.rollout["flags"], collected.rollout["place"] > 0)
            assert collected.rollout["metrics"] == {"steps": 1.5}
            found.append(collected.rollout["place"])
    return torch.stack(found)


def alone(number, versions):
    walk = Walk(number)
    return [walk.collect(torch.full((2,), float(version)))["place"].clone() for version in range(versions)]


def test_actors_here_and_on_a_host_collect_what_each_collects_alone(made):
    expected = torch.stack(
        [each for row in zip(*(alone(number, 3) for number in range(3)), strict=True) for each in row]
    )
    assert torch.equal(play(made()), expected)
    for count in (1, 2, 3):
        host = HostHere()
        assert torch.equal(play(made(workers=count, host=host)), expected)
        assert len(host.actors) == count


def test_processes_collect_the_same_though_one_is_killed_and_leave_nothing(made):
    expected, workers = play(made()), made(workers=2)
    victims = []

    def disturb(version):
        if version == 1:
            victims.extend(worker.process.pid for worker in workers._workers)
            os.kill(victims[0], signal.SIGKILL)

    assert torch.equal(play(workers, disturb=disturb), expected)
    assert workers.lost == 1
    processes = [worker.process for worker in workers._workers]
    assert victims[0] not in [process.pid for process in processes]
    assert processes[1].pid == victims[1]
    workers.close()
    workers.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_lost_worker_is_replaced_and_repeats_what_it_did_not_finish(made, caplog, count):
    host = HostHere()
    workers = made(workers=count, host=host)

    def disturb(version):
        if version:
            host.actors[-1].kill()

    assert torch.equal(play(workers, disturb=disturb), play(made()))
    assert workers.lost >= 1
    assert len(host.actors) == count + workers.lost
    assert "is lost (the actor is lost). A new one repeats its unfinished rollouts" in caplog.text


def test_a_worker_that_is_lost_again_and_again_ends_the_run(made):
    class Cursed(HostHere):
        def actor(self, *arguments, **options):
            actor = super().actor(*arguments, **options)
            actor.kill()
            return actor

    workers = made(workers=2, host=Cursed())
    with pytest.raises(WorkerError, match=r"worker 0 with actors 0, 2 is lost .*, 4 times in a row"):
        play(workers)
    assert workers.lost == 4


def test_a_worker_that_hangs_is_replaced_after_the_deadline(made, monkeypatch):
    monkeypatch.setattr(rollout_workers, "STARTING", 0.1)
    workers = made(workers=3, host=HostHere(), pause=0.4, deadline=0.1)
    with pytest.raises(WorkerError, match=r"no reply for 0\.\d+ seconds.*raise `deadline`"):
        play(workers)


def test_slow_workers_have_the_deadline_for_each_of_their_actors(made, monkeypatch):
    monkeypatch.setattr(rollout_workers, "STARTING", 0.0)
    workers = made(workers=1, host=HostHere(), pause=0.5, deadline=1.25)
    play(workers, rounds=2)
    assert workers.lost == 0


def test_the_first_that_is_finished_is_taken_with_the_version_of_its_parameters(made):
    workers = made(workers=3, host=HostHere())
    taken = []
    for version in range(9):
        workers.publish(version, torch.full((2,), float(version)))
        workers.start(workers.idle)
        assert workers.idle == []
        while not all(reply.done() for reply in workers._pending.values()):
            time.sleep(0.001)
        collected = workers.take()
        assert workers.idle == [collected.actor]
        taken.append((collected.actor, version - collected.version))
    assert taken == [(0, 0), (1, 1), (2, 2), *[(number, 2) for number in (0, 1, 2) * 2]]


def test_a_slow_actor_does_not_hold_the_others_up(made):
    host = Uneven()
    workers = made(workers=3, host=host)
    workers.publish(0, torch.zeros(2))
    for _ in range(6):
        workers.start(workers.idle)
        assert workers.take().actor != 0
    host.release.set()
    while workers.take().actor != 0:
        workers.start(workers.idle)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_states_continue_in_any_number_of_workers(made, count):
    whole, first = made(workers=2, host=HostHere()), made()
    expected = play(whole, rounds=4)
    play(first, rounds=2)
    saved = first.state_dict()
    play(first, rounds=1)  # must not change the saved state
    second = made(workers=count, host=HostHere())
    play(second, rounds=1)
    second.load_state_dict(saved)
    assert torch.equal(play(second, rounds=2, first=2), expected[6:])


def test_before_the_first_rollout_there_is_no_state(made):
    fresh = made()
    saved = fresh.state_dict()
    assert saved == {"actors": [None, None, None]}
    played = made()
    play(played)
    played.load_state_dict(saved)
    assert torch.equal(play(played), play(fresh))


def test_a_state_of_other_actors_is_rejected(made):
    workers = made()
    with pytest.raises(StateError, match="has 2 parts but 3 are needed"):
        workers.load_state_dict({"actors": [None, None]})
    with pytest.raises(KeyError, match="actors"):
        workers.load_state_dict({})


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_an_environment_is_not_a_loss(made, workers):
    broken = made(workers=workers, host=HostHere(), broken=True)
    with pytest.raises(ArithmeticError, match="the world ends here"):
        play(broken)
    assert broken.lost == 0


def test_parameters_that_change_while_they_travel_do_not_matter(made):
    host = HostHere()
    workers, parameters = made(workers=3, host=host), torch.ones(2)
    workers.publish(0, parameters)
    parameters += 5.0
    workers.start(workers.idle)
    found = workers.take(0).rollout["place"]
    assert torch.equal(found, Walk(0).collect(torch.ones(2))["place"])


def test_arrays_that_a_host_lends_are_copied():
    array = np.arange(3.0)
    array.flags.writeable = False
    (tensor,) = rollout_workers._unpacked(({"x": {"$tensor": "/x"}}, {"/x": array})).values()
    tensor += 1.0
    assert array.tolist() == [0.0, 1.0, 2.0]
