"""Reward functions in other processes give the same rewards, also if actors are lost, and fail in the same ways."""

import pytest

from host_here import HostHere
from operant import hosts
from operant.language import verifiers
from operant.language.remote_worker import ATTEMPTS
from operant.language.rewards import RewardError, combine
from operant.language.sandbox import Sandbox, SandboxError

OWN = """
import os, time

def shaped(prompts, completions, answer, log_metric, **_):
    log_metric("length", sum(map(len, completions)))
    return [len(text) / 3 + 0.1 if gold else None for text, gold in zip(completions, answer)]

def hang(completions, **_):
    time.sleep(60)

def die(completions, **_):
    os._exit(3)

def fail(completions, **_):
    raise KeyError("no such thing")
"""
GIVEN = {
    "prompts": ["p"] * 7,
    "completions": [f"{n}" * n for n in range(7)],
    "completion_ids": [[1]] * 7,
    "answer": [1, 0, 1, 1, 1, 0, 1],
}
EXPECTED = [n / 3 + 0.1 if n not in (1, 5) else None for n in range(7)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def found(file, name="shaped", **options):
    logged = []
    function = verifiers.find(f"{file}:{name}", **options)
    return function(**GIVEN, log_metric=lambda *pair: logged.append(pair)), logged


@pytest.mark.parametrize("workers", [1, 3])
def test_rewards_are_the_same_wherever_they_are_computed(file, workers):
    here = found(file, workers=workers)
    host = HostHere()
    with hosts.within(host):
        elsewhere = found(file, workers=workers)
    assert elsewhere == here
    assert here[0] == EXPECTED
    logged = 21 if workers == 1 else (2 * 1 + 2 * 5 + 3 * 15) / 7  # the sums of two, two and three answers
    assert here[1] == [("length", pytest.approx(logged))]
    assert 1 <= len(host.actors) <= workers  # a worker that is done takes the next call before a new one is started


def test_a_lost_actor_is_replaced_and_its_call_repeated(file, caplog):
    host = HostHere()
    with hosts.within(host):
        function = verifiers.find(f"{file}:shaped")
    first = host.actors[-1]
    first.kill()
    assert function(**GIVEN, log_metric=lambda *_: None) == EXPECTED
    first.made.result().kill()
    assert len(host.actors) == 2
    assert "A new one repeats the call" in caplog.text


class Cursed(HostHere):
    """Host whose actors are lost immediately."""

    def actor(self, kind, *args, threads=1):
        made = super().actor(kind, *args, threads=threads)
        made.kill()
        return made


def test_an_actor_that_is_lost_again_and_again_ends_training(file):
    host = Cursed()
    with (
        hosts.within(host),
        pytest.raises(ConnectionError, match=r"replaced 3 times and lost each time.*operant resume"),
    ):
        found(file)
    assert len(host.actors) == ATTEMPTS + 1


@pytest.mark.parametrize(("name", "problem"), [("hang", "did not answer within 0.5"), ("die", "died .exit code 3.")])
def test_a_function_that_hangs_or_dies_has_no_reward_as_on_this_machine(file, name, problem):
    host = HostHere()
    with hosts.within(host):
        function = verifiers.find(f"{file}:{name}", timeout=0.5)
    with pytest.warns(RuntimeWarning, match=problem):
        assert function(**GIVEN) == [None] * 7
    assert len(host.actors) == 1


def test_mistakes_are_shown(file):
    with hosts.within(HostHere()):
        with pytest.raises(RewardError, match="KeyError: 'no such thing'"):
            combine([verifiers.find(f"{file}:fail")])(**GIVEN)
        with pytest.raises(SandboxError, match="cannot be loaded"):
            found(file, "missing")


def test_closing_ends_the_process_and_the_actor(file):
    host = HostHere()
    with hosts.within(host):
        sandbox = Sandbox(f"{file}:shaped")
        sandbox.start()
    (actor,) = host.actors
    process = actor.made.result()._process
    sandbox.close()
    assert process.returncode == -9
    assert actor.lost
