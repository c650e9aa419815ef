import io
import math
import time

import pytest
from rich.console import Console

from operant.runtime.progress import Line, Progress, clock, si


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def shown(mode, *, terminal=False, reports=(), stream=None, now=lambda: 0.0):
    stream = io.StringIO() if stream is None else stream
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with Progress(mode, title="ppo [x]", budget=200, console=console, now=now) as progress:
        for n, report in enumerate(reports):
            progress.show(report, last=n == len(reports) - 1)
    return stream.getvalue()


FULL = Line(100, rate=1234567.0, seconds_left=75.0, episode_return=(312.4, 20.0), evaluation=345.0)


def test_a_report_in_words():
    assert FULL.text() == "1.23 M/s  return 312.4 ± 20  eval 345  1:15 left"
    assert Line(0).text() == ""
    assert Line(0, evaluation=3.0, evaluating=0.0).text() == "eval 3  evaluating"
    assert Line(0, evaluating=75.2).text() == "evaluating for 1:15"
    assert Line(0, evaluation=0.46, start=0.675).text() == "eval 0.46 (start 0.675)"
    assert Line(0, start=0.675).text() == ""
    assert Line(0, episode_return=(5.0, 0.0)).text() == "return 5"


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_without_a_terminal_there_are_plain_lines(mode):
    assert shown(mode, reports=[FULL, FULL]) == f"ppo [x]  50 %  {FULL.text()}\n" * 2


@pytest.mark.parametrize("terminal", [False, True])
def test_steps_beyond_the_budget_are_explained(terminal):
    text = shown("auto", terminal=terminal, reports=[Line(410)])
    assert "205 %" not in text
    assert "100 %" in text
    assert "(410 of 200: the last iteration is always finished)" in text
    assert "always finished" not in shown("auto", terminal=terminal, reports=[Line(204)])


def test_plain_lines_keep_their_distance():
    clock = iter(range(100))
    text = shown("plain", reports=[Line(n) for n in range(0, 80, 2)], now=lambda: float(next(clock)))
    assert 5 <= len(text.splitlines()) <= 8


@pytest.mark.parametrize("mode", ["plain", "silent"])
def test_a_long_evaluation_is_shown_again_and_again(mode):
    stream = io.StringIO()
    console = Console(file=stream, width=120)
    with Progress(mode, title="ppo", budget=200, every=0.02, console=console) as progress:
        begin = time.monotonic()
        with progress.evaluating(Line(100)):
            while stream.getvalue().count("evaluating") < 3 and time.monotonic() - begin < (
                5 if mode == "plain" else 0.1
            ):
                time.sleep(0.01)
        count = stream.getvalue().count("ppo  50 %  evaluating")
        time.sleep(0.1)
        assert stream.getvalue().count("evaluating") == count, "not after its end"
    assert count >= 3 if mode == "plain" else count == 0


def test_a_terminal_shows_one_live_line():
    text = shown("auto", terminal=True, reports=[FULL])
    assert "ppo [x]" in text
    assert "50 %" in text
    assert "1:15 left" in text


def test_silence():
    assert shown("silent", terminal=True, reports=[FULL]) == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_broken_pipe_ends_the_showing_alone(terminal):
    from operant.runtime.progress import _Console

    console = _Console(file=Broken(), force_terminal=terminal)
    with Progress("auto", title="x", budget=1, console=console) as progress:
        for _ in range(3):
            progress.show(Line(0), last=True)


def test_an_unknown_mode():
    with pytest.raises(ValueError, match="auto, plain or silent, got 'loud'"):
        Progress("loud", title="x", budget=1)  # type: ignore[arg-type]


def test_numbers():
    assert [si(x) for x in (0.5, 999, 999.7, 1000, 2.5e6, 3e9)] == ["0.5", "999", "1 k", "1 k", "2.5 M", "3 G"]
    assert si(999_700) == "1 M"
    assert [clock(x) for x in (0, 59.6, 3600, 90061)] == ["0:00", "1:00", "1:00:00", "25:01:01"]
    assert math.isnan(Line(0).rate)
