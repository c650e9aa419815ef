"""Actors in this process and in others on this machine fulfill the contract of `operant.hosts`."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from operant.runtime.local_hosts import InlineHost, ProcessHost


class Service:
    """Actor with methods for the tests."""

    def __init__(self, name="it", *, broken=False):
        if broken:
            raise ValueError(f"{name} cannot be made")
        self.calls = []

    def note(self, word):
        self.calls.append(word)
        return list(self.calls)

    def sleep(self, seconds):
        time.sleep(seconds)
        return os.getpid()

    def fail(self, kind):
        raise kind("as asked")

    def odd(self):
        return lambda: None

    def die(self):
        os._exit(3)


class Broken(Service):
    def __init__(self):
        super().__init__(broken=True)


@pytest.fixture(params=[InlineHost, ProcessHost], ids=["inline", "process"])
def actor(request):
    made = request.param().actor(Service)
    yield made
    made.kill()


@pytest.fixture
def process():
    made = ProcessHost().actor(Service)
    yield made
    made.kill()


def gone(pid):
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def test_calls_are_executed_in_order_and_errors_arrive(actor):
    replies = [actor.call("note", word) for word in "abc"]
    assert replies[2].result(60) == ["a", "b", "c"]
    assert all(reply.done() for reply in replies)
    assert replies[0].result() == ["a"]
    with pytest.raises(KeyError, match="as asked"):
        actor.call("fail", KeyError).result(60)
    with pytest.raises(AttributeError):
        actor.call("unknown").result(60)
    assert actor.call("note", "d").result(60)[-1] == "d", "the actor continues after an error of a method"


def test_a_process_is_another_one_and_is_waited_for_with_a_limit(process):
    slow = process.call("sleep", 0.5)
    assert not slow.done()
    with pytest.raises(TimeoutError):
        slow.result(0.01)
    assert slow.result(60) == process.process.pid != os.getpid()


def test_large_messages_to_a_busy_process_do_not_block(process):
    large = bytes(1 << 20)
    os.kill(process.process.pid, signal.SIGSTOP)
    replies = [process.call("note", large), process.call("note", large)]
    assert not any(reply.done() for reply in replies)
    os.kill(process.process.pid, signal.SIGCONT)
    assert len(replies[1].result(60)) == 2


def test_values_that_cannot_be_sent_raise_an_error_and_the_actor_continues(process):
    with pytest.raises(Exception, match=r"pickle|lambda"):
        process.call("note", lambda: None).result(60)
    with pytest.raises(Exception, match=r"pickle|lambda"):
        process.call("odd").result(60)
    assert process.call("note", "a").result(60) == ["a"]


def test_an_object_that_cannot_be_made_raises_an_error():
    actor = ProcessHost().actor(Broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="it cannot be made"):
            actor.call("note", "a").result(60)
    actor.kill()
    with pytest.raises(ValueError, match="it cannot be made"):
        InlineHost().actor(Broken)


def test_a_killed_process_is_lost_with_all_its_calls(process):
    process.call("note", "a").result(60)
    replies = [process.call("sleep", 600), process.call("note", "b")]
    os.kill(process.process.pid, signal.SIGSTOP)
    process.kill()
    process.kill()
    for reply in replies:
        with pytest.raises(ConnectionError, match=r"ended with exit code -9"):
            reply.result(60)


def test_the_exit_code_is_the_same_in_every_thread(process):
    """Threads that wait for one process in turn read its exit code; in parallel all but one would read 255."""
    process.call("note", "a").result(60)
    with ThreadPoolExecutor(16) as threads:
        codes = [threads.submit(process._exit_code) for _ in range(16)]
        time.sleep(0.1)
        os.kill(process.process.pid, signal.SIGKILL)
        assert {code.result() for code in codes} == {-signal.SIGKILL}


def test_a_process_that_ends_by_itself_is_lost(process):
    with pytest.raises(ConnectionError, match="exit code 3"):
        process.call("die").result(60)
    with pytest.raises(ConnectionError):
        process.call("note", "a").result(60)


def test_signals_are_for_the_parent(process):
    pid = process.call("sleep", 0).result(60)
    os.kill(pid, signal.SIGSTOP)  # it cannot finish before both signals have been sent
    reply = process.call("sleep", 0.5)
    time.sleep(0.2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, number)
    assert reply.result(60) == pid, "it finishes its call"
    end = time.monotonic() + 20
    while not gone(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert gone(pid), "it ends when it is idle"


def test_processes_take_one_call_at_a_time():
    with pytest.raises(ValueError, match=r"threads must be 1 .* got 2"):
        ProcessHost().actor(Counter, threads=2)


SCRIPT = """
import os, signal, sys, time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from operant.runtime.local_hosts import ProcessHost

if __name__ == "__main__":
    actor = ProcessHost().actor(Counter, "hello")
    assert actor.call("most_common", 1).result(100) == [("l", 2)]
    print(actor.process.pid, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["kill", "end"])
def test_processes_end_with_their_parent(how, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    done = subprocess.run([sys.executable, script, how], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    pid, end = int(done.stdout), time.monotonic() + 30
    while not gone(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert gone(pid)
