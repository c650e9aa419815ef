import os
import platform

from operant.runtime.sessions import FAILED, FINISHED, UNFINISHED, described, ended, started


def test_a_session_records_its_host_and_its_outcome():
    entry = started(["operant", "train"])
    assert entry["process"] == os.getpid()
    assert entry["versions"]["python"] == platform.python_version()
    assert described([entry]) == (UNFINISHED, "")
    assert described([entry, entry | ended(FINISHED, 10)]) == (FINISHED, "")
    assert described([entry | ended(FAILED, 10, "ValueError: no")]) == (FAILED, "ValueError: no")
    assert described([]) == (UNFINISHED, "")
