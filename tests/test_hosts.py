"""The host of workers is set for a block only."""

from collections import Counter
from contextlib import suppress

import pytest

from host_here import HostHere
from operant import hosts


def test_a_host_holds_for_its_block():
    outer, inner = HostHere(), HostHere()
    assert hosts.current() is None
    with hosts.within(outer):
        with suppress(KeyError), hosts.within(inner) as given:
            assert hosts.current() is inner is given
            raise KeyError
        assert hosts.current() is outer
    assert hosts.current() is None


def test_the_host_of_the_tests_keeps_the_contract():
    actor = HostHere().actor(Counter, "hello")
    assert actor.call("most_common", 1).result(1.0) == [("l", 2)]
    with pytest.raises(AttributeError):
        actor.call("unknown").result(1.0)
    actor.kill()
    reply = actor.call("most_common", 1)
    assert reply.done()
    with pytest.raises(ConnectionError, match="lost"):
        reply.result()
