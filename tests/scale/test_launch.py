import signal
import sys

import pytest

from operant.scale import LostError, launch


@pytest.fixture(autouse=True)
def ends(monkeypatch, tmp_path):
    """A module that ends as it is told: by an exit status, or by a signal."""
    code = (
        "import os, sys\nstatus = int(sys.argv[1])\nos.kill(os.getpid(), -status) if status < 0 else sys.exit(status)"
    )
    (tmp_path / "ends.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize("status", [0, 2, 75])
def test_the_status_is_that_of_the_processes_and_no_folder_is_left(status, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert launch([str(status)], 1, module="ends") == status
    assert not list((tmp_path / "temporary").iterdir())


def test_an_error_of_the_first_process_ends_the_others(monkeypatch, tmp_path):
    code = "import os, sys, time\nsys.exit(2) if os.environ['RANK'] == '0' else time.sleep(60)"
    (tmp_path / "leads.py").write_text(code)
    assert launch([], 2, module="leads") == 2


def test_an_error_that_a_later_process_has_reported_is_not_followed_by_advice_to_resume(tmp_path):
    code = "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)"
    (tmp_path / "fails.py").write_text(code)
    assert launch([], 2, module="fails") == 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_the_handlers_of_signals_are_restored():
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1
    former = [signal.getsignal(number) for number in numbers]
    assert launch(["0"], 1, module="ends") == 0
    assert [signal.getsignal(number) for number in numbers] == former


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_a_process_that_dies_is_an_error_that_says_how_to_go_on():
    with pytest.raises(LostError, match=r"of 1 processes these have died, with their status: \{0: -9\}; `operant resu"):
        launch(["-9"], 1, module="ends")
