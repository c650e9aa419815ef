import signal
import threading

import pytest

from operant.runtime.signals import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_sets_the_flag_and_no_more(number):
    with Interruption() as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted()


def test_a_second_keyboard_interrupt_is_obeyed_at_once():
    with Interruption() as interrupted:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_come_back():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before[0]
    with pytest.raises(KeyError), Interruption():
        {}["missing"]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_blocks_nest():
    with Interruption() as outer:
        with Interruption() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert inner()
        assert not outer()
        signal.raise_signal(signal.SIGTERM)
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
