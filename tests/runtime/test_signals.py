import signal
import threading

import pytest

from operant.runtime.signals import Interruption, handlers_kept, saving_first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_sets_the_flag_and_no_more(number):
    with Interruption() as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted()


def test_a_second_keyboard_interrupt_stops_immediately():
    with Interruption() as interrupted:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_that_a_block_replaces_are_restored_after_it():
    before = signal.getsignal(signal.SIGTERM)
    with handlers_kept("SIGTERM", "SIGINT"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with handlers_kept("SIGTERM"):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_handlers_come_back():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before[0]
    with pytest.raises(KeyError), Interruption():
        {}["missing"]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_signals_that_nohup_ignores_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interrupted:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_stops_nested_blocks_and_a_request_only_one():
    with Interruption() as outer:
        with Interruption() as inner:
            inner.request()
            assert not outer()
        with Interruption() as middle, Interruption() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert [inner(), middle(), outer()] == [True, True, True]
        assert inner.received == outer.received == signal.SIGTERM


def test_a_second_keyboard_interrupt_counts_in_nested_blocks():
    with Interruption() as outer:
        with Interruption():
            signal.raise_signal(signal.SIGINT)
        with Interruption(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert outer()


def test_in_another_thread_nothing_is_installed():
    seen = []

    def work():
        with Interruption() as interrupted:
            seen.append(signal.getsignal(signal.SIGTERM))
            interrupted.request()
            seen.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM), True]


def test_a_signal_takes_its_course_after_the_state_is_saved():
    steps = []

    def train():
        with saving_first() as stopping:
            signal.raise_signal(signal.SIGINT)
            steps.append(stopping())
        steps.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        train()
    assert steps == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_stays_in_place():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with saving_first() as stopping:
            signal.raise_signal(signal.SIGUSR1)
            assert received == [signal.SIGUSR1]
            assert not stopping()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_custom_stop_leaves_signals_unchanged():
    answers = iter([False, True, False])
    with saving_first(lambda: next(answers)) as stopping:
        assert [stopping() for _ in range(4)] == [False, True, True, True]
    with saving_first(lambda: True) as stopping:
        assert stopping()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
